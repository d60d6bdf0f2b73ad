"""`shard`: a module's parameters move into the engine; the handle that it returns."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import sys
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from .. import _c
from .._client import Client
from .._engine import Engine
from ..errors import Refused, ZshardError, error
from . import _announce, _cuda, _kept, _meta, _muon, _notes, _plain, _sources, _state, _step
from ._groups import build
from ._hooks import Hooks
from ._init import context
from ._memory import UnitMemory, choose_mode
from ._runtime import Runtime
from ._unit_state import UnitState
from ._units import Leaf, Plan, Wish, plan

_KINDS = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


class Handle:
    """The engine of a sharded model.

    Attributes:
        model: the module, changed in place.
        resumed: whether the engine continues a kept job.
    """

    def __init__(self, model: nn.Module, runtime: Runtime, hooks: Hooks) -> None:
        self.model, self.runtime, self.engine = model, runtime, runtime.engine
        self._hooks = hooks
        self.resumed = runtime.steps > 0
        options = self.engine.options
        self._notes = _notes.Notes(runtime, options.get("job"), bool(options.get("keep") or options.get("durable")))
        runtime.before_step, runtime.writing = self._notes.before_step, self._notes.writing
        runtime.resume = self._notes.again
        try:
            if self.resumed:
                self._notes.resume()
            else:
                self._notes.begin()
        except BaseException:
            runtime.fail("closed: it could not be resumed")
            raise
        self._pid = os.getpid()
        self._end = weakref.finalize(self, _end, self.engine, runtime.exposed)  # also at the end of the process

    @property
    def step_number(self) -> int:
        """Number of steps so far, including skipped ones; the count of a resumed job continues."""
        return self.runtime.steps

    @property
    def note(self) -> Any:
        """The note of this rank's last commit(), also of one before a resume; None: there is none. `note_step` is its
        step. A run that died later than its last commit() resumes at a later step."""
        return self._notes.note

    @property
    def note_step(self) -> int:
        """The step after which `note` was given; 0: there is none."""
        return self._notes.note_step

    @property
    def grad_norm(self) -> float:
        """Norm of the last step's averaged gradient before clipping; NaN if it was skipped, 0 before the first step."""
        last = self.runtime.last
        return 0.0 if last is None else float(last.grad_norm)

    def commit(self, note: Any = None) -> None:
        """Makes the newest step durable, with a note of this rank. Collective.

        A run that resumes from this step finds the note in `note`, and the random number generators in their current
        state (from a step without a commit(): in the state at that step). Persistent buffers that have changed are as
        they were, too; more than 32 KiB of them only from a step with a commit().

        Args:
            note: any object that pickles, such as the data loader's and the scheduler's state; None: no note.

        Raises:
            Refused: the job has no daemon, or is not durable. ValueError: a note before the first step.
            RolledBack: the daemon was lost before this; as from optimizer.step().
        """
        if self.runtime.waiting is not None:
            self.runtime.waiting.step()
        if note is not None:
            self._notes.commit(note)
        self._notes.commit_buffers()
        if self.runtime.kept:
            self.runtime.let_go()
        self.runtime.call(self.engine.commit)
        _kept.show(self.runtime)

    def stats(self) -> dict[str, Any]:
        """The engine's counters (struct zc_zero_stats), and seconds in hooks: `python_seconds` without the engine's
        calls, `engine_seconds` in them."""
        made = self.engine.stats()
        made["python_seconds"] = self.runtime.busy_ns / 1e9
        made["engine_seconds"] = self.runtime.c_ns / 1e9
        return made

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside are not the step's last: with accumulate="local" they exchange nothing."""
        before, self.runtime.boundary = self.runtime.boundary, False
        self.runtime.default_boundary = True
        try:
            yield
        finally:
            self.runtime.boundary = before or self.runtime.default_boundary

    def set_boundary(self, last: bool) -> None:
        """Sets whether the next backward pass is the step's last."""
        self.runtime.boundary = last

    def reset(self, skip: bool = True, passes: int | None = None) -> None:
        """After an exception in a pass: drops this step's gradients; the step begins again. Collective.

        Each rank must have begun as many backward passes since the last step, or the engine fails for good (an
        exchange of gradients waits for all ranks). A rank that did not come to its backward pass makes up for it here.

        Args:
            skip: drop the step on all ranks. False: only this rank's passes are ended; clear the gradients then.
            passes: backward passes since the last step of the rank that began the most of them, such as 1 where no
                gradients are accumulated. None: all ranks have begun as many.

        Raises ValueError: this rank has begun more.
        """
        runtime = self.runtime
        with runtime.lock:
            if passes is not None and passes < runtime.begun:
                raise ValueError(f"reset(passes={passes}), and this rank has begun {runtime.begun} backward passes")
            runtime.recover("reset")
            if skip:
                if passes and runtime.begun == 0:
                    runtime.freeze()  # as the others did, as their first pass began
                for number in range(runtime.begun, passes or 0):
                    _announce.begin(runtime, number + 1)
                    runtime.call(self.engine.micro_end)
                runtime.call(self.engine.abandon)
            for state, i in runtime.trainable:
                state.params[i].grad = None
            runtime.clear()
            runtime.spent = False
            _kept.show(runtime)

    def sleep(self) -> None:
        """Frees temporary memory of this process between two steps: buffers of gathers and gradients.

        The next forward pass wakes by itself. Collective, but where gathers are each rank's own affair. Model states
        stay: in this process with offload="none", else in the daemon.

        Raises RuntimeError in the middle of a step; Refused inside of gathered().
        """
        runtime = self.runtime
        with runtime.lock:
            if runtime.depth or runtime.in_backward or runtime.micros:
                raise RuntimeError("sleep() in the middle of a step: call it after optimizer.step() and zero_grad()")
            if runtime.kept:
                runtime.let_go()
            runtime.call(self.engine.park)
            for state in runtime.units:
                state.views.clear()
                state.memory.forget()
            _kept.show(runtime)

    def wake(self) -> None:
        """The counterpart of sleep(). It does nothing: the next pass allocates memory as it needs it.

        Raises RuntimeError if the model is closed.
        """
        if self.runtime.closed:
            raise RuntimeError(f"the model is {self.runtime.closed}")

    def snapshot(self, name: str) -> None:
        """Keeps the newest step as a snapshot of the job, which later steps do not change. Collective.

        Raises Refused if the job has no daemon or is not durable, or if the name is taken.
        """
        options = self.engine.options
        self.commit()
        if not options.get("socket"):
            raise Refused(-errno.ENOTSUP, "", f"snapshot('{name}'): the job has no daemon")
        failed: ZshardError | None = None
        if self.engine.rank == 0:
            made, row = _c.zc_snapshot(job=options["job"].encode(), name=name.encode()), _c.zc_snapshot_row()
            try:
                with Client(options["socket"], lib=self.engine.lib) as client:
                    client.check(client.lib.zc_snapshot_wait(client.handle, ctypes.byref(made), ctypes.byref(row)))
            except ZshardError as e:
                failed = e
        code = int(self.engine.sum([float(failed.code) if failed is not None else 0.0])[0])
        if failed is not None:
            raise failed
        if code:
            raise error(code, f"snapshot('{name}'): rank 0 could not take it")

    def close(self, clean: bool = True, gather: bool = False) -> None:
        """Ends the engine. clean: collective. gather: parameters are real tensors again, as are those that had their
        values between passes; else they stay NaN, and a forward call raises. May be called again."""
        runtime = self.runtime
        if runtime.closed or self._pid != os.getpid():
            return
        if clean and runtime.waiting is not None:
            runtime.waiting.step()
        real = gather or runtime.kept
        if real:
            from ._real import materialize

            materialize(runtime)
        runtime.closed = "closed"
        self._end.detach()
        _step.unregister(runtime, gone=not real)
        if real:
            self._hooks.remove()
            _restore_module(self.model)
        self.engine.close(clean)

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(kind is None)


