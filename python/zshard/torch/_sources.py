"""Where a parameter's first values come from, element by element: a safetensors file, several of its tensors joined,
a real tensor, or an initialisation that is computed when it is asked for.

A model on the meta device has no values. `from_pretrained` and `from_config` leave a `Source` on each Parameter
(`attach`), and the start of the engine reads from it the elements of its own slices only, so that no rank ever holds
a model. What cannot be computed by the slice (a transposed tensor, an initialisation) is computed as one whole
tensor, kept until the next such one, and never more than `CACHED` of them at a time.

Sources are read by one thread at a time.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from .. import _lib
from ..errors import error

CACHED = 2  # whole tensors kept
_ATTRIBUTE = "_zshard_source"
_SHORT_RUN = 256  # elements; where runs are shorter, joined tensors are computed whole

_DTYPES = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F64": torch.float64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}

_cache: OrderedDict[int, tuple[object, torch.Tensor]] = OrderedDict()


def _cached(owner: object, compute: Callable[[], torch.Tensor]) -> torch.Tensor:
    key = id(owner)
    if key not in _cache:
        while len(_cache) >= CACHED:
            _cache.popitem(last=False)
        _cache[key] = (owner, compute())
    _cache.move_to_end(key)
    return _cache[key][1]


def forget() -> None:
    """Frees the whole tensors that are kept for the next read."""
    _cache.clear()


class Source:
    """Values of a tensor of a known shape, readable by ranges of its elements in row-major order.

    Attributes:
        shape: of the tensor.
        dtype: that the values have where they are kept.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def read(self, first: int, out: torch.Tensor) -> None:
        """Writes elements [first, first + out.numel()) to `out`, a contiguous fp32 tensor in host memory.

        Raises ZshardError (Corrupt, DeviceFailed) where a file cannot be read.
        """
        raise NotImplementedError

    def tensor(self) -> torch.Tensor:
        """All of it, as a new tensor of `dtype` and `shape`."""
        out = torch.empty(self.numel, dtype=torch.float32)
        self.read(0, out)
        return out.to(self.dtype).view(self.shape)


class File:
    """A safetensors file, opened once and checked against the format by the C library."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._lib = _lib.load()
        self._handle = ctypes.c_void_p()
        text = ctypes.create_string_buffer(512)
        rc = self._lib.zc_st_open(ctypes.byref(self._handle), path.encode(), text, len(text))
        if rc < 0:
            raise error(rc, f"{path}: {text.value.decode(errors='replace')}")
        self.tensors: dict[str, tuple[Any, torch.dtype | None, tuple[int, ...]]] = {}
        for i in range(self._lib.zc_st_count(self._handle)):
            t = self._lib.zc_st_at(self._handle, i)
            c = t.contents
            name = self._lib.zc_st_dtype_name(c.dtype).decode()
            self.tensors[c.name.decode()] = (t, _DTYPES.get(name), tuple(c.dims[d] for d in range(c.ndims)))

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._lib.zc_st_close(self._handle)
            self._handle = ctypes.c_void_p()

    def _read(self, function: Any, name: str, first: int, count: int, out: torch.Tensor, type_: Any) -> None:
        text = ctypes.create_string_buffer(512)
        rc = function(
            self._handle, self.tensors[name][0], first, count, ctypes.cast(out.data_ptr(), type_), text, len(text)
        )
        if rc < 0:
            raise error(rc, f"{self.path}, tensor '{name}': {text.value.decode(errors='replace')}")

    def read_f32(self, name: str, first: int, out: torch.Tensor) -> None:
        """Elements of an F32, F16 or BF16 tensor as fp32."""
        self._read(self._lib.zc_st_read_f32, name, first, out.numel(), out, ctypes.POINTER(ctypes.c_float))

    def read_raw(self, name: str, first: int, count: int) -> torch.Tensor:
        """Elements of a tensor in its own dtype, shape [count]."""
        dtype = self.tensors[name][1]
        if dtype is None:
            raise TypeError(f"{self.path}, tensor '{name}': a dtype that torch does not have")
        out = torch.empty(count, dtype=dtype)
        self._read(self._lib.zc_st_read, name, first, count, out, ctypes.c_void_p)
        return out


class FileTensor(Source):
    """A tensor of a safetensors file."""

    def __init__(self, file: File, name: str) -> None:
        self.file, self.name = file, name
        _, dtype, self.shape = file.tensors[name]
        if dtype is None:
            raise TypeError(f"{file.path}, tensor '{name}': a dtype that torch does not have")
        self.dtype = dtype

    def read(self, first: int, out: torch.Tensor) -> None:
        if self.dtype in (torch.float32, torch.float16, torch.bfloat16):
            self.file.read_f32(self.name, first, out)
        else:
            out.copy_(self.file.read_raw(self.name, first, out.numel()))

    def tensor(self) -> torch.Tensor:
        return self.file.read_raw(self.name, 0, self.numel).view(self.shape)


class Real(Source):
    """A tensor that is there. It is kept alive."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor.detach()
        self.shape, self.dtype = tuple(tensor.shape), tensor.dtype

    def read(self, first: int, out: torch.Tensor) -> None:
        out.copy_(self._tensor.reshape(-1)[first : first + out.numel()])

    def tensor(self) -> torch.Tensor:
        return self._tensor.clone()


