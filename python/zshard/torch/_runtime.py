"""The state of one sharded model: which units are gathered, and where a micro-step is.

A unit is gathered while somebody holds it: a forward pass of a module (between its two hooks), or a
group in its backward pass (from the first gradient of an output to the group's last gradient).
Nothing is released while a checkpoint recomputes: that hold becomes the group's.

A pass is the outermost forward call, or a backward pass. At its end released parameters become NaN
scalars. A backward pass that gives a gradient is a micro-step: it begins when the first parameter
is armed (its `.grad` becomes a view of the engine's fp32 buffer) and ends with the engine's
callback. Units whose expected gradients have all come are reduced at once, those that were entered
twice or are late at the end.

Hooks of one module may run on two threads: `lock` is held in each, and states are idempotent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import torch
from torch import nn

from .._engine import Engine
from ..errors import RolledBack
from . import _announce, _cleared, _kept
from ._memory import UnitMemory, saved_hooks, written_inside
from ._unit_state import Group, UnitState, will_execute
from ._units import Plan

task_id = torch._C._current_graph_task_id


class Runtime:
    """One engine and its model. Made by `shard`; see the module's text."""

    def __init__(self, engine: Engine, plan: Plan, states: list[UnitState]) -> None:
        self.engine, self.plan, self.units = engine, plan, states
        self.lock = threading.RLock()
        self.world = engine.world
        self.groups: dict[int, Group] = {}  # by id of the module
        self.stack: list[Group] = []  # groups in forward, innermost last
        self.depth = 0  # of forward calls outside of recomputation
        self.hidden: list[UnitState] = []  # released in this pass
        self.in_backward = False
        self.keeps = False  # this backward pass makes a graph, whose own backward pass needs the parameters
        self.micro_open = False
        self.root: nn.Module | None = None
        self.steppers: list[Any] = []  # of the optimizers that are known
        self.waiting: Any = None  # a step of several optimizers, of which some have stepped
        self.warned = False
        self.tells_skipped = True  # the first step that is skipped is reported
        self.kind = ""  # the engine's optimizer
        self.announcer: _announce.Announcer | None = None  # None: steps are not announced
        self.default_boundary = True
        self.boundary = True  # the next micro-step may be the step's last
        self.micros = 0  # made since the last step
        self.begun = 0  # likewise, and those that failed
        self.broken = ""  # why this step's gradients are not whole
        self.first_trainable: dict[int, int] = {}  # of each trainable unit: its first tensor's number
        self.steps = 0
        self.before_step: Callable[[], None] | None = None  # sends the note that goes with the step
        self.resume: Callable[[], Any] | None = None  # reads the note of the job's step; returns commit()'s
        self.writing: Callable[[], None] | None = (
            None  # marks the job: weights are written that belong to the next step
        )
        self.last: Any = None  # the last step's Stepped
        # limit of the gradient's norm for the steps that begin now; 0: none
        self.step_clip = float(engine.options.get("clip", 0.0))
        self.step_scale = 1.0  # their gradients are multiplied by it
        self.spent = False  # the last step's gradients were not cleared yet
        self.norms: list[Any] | None = None  # of this step's gradient so far
        self.lost = ""  # a parameter that was written inside of a pass, where that does not last
        self.closed = ""
        self.on_pass: Callable[[bool], None] | None = None
        self.busy_ns = 0  # in hooks and steps, without the engine's calls
        self.c_ns = 0  # in the engine's calls
        self.kept = False  # parameters have their values between two passes, too (_kept.py)
        self.exposed: list[Any] = []  # then: (weak reference to a parameter, a NaN scalar)
        self.saved = saved_hooks(self._shown) if any(u.memory.mode == "view" for u in states) else None
        self.watching = False  # `saved` is at work
        for u in states:
            u.memory.lasting &= engine.world == 1 and not engine.options.get("socket")
        self.trainable = [(u, i) for u in states if u.trainable for i in range(len(u.params))]
        for number, (state, i) in enumerate(self.trainable):
            if i == 0:
                self.first_trainable[state.index] = number

    def _shown(self) -> list[UnitMemory]:
        return [u.memory for u in self.units if u.memory.shown]

    # ---- calls of the engine

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """A call of the engine, whose time is not ours. RolledBack: the job continues from an older step."""
        start = perf_counter_ns()
        try:
            return function(*args)
        except RolledBack as e:
            self.rolled_back(e)
            raise
        finally:
            self.c_ns += perf_counter_ns() - start

    def fail(self, why: str) -> None:
        """The model cannot be used any more. A kept job stays."""
        self.closed = why
        _kept.forget(self)
        self.engine.close(False)

    # ---- gathering

    def acquire(self, state: UnitState) -> None:
        """Holds a unit; gathers it where nobody does."""
        if state.holds == 0:
            if self.closed:
                raise RuntimeError(f"the model is {self.closed}: its parameters are released")
            address = self.call(self.engine.gather, state.index)
            state.holds = 1
            try:
                state.memory.show(address)
            except BaseException:
                state.holds = 0
                self.call(self.engine.release, state.index)
                raise
            return
        state.holds += 1

    def release(self, state: UnitState, sent: bool = False) -> None:
        """Ends one hold. sent: what was written to its parameters is known already."""
        state.holds -= 1
        if state.holds == 0:
            if not sent:
                self.lost = self.lost or state.memory.written_shown()
            state.memory.hide()
            self.call(self.engine.release, state.index)
            self.hidden.append(state)

    def check_lost(self) -> None:
        """RuntimeError: a pass wrote to a parameter, and the change is lost."""
        if self.lost:
            name, self.lost = self.lost, ""
            raise written_inside(name)

    def leave(self) -> None:
        """Outside of a pass, released parameters are scalars of their own."""
        if self.depth or self.in_backward:
            return
        for state in self.hidden:
            if state.holds == 0:
                self.lost = self.lost or state.memory.written_hidden()
                state.memory.leave()
        self.hidden.clear()

    # ---- forward

    def _watch_saved(self, on: bool) -> None:
        """view: in a forward pass, what autograd saves of gathered memory is remembered by its place in the unit."""
        if self.saved is None or on == self.watching:
            return
        self.watching = on
        if on:
            self.saved.__enter__()
        else:
            self.saved.__exit__(None, None, None)

    def enter(self, group: Group) -> bool:
        """A forward call of a group's module begins. Returns whether gradients of its inputs are to be watched."""
        recompute = task_id() != -1
        if not recompute:
            if self.in_backward:
                self.recover("the backward pass failed")
            if self.waiting is not None:
                self.waiting.step()
            if self.depth == 0 and (self.micros or self.broken) and _cleared.all_cleared(self):
                self.call(self.engine.abandon)
                self.clear()
            if self.depth == 0 and self.announcer is not None:
                self.announcer.load()
        if group.owner is not None and group.owner.stack:
            group.stack.append(None)
            return False
        held: list[UnitState] = []
        group.stack.append((held, recompute))
        self.stack.append(group)
        if not recompute:
            self.depth += 1
            if self.depth == 1:
                self._watch_saved(True)
                if self.on_pass is not None:
                    self.on_pass(True)
        counts = group.module.training or torch.is_grad_enabled()
        for state in group.units:
            self.acquire(state)
            held.append(state)
            if counts and not recompute:
                state.entries += 1
        if recompute and torch.is_grad_enabled():
            self.hold(group)
        return torch.is_grad_enabled() and group.watches()

    def exit(self, group: Group) -> bool:
        """A forward call is over, or failed. Returns whether outputs are to be hooked."""
        if not group.stack:
            return False
        entry = group.stack.pop()
        if entry is None:
            return False
        held, recompute = entry
        if self.stack and self.stack[-1] is group:
            self.stack.pop()
        elif group in self.stack:  # inner calls that never ended (a hook of theirs raised)
            self.stack.remove(group)
        for state in reversed(held):
            self.release(state)
        if not recompute:
            self.depth -= 1
            if self.depth == 0:
                self._watch_saved(False)
                if self.on_pass is not None:
                    self.on_pass(False)
            self.leave()
        return True

    # ---- backward

    def hold(self, group: Group) -> None:
        """A group's backward pass begins (or continues): its units are gathered until it is over."""
        if not self.in_backward:
            self.in_backward = True
            torch.autograd.Variable._execution_engine.queue_callback(self.end_backward)
        if group.backward:
            return
        group.backward = True
        for state in group.units:
            self.acquire(state)

    def before_backward(self, group: Group) -> None:
        """The first gradient of an output of the group's came."""
        if torch.is_grad_enabled():
            self.keeps = True
        self.hold(group)
        for state in group.units:
            if state.trainable:
                self.arm(state)

    def arm(self, state: UnitState) -> None:
        """Gradients that this backward pass will accumulate go to the engine's buffer."""
        task = task_id()
        for i, node in enumerate(state.nodes):
            if state.armed[i] and (not state.fired[i] or state.tasks[i] == task):
                continue
            if not will_execute(node):
                self._set_aside(state, i)
                continue
            if not self.micro_open:
                self.begin_micro()
            if state.reduced:
                raise RuntimeError(
                    f"unit '{state.unit.name}' was reduced already, and parameter '{state.unit.pieces[i].name}' gets "
                    "another gradient in the same backward pass"
                )
            self._check_grad(state, i)
            if not state.grads:
                state.grads = self._gradient(state)
            if state.direct:
                state.params[i].grad = state.grads[i]
                state.stamps[i] = state.grads[i]._version
            else:
                state.params[i].grad = None
            state.armed[i] = True
            state.left += 1

    def _set_aside(self, state: UnitState, i: int) -> None:
        """A backward pass inside of this one may accumulate into the parameter (a reentrant checkpoint): not into our
        handle. _restore() brings it back."""
        if state.params[i].grad is state.handles[i]:
            state.params[i].grad = None
            state.aside.append(i)

    def _restore(self) -> None:
        """What _set_aside() took away, where no gradient came."""
        for state in self.units:
            for i in state.aside:
                if state.params[i].grad is None:
                    state.params[i].grad = state.handles[i]
            state.aside.clear()

    def _check_grad(self, state: UnitState, i: int) -> None:
        grad = state.params[i].grad
        if grad is None or grad is state.handles[i] or state.grads and grad is state.grads[i]:
            return
        raise RuntimeError(
            f"the .grad of parameter '{state.unit.pieces[i].name}' was set by other code; zshard "
            "accumulates gradients itself (zshard.torch.grad_of reads them)"
        )

    def _gradient(self, state: UnitState) -> list[torch.Tensor]:
        """Views of the engine's fp32 buffer, one for each parameter."""
        if state.frozen:
            raise RuntimeError(
                f"unit '{state.unit.name}' had no parameter with requires_grad when this step began, and gets a "
                "gradient now: change requires_grad between two steps"
            )
        return state.gradients(self.call(self.engine.grad, state.index))

    def accumulated(self, state: UnitState, i: int) -> None:
        """Parameter i has its gradient (post-accumulate hook)."""
        param = state.params[i]
        if not state.armed[i]:
            if param.grad is None or param.grad is state.handles[i]:
                return  # autograd has no gradient: a function returned None
            self._late_arm(state, i)
        grad = param.grad
        if state.direct:
            if grad is None:
                raise RuntimeError(
                    f"a hook of parameter '{state.unit.pieces[i].name}' set its .grad to None: zshard has the gradient "
                    "already, and would step it. Use requires_grad_(False), or clear gradients after the backward pass"
                )
            if grad is not state.grads[i]:  # create_graph: autograd made a sum of its own
                state.grads[i].copy_(grad.detach())
            elif grad._version == state.stamps[i]:  # none came
                grad = None
        elif grad is not None:
            dense = grad.detach().contiguous()
            piece = state.unit.pieces[i]
            state.grads[i].view(-1).add_(dense.view(-1)) if dense.device.type == "cpu" else self.call(
                self.engine.grad_add, state.index, piece.first, piece.numel, _DTYPE[dense.dtype], dense.data_ptr()
            )
        state.left -= 1
        handle = state.handles[i]
        if grad is None:
            param.grad = handle if state.had[i] else None
        else:
            state.fired[i], state.tasks[i] = True, task_id()
            handle.begin()
            param.grad = handle
        # 0 calls: of reentrant checkpoints in eval mode, which are not counted; there may be another one.
        if state.left == 0 and state.entries == 1 and (not state.nested or all(state.fired)):
            self._complete(state)

    def _late_arm(self, state: UnitState, i: int) -> None:
        """A gradient that was not seen coming: the parameter was used outside of its module's forward, or it is the
        first one of a backward pass inside of its module's (a reentrant checkpoint)."""
        grad = state.params[i].grad
        if not self.in_backward:
            self.in_backward = True
            torch.autograd.Variable._execution_engine.queue_callback(self.end_backward)
        if not self.micro_open:
            self.begin_micro()
        if state.reduced:
            raise RuntimeError(
                f"parameter '{state.unit.pieces[i].name}' got a gradient after its unit was reduced: "
                "it is used outside of its module's forward; name it in shard(external=...)"
            )
        if not state.grads:
            state.grads = self._gradient(state)
        if state.direct and grad is not None and grad is not state.handles[i]:
            state.grads[i].add_(grad.detach())
            state.params[i].grad = state.grads[i]
            state.stamps[i] = -1
        state.armed[i] = True
        state.left += 1
        if any(group.backward for group in state.groups):
            state.nested = True
            self.arm(state)
        else:
            state.entries += 2

    def _complete(self, state: UnitState) -> None:
        """All gradients of a unit that this pass gives are there."""
        self._reduce(state)
        for group in state.groups:
            self.finish(group)

    def _reduce(self, state: UnitState) -> None:
        if state.reduced:
            return
        state.reduced = True
        self.norms = None
        has = state.fired
        if not all(has):
            has = [f or z for f, z in zip(has, self._zeros(state), strict=True)]
        state.had = [a or b for a, b in zip(state.had, has, strict=True)]
        self.call(self.engine.reduce_of, state.index, None if all(has) else has)

    def _zeros(self, state: UnitState) -> list[bool]:
        """Which parameters have a gradient of zeros: zero_grad(set_to_none=False) left it, and none came since."""
        made = [
            handle.zeroed and not state.armed[i] and (state.params[i].grad is handle or i in state.aside)
            for i, handle in enumerate(state.handles)
        ]
        if self.world > 1 and any(made):  # there each has a handle: also one that no rank ever gave a gradient
            steps = self.call(self.engine.tensor_steps, state.index)
            made = [m and n > 0 for m, n in zip(made, steps, strict=True)]
        for i, zero in enumerate(made):
            if zero:
                state.handles[i].begin()
        return made

    def finish(self, group: Group) -> None:
        """Releases a group's units where its backward pass is over."""
        if not group.backward or group.inputs > 0 or group.late or self.keeps:
            return
        for state in group.units:
            if state.trainable and not state.reduced and (state.left or any(state.armed)):
                return
        group.backward = False
        for state in reversed(group.units):
            self.release(state)

    def begin_micro(self) -> None:
        """The first gradient of a backward pass."""
        _cleared.settle(self)
        self.norms = None
        if self.micros == 0:
            self.freeze()
        _announce.begin(self, self.micros + 1)
        self.micro_open = True
        self.begun += 1

    def freeze(self) -> None:
        """Between two steps: units of which no parameter has requires_grad are frozen, others are trained. Not the last
        one: the engine makes no step then, and without gradients it is left alone all the same."""
        changed = [u for u in self.units if u.trainable and u.frozen == any(p.requires_grad for p in u.params)]
        if not changed or not any(u.trainable and u.frozen == (u in changed) for u in self.units):
            return
        for state in changed:
            self.call(self.engine.freeze, state.index, not state.frozen)
            state.frozen = not state.frozen

    def end_backward(self) -> None:
        """The backward pass is over (autograd's callback)."""
        start = perf_counter_ns() - self.c_ns
        with self.lock:
            if not self.in_backward:
                return
            self._restore()
            if self.micro_open:
                self._end_micro()
            self.in_backward = False
            if self.keeps:
                self.keeps = False  # until the end of the next backward pass, or the step
            else:
                self._drop_holds()
            self.leave()
        self.busy_ns += perf_counter_ns() - self.c_ns - start

    def _end_micro(self) -> None:
        for state in reversed(self.units):
            if not state.trainable or state.frozen:
                continue
            if any(state.fired):
                self._reduce(state)
            elif any(h.zeroed and p.grad is h for h, p in zip(state.handles, state.params, strict=True)):
                self.call(self.engine.grad, state.index)
                self._reduce(state)
            for i, param in enumerate(state.params):
                if state.armed[i] and not state.fired[i]:
                    param.grad = state.handles[i] if state.had[i] else None
                if self.world > 1 and param.grad is None:  # the same on all ranks: another may have one
                    state.handles[i].begin()
                    param.grad = state.handles[i]
        self.call(self.engine.micro_end)
        self.norms = None
        self.micro_open = False
        self.micros += 1
        for state in self.units:
            state.forget()

    def let_go(self, only: UnitState | None = None) -> None:
        """Before a step or a write: what a backward pass with create_graph left gathered is released, and what is kept
        gathered: of one unit, or of all."""
        if not self.in_backward:
            self._drop_holds()
            if self.kept:
                _kept.drop(self, self.units if only is None else [only])
            self.leave()

    def _drop_holds(self) -> None:
        for group in self.groups.values():
            group.inputs, group.late = 0, False
            if group.backward:
                group.backward = False
                for state in reversed(group.units):
                    self.release(state)

    def recover(self, why: str) -> None:
        """A pass ended by an exception: everything is released, and this step's gradients are not whole."""
        for group in self.groups.values():
            while group.stack:
                entry = group.stack.pop()
                for state in entry[0] if entry else ():
                    self.release(state)
        self.stack.clear()
        self.depth = 0
        self._watch_saved(False)
        if self.micro_open:
            self.broken = why
            self.micro_open = False
        self.in_backward = self.keeps = False
        self._drop_holds()
        self._restore()
        for state in self.units:
            state.forget()
        self.leave()

    # ---- between backward passes

    def clear(self) -> None:
        """The step's gradients are gone: stepped, or dropped."""
        self.micros, self.begun, self.norms, self.broken = 0, 0, None, ""
        if self.announcer is not None:
            self.announcer.forget()
        for state in self.units:
            if state.trainable:
                state.had = [False] * len(state.params)

    def stepped(self, result: Any) -> None:
        """The engine has begun a step."""
        self.steps, self.last = result.iterations, result
        if not result.skipped:  # a graph from before the step says that it is stale, as torch's does
            moved = [(u, i) for u, i in self.trainable if u.had[i] and u.params[i].grad is u.handles[i]]
            torch.autograd.graph.increment_version([u.params[i] for u, i in moved])
            for state, i in moved:
                state.memory.versions[i] += 1
            for state in self.units:
                state.memory.doubted = True
        norms = self.norms
        self.clear()
        self.norms, self.spent = norms, True

    def rolled_back(self, error: RolledBack) -> None:
        """The job continues from an older step, in another daemon."""
        self.steps, _ = self.engine.progress()
        for state, i in self.trainable:
            state.params[i].grad = None
        self.clear()
        self.spent, self.last = False, None
        if self.kept:  # what is gathered is of a later step; the next one shows parameters again
            self.let_go()
        error.step = self.steps
        if self.resume is not None:
            error.note = self.resume()

    # ---- elements

    def read(self, unit: int, what: str, first: int, count: int) -> torch.Tensor:
        """[count] fp32 on the host, on every rank. Collective."""
        with self.lock:
            return torch.frombuffer(self.call(self.engine.read, unit, what, first, count), dtype=torch.float32)

    def write(self, unit: int, what: str, first: int, values: torch.Tensor) -> None:
        """Writes fp32 values, the same on every rank. Collective, between steps."""
        host = values.to("cpu", torch.float32).contiguous()
        with self.lock:
            self.let_go(self.units[unit])
            self.call(self.engine.write_on, -1, unit, what, first, host.numel(), "f32", host.data_ptr())


_DTYPE = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