def _end(engine: Engine, exposed: list[Any]) -> None:
    """A model was dropped without close(), or the process ends: by an exception, or in good order. Then the other ranks
    can finish the step in progress. Engine.close() does nothing in a child of fork."""
    for ref, scalar in exposed:  # parameters that are still there look at the engine's memory
        param = ref()
        if param is not None:
            param.data = scalar
    engine.close(clean=getattr(sys, "last_value", None) is None)


def shard(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
    *,
    units: Wish = "auto",
    stage: int = 3,
    offload: str = "auto",
    device: str | torch.device | None = None,
    prefetch: int = 1,
    accumulate: str = "reduce",
    gradient_accumulation_steps: int | str | None = None,
    external: dict[nn.Module, list[nn.Parameter]] | None = None,
    leaf: Leaf = (),
    compile: bool | dict[str, Any] | None = None,
    init_fn: Callable[[nn.Module], object] | None = None,
    seed: int = 0,
    quantize_frozen: bool = False,
    **engine_options: Any,
) -> Handle:
    """Shards `model` in place: its parameters live in the engine, and are gathered when a module runs. Collective.

    The Parameter objects stay the same. Parameters and buffers start with the values of rank 0.

    Args:
        optimizer: zshard's or torch.optim's, built from the model's parameters; several: a sequence, such as
            [torch.optim.Muon(...), torch.optim.AdamW(...)]. None: the first optimizer that steps these parameters
            determines it, but for Muon.
        units: which modules are gathered together: "auto", names, classes or modules, or a predicate of (name, module).
        stage: 3 shards parameters, gradients and state; 2 state and gradients; 1 state; 0 nothing.
        offload: "auto", "none" (this process), "host" (the daemon's memory), "nvme". Parameters are offloaded in stage
            3, the state of the optimizer in stages 1 to 3.
        device: where the model computes; None: where its parameters are.
        prefetch: units gathered ahead.
        accumulate: "reduce" exchanges gradients in each backward pass, "local" once per step (see `no_sync`,
        `set_boundary`).
        gradient_accumulation_steps: how many backward passes make a step. With clip_mode="tensor" or "none" the step
            then begins during the last of them (docs/pytorch/HOWTO.md says what that asks of the loop). "no_sync": each
            backward pass outside of no_sync() is its step's last. None: steps begin in optimizer.step().
        external: parameters that a module uses outside of their own module's forward.
        leaf: modules, classes or names that are gathered as a whole when they are called, whatever `units` chooses
            inside them. Needed for experts that differ between ranks if gathers are collective (offload="none", or
            several nodes): name the module that chooses among them. With the daemon, the ranks of one node need none.
        compile: torch.compile each block in place; a dict has its arguments.
        init_fn: for modules on the meta device: writes the values of the module that it is called with; None:
            reset_parameters(). Models of from_pretrained() and from_config() need none.
        seed: for init_fn's random numbers, the same on all ranks.
        quantize_frozen: in stage 3, parameters that are frozen now are stored and exchanged as int8 with a scale for
            every 256, and computed with in their own dtype. They cannot be unfrozen.
        engine_options: fields of struct zc_zero_options. clip=1.0: each step limits the norm of its gradient, without
            a call of clip_grad_norm_(). clip_mode="tensor" (with clip, clip_tensor_ratio, clip_tensor_beta and
            clip_tensor_warmup): each tensor is clipped against an average of its own norms. grad_ring=True: with
            offload="nvme" and steps that begin during the backward pass, most gradients are not held.
            node_gather="auto": how the ranks of a node gather parameters.

    Raises:
        ValueError, TypeError: the model or optimizer cannot be sharded; the message has the reason. Nothing is changed.
        ZshardError: the engine refused; the message has the reason.
    """
    _check_model(model)
    optimizers = _optimizers(optimizer)
    rules = [_plain.check(o) for o in optimizers]
    kind = _kind(rules)
    passes = _announce.passes_of(gradient_accumulation_steps, engine_options, accumulate, optimizers)
    planned = plan(model, units, leaf=leaf, muon=_muon.chosen(optimizers, rules))
    if not planned.units:
        raise ValueError("the model has no parameters")
    for one in optimizers:
        if not any(planned.find(p) for g in one.param_groups for p in g["params"]):
            raise ValueError(
                f"{type(one).__name__} has none of this model's parameters: build it from the model's own "
                "model.parameters()"
            )
    _meta.initialise(model, init_fn, seed)
    _meta.buffers_are_real(model)
    place = _device(planned, device)
    engine = _start(
        model,
        planned,
        place,
        kind,
        next((r.group(o.param_groups[0]) for o, r in zip(optimizers, rules, strict=True) if r.kind == kind), None),
        stage,
        offload,
        prefetch,
        accumulate,
        quantize_frozen,
        _muon.engine_of(optimizers) | engine_options | {"announces": passes is not None},
    )
    runtime = _take(model, planned, place, engine)
    runtime.kind = kind
    hooks = Hooks(runtime)
    for group in build(runtime, model, external or {}):
        hooks.install(group)
    for state in runtime.units:
        hooks.install_gradients(state)
    _learn(model, runtime, hooks)
    if passes is not None:
        runtime.announcer = _announce.Announcer(runtime, passes)
    elif accumulate == "local":
        runtime.boundary = runtime.default_boundary = False
    handle = Handle(model, runtime, hooks)
    _guard_module(model, handle)
    _state.install(model, runtime)
    _step.register(runtime)
    _plain.install()
    for one in optimizers:
        runtime.steppers.append(_plain.stepper_of(one, runtime))
    if compile:
        _compile(runtime, compile if isinstance(compile, dict) else {})
    return handle


