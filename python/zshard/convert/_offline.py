"""Between files: no model, no ranks, no daemon."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch

from ..torch._save import Entry, _write_files, bytes_of
from . import _dcp_write, _portable, _universal, _zero_write
from ._content import FORMS, FP32, Content, ConvertError, Tensor, Writing, ranges
from ._folder import Place, open_, point
from ._live import drive

SAFETENSORS = "safetensors16"


def writing(content: Content, form: str, folder: str | None, how: dict[str, Any]) -> Writing:
    """The writer of a form. `how`: its options, of options_of()."""
    if form == "portable":
        return _portable.write(content, folder)
    if form == "universal":
        return _universal.write(content, folder, **how)
    if form == "dcp":
        return _dcp_write.write(content, folder, **how)
    return _zero_write.write(content, folder, _zero_write.Zero(**how))


def options_of(form: str, given: dict[str, Any]) -> dict[str, Any]:
    """The options that a form has. TypeError: another one was given; ValueError: no such form."""
    if form not in FORMS:
        raise ValueError(f"form={form!r}: one of {', '.join(FORMS)}")
    known = {"zero": ("stage", "ranks", "sub_group"), "dcp": ("model_key", "optim_key"), "universal": ("step_as",)}.get(
        form, ()
    )
    for name in given:
        if name not in known:
            raise TypeError(f"form '{form}' has no option {name}=; it has {', '.join(known) or 'none'}")
    return dict(given)


def target_of(folder: str | os.PathLike[str], form: str, tag: str | None, step: int) -> tuple[str, str | None]:
    """(path, tag) of what is written: DeepSpeed's forms are always below a folder with `latest`."""
    root = os.path.abspath(os.fspath(folder))
    if tag is None and form in ("universal", "zero"):
        tag = f"global_step{step}"
    if tag is not None and (os.path.basename(tag) != tag or tag in ("", ".", "..")):
        raise ValueError(f"tag={tag!r} is not the name of a folder")
    return (os.path.join(root, tag) if tag is not None else root), tag


def finish(place: Place, form: str, tag: str | None) -> None:
    """The folder comes to its place; then `latest` names it."""
    place.commit()
    if tag is not None:
        point(os.path.dirname(place.target), "latest_universal" if form == "universal" else "latest", tag)


def convert(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    to: str = "portable",
    *,
    tag: str | None = None,
    out_tag: str | None = None,
    dtype: torch.dtype | None = None,
    max_shard_size: int | str = "5GB",
    **options: Any,
) -> str:
    """Converts a checkpoint between files, without a model or a daemon.

    Args:
        source: a folder with a checkpoint of any form; `tag` as load() has it.
        out: the folder of the result. It appears when it is complete.
        to: "portable", "universal", "dcp", "zero", or "safetensors16": the weights alone, as save_pretrained() writes
            them, without a configuration.
        out_tag: as save()'s `tag`.
        dtype: for "safetensors16"; None: the parameters' own dtype, of fp32 ones bfloat16.
        max_shard_size: for "safetensors16": maximum bytes of a file.
        **options: as save() has them.

    Returns:
        The path of the folder.

    Raises:
        ConvertError: the source cannot be read, or the form cannot hold it. Nothing is left in `out`.
    """
    found = open_(source, tag)
    if to == SAFETENSORS:
        if options or out_tag is not None:
            raise TypeError(f"'{SAFETENSORS}' has no options but dtype and max_shard_size")
        return _safetensors(found, os.path.abspath(os.fspath(out)), dtype, bytes_of(max_shard_size))
    options = options_of(to, options)
    path, out_tag = target_of(out, to, out_tag, found.step)
    place = Place(path)
    try:
        drive(None, writing(found, to, None, options), writing(found, to, place.folder, options))
        finish(place, to, out_tag)
    finally:
        place.discard()
    return path


def _safetensors(found: Content, path: str, dtype: torch.dtype | None, limit: int) -> str:
    def kind(t: Tensor) -> torch.dtype:
        if not t.dtype.is_floating_point or t.kind == "buffer":
            return t.dtype
        return dtype or (torch.bfloat16 if t.dtype == torch.float32 else t.dtype)

    def stream(t: Tensor) -> Iterator[torch.Tensor]:
        if t.kind == "buffer":
            yield t.planes[FP32].tensor().reshape(-1)
            return
        for first, n in ranges(t.planes[FP32]):
            out = torch.empty(n, dtype=torch.float32)
            t.planes[FP32].read(first, out)
            yield out.to(kind(t))

    if not found.tensors:
        raise ConvertError(f"'{found.path}' has no tensors")
    entries = [Entry(t.name, t.shape, kind(t), (lambda t=t: stream(t))) for t in found.tensors.values()]  # type: ignore[misc]
    place = Place(path)
    try:
        _write_files(place.folder, entries, limit)
        place.commit()
    finally:
        place.discard()
    return path


def describe(found: Content) -> str:
    """What a checkpoint holds, for people."""
    trained, frozen, buffers = (found.of_kind(k) for k in ("trained", "frozen", "buffer"))
    elements = sum(t.numel for t in trained)
    steps = sorted({t.step for t in trained})
    lines = [
        f"path       {found.path}",
        f"form       {found.form}" + "".join(f", {k} {v}" for k, v in found.about.items() if v is not None),
        f"step       {found.step}, applied {', '.join(map(str, steps[:5])) or '0'}",
        f"trained    {len(trained)} tensors, {elements} elements; state: {', '.join(found.moments()) or 'none'}",
        f"frozen     {len(frozen)} tensors, {sum(t.numel for t in frozen)} elements",
        f"buffers    {len(buffers)}",
        f"tied       {', '.join(f'{a} = {n}' for a, n in found.aliases.items()) or 'none'}",
    ]
    for i, group in enumerate(found.groups):
        words = ", ".join(f"{k} {v}" for k, v in group.items() if k != "params" and not isinstance(v, bool))
        lines.append(f"group {i}    {len(group['params'])} tensors: {words}")
    lines.append(f"client     {', '.join(map(str, found.client_state)) or 'none'}")
    lines.append(f"scheduler  {'yes' if found.lr_scheduler is not None else 'no'}")
    return "\n".join(lines)