class Whole(Source):
    """A tensor that is computed as a whole, when it is asked for."""

    def __init__(self, compute: Callable[[], torch.Tensor], shape: Sequence[int], dtype: torch.dtype) -> None:
        self._compute, self.shape, self.dtype = compute, tuple(shape), dtype

    def _value(self) -> torch.Tensor:
        value = self._compute()
        if tuple(value.shape) != self.shape:
            raise ValueError(f"computed values have shape {list(value.shape)}, not {list(self.shape)}")
        return value.detach().to("cpu").contiguous()

    def read(self, first: int, out: torch.Tensor) -> None:
        out.copy_(_cached(self, self._value).view(-1)[first : first + out.numel()])

    def tensor(self) -> torch.Tensor:
        return self._value()


class Exact(Source):
    """Values that are not rounded to the parameter's dtype: the engine's masters keep them as they are."""

    def __init__(self, source: Source) -> None:
        self.source, self.shape, self.dtype = source, source.shape, source.dtype

    def read(self, first: int, out: torch.Tensor) -> None:
        self.source.read(first, out)

    def tensor(self) -> torch.Tensor:
        return self.source.tensor()


def exact(source: Source) -> Source:
    """The same values, which read_rounded() does not round."""
    return Exact(source)


class Cat(Source):
    """Several tensors, joined along a dimension."""

    def __init__(self, parts: Sequence[Source], dim: int) -> None:
        first = parts[0].shape
        for p in parts[1:]:
            if len(p.shape) != len(first) or any(
                a != b for i, (a, b) in enumerate(zip(p.shape, first, strict=True)) if i != dim
            ):
                raise ValueError(f"shapes {list(first)} and {list(p.shape)} cannot be joined along dimension {dim}")
        self.parts, self.dim = list(parts), dim
        self.dtype = parts[0].dtype
        self.shape = (*first[:dim], sum(p.shape[dim] for p in parts), *first[dim + 1 :])
        inner = math.prod(first[dim + 1 :])
        self._runs = [p.shape[dim] * inner for p in parts]  # elements of each part in one row

    def read(self, first: int, out: torch.Tensor) -> None:
        row = sum(self._runs)
        if min(self._runs) < _SHORT_RUN and self.dim > 0:
            joined = _cached(self, lambda: torch.cat([p.tensor() for p in self.parts], self.dim))
            out.copy_(joined.view(-1)[first : first + out.numel()])
            return
        done, total = 0, out.numel()
        while done < total:
            i, at = divmod(first + done, row)
            for part, run in zip(self.parts, self._runs, strict=True):
                if at < run:
                    n = min(run - at, total - done)
                    part.read(i * run + at, out[done : done + n])
                    done += n
                    at = 0
                    if done == total:
                        break
                else:
                    at -= run


class Shaped(Source):
    """The same elements in another shape."""

    def __init__(self, source: Source, shape: Sequence[int]) -> None:
        self.source, self.shape, self.dtype = source, tuple(shape), source.dtype
        if self.numel != source.numel:
            raise ValueError(f"shape {list(source.shape)} has another number of elements than {list(shape)}")

    def read(self, first: int, out: torch.Tensor) -> None:
        self.source.read(first, out)


def stack(parts: Sequence[Source], dim: int = 0) -> Source:
    """The parts, all of one shape, along a new dimension."""
    return Cat([Shaped(p, (*p.shape[:dim], 1, *p.shape[dim:])) for p in parts], dim)


