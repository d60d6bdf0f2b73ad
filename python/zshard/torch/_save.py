"""save_pretrained(): a sharded model as safetensors files, streamed, so that no rank ever holds it.

Parameters go to the files one after the other, in the format that Transformers' save_pretrained() writes: names and
tensors of the checkpoint (experts apart, where they were), tied parameters once, files up to max_shard_size with an
index, config and generation config. The folder is written beside its place and renamed when it is whole.

Where the values come from:

    live       the engine, between two steps: all ranks take part, rank 0 writes
    snapshot   the daemon's snapshot of the newest commit, of a job that is durable: a thread of rank 0 reads it, and
               training continues
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import errno
import functools
import json
import os
import re
import secrets
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .. import _c
from .._client import Client
from . import _state, _step
from ._st_file import Entry, Guarded

if TYPE_CHECKING:
    from ._runtime import Runtime

PIECE = 1 << 20  # elements that are read at a time: 4 MiB of staging in the daemon
_WEIGHTS = re.compile(r"(model|pytorch_model)(-\d{5}-of-\d{5})?\.(safetensors|bin)(\.index\.json)?")


# ---- what is written


Reader = Callable[[torch.Tensor, int, int], torch.Tensor]  # (parameter, first, count) -> [count] on the host


def _stream_of(p: torch.Tensor, read: Reader) -> Iterator[torch.Tensor]:
    if _step.runtime_of(p) is None:
        yield p.detach().cpu().contiguous().view(-1)
        return
    for first in range(0, p.numel(), PIECE):
        yield read(p, first, min(PIECE, p.numel() - first))


def _whole(p: torch.Tensor, read: Reader) -> torch.Tensor:
    return torch.cat(list(_stream_of(p, read))).view(p.shape)


def _named(model: nn.Module) -> dict[str, torch.Tensor]:
    """The state dict with the tensors themselves, tied ones once, without what the model says is not saved."""
    with _state._keep_nan():
        every = {n: t for n, t in model.state_dict(keep_vars=True).items() if isinstance(t, torch.Tensor)}
    for key in getattr(model, "_keys_to_ignore_on_save", None) or ():
        every.pop(key, None)
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    kept: dict[str, torch.Tensor] = {}
    seen: dict[int, str] = {}
    for name in sorted(every, key=lambda n: (n in tied, list(every).index(n))):
        if id(every[name]) not in seen:
            seen[id(every[name])] = name
            kept[name] = every[name]
    return {n: t for n, t in every.items() if n in kept}


class _Group:
    """Tensors of the model that become others in the files, converted by Transformers as they were when loaded."""

    def __init__(self, converter: Any, first: str, renamings: list[Any], model: Any) -> None:
        self.converter, self.first, self.renamings, self.model = converter, first, renamings, model
        self.mine = True  # this rank writes
        self.parts: list[tuple[str, str, torch.Tensor]] = []  # pattern, name, tensor
        self.made: dict[str, torch.Tensor] = {}
        self.outputs = self.left = 0

    def run(self, value: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, torch.Tensor]:
        from transformers.core_model_loading import apply_renamings

        converter = copy.deepcopy(self.converter)
        for pattern, name, p in self.parts:
            converter.add_tensor(self.first, name, pattern, value(p))
        made = converter.convert(self.first, model=self.model, config=self.model.config)
        return {apply_renamings(n, self.renamings): t[0] if isinstance(t, list) else t for n, t in made.items()}

    def stream(self, name: str, read: Reader) -> Iterator[torch.Tensor]:
        if self.left == 0:
            self.left = self.outputs
            if self.mine:
                self.made = self.run(lambda p: _whole(p, read))
            else:
                for _, _, p in self.parts:
                    for _ in _stream_of(p, read):
                        pass
        self.left -= 1
        if self.mine:
            yield self.made.pop(name).contiguous().view(-1)


def _entries(model: nn.Module, read: Reader, mine: bool = True) -> list[Entry]:
    """What the files will have. Of sharded parameters nothing is read now; others are as they are now."""
    named = _named(model)
    groups = _groups(model, named)
    made: list[Entry] = []
    grouped: set[str] = set()
    for group in groups:
        grouped |= {name for _, name, _ in group.parts}
    renamings = groups[0].renamings if groups else _renamings(model)
    for name, t in named.items():
        if name not in grouped:
            target = _renamed(name, renamings)
            if _step.runtime_of(t) is None:
                t = t.detach().cpu().clone()
            made.append(Entry(target, tuple(t.shape), t.dtype, functools.partial(_stream_of, t, read)))
    for group in groups:
        group.mine = mine
        outputs = group.run(lambda p: torch.empty(p.shape, dtype=p.dtype, device="meta"))
        group.outputs = len(outputs)
        for name, t in outputs.items():
            made.append(Entry(name, tuple(t.shape), t.dtype, functools.partial(group.stream, name, read)))
    return made


def _reversed(model: nn.Module) -> list[Any]:
    """Transformers' conversions from the model's names to the checkpoint's; [] for other modules."""
    if not hasattr(model, "base_model_prefix") or not hasattr(model, "config"):
        return []
    conversions = getattr(model, "_weight_conversions", None)
    if conversions is None:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import PrefixChange

        conversions = [
            c
            for c in get_model_conversion_mapping(model, add_legacy=False)  # type: ignore[arg-type]
            if not isinstance(c, PrefixChange)
        ]
    return [c.reverse_transform() for c in conversions[::-1]]


