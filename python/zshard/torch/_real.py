"""A sharded model becomes an ordinary one."""

from __future__ import annotations

from typing import Any

from . import _kept
from ._runtime import Runtime


def materialize(runtime: Runtime) -> None:
    """Parameters get memory of torch's own with their values, on every rank. Collective."""
    if runtime.kept and not runtime.depth and not runtime.in_backward:
        _kept.own(runtime)
        for state in runtime.units:
            if state.trainable:
                for param in state.params:
                    _forget_grad(param)
        return
    for state in runtime.units:
        real = []
        for piece in state.unit.pieces:
            flat = runtime.read(state.index, "param", piece.first, piece.numel)
            real.append(flat.to(state.unit.dtype).view(piece.shape).to(state.memory.device))
        for param, tensor in zip(state.params, real, strict=True):
            if state.trainable:
                _forget_grad(param)
            param.data = tensor


def _forget_grad(param: Any) -> None:
    if hasattr(param, "grad_dtype"):
        param.grad = None
        param.grad_dtype = param.dtype
