"""Safetensors files that are written in order, tensor by tensor, piece by piece."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from .. import _c, _lib
from ..errors import ZshardError, error

_ST = {
    torch.float32: 268,
    torch.float16: 264,
    torch.bfloat16: 265,
    torch.float64: 269,
    torch.int64: 270,
    torch.int32: 266,
    torch.int16: 262,
    torch.int8: 258,
    torch.uint8: 257,
    torch.bool: 256,
}  # enum zc_st_dtype


@dataclass
class Entry:
    """One tensor of the files: [numel] of `dtype`, made by `stream`, which gives it in pieces."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    stream: Callable[[], Iterator[torch.Tensor]]

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        n = self.dtype.itemsize
        for s in self.shape:
            n *= s
        return n


class StFile:
    """A safetensors file that is written in order."""

    def __init__(self, path: str, entries: list[Entry]) -> None:
        self.lib = _lib.load()
        self.path, self.handle = path, ctypes.c_void_p()
        tensors = (_c.zc_st_tensor * len(entries))()
        keep = []
        for c, e in zip(tensors, entries, strict=True):
            dims = (ctypes.c_uint64 * max(len(e.shape), 1))(*e.shape)
            keep.append(dims)
            c.name, c.dtype, c.ndims = e.name.encode(), _ST[e.dtype], len(e.shape)
            c.dims = ctypes.cast(dims, ctypes.POINTER(ctypes.c_uint64))
        pair = _c.zc_st_pair(key=b"format", value=b"pt")
        text = ctypes.create_string_buffer(512)
        rc = self.lib.zc_st_create(
            ctypes.byref(self.handle), path.encode(), tensors, len(entries), ctypes.byref(pair), 1, text, len(text)
        )
        self._check(rc, text)

    def _check(self, rc: int, text: Any) -> None:
        if rc < 0:
            raise error(rc, f"{self.path}: {text.value.decode(errors='replace')}")

    def append(self, values: torch.Tensor) -> None:
        values = values.contiguous()
        text = ctypes.create_string_buffer(512)
        self._check(
            self.lib.zc_st_append(self.handle, values.data_ptr(), values.numel() * values.itemsize, text, len(text)),
            text,
        )

    def commit(self) -> None:
        text = ctypes.create_string_buffer(512)
        handle, self.handle = self.handle, ctypes.c_void_p()
        self._check(self.lib.zc_st_commit(handle, text, len(text)), text)

    def discard(self) -> None:
        if self.handle:
            self.lib.zc_st_discard(self.handle)
            self.handle = ctypes.c_void_p()


class Guarded:
    """A file that is written as long as that works; `failed` says why it does not. Who reads together with other ranks
    reads to the end all the same.

    path None, or no entries: nothing is written.
    """

    def __init__(self, path: str | None, entries: list[Entry]) -> None:
        self.failed: BaseException | None = None
        self.file: StFile | None = None
        if path is not None and entries:
            self.file = self._tried(StFile, path, entries)

    def _tried(self, call: Callable[..., Any], *args: Any) -> Any:
        try:
            return call(*args)
        except (OSError, ZshardError) as e:
            self.failed = e

    def write(self, entries: list[Entry]) -> BaseException | None:
        """Reads all entries, and writes them. Returns `failed`."""
        try:
            for entry in entries:
                for piece in entry.stream():
                    if self.file is not None and self.failed is None:
                        self._tried(self.file.append, piece)
            if self.file is not None and self.failed is None:
                self._tried(self.file.commit)
        finally:
            if self.file is not None:
                self.file.discard()
        return self.failed