def _renamings(model: nn.Module) -> list[Any]:
    reverse = _reversed(model)
    if not reverse:
        return []
    from transformers.core_model_loading import WeightRenaming

    return [r for r in reverse if isinstance(r, WeightRenaming)]


def _renamed(name: str, renamings: list[Any]) -> str:
    if not renamings:
        return name
    from transformers.core_model_loading import apply_renamings

    return str(apply_renamings(name, renamings))


def _groups(model: nn.Module, named: Mapping[str, torch.Tensor]) -> list[_Group]:
    reverse = _reversed(model)
    if not reverse:
        return []
    from transformers.core_model_loading import WeightConverter, apply_converters, dot_natural_key

    renamings = _renamings(model)
    converters = [r for r in reverse if isinstance(r, WeightConverter)]
    by_pattern = {k: c for c in converters for k in c.source_patterns}
    groups: dict[str, _Group] = {}
    for name in sorted(named, key=dot_natural_key):
        first, pattern = apply_converters(name, converters)
        if pattern is not None:
            group = groups.setdefault(first, _Group(by_pattern[pattern], first, renamings, model))
            group.parts.append((pattern, name, named[name]))
    return list(groups.values())


# ---- files


def bytes_of(size: int | str) -> int:
    """Bytes of "5GB", "200MB", "30KB" (powers of ten), or a number. ValueError: none of these."""
    if isinstance(size, int):
        return size
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", size, re.IGNORECASE)
    if match is None:
        raise ValueError(f"'{size}' is not a size such as 5GB or 200MB")
    base = 1024 if match[3] else 1000
    return int(float(match[1]) * base ** " KMGT".index(match[2].upper() or " "))


def _split(entries: list[Entry], limit: int) -> list[list[Entry]]:
    files: list[list[Entry]] = []
    size = 0
    for entry in entries:
        if not files or size + entry.nbytes > limit:
            files.append([])
            size = 0
        files[-1].append(entry)
        size += entry.nbytes
    return files


def _write_files(folder: str | None, entries: list[Entry], limit: int) -> BaseException | None:
    """Streams all entries; folder None: they are read (all ranks take part) and not written. Returns why they could not
    be written."""
    files = _split(entries, limit)
    names = (
        ["model.safetensors"]
        if len(files) == 1
        else [f"model-{i + 1:05d}-of-{len(files):05d}.safetensors" for i in range(len(files))]
    )
    failed: BaseException | None = None
    for name, some in zip(names, files, strict=True):
        path = os.path.join(folder, name) if folder is not None and failed is None else None
        failed = Guarded(path, some).write(some) or failed
    if folder is not None and len(files) > 1 and failed is None:
        where = {e.name: name for name, some in zip(names, files, strict=True) for e in some}
        index = {"metadata": {"total_size": sum(e.nbytes for e in entries)}, "weight_map": dict(sorted(where.items()))}
        with open(os.path.join(folder, "model.safetensors.index.json"), "w", encoding="utf-8") as f:
            f.write(json.dumps(index, indent=2, sort_keys=True) + "\n")
    return failed


def _write_config(model: Any, folder: str) -> None:
    """config.json and generation_config.json, of models that have them."""
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "save_pretrained"):
        return
    config = copy.deepcopy(config)
    config.dtype = str(next(p.dtype for p in model.parameters() if p.is_floating_point())).split(".")[1]
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    if getattr(model, "generation_config", None) is not None and model.can_generate():
        model.generation_config.save_pretrained(folder)


def _link(source: str, there: str) -> None:
    """A second name for a file, so that who writes to it goes on; a copy where file systems have no second names."""
    try:
        os.link(source, there, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, there, follow_symlinks=False)