def _optimizers(given: Any) -> list[torch.optim.Optimizer]:
    made = [] if given is None else list(given) if isinstance(given, Sequence) else [given]
    for one in made:
        if not isinstance(one, torch.optim.Optimizer):
            raise TypeError(f"optimizer is {one!r}, not an optimizer such as torch.optim.AdamW(model.parameters())")
    return made


def _kind(rules: Sequence[_step.Rule]) -> str:
    """The engine's optimizer. ValueError: one model cannot have them all."""
    kinds = {r.kind for r in rules}
    if len(kinds) > 1 and kinds != {"muon", "adamw"}:
        raise ValueError(f"optimizers of different kinds on one model: {', '.join(sorted(kinds))}")
    return "muon" if "muon" in kinds else kinds.pop() if kinds else "adamw"


def _check_model(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"the model is a {type(model).__name__}, not a torch.nn.Module")
    if model.__dict__.get("_zshard") is not None and not model.__dict__["_zshard"].runtime.closed:
        raise ValueError("the model is sharded already; close its handle first (handle.close(gather=True))")
    for name, module in model.named_modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            if module.max_norm is not None:
                raise ValueError(f"module '{name}': max_norm writes weights in forward, where they are read-only")
            if module.sparse:
                raise ValueError(f"module '{name}': sparse gradients are not supported; use sparse=False")
    for name, param in model.named_parameters():
        if type(param) is not nn.Parameter and not isinstance(param, nn.Parameter):
            raise ValueError(f"parameter '{name}' is a {type(param).__name__}, not an nn.Parameter")
        if isinstance(param, nn.parameter.UninitializedParameter):
            raise ValueError(f"parameter '{name}' is not initialised; run a forward pass first")
        if hasattr(param, "device_mesh"):
            raise ValueError(f"parameter '{name}' is a DTensor; shard the model before others do")
        if _step.runtime_of(param) is not None:
            raise ValueError(f"parameter '{name}' is of another sharded model")


