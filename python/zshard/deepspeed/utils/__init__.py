"""`deepspeed.utils`: reading and writing of parameters, leaf modules, logging."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from ...torch import _kept, _state, _step
from .. import _spool
from ..comm import get_rank

_LEAF = "_z3_leaf"


def _make_logger() -> logging.Logger:
    made = logging.getLogger("zshard.deepspeed")
    if not made.handlers:
        handler = logging.StreamHandler(stream=sys.stderr)
        handler.setFormatter(logging.Formatter("[%(asctime)s] [%(levelname)s] zshard: %(message)s"))
        made.addHandler(handler)
        made.setLevel(logging.WARNING)
        made.propagate = False
    return made


logger = _make_logger()


def log_dist(message: str, ranks: Iterable[int] | None = None, level: int = logging.INFO) -> None:
    """Logs on the ranks that are listed; None or -1: on all."""
    if ranks is None or -1 in (listed := list(ranks)) or get_rank() in listed:
        logger.log(level, message)


# ---- leaf modules


def _matches(module: nn.Module, kinds: Iterable[Any]) -> bool:
    for kind in kinds:
        if isinstance(kind, str):
            name = type(module).__name__
            if kind in (name, f"{type(module).__module__}.{name}"):
                return True
        elif isinstance(module, kind):
            return True
    return False


def set_z3_leaf_modules(
    model: nn.Module, leaf_module_classes: list[type | str], raise_if_not_found: bool = True
) -> list[nn.Module]:
    """Modules of these classes are gathered as a whole when they are called. Before `initialize`.

    Returns the modules. Raises ValueError where there are none.
    """
    found = [m for m in model.modules() if _matches(m, leaf_module_classes)]
    for module in found:
        setattr(module, _LEAF, True)
    if not found and raise_if_not_found:
        raise ValueError(f"set_z3_leaf_modules: the model has no modules of {leaf_module_classes}")
    return found


def unset_z3_leaf_modules(
    model: nn.Module, leaf_module_classes: list[type | str], raise_if_not_found: bool = True
) -> list[nn.Module]:
    """Reverses set_z3_leaf_modules()."""
    found = [m for m in model.modules() if _matches(m, leaf_module_classes)]
    for module in found:
        setattr(module, _LEAF, False)
    if not found and raise_if_not_found:
        raise ValueError(f"unset_z3_leaf_modules: the model has no modules of {leaf_module_classes}")
    return found


def set_z3_leaf_module(model: nn.Module, flag: bool) -> None:
    """Says of one module whether it is gathered as a whole."""
    setattr(model, _LEAF, flag)


def z3_leaf_module(model: nn.Module) -> bool:
    """What set_z3_leaf_module() said."""
    return bool(getattr(model, _LEAF, False))


def get_z3_leaf_modules(model: nn.Module) -> list[nn.Module]:
    """The modules that are gathered as a whole."""
    return [m for m in model.modules() if z3_leaf_module(m)]


# ---- values, optimizer states and gradients

_KEYS = {"fp32": "master"}


def _sharded(param: Any, name: str) -> bool:
    """Whether a parameter is of an engine. ValueError: it waits for one."""
    if _step.runtime_of(param) is None:
        if _spool.spooled(param) is not None:
            raise ValueError(f"{name}: the parameter's engine was not started yet; see zero.GatheredParameters")
        return False
    return True


def _frozen(param: Any) -> bool:
    runtime = _step.runtime_of(param)
    found = runtime.plan.find(param) if runtime is not None else None
    return found is None or found[0].frozen


def safe_get_full_fp32_param(param: nn.Parameter) -> torch.Tensor | None:
    """The fp32 value of a trained parameter, on every rank; None: it is not of an engine, or is frozen. Collective."""
    if not _sharded(param, "safe_get_full_fp32_param") or _frozen(param):
        return None
    return _state.state_of(param, "master").to(param.device)


def safe_get_full_optimizer_state(param: nn.Parameter, optim_state_key: str) -> torch.Tensor | None:
    """A moment ("exp_avg", "exp_avg_sq") or "fp32", of the parameter's shape, on every rank. Collective.

    None: the parameter is not of an engine, or is frozen. ValueError: there is no such state.
    """
    if not _sharded(param, "safe_get_full_optimizer_state") or _frozen(param):
        return None
    return _state.state_of(param, _KEYS.get(optim_state_key, optim_state_key)).to(param.device)


def safe_get_full_grad(param: nn.Parameter) -> torch.Tensor | None:
    """The gradient between backward() and step(), averaged over ranks, on every rank; None: there is none.
    Collective."""
    if not _sharded(param, "safe_get_full_grad"):
        return param.grad
    made = _state.grad_of(param)
    return None if made is None else made.to(param.device)


def safe_set_full_fp32_param(param: nn.Parameter, value: torch.Tensor) -> None:
    """Sets a trained parameter, the same on every rank. Collective, between steps."""
    if _sharded(param, "safe_set_full_fp32_param"):
        runtime = _step.runtime_of(param)
        assert runtime is not None
        _state.write_param(runtime, param, value)
        _kept.show(runtime)


def safe_set_full_optimizer_state(param: nn.Parameter, value: torch.Tensor, optim_state_key: str) -> None:
    """Sets a moment or "fp32", the same on every rank. Collective, between steps."""
    if optim_state_key == "fp32":
        safe_set_full_fp32_param(param, value)
    elif _sharded(param, "safe_set_full_optimizer_state"):
        runtime = _step.runtime_of(param)
        assert runtime is not None
        _step.write_state(runtime, param, optim_state_key, value)
        _kept.show(runtime)


def safe_set_full_grad(param: nn.Parameter, value: torch.Tensor) -> None:
    """Not supported: gradients are in the engine."""
    raise NotImplementedError(
        "safe_set_full_grad: gradients are reduced in the engine and cannot be replaced; multiply param.grad by a "
        "number, or change the loss"
    )


def safe_update_full_grad_vectorized(param_list: Any, update_func: Any) -> None:
    """Not supported, as safe_set_full_grad()."""
    raise NotImplementedError(
        "safe_update_full_grad_vectorized: gradients are reduced in the engine and cannot be replaced; multiply "
        "param.grad by a number, or change the loss"
    )


def _local(name: str, instead: str) -> Any:
    def refuse(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"{name}: the engine's slices are not DeepSpeed's; use {instead}")

    refuse.__name__, refuse.__doc__ = name, f"Not supported: see {instead}."
    return refuse


safe_get_local_fp32_param = _local("safe_get_local_fp32_param", "safe_get_full_fp32_param")
safe_get_local_optimizer_state = _local("safe_get_local_optimizer_state", "safe_get_full_optimizer_state")
safe_get_local_grad = _local("safe_get_local_grad", "safe_get_full_grad")
safe_set_local_fp32_param = _local("safe_set_local_fp32_param", "safe_set_full_fp32_param")
safe_set_local_optimizer_state = _local("safe_set_local_optimizer_state", "safe_set_full_optimizer_state")
safe_set_local_grad = _local("safe_set_local_grad", "safe_set_full_grad")


# ---- construction


class OnDevice:
    """Modules that are built inside are made on a device, with a default dtype. device="meta": without values."""

    def __init__(self, dtype: torch.dtype, device: str = "meta", enabled: bool = True) -> None:
        self.dtype, self.device, self.enabled = dtype, device, enabled
        self._stack: contextlib.ExitStack | None = None

    def __enter__(self) -> OnDevice:
        if self.enabled:
            self._stack = contextlib.ExitStack()
            self._stack.enter_context(torch.device(self.device))
            self._stack.enter_context(_default_dtype(self.dtype))
        return self

    def __exit__(self, *exc: Any) -> None:
        if self._stack is not None:
            self._stack.__exit__(*exc)
            self._stack = None


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


__all__ = [n for n in dir() if n.startswith(("safe_", "set_z3", "unset_z3", "get_z3", "z3_"))] + [
    "OnDevice",
    "log_dist",
    "logger",
]
