"""Folders of checkpoints: which form one has, where `latest` leads, and how a new one comes to its place."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Callable

from . import _dcp, _portable, _universal, _zero
from ._content import Content, ConvertError

READERS: dict[str, Callable[[str, str | None], Content]] = {
    "portable": _portable.read,
    "dcp": _dcp.read,
    "universal": _universal.read,
    "zero": _zero.read,
}


def form_of(path: str) -> str | None:
    """The form of a checkpoint's folder; None: it is none. ConvertError: one that is not read."""
    if not os.path.isdir(path):
        return None
    if _portable.is_here(path):
        return "portable"
    if _dcp.is_here(path):
        return "dcp"
    if _universal.is_here(path):
        return "universal"
    names = os.listdir(path)
    if any(_zero.FILE.fullmatch(n) for n in names):
        return "zero"
    if any(re.fullmatch(r"mp_rank_\d+_model_states\.pt", n) for n in names):
        raise ConvertError(
            f"'{path}' is a checkpoint of DeepSpeed without files of optimizer states: it was saved without ZeRO, or "
            "they are missing. Of one without ZeRO load the weights: zshard.torch.load_state_dict(model, "
            "torch.load('mp_rank_00_model_states.pt', mmap=True)['module'])"
        )
    if any(n.endswith(".distcp") for n in names):
        raise ConvertError(f"'{path}' has files of torch.distributed.checkpoint, and no .metadata: it was not finished")
    return None


def tags_of(folder: str) -> list[str]:
    """Names of the checkpoints in a folder."""
    found = []
    for name in sorted(os.listdir(folder)):
        try:
            if form_of(os.path.join(folder, name)) is not None:
                found.append(name)
        except ConvertError:
            found.append(name)
    return found


def find(folder: str, tag: str | None) -> tuple[str, str | None, str]:
    """(path, tag, form) of the checkpoint that is meant. ConvertError: there is none, or there are several.

    tag None: the folder itself, where it is one; else the one that its file `latest` names, then `latest_universal`;
    else the only one in it.
    """
    if not os.path.isdir(folder):
        raise ConvertError(f"'{folder}' is not a folder")
    if tag is None:
        form = form_of(folder)
        if form is not None:
            return folder, None, form
        for name in ("latest", "latest_universal"):
            file = os.path.join(folder, name)
            if os.path.isfile(file):
                with open(file, encoding="utf-8") as f:
                    tag = f.read().strip()
                break
    if tag is None:
        tags = tags_of(folder)
        if not tags:
            raise ConvertError(f"'{folder}' has no checkpoint of a known form ({', '.join(READERS)})")
        if len(tags) > 1:
            raise ConvertError(
                f"'{folder}' has several checkpoints and no file 'latest': give tag=, one of {', '.join(tags)}"
            )
        tag = tags[0]
    path = os.path.join(folder, tag)
    form = form_of(path)
    if form is None:
        there = tags_of(folder)
        text = f"; there are {', '.join(there)}" if there else ""
        raise ConvertError(f"'{path}' is no checkpoint of a known form ({', '.join(READERS)}){text}")
    return path, tag, form


def open_(folder: str | os.PathLike[str], tag: str | None = None) -> Content:
    """The checkpoint in a folder. Raises ConvertError with all that is wrong with it."""
    path, tag, form = find(os.path.abspath(os.fspath(folder)), tag)
    try:
        return READERS[form](path, tag)
    except (AttributeError, IndexError, KeyError, TypeError) as e:
        raise ConvertError(
            f"'{path}' looks like a checkpoint of the form {form}, and is laid out in a way that is not known "
            f"({type(e).__name__}: {e})"
        ) from e


class Place:
    """A folder that is written beside its place, and renamed when it is whole.

    target: it may be a checkpoint, which is replaced, or an empty folder. ConvertError: it is something else.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        if os.path.exists(target):
            try:
                known = os.path.isdir(target) and (not os.listdir(target) or form_of(target) is not None)
            except ConvertError:
                known = True
            if not known:
                raise ConvertError(f"'{target}' exists, and is no checkpoint: it is not replaced")
        os.makedirs(os.path.dirname(target), exist_ok=True)
        self.folder = f"{target}.tmp-{secrets.token_hex(4)}"
        os.mkdir(self.folder)

    def commit(self) -> None:
        """Renames it to its place."""
        old = None
        if os.path.exists(self.target):
            old = f"{self.target}.old-{secrets.token_hex(4)}"
            os.rename(self.target, old)
        os.rename(self.folder, self.target)
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)

    def discard(self) -> None:
        """Removes what was written, where it is not in its place."""
        shutil.rmtree(self.folder, ignore_errors=True)


def point(folder: str, name: str, tag: str) -> None:
    """Writes the file `latest` or `latest_universal`."""
    beside = os.path.join(folder, f"{name}.tmp-{secrets.token_hex(4)}")
    with open(beside, "w", encoding="utf-8") as f:
        f.write(tag)
    os.replace(beside, os.path.join(folder, name))
