"""Reads files of torch.save() without running code that they name, and writes some of them piece by piece.

`load_pt` asks torch.load(weights_only=True) first. What that refuses is read by an unpickler that knows a fixed list of
plain types; every other class or function becomes a `Foreign`, which remembers its name and what was pickled of it, and
does nothing. Tensors are mapped from the file, so that only what is read of them comes to memory.
"""

from __future__ import annotations

import copyreg
import errno
import io
import mmap
import os
import pickle
import shutil
import types
import zipfile
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import torch

from ._content import ConvertError


class _Meta(type):
    """Of stand-ins: they pickle by their names, where classes would be looked up."""


class Foreign(metaclass=_Meta):
    """An object of a class that is not loaded. It does nothing.

    Attributes:
        module, name: of the class.
        args: what it was made with.
        state: what it was given afterwards, such as its `__dict__`.
        items: what was set or appended to it, where it was a container.
    """

    module = ""
    name = ""
    args: tuple[Any, ...] = ()
    state: Any = None
    items: tuple[Any, ...] = ()

    def __new__(cls, *args: Any, **kwargs: Any) -> Foreign:
        self = object.__new__(cls)
        self.args = (*args, kwargs) if kwargs else args
        return self

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items = (*self.items, (key, value))

    def append(self, value: Any) -> None:
        self.items = (*self.items, value)

    def extend(self, values: Any) -> None:
        self.items = (*self.items, *values)

    def add(self, value: Any) -> None:
        self.append(value)

    def field(self, name: str, default: Any = None) -> Any:
        """An attribute that the object had."""
        return self.state.get(name, default) if isinstance(self.state, dict) else default

    def __reduce__(self) -> Any:
        return _again, (self.module, self.name, self.args, self.state, self.items)

    def __repr__(self) -> str:
        return f"<{self.module}.{self.name}, which is not loaded>"


def _again(module: str, name: str, args: tuple[Any, ...], state: Any, items: tuple[Any, ...]) -> Foreign:
    made = stand_in(module, name)(*args)
    made.state, made.items = state, items
    return made


_made: dict[tuple[str, str], type[Foreign]] = {}


def stand_in(module: str, name: str) -> type[Foreign]:
    """The class that stands for another one, which is not looked up."""
    key = (module, name)
    if key not in _made:
        made: Any = _Meta(name.rpartition(".")[2] or "Foreign", (Foreign,), {"module": module, "name": name})
        _made[key] = made
    return _made[key]


def _pickle_class(cls: Any) -> Any:
    return (stand_in, (cls.module, cls.name)) if cls is not Foreign else "Foreign"


copyreg.pickle(_Meta, _pickle_class)


def _reconstruct(cls: type, base: type, state: Any) -> Any:
    """copyreg._reconstructor of protocol 0 and 1."""
    return cls() if isinstance(cls, _Meta) or base is object else cls(state)


def _of_type(function: Any, kind: Any, args: Any, state: Any) -> Any:
    """torch._tensor._rebuild_from_type_v2: a tensor that had attributes, which are left out."""
    return function(*args)


def _parameter(data: Any, requires_grad: bool, hooks: Any, state: Any = None) -> Any:
    """torch._utils._rebuild_parameter and _rebuild_parameter_with_state."""
    return data


_PLAIN: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("collections", "defaultdict"): defaultdict,
    ("collections", "Counter"): Counter,
    ("collections", "deque"): deque,
    ("copyreg", "_reconstructor"): _reconstruct,
    ("copy_reg", "_reconstructor"): _reconstruct,
    ("types", "SimpleNamespace"): types.SimpleNamespace,
    ("torch", "Size"): torch.Size,
    ("torch", "device"): torch.device,
    ("torch", "Tensor"): torch.Tensor,
    ("torch._utils", "_rebuild_tensor"): torch._utils._rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _parameter,
    ("torch._tensor", "_rebuild_from_type_v2"): _of_type,
    ("torch.nn.parameter", "Parameter"): torch.nn.Parameter,
    ("torch.serialization", "_get_layout"): lambda name: torch.strided,
}
_BUILTINS = ("set", "frozenset", "complex", "bytearray", "slice", "range", "object", "list", "dict", "tuple", "int",
             "float", "str", "bytes", "bool")  # fmt: skip
_NUMPY = {
    "numpy": ("ndarray", "dtype"),
    "numpy.core.multiarray": ("_reconstruct", "scalar"),
    "numpy._core.multiarray": ("_reconstruct", "scalar"),
}
_DATES = ("date", "datetime", "time", "timedelta", "timezone")


def plain_class(module: str, name: str) -> Any:
    """What a pickle may name: a plain type, or a stand-in."""
    found = _PLAIN.get((module, name))
    if found is not None:
        return found
    if module in ("builtins", "__builtin__") and name in _BUILTINS:
        import builtins

        return getattr(builtins, name)
    if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
        return getattr(torch, name)
    if module == "_codecs" and name == "encode":
        return lambda text, coding="latin1": text.encode("latin1" if coding != "utf-8" else coding)
    if module == "datetime" and name in _DATES:
        import datetime

        return getattr(datetime, name)
    if module == "argparse" and name == "Namespace":
        import argparse

        return argparse.Namespace
    if name in _NUMPY.get(module, ()):
        import numpy
        from numpy._core import multiarray  # type: ignore[attr-defined, unused-ignore]

        return getattr(numpy if module == "numpy" else multiarray, name)
    return stand_in(module, name)