def _device(planned: Plan, wish: str | torch.device | None) -> torch.device:
    """The device that the model computes on."""
    found = {p.param.device for u in planned.units for p in u.pieces if p.param.device.type != "meta"}
    if wish is not None:
        made = torch.device(wish)
        return torch.device("cpu") if made.type == "cpu" else made  # a number, as Accelerate gives it, says nothing
    if len(found) > 1:
        raise ValueError(f"parameters are on several devices: {', '.join(sorted(map(str, found)))}")
    return found.pop() if found else torch.device("cpu")


def _start(
    model: nn.Module,
    planned: Plan,
    place: torch.device,
    kind: str,
    group: dict[str, Any] | None,
    stage: int,
    offload: str,
    prefetch: int,
    accumulate: str,
    quantize_frozen: bool,
    more: dict[str, Any],
) -> Engine:
    """Opens the engine, declares the units and writes their initial values. group: the optimizer's first one; None:
    there is none yet."""
    if accumulate not in ("reduce", "local"):
        raise ValueError(f'accumulate=\'{accumulate}\': "reduce" or "local"')
    options: dict[str, Any] = {
        "stage": stage,
        "prefetch_units": prefetch,
        "optimizer": kind,
        "accumulate_local": accumulate == "local",
    }
    if group is not None:
        options.update({k: v for k, v in group.items() if k not in ("lr", "weight_decay")})
        options["weight_decay"] = group["weight_decay"]
    trained = sum(u.elems for u in planned.units if not u.frozen)
    if stage == 0 and offload == "auto":
        offload = "none"  # there is nothing to offload
    options.update(context().store(offload, state_bytes=16 * trained, device=str(place)))
    if stage < 3:
        options["offload_param"] = "none"  # each rank has all parameters
    if stage == 3 and options["offload_optimizer"] != "none" and context().one_node(str(place)):
        options["gather_alone"] = True  # ranks may differ in what they gather
    options.update(more)
    if group is None:
        options["optimizer_late"] = True
    if place.type != "cpu":
        options["device"] = str(place)
    if place.type == "cuda":
        options.update(_cuda.options(place))
    engine = Engine(context().comm(str(place)), micro_steps=0, **options)
    try:
        for unit in planned.units:
            engine.add_unit(
                unit.name,
                unit.elems,
                [(p.name, p.first, tuple(p.shape), 0, unit.muon) for p in unit.pieces],
                dtype=_KINDS[unit.dtype],
                frozen=unit.frozen,
                quantized=quantize_frozen and unit.frozen,
            )
        engine.start(_initial(planned))
    except BaseException:
        engine.close(False)
        raise
    return engine


