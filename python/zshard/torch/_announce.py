"""Steps that begin during their last backward pass: what is announced of them, and what optimizers must then do.

Before a step's last backward pass the engine is told the hyperparameters that the optimizers' groups have at that
moment. The daemon then steps units as their gradients come. optimizer.step() completes the step: it compares what the
groups are now, and sends the same values again. A difference is an error and never ignored, because parts of the step
are made already. Nobody sees these parts before the step, so whatever is refused costs the gradients of one step.

    begin_micro() ---> begins() ---> engine.announce_by() ---> the last backward pass ---> step() of each optimizer
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from .._c import GROUP_NONE
from .._engine import CLIP_MODE
from ..errors import Refused
from . import _kept

if TYPE_CHECKING:
    from ._runtime import Runtime
    from ._step import Stepper

NO_SYNC = "no_sync"  # gradient_accumulation_steps: each backward pass outside of no_sync() is its step's last
_NAMES = {"beta1": "betas[0]", "beta2": "betas[1]", "muon_scale": "scale"}


def clip_mode(options: Mapping[str, Any]) -> str:
    """How an engine with these options clips."""
    mode = options.get("clip_mode", "global")
    return next((name for name, number in CLIP_MODE.items() if mode == number), str(mode))


def early_mode(options: Mapping[str, Any]) -> bool:
    """Whether steps of an engine with these options do not wait for a global norm."""
    return clip_mode(options) in ("tensor", "none")


def passes_of(
    given: int | str | None,
    options: Mapping[str, Any],
    accumulate: str,
    optimizers: Sequence[torch.optim.Optimizer],
) -> int | str | None:
    """What shard(gradient_accumulation_steps=) announces; None: nothing. ValueError: it cannot be."""
    if given is not None and given != NO_SYNC and (isinstance(given, bool) or not isinstance(given, int) or given < 1):
        raise ValueError(f'gradient_accumulation_steps={given!r}: a number of backward passes, from 1, or "{NO_SYNC}"')
    early = early_mode(options)
    if options.get("grad_ring"):
        _check_ring(given, early, accumulate, optimizers)
    if given is None or not early:
        return None
    for one in optimizers:
        _check_host(one)
    scale = options.get("loss_scale") or {}
    if scale.get("dynamic"):
        raise ValueError(
            "gradient_accumulation_steps with a dynamic loss scale: a step that begins during its backward pass cannot "
            "wait for an overflow; leave it out, or use a fixed scale"
        )
    return given


def _check_ring(
    given: int | str | None, early: bool, accumulate: str, optimizers: Sequence[torch.optim.Optimizer]
) -> None:
    if not early:
        raise ValueError(
            'grad_ring: clipping by a global norm needs all gradients; use clip_mode="tensor", or "none" to clip '
            "nothing"
        )
    if given is None:
        raise ValueError(
            "grad_ring: gradients that are not held are stepped during the last backward pass: say with "
            "gradient_accumulation_steps= how many backward passes make a step"
        )
    if given != 1 and accumulate != "local":
        raise ValueError(
            f"grad_ring with gradient_accumulation_steps={given}: gradients are added up by the trainer then, in "
            'memory for the gradients of the whole model: accumulate="local"'
        )
    if not optimizers:
        raise ValueError("grad_ring: the first step is announced, too; give the optimizer to shard(model, optimizer)")


def _check_host(optimizer: torch.optim.Optimizer) -> None:
    if getattr(optimizer, "zshard_host_step", None) is not None:
        raise ValueError(
            "gradient_accumulation_steps with a HostOptimizer: its steps are made by torch, after all gradients have "
            "come; leave it out"
        )


class _Part:
    """What was announced of one optimizer."""

    def __init__(self, stepper: Stepper, base: int) -> None:
        self.stepper, self.base = stepper, base
        self.groups = stepper.groups()
        self.group_of = list(stepper.group_of())
        self.stepped = False

    def own(self) -> list[int]:
        """Numbers of its trainable tensors."""
        return [n for n, group in enumerate(self.group_of) if group != GROUP_NONE]


class Said:
    """An announced step."""

    def __init__(self, runtime: Runtime, parts: list[_Part]) -> None:
        n = len(runtime.trainable)
        group_of = [GROUP_NONE] * n
        for part in parts:
            for number in part.own():
                state, i = runtime.trainable[number]
                # Without requires_grad it gets no gradient, and is left alone as in any step.
                if state.params[i].requires_grad or state.had[i]:
                    group_of[number] = part.base + part.group_of[number]
        self.parts = parts
        self.groups = [g for part in parts for g in part.groups]
        self.group_of: Any = (ctypes.c_uint32 * n)(*group_of)
        self.divide, self.clip = 1.0 / runtime.step_scale, runtime.step_clip


class Announcer:
    """Announces the steps of one model.

    Attributes:
        passes: backward passes of a step, or NO_SYNC.
        said: the announced step; None: the next one is not announced so far.
    """

    def __init__(self, runtime: Runtime, passes: int | str) -> None:
        self.runtime, self.passes = runtime, passes
        self.said: Said | None = None

    def load(self) -> None:
        """Before a forward pass: states that load_state_dict() left, or that were cleared, go to the engine. With the
        step it would be too late."""
        from ._optim import has_new_state, load_state

        runtime = self.runtime
        if self.said is not None:
            return
        for stepper in runtime.steppers:
            if stepper.alive and has_new_state(stepper.optimizer, runtime):
                load_state(stepper.optimizer, stepper.rule)
                _kept.show(runtime)

    def begins(self, number: int) -> bool:
        """Backward pass `number` of the step begins, from 1. Announces the step before its last one; returns whether it
        is that. RuntimeError: the last one was made."""
        if self.said is not None:
            raise RuntimeError(
                f"another backward pass of an announced step: by gradient_accumulation_steps={self.passes!r} the one "
                "before was its last. Call optimizer.step(), or zero_grad() to drop the step. Say the right number, or "
                "put all passes but the last into no_sync()"
            )
        runtime = self.runtime
        if not runtime.boundary or (self.passes != NO_SYNC and number < int(self.passes)):
            return False
        self.announce()
        return True

    def announce(self) -> None:
        """Says what the step is."""
        runtime, parts, base = self.runtime, [], 0
        for stepper in runtime.steppers:
            if not stepper.alive:
                continue
            part = _Part(stepper, base)
            if not part.own():
                continue
            _check_host(stepper.optimizer)
            if not stepper.rule.fits(runtime.kind):
                return  # its first step() changes the engine's optimizer
            parts.append(part)
            base += len(part.groups)
        if not parts:
            return  # there is none yet: this step is made as ever
        said = Said(runtime, parts)
        runtime.call(self._tell, said)
        self.said = said

    def late(self) -> None:
        """optimizer.step() after fewer backward passes than were said: gradients that the daemon will not hold are
        announced before they leave."""
        runtime = self.runtime
        if self.said is None and runtime.engine.options.get("grad_ring"):
            self.announce()

    def _tell(self, said: Said) -> None:
        self.runtime.engine.announce_by(said.groups, group_of=said.group_of, divide=said.divide, clip=said.clip)

    def forget(self) -> None:
        """The step was made or dropped."""
        if self.runtime.waiting is self:
            self.runtime.waiting = None
        self.said = None

    # ---- the step

    def apply(self, stepper: Stepper, scale: float) -> Any:
        """optimizer.step() of an announced step. None: other optimizers are waited for. RuntimeError: it is another
        step than was announced; nothing has changed."""
        runtime, said = self.runtime, self.said
        assert said is not None
        part = next((p for p in said.parts if p.stepper is stepper), None)
        if part is None:
            raise RuntimeError(_unknown(stepper.optimizer))
        if scale != 1.0:
            raise RuntimeError(SCALER)
        self._check_groups(part)
        self._check_gradients(part)
        if (1.0 / runtime.step_scale, runtime.step_clip) != (said.divide, said.clip):
            raise RuntimeError(
                "the loss scale, or the limit of the norm, is another one than was announced with the step"
            )
        part.stepped = True
        if not all(p.stepped or not p.stepper.alive for p in said.parts):
            runtime.waiting = self
            return None
        runtime.waiting = None
        return self._make(said)

    def _make(self, said: Said) -> Any:
        from ._step import _make

        runtime = self.runtime
        try:
            return _make(runtime, said.groups, said.group_of, None, said.divide, said.clip)
        except Refused as e:
            if e.code == -22 and not runtime.closed:  # a tensor without a gradient: what was stepped is useless
                runtime.broken = "the announced step was refused"
            raise

    def step(self) -> None:
        """As of a step that waits for optimizers: an announced one has all tensors, and cannot be made without one."""
        said = self.said
        left = [type(p.stepper.optimizer).__name__ for p in said.parts if not p.stepped] if said is not None else []
        raise RuntimeError(
            f"a step was announced for {len(said.parts) if said is not None else 0} optimizers, and {', '.join(left)} "
            "did not step: call its step(), or the handle's reset() to drop the step on all ranks"
        )

    def _check_groups(self, part: _Part) -> None:
        now = part.stepper.groups()
        name = type(part.stepper.optimizer).__name__
        for number, (is_now, was) in enumerate(zip(now, part.groups, strict=False)):
            for key in was:
                if is_now.get(key) != was[key]:
                    raise RuntimeError(
                        f"{name}: '{_NAMES.get(key, key)}' of group {number} is {is_now.get(key)}, and the step was "
                        f"announced with {was[key]}: change it before the step's last backward pass. Set it back, or "
                        "call zero_grad() to drop the step"
                    )
        if len(now) != len(part.groups) or list(part.stepper.group_of()) != part.group_of:
            raise RuntimeError(
                f"{name}: its groups have other parameters than when the step was announced: change them before the "
                "step's last backward pass"
            )

    def _check_gradients(self, part: _Part) -> None:
        runtime = self.runtime
        for number in part.own():
            state, i = runtime.trainable[number]
            grad, handle = state.params[i].grad, state.handles[i]
            name = state.unit.pieces[i].name
            if grad is handle and handle.factor == 1.0 and not handle.zeroed:
                continue
            if grad is None and not state.had[i]:
                continue  # no gradient came: the engine knows about all ranks
            if grad is not None and grad is not handle:
                raise RuntimeError(f"the .grad of parameter '{name}' is not zshard's: another tensor would be ignored")
            raise RuntimeError(
                f"the gradient of '{name}' was {'scaled' if grad is handle and not handle.zeroed else 'cleared'} after "
                "its step was announced, and before optimizer.step(): the step would not be the one that has begun. "
                "Call zero_grad() to drop all of it"
            )


SCALER = (
    "GradScaler with announced steps: a step that has begun cannot wait for an overflow. Use bf16, or shard() without "
    "gradient_accumulation_steps"
)
CLIP = (
    "clip_grad_norm_(), or the norm of a gradient, after its step was announced: parts of the step are made, with "
    'gradients as they are. Leave it out, and clip by shard(clip_mode="tensor", clip=...); or shard() without '
    "gradient_accumulation_steps"
)


def _said(runtime: Runtime) -> Said | None:
    """What was announced of the next step; None: nothing."""
    return runtime.announcer.said if runtime.announcer is not None else None


def begin(runtime: Runtime, number: int) -> None:
    """Micro-step `number` of a step begins, from 1."""
    announcer = runtime.announcer
    last = runtime.boundary if announcer is None else announcer.begins(number)
    try:
        runtime.call(runtime.engine.micro, last)
    except BaseException:
        if _said(runtime) is not None:
            runtime.broken = "the backward pass failed"
        raise


def check_state(runtime: Runtime, optimizer: torch.optim.Optimizer) -> None:
    """RuntimeError where the next step is announced: an optimizer's state would be written before it."""
    said = _said(runtime)
    if said is None:
        return
    if all(p.stepper.optimizer is not optimizer for p in said.parts):
        raise RuntimeError(_unknown(optimizer))
    raise RuntimeError(
        f"{type(optimizer).__name__}.step(): its state was loaded or cleared after its last forward pass, and the step "
        "was announced: do that before the forward pass, or call zero_grad() to drop the step"
    )


def _unknown(optimizer: torch.optim.Optimizer) -> str:
    return (
        f"{type(optimizer).__name__}.step(): the step was announced before this optimizer was known; give all "
        "optimizers to shard(model, [one, other])"
    )


def said(model: torch.nn.Module) -> bool:
    """Whether the next step of a sharded model is announced."""
    handle = model.__dict__.get("_zshard")
    return handle is not None and _said(handle.runtime) is not None


def refuse(runtime: Runtime, text: str) -> None:
    """RuntimeError where the next step is announced."""
    if _said(runtime) is not None:
        raise RuntimeError(text)