def _put_in_place(made: str, target: str) -> None:
    """Renames a whole folder to its place. What others keep there (a tokenizer, checkpoints, logs) stays."""
    if not os.path.exists(target):
        os.rename(made, target)
        return
    for name in os.listdir(target):
        if not os.path.exists(os.path.join(made, name)) and not _WEIGHTS.fullmatch(name):
            source, there = os.path.join(target, name), os.path.join(made, name)
            if os.path.isdir(source) and not os.path.islink(source):
                shutil.copytree(source, there, symlinks=True, copy_function=_link)
            else:
                _link(source, there)
    old = f"{target}.old-{secrets.token_hex(4)}"
    os.rename(target, old)
    os.rename(made, target)
    shutil.rmtree(old, ignore_errors=True)


# ---- the two readers


def _live() -> Reader:
    """From the engine, on rank 0; collective."""

    def read(p: torch.Tensor, first: int, count: int) -> torch.Tensor:
        runtime = _state._runtime_of(p)
        unit, piece = _state._found(runtime, p)
        return _state._read(runtime, unit.index, "param", piece.first + first, count, root=0).to(unit.dtype)

    return read


class _Snapshot:
    """The parameters of a job as its newest commit has them, read by a connection of its own."""

    def __init__(self, runtime: Runtime, socket: str | None, job: str) -> None:
        self.plan = runtime.plan
        self.client = Client(socket, program="save_pretrained")
        self.job, self.name = job, f"save-{secrets.token_hex(6)}"
        self.taken = False
        self.reader = _c.zc_reader()

    def take(self) -> None:
        row, what = _c.zc_snapshot_row(), _c.zc_snapshot(job=self.job.encode(), name=self.name.encode())
        self.client.check(self.client.lib.zc_snapshot_wait(self.client.handle, ctypes.byref(what), ctypes.byref(row)))
        self.taken = True

    def open(self) -> None:
        """Opens the reader, with less staging where the daemon has little memory free."""
        if self.reader.id:
            return
        for staging in (PIECE * 4, PIECE, PIECE // 4):
            rc = self.client.lib.zc_reader_open_wait(
                self.client.handle, self.job.encode(), self.name.encode(), staging, ctypes.byref(self.reader)
            )
            if rc != -errno.ENOSPC:
                break
        self.client.check(rc)

    def read(self, p: torch.Tensor, first: int, count: int) -> torch.Tensor:
        found = self.plan.find(p)
        assert found is not None
        unit, piece = found
        made = torch.empty(count, dtype=unit.dtype)
        most = int(self.reader.staging_bytes) // 4
        for at in range(0, count, most):
            n = min(most, count - at)
            self.client.check(
                self.client.lib.zc_reader_read_wait(
                    self.client.handle,
                    self.reader.id,
                    unit.index,
                    _c.PARAM,
                    piece.first + first + at,
                    n,
                    self.reader.staging,
                )
            )
            raw = ctypes.string_at(self.reader.staging, n * unit.dtype.itemsize)
            made[at : at + n] = torch.frombuffer(bytearray(raw), dtype=unit.dtype)
        return made

    def close(self) -> None:
        with contextlib.suppress(Exception):
            if self.reader.id:
                self.client.lib.zc_reader_close_wait(self.client.handle, self.reader.id)
            if self.taken:
                self.client.lib.zc_snapshot_destroy_wait(self.client.handle, self.job.encode(), self.name.encode())
        self.client.close()


# ---- saving


@dataclass
class Saving:
    """A save that is under way.

    Attributes:
        path: the folder that will be there.
        step: the step whose values are saved.
        background: whether it is written while training continues.
    """

    path: str
    step: int
    background: bool
    _thread: threading.Thread | None = field(default=None, repr=False)
    _error: list[BaseException] = field(default_factory=list, repr=False)

    @property
    def done(self) -> bool:
        """Whether the folder is there, or the save failed."""
        return self._thread is None or not self._thread.is_alive()

    def wait(self, timeout: float | None = None) -> None:
        """Waits for the end. Raises what the save failed with; TimeoutError after `timeout` seconds."""
        if self._thread is not None:
            self._thread.join(timeout)
            if self._thread.is_alive():
                raise TimeoutError(f"'{self.path}' was not saved within {timeout} s")
        if self._error:
            raise self._error[0]


def save_pretrained(
    model: Any, directory: str | os.PathLike[str], *, max_shard_size: int | str = "5GB", background: bool = True
) -> Saving:
    """Saves a sharded model's parameters as Transformers does; from_pretrained() of both opens the folder. Collective.

    Args:
        model: the sharded model; a module that is not of Transformers is saved without a configuration.
        directory: the folder. It appears when it is complete. An existing one stays as it is until then, and files
            in it that are not weights or configuration are kept.
        max_shard_size: maximum bytes of a file, such as "5GB".
        background: for a durable job: the newest step is committed, a snapshot of it is taken, and a thread of rank 0
            writes it while training continues. Other jobs, and models on several nodes, are written before the call
            returns, with a line on stderr that says so.

    Returns:
        A Saving; `wait()` waits for it, and raises if it failed. The process waits for it before it ends.

    Raises:
        ValueError: the model is not sharded. OSError, ZshardError: a file cannot be written (RuntimeError on ranks
            other than 0), or a value cannot be read; an existing folder stays.
    """
    runtime = next((r for p in model.parameters() if (r := _step.runtime_of(p)) is not None), None)
    if runtime is None:
        raise ValueError("save_pretrained() of a model that is not sharded")
    target = os.path.abspath(os.fspath(directory))
    limit = bytes_of(max_shard_size)
    snapshot = _snapshot_of(runtime) if background else None
    saving = Saving(target, runtime.steps, snapshot is not None)
    mine = runtime.engine.rank == 0
    if snapshot is None and background and mine:
        print(
            "zshard: save_pretrained: the job is not durable, so the model is written before training continues "
            "(background=False says the same without this line)",
            file=sys.stderr,
        )
    if snapshot is not None and not mine:
        snapshot.close()
        return saving
    entries = _entries(model, _live() if snapshot is None else snapshot.read, mine)
    if snapshot is None:
        failed = _finish(model if mine else None, target, entries, limit)
        told = runtime.engine.sum([float(failed is not None)])[0] if runtime.world > 1 else 0.0
        if failed is not None:
            raise failed
        if told:
            raise RuntimeError(f"'{target}' could not be saved: rank 0 failed, and says why")
        return saving
    folder = _begin(model, target)
    saving._thread = threading.Thread(
        target=_in_background, name="zshard-save", daemon=False, args=(folder, target, entries, limit, snapshot, saving)
    )
    saving._thread.start()
    return saving


def _begin(model: Any, target: str) -> str:
    """A new folder beside the target, with the configuration as it is now."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    folder = f"{target}.tmp-{secrets.token_hex(4)}"
    os.mkdir(folder)
    try:
        _write_config(model, folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def _finish(
    model: Any, target: str, entries: list[Entry], limit: int, folder: str | None = None
) -> BaseException | None:
    """Writes the folder, and puts it in place. Returns why that did not work; entries were read to the end then, too.

    model: its configuration is written; None: of another rank, which only reads. folder: what _begin() made already.
    """
    failed: BaseException | None = None
    done = False
    try:
        try:
            if model is not None and folder is None:
                folder = _begin(model, target)
        except OSError as e:
            failed = e
        failed = _write_files(folder, entries, limit) or failed
        if folder is not None and failed is None:
            _put_in_place(folder, target)
        done = failed is None
    except OSError as e:
        failed = e
    finally:
        if folder is not None and not done:
            shutil.rmtree(folder, ignore_errors=True)
    return failed


def _in_background(
    folder: str, target: str, entries: list[Entry], limit: int, snapshot: _Snapshot, saving: Saving
) -> None:
    try:
        snapshot.open()
        failed = _finish(None, target, entries, limit, folder)
        if failed is not None:
            raise failed
    except BaseException as e:
        shutil.rmtree(folder, ignore_errors=True)
        saving._error.append(e)
        print(f"zshard: save_pretrained('{target}') failed: {e}", file=sys.stderr)
    finally:
        snapshot.close()


def _snapshot_of(runtime: Runtime) -> _Snapshot | None:
    """A snapshot of the newest step, taken by rank 0; None on all ranks where the job is not durable."""
    options = runtime.engine.options
    job, socket = options.get("job"), options.get("socket")
    if not options.get("durable") or job is None or (socket is not None and "," in socket):
        return None
    runtime.call(runtime.engine.commit)
    snapshot = _Snapshot(runtime, socket, str(job))
    ok = 1.0
    if runtime.engine.rank == 0:
        try:
            snapshot.take()
            snapshot.open()
        except Exception as e:
            print(f"zshard: save_pretrained: no snapshot: {e}", file=sys.stderr)
            ok = 0.0
    ok = runtime.engine.sum([ok])[0] if runtime.world > 1 else ok
    if ok < runtime.world:
        snapshot.close()
        return None
    return snapshot
