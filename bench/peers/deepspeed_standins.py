"""A pytest plugin for DeepSpeed's own tests under `python -m zshard.run`: names that zshard.deepspeed does not have.

The tests import them at the top of their files, also where a test does not use them. Here each is a stand-in that can
be imported, subclassed, compared and passed on; calling it fails the test with its name. Constants have their values,
and three helpers of the tests do what they do for models without experts.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any


class _Missing(type):
    """Of classes that stand in: their attributes are stand-ins, too."""

    def __call__(cls, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"zshard.deepspeed has no {cls.__name__}")

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return name if name == "NAME" else stand_in(f"{cls.__name__}.{name}")


def _dense_groups(param_groups: Any, max_group_size: Any = None) -> list[Any]:
    return list(param_groups) if isinstance(param_groups, (list, tuple)) else [param_groups]


KNOWN: dict[str, Any] = {
    "deepspeed.runtime.swap_tensor.MIN_SWAPPABLE_BYTES": 1 << 20,
    "deepspeed.checkpoint.UNIVERSAL_CHECKPOINT_INFO": "universal_checkpoint_info",
    "deepspeed.runtime.zero.partition_parameters.partitioned_param_data_shape": [0],
    "deepspeed.utils.torch.required_torch_version": lambda min_version=None, max_version=None: max_version is None,
    "deepspeed.moe.utils.split_params_into_different_moe_groups_for_optimizer": _dense_groups,
    "deepspeed.accelerator.is_current_accelerator_supported": lambda: True,
}


def stand_in(name: str) -> Any:
    """The stand-in of a dotted name."""
    return KNOWN[name] if name in KNOWN else _Missing(name, (), {})


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = stand_in(f"{self.__name__}.{name}")
        setattr(self, name, made)
        return made


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Comes before zshard's: what that does not have becomes a module of stand-ins."""

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
    """All ops are there: zshard compiles none."""

    def __missing__(self, name: str) -> bool:
        return True


def _fill() -> None:
    """Attributes that modules of zshard.deepspeed lack become stand-ins."""
    from zshard import _finder

    _finder.install()
    sys.meta_path.insert(0, _Finder())
    import deepspeed

    deepspeed.ops.__compatible_ops__ = _All()
    places = (
        "runtime.zero runtime.zero.partition_parameters runtime.utils utils accelerator checkpoint checkpoint.utils"
    )
    for module in (deepspeed, *(importlib.import_module(f"deepspeed.{place}") for place in places.split())):
        public = module.__name__.removeprefix("zshard.")

        def missing(name: str, public: str = public) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return stand_in(f"{public}.{name}")

        module.__getattr__ = missing


_fill()
