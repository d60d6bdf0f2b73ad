"""Parameters that have their values between two passes, too: of models whose parameters are whole on each rank.

Below stage 3 a rank has memory for all parameters anyway. Where `keep()` was called, every unit stays gathered from
then on, but for steps and writes: `Runtime.let_go()` releases what is kept, and `show()` gathers it again. What is
written to a kept parameter would be lost with the next step, so `drop()` refuses it. When the engine ends, `own()`
makes ordinary tensors of the parameters.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..errors import ZshardError

if TYPE_CHECKING:
    from ._runtime import Runtime
    from ._unit_state import UnitState


def keep(runtime: Runtime) -> None:
    """From now on parameters have their values. Collective."""
    runtime.kept = True
    for state in runtime.units:
        state.memory.lasting = False
    runtime.exposed[:] = [
        (weakref.ref(p), scalar) for u in runtime.units for p, scalar in zip(u.params, u.memory.scalars, strict=True)
    ]
    show(runtime)


def show(runtime: Runtime) -> None:
    """After a step or a write: parameters have their values again. Nothing where keep() was not called, or inside of a
    pass. Collective."""
    if not runtime.kept or runtime.closed or runtime.depth or runtime.in_backward:
        return
    with runtime.lock:
        for state in runtime.units:
            if not state.kept:
                runtime.acquire(state)
                state.kept = 1
                seen(runtime, state, range(len(state.params)))
        runtime.leave()


def drop(runtime: Runtime, states: Iterable[UnitState]) -> None:
    """Releases what is kept. Raises RuntimeError where a parameter was written."""
    written = ""
    for state in states:
        if not state.kept:
            continue
        written = written or state.memory.written_shown()
        state.kept = 0
        runtime.release(state, sent=True)
    if written:
        raise RuntimeError(
            f"parameter '{written}' was written outside of zshard.torch.gathered(write_rank=): the engine keeps the "
            "parameters, so the change is lost. Write it in that block (of DeepSpeed's names: "
            "zero.GatheredParameters(modifier_rank=))"
        )


def seen(runtime: Runtime, state: UnitState, places: Iterable[int]) -> None:
    """Parameters of the unit look at its memory again; writes to them so far are known, and sent."""
    in_socket = runtime.world == 1 and state.memory.device.type == "cpu" and runtime.engine.options.get("socket")
    for i in places:
        p = state.params[i]
        if state.kept and in_socket:  # the memory is the daemon's, and a write would end the process
            p.data = p.detach().clone()
        state.memory.remember(i)


def own(runtime: Runtime) -> None:
    """The engine is about to end in good order: parameters become ordinary tensors. Collective."""
    show(runtime)
    for state in runtime.units:
        state.memory.own()
        state.kept = state.holds = 0
        runtime.call(runtime.engine.release, state.index)
    runtime.kept = False


def forget(runtime: Runtime) -> None:
    """The engine has failed: parameters are NaN."""
    runtime.kept = False
    for state in runtime.units:
        if state.kept:
            state.kept = 0
            with contextlib.suppress(ZshardError):
                runtime.release(state, sent=True)
    runtime.leave()
