"""Optimizers whose state the engine keeps: AdamW, Adam, SGD, Lion, Adagrad; Muon is in _muon.py.

They are torch.optim.Optimizers: LR schedulers, GradScaler and whatever else reads `param_groups` work. `step()` sends
the hyperparameters of each group as they are at that moment. Plain torch.optim objects work, too (_plain.py);
these say more: `overflow`, `skipped`, `grad_norm`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from . import _announce
from ._step import LION, RULES, LazyState, Rule, Stepper, apply, runtime_of, tell_skipped, write_state

if TYPE_CHECKING:
    from ._units import Unit


def params_by_runtime(optimizer: torch.optim.Optimizer) -> dict[Any, list[torch.Tensor]]:
    """The optimizer's parameters by the sharded model that has them; None: those that are not sharded."""
    found: dict[Any, list[torch.Tensor]] = {}
    for group in optimizer.param_groups:
        for param in group["params"]:
            found.setdefault(runtime_of(param), []).append(param)
    return found


def load_state(optimizer: torch.optim.Optimizer, rule: Rule) -> None:
    """Moments and step counts that load_state_dict() left in `optimizer.state` go to the engine; lazy entries take
    their place. Parameters without an entry begin at zero, as in torch, unless no optimizer of this process has stepped
    them: a resumed job has moments of its own. Collective where there are any."""
    for runtime, params in params_by_runtime(optimizer).items():
        if runtime is None:
            continue
        counts: dict[int, list[int]] = {}  # of units
        keeps = rule.kind != "sgd" or any(g.get("momentum") for g in optimizer.param_groups)
        for param in params:
            entry = optimizer.state.get(param)
            if isinstance(entry, LazyState):
                if keeps or entry.runtime is not runtime:
                    entry.check(runtime)
                continue
            found = runtime.plan.find(param)
            if found is None or found[0].frozen:
                continue
            unit = runtime.units[found[0].index]
            place = unit.places[id(param)]
            states = rule.states_in(found[0])
            if entry is None and (unit.shown[place] is None or not states):
                continue
            _announce.check_state(runtime, optimizer)
            if entry is not None:
                optimizer.state[param] = LazyState(runtime, param, states)
            else:
                unit.shown[place] = None
            if unit.index not in counts:
                counts[unit.index] = runtime.call(runtime.engine.tensor_steps, unit.index)
            counts[unit.index][place] = _load_one(runtime, param, states, entry or {}, counts[unit.index][place])
        for index, steps_of in counts.items():
            runtime.call(runtime.engine.set_tensor_steps, index, steps_of)


def has_new_state(optimizer: torch.optim.Optimizer, runtime: Any) -> bool:
    """Whether load_state() has to look: a parameter that the engine trains has no lazy entry."""
    return next(_not_lazy(optimizer, runtime), None) is not None


def _load_one(runtime: Any, param: torch.Tensor, states: tuple[str, ...], entry: Mapping[str, Any], before: int) -> int:
    """Writes the moments of one parameter, zeros where there are none. Returns its step count."""
    values = {n: v for n in states if isinstance(v := entry.get(n), torch.Tensor)}
    # torch's SGD has no count: a momentum says that there was a step.
    steps = int(float(entry["step"])) if "step" in entry else max(before, 1) if values else 0
    for name in states:
        value = values.get(name)
        if value is None and before:
            write_state(runtime, param, name, torch.zeros(param.shape))
        elif value is not None and (steps or before or bool(value.any())):
            write_state(runtime, param, name, value)
    return steps


def show_state(optimizer: torch.optim.Optimizer, runtime: Any, rule: Rule) -> None:
    """`optimizer.state[p]` has lazy entries for the runtime's trained parameters."""
    for param, unit in _not_lazy(optimizer, runtime):
        optimizer.state[param] = LazyState(runtime, param, rule.states_in(unit))


