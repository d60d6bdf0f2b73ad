"""Writes folders of torch.distributed.checkpoint (their layout: _dcp.py)."""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Sequence
from typing import Any

import torch

from ._content import FP32, Content, ConvertError, Tensor, Writing, settings
from ._dcp import METADATA

CHUNK = 1 << 23  # elements of a chunk that is written: 32 MiB of fp32


def write(content: Content, folder: str | None, model_key: str = "model", optim_key: str = "optim") -> Writing:
    """Writes a folder of DCP's; folder None: only says what is read, in the same order. The keys are the roots."""
    out = _Out(folder) if folder is not None else None
    for t in content.tensors.values():
        key = (*model_key.split("."), t.name)
        if t.kind == "buffer":
            if out is not None:
                out.whole(key, t.planes[FP32].tensor())
            continue
        yield from _write_plane(key, t, FP32, out)
        for plane in t.planes:
            if plane != FP32:
                yield from _write_plane((*optim_key.split("."), "state", t.name, plane), t, plane, out)
        if out is not None and t.kind == "trained" and len(t.planes) > 1:
            out.whole((*optim_key.split("."), "state", t.name, "step"), torch.tensor(float(t.step)))
    if out is None:
        return
    for alias, name in content.aliases.items():
        out.alias((*model_key.split("."), alias), (*model_key.split("."), name))
    defaults = _defaults(content.optimizer)
    for i, (own, mine) in enumerate(content.grouped() if content.groups else []):
        for field, value in {**defaults, **own, "params": [t.name for t in mine]}.items():
            out.bytes((*optim_key.split("."), "param_groups", i, field), value)
    for name, value in content.client_state.items():
        out.any((name,), value)
    if content.lr_scheduler is not None:
        out.any(("lr_scheduler",), content.lr_scheduler)
    out.finish()


def _defaults(kind: str) -> dict[str, Any]:
    """What torch's optimizer of that kind has in its groups: it asks for all of it."""
    kinds: dict[str, Any] = {
        "adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad
    }  # fmt: skip
    return settings(kinds[kind]([torch.zeros(1)], lr=1.0).defaults) if kind in kinds else {}


def _write_plane(key: tuple[Any, ...], t: Tensor, plane: str, out: _Out | None) -> Writing:
    """A tensor in chunks of whole rows, of about CHUNK elements each."""
    source = t.planes[plane]
    dtype = t.dtype if t.kind == "frozen" else torch.float32
    row = math.prod(t.shape[1:])
    rows = max(1, CHUNK // max(row, 1)) if t.shape else 1
    total = t.shape[0] if t.shape else 1
    for begin in range(0, total, rows):
        n = min(rows, total - begin)
        at = begin * row if t.shape else 0
        count = n * row if t.shape else source.numel
        flat = torch.empty(count if out is not None else 0, dtype=dtype)
        for first, m in ranges_of(at, count):
            values = yield source, first, m
            if out is not None and values is not None:
                flat[first - at : first - at + m] = values
        if out is not None:
            sizes = (n, *t.shape[1:]) if t.shape else ()
            out.chunk(key, t.shape, dtype, (begin, *[0] * (len(t.shape) - 1)) if t.shape else (), flat.view(sizes))


def ranges_of(begin: int, count: int) -> list[tuple[int, int]]:
    """(first, count) of each piece of some elements."""
    from ._content import PIECE

    return [(first, min(PIECE, begin + count - first)) for first in range(begin, begin + count, PIECE)]


class _Out:
    """The one file of chunks, and the metadata."""

    def __init__(self, folder: str) -> None:
        from torch.distributed.checkpoint import metadata

        self.kinds = metadata
        self.folder, self.name = folder, "__0_0.distcp"
        self.file = open(os.path.join(folder, self.name), "wb")  # noqa: SIM115
        self.entries: dict[str, Any] = {}
        self.paths: dict[str, tuple[Any, ...]] = {}
        self.where: dict[Any, Any] = {}

    def _save(self, value: Any) -> Any:
        from torch.distributed.checkpoint.filesystem import _StorageInfo

        at = self.file.tell()
        torch.save(value, self.file)
        return _StorageInfo(self.name, at, self.file.tell() - at)

    def _key(self, path: tuple[Any, ...]) -> str:
        key = ".".join(map(str, path))
        if key in self.paths:
            raise ConvertError(f"two values of the checkpoint are named '{key}': change the roots or the client state")
        self.paths[key] = path
        return key

    def chunk(
        self,
        path: tuple[Any, ...],
        shape: Sequence[int],
        dtype: torch.dtype,
        offsets: Sequence[int],
        value: torch.Tensor,
    ) -> None:
        kinds, key = self.kinds, ".".join(map(str, path))
        if key not in self.entries:
            self._key(path)
            properties = kinds.TensorProperties(dtype=dtype)
            self.entries[key] = kinds.TensorStorageMetadata(properties, torch.Size(shape), [])
        chunk = kinds.ChunkStorageMetadata(torch.Size(offsets), value.shape)
        self.where[kinds.MetadataIndex(key, chunk.offsets, len(self.entries[key].chunks))] = self._save(value)
        self.entries[key].chunks.append(chunk)

    def whole(self, path: tuple[Any, ...], value: torch.Tensor) -> None:
        self.chunk(path, value.shape, value.dtype, [0] * value.dim(), value.clone())

    def bytes(self, path: tuple[Any, ...], value: Any) -> None:
        key = self._key(path)
        self.entries[key] = self.kinds.BytesStorageMetadata()
        self.where[self.kinds.MetadataIndex(key)] = self._save(value)

    def any(self, path: tuple[Any, ...], value: Any) -> None:
        """A value of the client's; dicts entry by entry, as DCP flattens them."""
        if isinstance(value, dict) and value:
            for key, inner in value.items():
                self.any((*path, str(key)), inner)
        elif isinstance(value, torch.Tensor):
            self.whole(path, value.detach().cpu())
        else:
            self.bytes(path, value)

    def alias(self, path: tuple[Any, ...], of: tuple[Any, ...]) -> None:
        """A second name of the same bytes."""
        key, other = self._key(path), ".".join(map(str, of))
        self.entries[key] = self.entries[other]
        for index in [i for i in self.where if i.fqn == other]:
            self.where[self.kinds.MetadataIndex(key, index.offset, index.index)] = self.where[index]

    def finish(self) -> None:
        self.file.close()
        made = self.kinds.Metadata(self.entries, self.paths, self.where, self.kinds.StorageMeta(), version="1.0.0")
        with open(os.path.join(self.folder, METADATA), "wb") as f:
            pickle.dump(made, f)
