"""What the user did to `.grad` since the last backward pass: nothing, cleared all gradients of the step, or some."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._runtime import Runtime


def settle(runtime: Runtime) -> None:
    """Before a micro-step: what the user did to .grad since the last one. RuntimeError: it cannot be done."""
    if runtime.spent:
        _check(runtime)
    if runtime.micros == 0 and not runtime.broken:
        return
    live = dropped = 0
    for state, i in runtime.trainable:
        if state.frozen or (not state.had[i] and runtime.world == 1):
            continue
        handle = state.handles[i]
        if state.params[i].grad is not handle or handle.zeroed:
            dropped += 1
            continue
        live += 1
        if handle.factor != 1.0:
            raise RuntimeError("gradients were scaled or clipped, and another backward pass came before the step")
    if runtime.broken or dropped and not live:
        if live:
            raise RuntimeError(
                f"{runtime.broken}: clear the gradients (optimizer.zero_grad()), or call the handle's reset()"
            )
        runtime.call(runtime.engine.abandon)
        runtime.clear()
    elif dropped:
        raise RuntimeError(
            "gradients of some parameters were cleared between two backward passes of a step, and "
            "those of others were not"
        )


def all_cleared(runtime: Runtime) -> bool:
    """Whether the user dropped all gradients of this step."""
    for state, i in runtime.trainable:
        handle = state.handles[i]
        if state.params[i].grad is handle and not handle.zeroed:
            return False
    return True


def _check(runtime: Runtime) -> None:
    for number, (state, i) in enumerate(runtime.trainable):
        handle = state.handles[i]
        if state.params[i].grad is handle and not handle.zeroed:
            name = state.unit.pieces[i].name
            if not any(s.has(number) for s in runtime.steppers):
                raise RuntimeError(
                    f"the gradient of '{name}' was dropped with the step, because no optimizer has it, and was not "
                    "cleared: freeze it (requires_grad_(False)), or call model.zero_grad() after each step"
                )
            raise RuntimeError(
                f"the gradient of '{name}' was stepped and not cleared: call optimizer.zero_grad() before the next "
                "backward pass"
            )
    runtime.spent = False