class Unpickler(pickle.Unpickler):
    """Knows plain types only."""

    def find_class(self, module: str, name: str) -> Any:
        return plain_class(module, name)


def _load(file: Any, **_: Any) -> Any:
    return Unpickler(file).load()


_MODULE = types.SimpleNamespace(Unpickler=Unpickler, load=_load, __name__="zshard.convert")


def load_plain(path: str) -> Any:
    """A plain pickle. Raises ConvertError where it cannot be read."""
    try:
        with open(path, "rb") as f:
            return Unpickler(f).load()
    except (OSError, EOFError, pickle.UnpicklingError, ValueError, TypeError, AttributeError, IndexError) as e:
        raise ConvertError(f"'{path}' cannot be read: {e or type(e).__name__}") from None


def loads_pt(data: bytes, name: str) -> Any:
    """What torch.save() wrote, from memory; `name` is for the message. Raises ConvertError."""
    _check_zip(io.BytesIO(data), name)
    return _torch_load(lambda: io.BytesIO(data), name, mapped=False)


def load_pt(path: str) -> Any:
    """A file of torch.save(); tensors are mapped. ConvertError: it is missing, truncated or something else."""
    if not os.path.isfile(path):
        raise ConvertError(f"'{path}' is missing")
    with open(path, "rb") as f:
        _check_zip(f, path)
    return _torch_load(lambda: path, path, mapped=True)


def _check_zip(file: Any, name: str) -> None:
    try:
        with zipfile.ZipFile(file) as z:
            names = z.namelist()
    except (zipfile.BadZipFile, OSError, ValueError):
        raise ConvertError(f"'{name}' is truncated, or was not written by torch.save()") from None
    if any(n.endswith("constants.pkl") for n in names):
        raise ConvertError(f"'{name}' is a TorchScript archive, which is code")


def _torch_load(source: Any, name: str, mapped: bool) -> Any:
    try:
        try:
            return torch.load(source(), map_location="cpu", mmap=mapped or None, weights_only=True)
        except pickle.UnpicklingError:
            return torch.load(
                source(), map_location="cpu", mmap=mapped or None, weights_only=False, pickle_module=_MODULE
            )
    except ConvertError:
        raise
    except Exception as e:  # of many kinds, where bytes are not what they should be
        raise ConvertError(f"'{name}' cannot be read: {str(e).splitlines()[0] if str(e) else type(e).__name__}") from e


# ---- writing


class Named:
    """Pickles as an object of a class that is not here, with that state."""

    def __init__(self, module: str, name: str, state: dict[str, Any]) -> None:
        self.module, self.name, self.state = module, name, state


_PythonPickler: Any = pickle._Pickler  # type: ignore[attr-defined, unused-ignore]


class _Pickler(_PythonPickler):
    """Writes `Named`; the C pickler would look its class up."""

    def save(self, obj: Any, save_persistent_id: bool = True) -> Any:
        if not isinstance(obj, Named):
            return super().save(obj, save_persistent_id)
        self.write(pickle.GLOBAL + f"{obj.module}\n{obj.name}\n".encode())
        self.write(pickle.EMPTY_TUPLE + pickle.NEWOBJ)
        super().save(obj.state)
        self.write(pickle.BUILD)
        return None


_WRITER = types.SimpleNamespace(Pickler=_Pickler, __name__="zshard.convert")
_FULL = 1 << 20  # free bytes of a file system that counts as full


def save_pt(obj: Any, path: str) -> None:
    """torch.save() of what is in memory; `Named` objects are allowed. OSError: the file cannot be written."""
    try:
        torch.save(obj, path, pickle_module=_WRITER)
    except RuntimeError as e:  # torch's writer does not say why a write failed
        if "inline_container" not in str(e) and "PytorchStreamWriter" not in str(e):
            raise
        left = shutil.disk_usage(os.path.dirname(path)).free
        code = errno.ENOSPC if left < _FULL else errno.EIO
        raise OSError(code, f"{os.strerror(code)} ({left} bytes are free; torch.save: {e})", path) from e


def allocate(path: str) -> None:
    """Gives a file all the space of its size, before it is written through a mapping: there a full disk would end the
    process (SIGBUS). OSError: there is no space."""
    with open(path, "rb+") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, max(1, os.fstat(file.fileno()).st_size))
        except OSError as e:
            if e.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # of file systems that cannot
                raise OSError(e.errno, e.strerror, path) from None


def reserve_pt(obj: Any, path: str) -> Any:
    """Writes a file of torch.save() whose tensors are to be filled in, and returns the same structure, with tensors
    that are the file: what is copied into them is written. Tensors of `obj` (of `hollow`) take no memory.

    OSError: there is no space for the file."""
    with torch.serialization.skip_data():
        save_pt(obj, path)
    allocate(path)
    with torch.serialization.set_default_mmap_options(mmap.MAP_SHARED):
        return torch.load(path, map_location="cpu", mmap=True, weights_only=False, pickle_module=_MODULE)


def hollow(shape: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor for reserve_pt(): its memory is never touched."""
    return torch.empty(shape, dtype=dtype)