def _initial(planned: Plan) -> Any:
    """Engine.start's callback: elements of a unit from where its parameters' values are (_sources.py)."""
    firsts = [[p.first for p in u.pieces] for u in planned.units]

    def init(index: int, first: int, count: int, out: Any) -> None:
        unit, made = planned.units[index], torch.frombuffer(out, dtype=torch.float32)
        made.zero_()
        at = max(bisect_right(firsts[index], first) - 1, 0)
        for piece in unit.pieces[at:]:
            if piece.first >= first + count:
                break
            begin, end = max(piece.first, first), min(piece.first + piece.numel, first + count)
            if begin >= end:
                continue
            target = made[begin - first : end - first]
            source = _sources.source_of(piece.param, piece.name)
            if isinstance(source, _sources.Real):
                _step.check_there(piece.param, piece.name)
            _sources.read_rounded(source, begin - piece.first, target, unit.dtype)

    return init


def _take(model: nn.Module, planned: Plan, place: torch.device, engine: Engine) -> Runtime:
    """Parameters and buffers become rank 0's; parameters' own memory goes."""
    from ._ranks import same_buffers, same_parameters

    if engine.world > 1 and engine.progress()[0] == 0:
        same_parameters(engine, planned)
    if engine.world > 1:
        same_buffers(engine, model)
    _meta.land([p.param for u in planned.units for p in u.pieces], place)
    mode = choose_mode()
    states = [UnitState(unit, UnitMemory(unit, place, mode)) for unit in planned.units]
    for state in states:
        state.memory.leave()
    runtime = Runtime(engine, planned, states)
    for state in states:
        state.prepare(runtime)
    runtime.steps = engine.progress()[0]
    return runtime


def _learn(model: nn.Module, runtime: Runtime, hooks: Hooks) -> None:
    """The first outermost forward calls, in training and in eval, find external parameters."""
    left = {True: 1, False: 1}

    def on_pass(begins: bool) -> None:
        compiled = (
            any(getattr(m, "_compiled_call_impl", None) is not None for m in model.modules()) if begins else False
        )
        if begins and left[model.training] > 0 and not compiled:
            left[model.training] -= 1
            hooks.learn(True)
        elif not begins:
            hooks.learn(False)
            if not any(left.values()):
                runtime.on_pass = None

    runtime.on_pass = on_pass


def _compile(runtime: Runtime, how: dict[str, Any]) -> None:
    for group in runtime.groups.values():
        if group.owner is None and group.module is not runtime.root:
            group.module.compile(**how)


# ---- what is changed of the module besides its parameters


def _guard_module(model: nn.Module, handle: Handle) -> None:
    def deepcopy(memo: dict[int, Any]) -> Any:
        raise RuntimeError(
            "a sharded model cannot be copied: build another one from its class, and load "
            "zshard.torch.full_state_dict(model) into it"
        )

    model.__dict__["_zshard"] = handle
    model.__dict__["__deepcopy__"] = deepcopy
    for module in model.modules():
        if any(handle.runtime.plan.find(p) for p in module.parameters(recurse=False)):
            module.__dict__["_apply"] = _applier(module, handle.runtime)


def _restore_module(model: nn.Module) -> None:
    for module in model.modules():
        for name in ("_zshard", "__deepcopy__", "_apply"):
            module.__dict__.pop(name, None)


def _applier(module: nn.Module, runtime: Runtime) -> Any:
    """`.to()`, `.half()`, `.cuda()`: nothing where dtype and device stay, else refused."""
    whole = type(module)._apply

    def apply(fn: Any, recurse: bool = True) -> nn.Module:
        sharded = {k: p for k, p in module._parameters.items() if p is not None and runtime.plan.find(p)}
        for name, param in sharded.items():
            probe = fn(torch.empty(0, dtype=param.dtype, device=param.device))
            if probe.dtype != param.dtype or probe.device != param.device:
                raise RuntimeError(
                    f"parameter '{name}' is sharded: it stays {param.dtype} on {param.device}; convert or "
                    "move the model before shard()"
                )
            module._parameters[name] = None
        try:
            whole(module, fn, recurse)
        finally:
            for name, param in sharded.items():
                module._parameters[name] = param
        return module

    return apply
