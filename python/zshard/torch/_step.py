"""From an optimizer's param_groups to a step of the engine; used by our optimizers and by torch's.

A `Rule` says what the engine's optimizer of one torch class is, and how its groups read. `Stepper` is one optimizer
on one model: which of the model's trainable tensors are in which group, and what the step sends.
"""

from __future__ import annotations

import ctypes
import math
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import torch

from .._c import GROUP_NONE
from . import _kept

if TYPE_CHECKING:
    from ._runtime import Runtime
    from ._unit_state import UnitState
    from ._units import Piece, Unit

_WHATS = {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq", "momentum_buffer": "exp_avg", "sum": "exp_avg"}

_gone: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()  # by id; of closed models
_runtimes: weakref.WeakValueDictionary[int, Runtime] = weakref.WeakValueDictionary()  # by id(parameter)


def register(runtime: Runtime) -> None:
    """From now on optimizers of the runtime's parameters step its engine."""
    for key in runtime.plan.of_param:
        _runtimes[key] = runtime
        _gone.pop(key, None)


def unregister(runtime: Runtime, gone: bool) -> None:
    """The runtime is closed. gone: its parameters have no values any more."""
    for state in runtime.units:
        for param in state.params:
            if _runtimes.get(id(param)) is runtime:
                del _runtimes[id(param)]
            if gone:
                _gone[id(param)] = param


def any_open() -> bool:
    """Whether a sharded model of this process is open."""
    return len(_runtimes) > 0


def check_there(param: torch.Tensor, name: str) -> None:
    """RuntimeError: the parameter is of a model that was closed without its values, and reads as NaN."""
    if _gone.get(id(param)) is param:
        raise RuntimeError(
            f"parameter '{name}' has no values: its model was closed. Take values before handle.close(), or close with "
            "handle.close(gather=True)"
        )


def runtime_of(param: torch.Tensor) -> Runtime | None:
    """The runtime whose model has this parameter; None: it is not sharded."""
    runtime = _runtimes.get(id(param))
    if runtime is None:
        return None
    found = runtime.plan.find(param)
    return runtime if found is not None and found[1].param is param else None


@dataclass(frozen=True)
class Rule:
    """The engine's counterpart of an optimizer class."""

    kind: str  # of zshard._engine.OPTIMIZERS
    states: tuple[str, ...]  # names of the moments, as torch has them
    refused: Mapping[str, Any]  # settings that must be as given here

    def fits(self, kind: str) -> bool:
        """Whether an engine whose optimizer is `kind` makes its steps: Muon's steps all other tensors by AdamW."""
        return kind == self.kind or (kind == "muon" and self.kind == "adamw")

    def states_in(self, unit: Unit) -> tuple[str, ...]:
        """Names of the moments of parameters in a unit."""
        if unit.muon:
            return MUON_STATES if self.kind == "muon" else ()
        return ADAM_STATES if self.kind == "muon" else self.states

    def group(self, group: Mapping[str, Any]) -> dict[str, Any]:
        """struct zc_group of a param_group, as it is now. ValueError: a setting has no counterpart."""
        for name, value in self.refused.items():
            if group.get(name, value) != value:
                raise ValueError(f"{name}={group[name]!r} has no counterpart in the engine's {self.kind}")
        made = {"lr": _float(group["lr"]), "weight_decay": _float(group.get("weight_decay", 0.0))}
        if self.kind == "muon":
            return made | _muon_group(group)
        if "betas" in group:
            made["beta1"], made["beta2"] = (_float(b) for b in group["betas"])
        if self.kind == "sgd":
            made["momentum"] = _float(group.get("momentum", 0.0))
            made["dampening"] = _float(group.get("dampening", 0.0))
            made["nesterov"] = bool(group.get("nesterov", False))
        if "eps" in group:
            made["eps"] = _float(group["eps"])
        if self.kind == "adagrad":
            made["lr_decay"] = _float(group.get("lr_decay", 0.0))
        return made


def _float(value: Any) -> float:
    return float(value)


def _muon_group(group: Mapping[str, Any]) -> dict[str, Any]:
    """What is Muon's in struct zc_group: ours, or of torch.optim.Muon, whose eps is another one. AdamW's values are
    always there, because the engine checks both."""
    made = {"momentum": _float(group["momentum"]), "nesterov": bool(group["nesterov"])}
    if "adjust_lr_fn" in group:
        if group["eps"] != _TORCH_MUON_EPS:
            raise ValueError(
                f"eps={group['eps']!r} of torch.optim.Muon has no counterpart: norms have {_TORCH_MUON_EPS}"
            )
        scale = "rms" if group["adjust_lr_fn"] == "match_rms_adamw" else "shape"
        return made | {"muon_scale": scale, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
    beta1, beta2 = group["betas"]
    return made | {
        "muon_scale": group["scale"],
        "beta1": _float(beta1),
        "beta2": _float(beta2),
        "eps": _float(group["eps"]),
    }


def rule_of(optimizer: torch.optim.Optimizer) -> Rule | None:
    """The rule of an optimizer; None: its class has no counterpart."""
    own = getattr(optimizer, "zshard_rule", None)
    if isinstance(own, Rule):
        return own
    rule = RULES.get(type(optimizer))
    if (
        rule is not None
        and rule.kind == "adam"
        and any(g.get("decoupled_weight_decay") for g in optimizer.param_groups)
    ):
        return RULES[torch.optim.AdamW]
    return rule


_NO_AMSGRAD = {"amsgrad": False, "maximize": False, "differentiable": False}
_DECOUPLED = {**_NO_AMSGRAD, "decoupled_weight_decay": True}
_COUPLED = {**_NO_AMSGRAD, "decoupled_weight_decay": False}
_PLAIN = {"maximize": False, "differentiable": False}
ADAM_STATES, MUON_STATES = ("exp_avg", "exp_avg_sq"), ("momentum_buffer",)
_NEWTON_SCHULZ = {"ns_coefficients": (3.4445, -4.775, 2.0315), "ns_steps": 5}
_TORCH_MUON_EPS = 1e-7
MUON = Rule("muon", MUON_STATES, _NEWTON_SCHULZ)
RULES: dict[type, Rule] = {
    torch.optim.AdamW: Rule("adamw", ("exp_avg", "exp_avg_sq"), _DECOUPLED),
    torch.optim.Adam: Rule("adam", ("exp_avg", "exp_avg_sq"), _COUPLED),
    torch.optim.SGD: Rule("sgd", ("momentum_buffer",), _PLAIN),
    torch.optim.Adagrad: Rule("adagrad", ("sum",), {**_PLAIN, "initial_accumulator_value": 0}),
}
LION = Rule("lion", ("exp_avg",), _PLAIN)
if hasattr(torch.optim, "Muon"):  # since 2.9
    RULES[torch.optim.Muon] = MUON


class Stepper:
    """One optimizer on one model."""

    def __init__(self, runtime: Runtime, optimizer: torch.optim.Optimizer, rule: Rule) -> None:
        self.runtime, self.rule = runtime, rule
        self._optimizer = weakref.ref(optimizer)
        self._key: Any = None
        self._group_of: Any = None
        self.owned = 0  # trainable tensors that are the optimizer's
        self.frozen: list[tuple[str, torch.Tensor]] = []  # its parameters that were frozen at shard()

    @property
    def alive(self) -> bool:
        """Whether the optimizer is still there."""
        return self._optimizer() is not None

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer. ReferenceError: it is gone."""
        found = self._optimizer()
        if found is None:
            raise ReferenceError("the optimizer is gone")
        return found

    def group_of(self) -> Any:
        """[trainable] uint32: the group of each tensor, GROUP_NONE where it is in none. Not to be written."""
        groups = self.optimizer.param_groups
        key = [[id(p) for p in g["params"]] for g in groups]
        if key == self._key:
            return self._group_of
        runtime = self.runtime
        array = (ctypes.c_uint32 * len(runtime.trainable))(*[GROUP_NONE] * len(runtime.trainable))
        self.owned, self.frozen = 0, []
        for number, group in enumerate(groups):
            for param in group["params"]:
                found = runtime.plan.find(param)
                if found is not None and found[0].frozen:
                    self.frozen.append((found[1].name, param))
                elif found is not None:
                    self._check_muon(found[0], found[1].name, group)
                    place = runtime.units[found[0].index].places[id(param)]
                    array[runtime.first_trainable[found[0].index] + place] = number
                    self.owned += 1
        self._key, self._group_of = key, array
        return array

    def _check_muon(self, unit: Unit, name: str, group: Mapping[str, Any]) -> None:
        """ValueError: which optimizer steps a parameter is decided when the model is sharded, and this is another."""
        muon = self.rule.kind == "muon" and bool(group.get("use_muon", True))
        if muon != unit.muon:
            was, now = ("Muon", "another optimizer") if unit.muon else ("another optimizer", "Muon")
            raise ValueError(
                f"parameter '{name}' was sharded for {was}, and is now in a group of {now}: give shard() the optimizer "
                "with the groups that it is to have"
            )

    def has(self, number: int) -> bool:
        """Whether the optimizer steps the trainable tensor of that number."""
        return self.alive and self.group_of()[number] != GROUP_NONE

    def groups(self) -> list[dict[str, Any]]:
        """struct zc_group of each param_group, now."""
        return [self.rule.group(g) for g in self.optimizer.param_groups]


def collect(runtime: Runtime, group_of: Any) -> tuple[Any, Any, float]:
    """What users did to `.grad`: (group_of without dropped tensors, factors or None, one common factor). The common
    factor is NaN where a gradient was multiplied by what is not finite: there is no step then.

    RuntimeError: a `.grad` is not ours.
    """
    factors: list[float] | None = None
    common: float | None = None
    dropped: list[int] = []
    finite = True
    for number, (state, i) in enumerate(runtime.trainable):
        grad = state.params[i].grad
        handle = state.handles[i]
        if grad is handle:
            factor = 0.0 if handle.zeroed else handle.factor
            if not math.isfinite(factor):
                finite = finite and group_of[number] == GROUP_NONE
                factor = 1.0
            if common is None:
                common = factor
            elif factor != common and factors is None:
                factors = [common] * number
            if factors is not None:
                factors.append(factor)
            continue
        if factors is not None:
            factors.append(1.0)
        if grad is not None:
            raise _foreign(state, i)
        if state.had[i]:
            dropped.append(number)
    if dropped:
        group_of = type(group_of)(*group_of)
        for number in dropped:
            group_of[number] = GROUP_NONE
    if not finite:
        return (type(group_of))(*[GROUP_NONE] * len(group_of)), None, math.nan
    if factors is not None:
        return group_of, (ctypes.c_float * len(factors))(*factors), 1.0
    return group_of, None, 1.0 if common is None else common


class Merged:
    """A step of several optimizers on one model, which is made when the last of them steps."""

    def __init__(self, runtime: Runtime) -> None:
        n = len(runtime.trainable)
        self.runtime = runtime
        self.groups: list[dict[str, Any]] = []
        self.group_of = [GROUP_NONE] * n
        self.factors = [1.0] * n
        self.steppers: list[Stepper] = []
        self.finite = True  # no factor is NaN

    def add(self, stepper: Stepper, group_of: Any, factors: Any, common: float) -> None:
        """What one optimizer steps."""
        base = len(self.groups)
        self.finite = self.finite and math.isfinite(common)
        self.groups += stepper.groups()
        self.steppers.append(stepper)
        for number, group in enumerate(group_of):
            if group != GROUP_NONE:
                self.group_of[number] = base + group
                self.factors[number] = common * (factors[number] if factors is not None else 1.0)

    def left(self) -> list[int]:
        """Tensors with a gradient that none of its optimizers has."""
        return [
            number
            for number, (state, i) in enumerate(self.runtime.trainable)
            if self.group_of[number] == GROUP_NONE and state.had[i] and state.params[i].grad is state.handles[i]
            and not state.handles[i].zeroed
        ]  # fmt: skip

    def step(self) -> Any:
        """Makes it."""
        self.runtime.waiting = None
        made = self._make() if self.finite else _skip(self.runtime, self.groups)
        _kept.show(self.runtime)
        return made

    def _make(self) -> Any:
        array = (ctypes.c_uint32 * len(self.group_of))(*self.group_of)
        factors = (ctypes.c_float * len(self.factors))(*self.factors)
        return _make(self.runtime, self.groups, array, factors, 1.0, self.runtime.step_clip)


def apply(stepper: Stepper, scale: float = 1.0) -> Any:
    """A step of one optimizer on one model. None: there was no gradient, or other optimizers of the model that
    have gradients are waited for: then the last of them steps all.

    scale: gradients are multiplied by it besides (1 / GradScaler's).
    """
    runtime = stepper.runtime
    start = perf_counter_ns() - runtime.c_ns
    with runtime.lock:
        try:
            made = _apply(stepper, scale)
            _kept.show(runtime)
            return made
        finally:
            runtime.busy_ns += perf_counter_ns() - runtime.c_ns - start


def _apply(stepper: Stepper, scale: float) -> Any:
    runtime = stepper.runtime
    if runtime.closed:
        raise RuntimeError(f"optimizer.step(): the model is {runtime.closed}")
    if runtime.in_backward and torch._C._current_graph_task_id() != -1:
        raise RuntimeError(
            "optimizer.step() inside of a backward pass: gradients are reduced at its end; step after backward()"
        )
    if runtime.depth or runtime.in_backward and torch._C._current_graph_task_id() == -1:
        runtime.recover("a forward or backward pass failed")
    if runtime.broken:
        raise RuntimeError(
            f"{runtime.broken}: this step's gradients are not whole; call optimizer.zero_grad(), or on all ranks the "
            "handle's reset(skip=True)"
        )
    if runtime.micros == 0:
        _check_foreign(runtime)
        warnings.warn(
            "optimizer.step() of a sharded model without a backward pass since the last one: nothing is stepped "
            "(torch.autograd.grad trains nothing)",
            stacklevel=5,
        )
        return None
    runtime.check_lost()
    runtime.let_go()
    if runtime.announcer is not None:
        runtime.announcer.late()
        if runtime.announcer.said is not None:
            return runtime.announcer.apply(stepper, scale)
    if not stepper.rule.fits(runtime.kind):
        become(runtime, stepper.rule.kind)
    if stepper not in runtime.steppers:
        runtime.steppers.append(stepper)
    group_of, factors, common = collect(runtime, stepper.group_of())
    for name, param in stepper.frozen:
        if param.grad is not None:
            raise RuntimeError(
                f"parameter '{name}' was frozen when the model was sharded, and has a gradient now: the engine has no "
                "state for it. Shard the model with requires_grad=True, and freeze it afterwards"
            )
    common *= scale * runtime.step_scale
    host = getattr(stepper.optimizer, "zshard_host_step", None)
    if host is not None and stepper.owned < len(runtime.trainable):
        raise ValueError("a HostOptimizer has all trained parameters of a model: freeze the others before shard()")
    if stepper.owned < len(runtime.trainable) or runtime.waiting is not None:
        return _together(stepper, group_of, factors, common)
    if not math.isfinite(common):
        return _skip(runtime, stepper.groups())
    if factors is None and common == 0.0:
        factors, common = (ctypes.c_float * len(runtime.trainable))(), 1.0
    if host is not None:
        with host(runtime, group_of, factors, common):
            return _make(runtime, stepper.groups(), group_of, factors, 1.0 / common, runtime.step_clip)
    return _make(runtime, stepper.groups(), group_of, factors, 1.0 / common, runtime.step_clip)


def _check_foreign(runtime: Runtime) -> None:
    """RuntimeError: a `.grad` was set by other code, and there was no backward pass: it would be ignored."""
    for state, i in runtime.trainable:
        if state.params[i].grad is not None and state.params[i].grad is not state.handles[i]:
            raise _foreign(state, i)


def _foreign(state: UnitState, i: int) -> RuntimeError:
    return RuntimeError(
        f"the .grad of parameter '{state.unit.pieces[i].name}' is not zshard's: gradients are accumulated in the "
        "engine, and another tensor there would be ignored"
    )


def become(runtime: Runtime, kind: str) -> None:
    """The engine's optimizer is of that kind. Collective. ValueError: it is another one, and has stepped."""
    if runtime.steps > 0:
        raise ValueError(
            f"the engine steps by {runtime.kind}, and this optimizer is {kind}: give the optimizer to "
            "zshard.torch.shard(model, optimizer)"
        )
    if "muon" in (kind, runtime.kind):
        raise ValueError(
            f"the model was sharded for {runtime.kind}, and this optimizer is {kind}: Muon is chosen when a model is "
            "sharded. Give the optimizer to zshard.torch.shard(model, optimizer)"
        )
    runtime.call(runtime.engine.optimizer, kind)
    runtime.kind = kind


def _together(stepper: Stepper, group_of: Any, factors: Any, common: float) -> Any:
    """A step of an optimizer that does not have all of the model's tensors."""
    runtime = stepper.runtime
    merged = runtime.waiting or Merged(runtime)
    merged.add(stepper, group_of, factors, common)
    left = merged.left()
    for other in runtime.steppers:
        if other not in merged.steppers and any(other.has(n) for n in left):
            runtime.waiting = merged
            return None
    if left and not runtime.warned:
        runtime.warned = True
        state, i = runtime.trainable[left[0]]
        warnings.warn(
            f"{len(left)} tensors with gradients ('{state.unit.pieces[i].name}' ...) are in no optimizer that zshard "
            "knows: their gradients are dropped with the step. If another optimizer has them, give both to "
            "shard(model, [one, other])",
            stacklevel=6,
        )
    return merged.step()


def _make(runtime: Runtime, groups: Any, group_of: Any, factors: Any, divide: float, clip: float) -> Any:
    if runtime.before_step is not None:
        runtime.before_step()
    stepped = runtime.call(_call, runtime, groups, group_of, factors, divide, clip)
    runtime.stepped(stepped)
    return stepped


def _skip(runtime: Runtime, groups: Any) -> Any:
    """A step that steps nothing, as one with a gradient that is not finite."""
    n = len(runtime.trainable)
    if runtime.before_step is not None:
        runtime.before_step()
    stepped = runtime.call(_call, runtime, groups, (ctypes.c_uint32 * n)(*[GROUP_NONE] * n), None, 1.0, 0.0)
    stepped = stepped._replace(skipped=True, grad_norm=math.nan)
    runtime.stepped(stepped)
    return stepped


def _call(runtime: Runtime, groups: Any, group_of: Any, factors: Any, divide: float, clip: float) -> Any:
    return runtime.engine.step_by(groups, group_of=group_of, factors=factors, divide=divide, clip=clip)


def tell_skipped(runtime: Runtime, stepped: Any) -> None:
    """Warns of the first step that was skipped. Without it a run could train nothing, with finite losses."""
    if stepped.skipped and runtime.tells_skipped and runtime.engine.rank == 0:
        runtime.tells_skipped = False
        warnings.warn(
            f"step {stepped.iterations} was skipped, because a gradient is not finite: weights and moments stay as "
            "they were. Later ones are not reported; handle.grad_norm is NaN after each of them. (Parameters that are "
            "used outside of the model's forward read as NaN.)",
            stacklevel=4,
        )


class LazyState(dict[str, Any]):
    """`optimizer.state[p]`: its entries are read from the engine when they are asked for, and written when they are
    set.

    Keys are "step" and the moments' names. Reads and writes are collective where ranks are several. The engine keeps
    one state of a parameter: that of the LazyState that was made last (UnitState.shown).
    """

    def __init__(self, runtime: Runtime, param: torch.Tensor, states: tuple[str, ...]) -> None:
        super().__init__(dict.fromkeys(("step", *states)))
        self.runtime, self.param = runtime, param
        found = runtime.plan.find(param)
        if found is not None:
            unit = runtime.units[found[0].index]
            unit.shown[unit.places[id(param)]] = self

    def check(self, runtime: Runtime) -> None:
        """RuntimeError: the engine of `runtime` does not keep this state."""
        unit, piece = _found(self.runtime, self.param)
        if self.runtime is not runtime or runtime.closed:
            raise RuntimeError(
                f"the optimizer's state of parameter '{piece.name}' was in the engine of a model that was closed: take "
                "copy.deepcopy(optimizer.state_dict()) before handle.close(), and load it afterwards, or make a new "
                "optimizer"
            )
        state = runtime.units[unit.index]
        if state.shown[state.places[id(self.param)]] is not self:
            raise RuntimeError(
                f"another optimizer has stepped parameter '{piece.name}': the engine keeps one state of a parameter, "
                "and this optimizer's is gone. Load it (optimizer.load_state_dict()), or clear it (optimizer.state)"
            )

    def __setitem__(self, key: str, value: Any) -> None:
        if key not in self:
            name = _found(self.runtime, self.param)[1].name
            raise KeyError(f"the state of parameter '{name}' has {', '.join(self)}, and no '{key}'")
        self.check(self.runtime)
        if key == "step":
            write_steps(self.runtime, self.param, int(float(value)))
            return
        write_state(self.runtime, self.param, key, torch.zeros(self.param.shape) if value is None else value)
        if value is None:  # torch's SGD before its first step
            write_steps(self.runtime, self.param, 0)

    def __getitem__(self, key: str) -> Any:
        if key not in self:
            raise KeyError(key)
        with torch.inference_mode():  # a write to what was read would be lost: torch refuses it
            return self._read(key)

    def _read(self, key: str) -> Any:
        self.check(self.runtime)
        return read_state(self.runtime, self.param, key)

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default

    def items(self) -> Any:
        return [(k, self._read(k)) for k in self]

    def values(self) -> Any:
        return [self._read(k) for k in self]

    def __reduce__(self) -> Any:
        # An OrderedDict: torch.load(weights_only=True) builds it, and refuses a dict that is called.
        return OrderedDict, (), None, None, iter(self.items())

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return dict(self.items())

    def copy(self) -> dict[str, Any]:
        """A plain dict with real tensors."""
        return dict(self.items())


def read_state(runtime: Runtime, param: torch.Tensor, name: str) -> torch.Tensor:
    """ "step" (scalar), or a moment (fp32, the parameter's shape, on its device), on every rank. Collective."""
    unit, piece = _found(runtime, param)
    if name == "step":
        place = runtime.units[unit.index].places[id(param)]
        return torch.tensor(float(runtime.call(runtime.engine.tensor_steps, unit.index)[place]))
    return runtime.read(unit.index, _WHATS[name], piece.first, piece.numel).view(piece.shape)


def write_state(runtime: Runtime, param: torch.Tensor, name: str, value: torch.Tensor) -> None:
    """Writes a moment, the same on every rank. Collective. ValueError: another shape."""
    unit, piece = _found(runtime, param)
    if value.shape != piece.shape:
        raise ValueError(f"'{name}' of '{piece.name}' has shape {tuple(value.shape)}, not {tuple(piece.shape)}")
    runtime.write(unit.index, _WHATS[name], piece.first, value.detach().float().contiguous().view(-1))


def write_steps(runtime: Runtime, param: torch.Tensor, steps: int) -> None:
    """Sets a parameter's step count. Collective."""
    unit = _found(runtime, param)[0]
    counts = runtime.call(runtime.engine.tensor_steps, unit.index)
    counts[runtime.units[unit.index].places[id(param)]] = steps
    runtime.call(runtime.engine.set_tensor_steps, unit.index, counts)


def _found(runtime: Runtime, param: torch.Tensor) -> tuple[Unit, Piece]:
    found = runtime.plan.find(param)
    assert found is not None
    return found
