"""Plain torch.optim optimizers of sharded parameters, built before or after sharding.

Torch's step hooks of all optimizers: before a step (and after its closure) the gradients of sharded parameters are
hidden, so that torch's own step sees None and does nothing to them; after it the engine steps. Parameters of the same
optimizer that are not sharded are stepped by torch as ever. A class without a counterpart is refused by name.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ._optim import Optimizer, _scale_of, load_state, params_by_runtime, show_state, warn_skipped
from ._step import Rule, Stepper, apply, rule_of

_installed = False


class _Attached:
    """What is remembered of one plain optimizer."""

    def __init__(self) -> None:
        self.steppers: dict[int, Stepper] = {}
        self.hidden: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        self.runtimes: list[Any] = []

    def restore(self) -> None:
        """Hidden gradients come back."""
        for param, grad in self.hidden:
            param.grad = grad
        self.hidden.clear()


_attached: weakref.WeakKeyDictionary[torch.optim.Optimizer, _Attached] = weakref.WeakKeyDictionary()


def install() -> None:
    """Once in a process, with the first sharded model."""
    global _installed
    if not _installed:
        _installed = True
        register_optimizer_step_pre_hook(_before)
        register_optimizer_step_post_hook(_after)


def check(optimizer: torch.optim.Optimizer) -> Rule:
    """The optimizer's rule. TypeError: its class has no counterpart; ValueError: one of its settings has none."""
    rule = rule_of(optimizer)
    if rule is None:
        raise TypeError(
            f"{type(optimizer).__name__} has no counterpart in the engine, which has AdamW, Adam, SGD, Adagrad, Muon "
            "(torch.optim's or zshard.torch's) and zshard.torch.Lion; zshard.torch.HostOptimizer runs others"
        )
    for group in optimizer.param_groups:
        rule.group(group)
    return rule


def stepper_of(optimizer: torch.optim.Optimizer, runtime: Any) -> Stepper:
    """The stepper of an optimizer, ours or plain, on one model."""
    if isinstance(optimizer, Optimizer):
        return optimizer._stepper(runtime)
    attached = _attached.setdefault(optimizer, _Attached())
    stepper = attached.steppers.get(id(runtime))
    if stepper is None or stepper.runtime is not runtime:
        stepper = attached.steppers[id(runtime)] = Stepper(runtime, optimizer, check(optimizer))
    return stepper


def _before(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if isinstance(optimizer, Optimizer):
        return None
    by_runtime = params_by_runtime(optimizer)
    runtimes = [r for r in by_runtime if r is not None]
    if not runtimes:
        return None
    rule = check(optimizer)
    attached = _attached.setdefault(optimizer, _Attached())
    attached.restore()
    load_state(optimizer, rule)
    attached.runtimes = runtimes
    params = [p for r in runtimes for p in by_runtime[r]]

    def hide() -> None:
        attached.hidden = [(p, p.grad) for p in params]
        for param in params:
            param.grad = None

    def wrapped(closure: Callable[[], Any]) -> Callable[[], Any]:
        def call() -> Any:
            attached.restore()
            loss = closure()
            hide()
            return loss

        return call

    if len(args) > 1 and args[1] is not None:
        return (args[0], wrapped(args[1]), *args[2:]), kwargs
    if kwargs.get("closure") is not None:
        return args, {**kwargs, "closure": wrapped(kwargs["closure"])}
    hide()
    return None


def _after(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    attached = _attached.get(optimizer)
    if isinstance(optimizer, Optimizer) or attached is None or not attached.runtimes:
        return
    attached.restore()
    runtimes, attached.runtimes = attached.runtimes, []
    scale = _scale_of(optimizer)
    if scale is None:
        return
    for runtime in runtimes:
        stepper = stepper_of(optimizer, runtime)
        stepped = apply(stepper, scale)
        if stepped is not None:
            warn_skipped(runtime, stepped)
            show_state(optimizer, runtime, stepper.rule)