def _not_lazy(optimizer: torch.optim.Optimizer, runtime: Any) -> Iterator[tuple[torch.Tensor, Unit]]:
    """Parameters that the runtime trains and that have no lazy entry, with their units."""
    for group in optimizer.param_groups:
        for param in group["params"]:
            found = runtime.plan.find(param)
            if found is not None and not found[0].frozen and not isinstance(optimizer.state.get(param), LazyState):
                yield param, found[0]


class Optimizer(torch.optim.Optimizer):
    """Base of zshard's optimizers.

    Attributes:
        overflow: the last step was skipped, because a gradient was not finite on some rank.
        skipped: number of skipped steps.
        grad_norm: of the last step's averaged gradient, before clipping; NaN if the step was skipped.
    """

    zshard_rule: Rule

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        super().__init__(params, defaults)
        self.overflow = False
        self.skipped = 0
        self.grad_norm = 0.0
        self._steppers: dict[int, Stepper] = {}

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Steps every sharded model whose parameters the optimizer has. Collective.

        closure: called first, with gradients enabled; its result is returned.

        Raises RuntimeError where a parameter is not of a sharded model, or gradients are not whole.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        scale = _scale_of(self)
        if scale is None:
            return loss
        by_runtime = params_by_runtime(self)
        # What has no elements, and integers, are in no unit.
        loose = [p for p in by_runtime.pop(None, ()) if p.numel() and p.requires_grad]
        if loose:
            raise RuntimeError(
                f"{type(self).__name__}.step(): {len(loose)} parameters are not of a sharded "
                "model; call zshard.torch.shard(model, optimizer) first"
            )
        load_state(self, self.zshard_rule)
        self.overflow = False
        for runtime in by_runtime:
            stepped = apply(self._stepper(runtime), scale)
            if stepped is not None:
                self.overflow |= stepped.skipped
                self.skipped += int(stepped.skipped)
                self.grad_norm = stepped.grad_norm
                tell_skipped(runtime, stepped)
                show_state(self, runtime, self.zshard_rule)
        return loss

    def _stepper(self, runtime: Any) -> Stepper:
        stepper = self._steppers.get(id(runtime))
        if stepper is None or stepper.runtime is not runtime:
            stepper = self._steppers[id(runtime)] = Stepper(runtime, self, self.zshard_rule)
        return stepper

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        state.pop("_steppers", None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.setdefault("_steppers", {})


def _scale_of(optimizer: torch.optim.Optimizer) -> float | None:
    """What a fused GradScaler left at the optimizer: 1 / its scale; None: it found an infinity, no step."""
    found_inf = getattr(optimizer, "found_inf", None)
    if isinstance(found_inf, torch.Tensor) and float(found_inf) != 0.0:
        return None
    grad_scale = getattr(optimizer, "grad_scale", None)
    return 1.0 / float(grad_scale) if isinstance(grad_scale, torch.Tensor) else 1.0


class AdamW(Optimizer):
    """AdamW with decoupled weight decay; arguments and arithmetic of torch.optim.AdamW."""

    zshard_rule = RULES[torch.optim.AdamW]

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})


class Adam(Optimizer):
    """Adam with L2 weight decay; arguments and arithmetic of torch.optim.Adam."""

    zshard_rule = RULES[torch.optim.Adam]

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})


class SGD(Optimizer):
    """SGD; arguments and arithmetic of torch.optim.SGD."""

    zshard_rule = RULES[torch.optim.SGD]

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "dampening": dampening,
                "weight_decay": weight_decay,
                "nesterov": nesterov,
            },
        )


class Lion(Optimizer):
    """Lion (Chen et al. 2023, algorithm 2)."""

    zshard_rule = LION

    def __init__(
        self, params: Any, lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})


class Adagrad(Optimizer):
    """Adagrad; arguments and arithmetic of torch.optim.Adagrad."""

    zshard_rule = RULES[torch.optim.Adagrad]

    def __init__(
        self, params: Any, lr: float = 1e-2, lr_decay: float = 0.0, weight_decay: float = 0.0, eps: float = 1e-10
    ) -> None:
        super().__init__(params, {"lr": lr, "lr_decay": lr_decay, "weight_decay": weight_decay, "eps": eps})
