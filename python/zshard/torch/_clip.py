"""`clip_grad_norm_`: as torch.nn.utils', for sharded and ordinary parameters together, in one call of the engine."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from . import _grads
from ._step import runtime_of


def clip_grad_norm_(
    parameters: torch.optim.Optimizer | torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> torch.Tensor:
    """Scales gradients so that their total norm is at most `max_norm`. Collective.

    Args:
        parameters: an optimizer (all its parameters), or parameters.
        norm_type: 2 or inf.

    Returns:
        The total norm before clipping, of gradients averaged over ranks; a scalar of fp32.

    Raises:
        RuntimeError: error_if_nonfinite is set and the norm is not finite; a gradient is not zshard's.
        ValueError: another norm_type.
    """
    if norm_type not in (2.0, math.inf):
        raise ValueError(f"norm_type={norm_type}: the engine has 2 and inf")
    if isinstance(parameters, torch.optim.Optimizer):
        params = [p for g in parameters.param_groups for p in g["params"]]
    else:
        params = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    ours: list[_grads.Gradient] = []
    others: list[torch.Tensor] = []
    for param in params:
        if isinstance(param.grad, _grads.Gradient):
            ours.append(param.grad)
        elif param.grad is not None:
            if runtime_of(param) is not None:
                raise RuntimeError("the .grad of a sharded parameter was set by other code")
            others.append(param.grad)
    parts = [_grads.norm(g, norm_type) for g in ours]
    parts += [float(torch.linalg.vector_norm(g, norm_type)) for g in others]
    total = _total(parts, norm_type)
    if error_if_nonfinite and not math.isfinite(total):
        raise RuntimeError(f"the total norm of order {norm_type} of the gradients is {total}")
    factor = min(1.0, max_norm / (total + 1e-6)) if math.isfinite(total) else math.nan
    _scale(ours, others, factor)
    return torch.tensor(total, dtype=torch.float32)


def _total(parts: list[float], norm_type: float) -> float:
    if not all(map(math.isfinite, parts)):
        return math.nan
    return max(parts, default=0.0) if norm_type == math.inf else math.sqrt(sum(p * p for p in parts))


def _scale(ours: list[_grads.Gradient], others: list[Any], factor: float) -> None:
    if factor == 1.0 or math.isnan(factor):
        return  # a gradient that is not finite makes the step skip itself
    for gradient in ours:
        gradient.factor *= factor
    for other in others:
        other.mul_(factor)