class Narrow(Source):
    """Indices [start, start + length) of a dimension of another tensor."""

    def __init__(self, source: Source, dim: int, start: int, length: int) -> None:
        self.source, self.dtype = source, source.dtype
        self.shape = (*source.shape[:dim], length, *source.shape[dim + 1 :])
        inner = math.prod(source.shape[dim + 1 :])
        self._run, self._row, self._start = length * inner, source.shape[dim] * inner, start * inner
        self._dim, self._from, self._length = dim, start, length

    def read(self, first: int, out: torch.Tensor) -> None:
        if self._run < _SHORT_RUN and self._run != self._row:
            cut = _cached(self, lambda: self.source.tensor().narrow(self._dim, self._from, self._length).contiguous())
            out.copy_(cut.view(-1)[first : first + out.numel()])
            return
        done, total = 0, out.numel()
        while done < total:
            i, at = divmod(first + done, self._run)
            n = min(self._run - at, total - done)
            self.source.read(i * self._row + self._start + at, out[done : done + n])
            done += n


class Checkpoint:
    """A folder of safetensors files (model.safetensors, or model.safetensors.index.json and what it lists), or one
    file. Files are opened when their first tensor is asked for.

    Raises FileNotFoundError where there are none, or one that the index lists is missing.
    """

    def __init__(self, path: str | os.PathLike[str], variant: str | None = None) -> None:
        self.path = os.fspath(path)
        self._files: dict[str, File] = {}
        self._where: dict[str, str] = {}
        suffix = f".{variant}" if variant else ""
        single = os.path.join(self.path, f"model{suffix}.safetensors")
        index = os.path.join(self.path, f"model.safetensors.index{suffix}.json")
        if os.path.isfile(self.path):
            self._add(self.path)
        elif os.path.isfile(single):
            self._add(single)
        elif os.path.isfile(index):
            with open(index, encoding="utf-8") as f:
                where = json.load(f)["weight_map"]
            missing = sorted({n for n in where.values() if not os.path.isfile(os.path.join(self.path, n))})
            if missing:
                raise FileNotFoundError(f"{index} lists files that are not there: {', '.join(missing)}")
            self._where = {name: os.path.join(self.path, n) for name, n in where.items()}
        else:
            found = sorted(
                n for n in (os.listdir(self.path) if os.path.isdir(self.path) else []) if n.endswith(".safetensors")
            )
            if len(found) != 1:
                raise FileNotFoundError(
                    f"no model.safetensors and no model.safetensors.index.json in '{self.path}'"
                    + (f"; other files are there: {', '.join(found[:5])}" if found else "")
                )
            self._add(os.path.join(self.path, found[0]))

    def _add(self, path: str) -> None:
        file = self._files[path] = File(path)
        self._where.update(dict.fromkeys(file.tensors, path))

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def __getitem__(self, name: str) -> FileTensor:
        path = self._where[name]
        if path not in self._files:
            self._files[path] = File(path)
        if name not in self._files[path].tensors:
            raise KeyError(f"the index says that '{name}' is in {path}; it is not")
        return FileTensor(self._files[path], name)


def attach(p: torch.Tensor, source: Source | None) -> None:
    """Says where a parameter on the meta device gets its values from. Raises ValueError where the shapes differ."""
    if source is not None and source.shape != tuple(p.shape):
        raise ValueError(f"values have shape {list(source.shape)}, the parameter {list(p.shape)}")
    setattr(p, _ATTRIBUTE, source)


def attached(p: torch.Tensor) -> Source | None:
    """What attach() said, or None."""
    return getattr(p, _ATTRIBUTE, None)


def source_of(p: torch.Tensor, name: str = "") -> Source:
    """Where a parameter's first values are: what is attached to it, else the parameter itself.

    Raises ValueError for one on the meta device to which nothing is attached; `name` is for the message.
    """
    source = attached(p)
    if source is not None:
        return source
    if p.device.type == "meta":
        raise ValueError(
            f"parameter '{name}' is on the meta device and its values are not given: give "
            "shard() an init_fn, or load the model by zshard.torch.from_pretrained"
        )
    return Real(p)


def read_rounded(source: Source, first: int, out: torch.Tensor, dtype: torch.dtype) -> None:
    """source.read(), with the values rounded to `dtype` as a cast of the whole tensor would round them."""
    source.read(first, out)
    if dtype != torch.float32 and dtype != source.dtype and not isinstance(source, Exact):
        out.copy_(out.to(dtype))
