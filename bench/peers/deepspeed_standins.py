"""A pytest plugin for DeepSpeed's own tests under `python -m zshard.run`: names that zshard.deepspeed does not have.

The tests import them at the top of their files, also where a test does not use them. Here each is a stand-in that can
be imported, compared and passed on; calling it fails the test with its name.

    python -m zshard.run -m pytest -p bench.peers.deepspeed_standins FILES
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any


class _Missing(type):
    """Of classes that stand in: all attributes are stand-ins, too."""

    def __call__(cls, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"zshard.deepspeed has no {cls.__name__}")

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return name if name == "NAME" else stand_in(f"{cls.__name__}.{name}")


def stand_in(name: str) -> Any:
    return _Missing(name, (), {})


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = stand_in(f"{self.__name__}.{name}")
        setattr(self, name, made)
        return made


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Comes before zshard's: what that does not have becomes an empty module."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if not fullname.startswith("deepspeed."):
            return None
        try:
            importlib.import_module("zshard." + fullname)
        except ModuleNotFoundError:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        parent, _, leaf = module.__name__.rpartition(".")
        setattr(sys.modules[parent], leaf, module)


class _All(dict[str, bool]):
    def __missing__(self, name: str) -> bool:
        return True


def _fill() -> None:
    sys.meta_path.insert(0, _Finder())
    import deepspeed

    deepspeed.ops.__compatible_ops__ = _All()
    for module in (deepspeed, deepspeed.runtime.zero, deepspeed.runtime.zero.partition_parameters, deepspeed.utils,
                   deepspeed.accelerator, deepspeed.checkpoint.utils, deepspeed.runtime.utils):  # fmt: skip
        original = module.__dict__.get("__getattr__")

        def missing(name: str, module: Any = module, original: Any = original) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return stand_in(f"{module.__name__}.{name}")

        module.__getattr__ = missing
    deepspeed.accelerator.is_current_accelerator_supported = lambda: True


_fill()
