"""Values of sharded parameters, read and written: gathered(), full_state_dict(), load_state_dict(), state_of().

Outside of a pass a sharded parameter reads as NaN; here it shows its value. Values that are shown are copies, in
memory of their own: what is written to them is sent to the engine by the rank that was named, or refused.

Reads and writes are collective: all ranks make the same calls in the same order.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import nn

from . import _kept, _step
from ._memory import same_bits

if TYPE_CHECKING:
    from ._runtime import Runtime
    from ._unit_state import UnitState
    from ._units import Piece, Unit

_KINDS = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
_ALL = -1

Params: TypeAlias = nn.Module | nn.Parameter | Iterable[nn.Parameter] | Iterable[nn.Module]


# ---- elements


def _runtime_of(p: torch.Tensor, name: str = "the parameter") -> Runtime:
    runtime = _step.runtime_of(p)
    if runtime is None:
        raise ValueError(f"{name} is not of a sharded model")
    return runtime


def _found(runtime: Runtime, p: torch.Tensor) -> tuple[Unit, Piece]:
    found = runtime.plan.find(p)
    assert found is not None
    return found


def _check_open(runtime: Runtime) -> None:
    if runtime.closed:
        raise RuntimeError(f"the model is {runtime.closed}: its values are no longer there")


def _check_whole(runtime: Runtime) -> None:
    """A step that waits for another optimizer is made, or that one is missed."""
    if runtime.waiting is not None:
        left = runtime.waiting.left()
        if left:
            state, i = runtime.trainable[left[0]]
            raise RuntimeError(
                f"one optimizer of the model has stepped, and that of '{state.unit.pieces[i].name}', which has a "
                "gradient, has not: step it, or clear its gradients, before values are read or written"
            )
        runtime.waiting.step()


def _views(state: UnitState) -> list[torch.Tensor]:
    """A gathered unit's parameters, in the engine's memory."""
    memory = state.memory
    return memory.views[memory.shown] if memory.mode == "view" else memory.fixed


def _place(state: UnitState, p: torch.Tensor) -> int:
    return next(i for i, q in enumerate(state.params) if q is p)


def _read(runtime: Runtime, unit: int, what: str, first: int, count: int, root: int = _ALL) -> torch.Tensor:
    """Elements of a unit as fp32, [count]; [0] on ranks other than root."""
    mine = root in (_ALL, runtime.engine.rank)
    out = torch.empty(count if mine else 0, dtype=torch.float32)
    runtime.call(runtime.engine.read_on, root, unit, what, first, count, "f32", out.data_ptr() if mine else None)
    return out


def read_param(runtime: Runtime, p: torch.Tensor, root: int = _ALL) -> torch.Tensor | None:
    """A parameter's value, a new tensor in its dtype and shape on its device; None on ranks other than root.

    Collective, but where gathers are each rank's own affair and root is -1.
    """
    _check_open(runtime)
    _check_whole(runtime)
    unit, piece = _found(runtime, p)
    state = runtime.units[unit.index]
    if root == _ALL or runtime.world == 1 or state.holds > 0:
        with runtime.lock:
            runtime.acquire(state)
            try:
                return _views(state)[_place(state, p)].detach().clone()
            finally:
                runtime.release(state)
                runtime.leave()
    out = _read(runtime, unit.index, "param", piece.first, piece.numel, root)
    return out.to(unit.dtype).view(piece.shape) if root == runtime.engine.rank else None


def write_param(runtime: Runtime, p: torch.Tensor, value: torch.Tensor | None, root: int = _ALL) -> None:
    """Writes a parameter, and its fp32 master, as rank root has `value` (-1: every rank has the same).

    Raises ValueError where the shape differs.
    """
    _check_open(runtime)
    _check_whole(runtime)
    unit, piece = _found(runtime, p)
    runtime.let_go(runtime.units[unit.index])
    mine = root in (_ALL, runtime.engine.rank)
    kind, flat = "f32", None
    if mine:
        assert value is not None
        if value.shape != piece.shape:
            raise ValueError(f"'{piece.name}' has shape {list(piece.shape)}, not {list(value.shape)}")
        flat = value.detach().to("cpu", torch.float32).contiguous().view(-1)
    runtime.call(
        runtime.engine.write_on,
        root,
        unit.index,
        "master",
        piece.first,
        piece.numel,
        kind,
        None if flat is None else flat.data_ptr(),
    )


# ---- gathered


def parameters_of(what: Params) -> list[nn.Parameter]:
    """The parameters that are meant, each once: a module's, one, several, or several modules'."""
    if isinstance(what, nn.Module):
        return list(what.parameters())
    if isinstance(what, torch.Tensor):
        return [what]  # type: ignore[list-item]
    found: dict[int, nn.Parameter] = {}
    for item in what:
        for p in item.parameters() if isinstance(item, nn.Module) else [item]:
            found.setdefault(id(p), p)
    return list(found.values())


class _Shown:
    """A parameter that shows a copy of its value; `depth` counts the gathered() blocks that show it."""

    def __init__(self, runtime: Runtime, state: UnitState, p: nn.Parameter, value: torch.Tensor) -> None:
        self.runtime, self.state, self.p, self.value = runtime, state, p, value
        self.depth = 0
        self.root: int | None = None  # the rank whose values count at the end; None: nothing may be written
        self.named = False  # a block names one
        self.version, self.steps = p._version, runtime.steps

    def written(self) -> bool:
        """Whether the parameter shows other bits than it did: writes to `p.data` do not change `p._version`."""
        if self.runtime.closed:
            return False
        if self.steps != self.runtime.steps:  # the unit's memory is of another step
            return self.p._version != self.version
        return not same_bits(self.p.detach(), _views(self.state)[_place(self.state, self.p)])


_shown: dict[int, _Shown] = {}


def _show(p: nn.Parameter) -> _Shown:
    """Shows a parameter's value, in memory of its own. Its unit is held, so that passes inside use that value."""
    runtime = _runtime_of(p)
    _check_open(runtime)
    _check_whole(runtime)
    unit, piece = _found(runtime, p)
    state = runtime.units[unit.index]
    with runtime.lock:
        runtime.acquire(state)
        value = p.detach().clone()
        entry = _Shown(runtime, state, p, value)
        p.data = value
        entry.version = p._version
    _shown[id(p)] = entry
    return entry


def _hide(entry: _Shown) -> torch.Tensor:
    """The parameter looks at its unit again, and at NaN when that is released. Returns what it showed."""
    runtime = entry.runtime
    value = entry.p.detach()
    del _shown[id(entry.p)]
    if runtime.closed:
        return value
    with runtime.lock:
        entry.p.data = _views(entry.state)[_place(entry.state, entry.p)]
        entry.state.memory.seen()
        _kept.seen(runtime, entry.state)
        runtime.release(entry.state)
        runtime.leave()
    return value


@contextlib.contextmanager
def gathered(what: Params, write_rank: int | None = None) -> Iterator[None]:
    """Inside, parameters have their values instead of NaN. Collective; blocks nest.

        with zt.gathered(model.lm_head):
            print(model.lm_head.weight.norm())
        with zt.gathered(model.parameters(), write_rank=0):
            if rank == 0:
                torch.nn.init.zeros_(model.lm_head.weight)

    Args:
        what: a module, a parameter, or several; parameters that are not sharded are left as they are. Parameters
            of several sharded models are allowed.
        write_rank: the values that this rank writes inside are those of all ranks afterwards, and the optimizer
            continues from them (its moments stay). -1: all ranks write the same. None: nothing may be written.

    Values are copies, so each rank needs memory for them. Forward passes inside use them. What is written in a block
    inside of another one is sent at the end of the outer one.

    Raises:
        RuntimeError: a parameter was written inside without write_rank (the change is dropped), or the model is closed.
        ValueError: two blocks, one inside of the other, name different ranks for one parameter.
    """
    entries: list[_Shown] = []
    for p in parameters_of(what):
        if _step.runtime_of(p) is None:
            continue
        entry = _shown.get(id(p)) or _show(p)
        entry.depth += 1
        entry.named = entry.named or write_rank is not None
        entries.append(entry)
    try:
        yield
    except BaseException:
        for entry in entries:
            _leave(entry)
        raise
    _write_back(entries, write_rank)


def _leave(entry: _Shown) -> torch.Tensor | None:
    entry.depth -= 1
    return _hide(entry) if entry.depth == 0 else None


def _write_back(entries: Sequence[_Shown], write_rank: int | None) -> None:
    """At the end of a block: what was written goes to the engine, or is refused; inside of another block later."""
    mixed = _take_root(entries, write_rank)
    last = [e for e in entries if e.depth == 1]
    lost = [e for e in last if e.root is None and e.written()]
    changed = _changed(last)
    values = [e.p.detach() for e in last]
    for entry in entries:
        _leave(entry)
    for entry, value, yes in zip(last, values, changed, strict=True):
        if yes:
            assert entry.root is not None
            write_param(entry.runtime, entry.p, value, entry.root)
    for entry in last:
        _kept.show(entry.runtime)
    if mixed is not None:
        raise ValueError(
            f"'{_found(mixed.runtime, mixed.p)[1].name}': gathered(write_rank={write_rank}) around or inside of "
            f"gathered(write_rank={mixed.root}): both name the same rank"
        )
    if lost:
        name = _found(lost[0].runtime, lost[0].p)[1].name
        raise RuntimeError(
            f"'{name}' was written in gathered() without write_rank: the change is dropped; give "
            "write_rank=0 (or -1 where all ranks write the same)"
        )


def _take_root(entries: Sequence[_Shown], write_rank: int | None) -> _Shown | None:
    """Remembers whose values count. Returns an entry of which another block has named another rank."""
    mixed = None
    for entry in entries:
        if write_rank is None:
            continue
        if entry.root is None:
            entry.root = write_rank
        elif entry.root != write_rank:
            mixed = entry
    return mixed


def _changed(entries: Sequence[_Shown]) -> list[bool]:
    """Which parameters are written back: what the writing rank says, alike on all ranks."""
    mine = [e.root is not None and e.written() for e in entries]
    by_runtime: dict[int, list[int]] = {}
    for i, entry in enumerate(entries):
        if entry.root is not None:
            by_runtime.setdefault(id(entry.runtime), []).append(i)
    for places in by_runtime.values():
        engine = entries[places[0]].runtime.engine
        if engine.world == 1:
            continue
        for at in range(0, len(places), 4096):
            some = places[at : at + 4096]
            says = [mine[i] and entries[i].root in (_ALL, engine.rank) for i in some]
            for i, n in zip(some, engine.sum([float(s) for s in says]), strict=True):
                mine[i] = n > 0
    return mine


# ---- state dicts


def value_of(p: torch.Tensor, root: int = _ALL) -> torch.Tensor | None:
    """A new tensor with the parameter's value, on its device; None on ranks other than root. Collective."""
    entry = _shown.get(id(p))
    if entry is not None:
        return p.detach().clone()
    runtime = _runtime_of(p)
    return read_param(runtime, p, root)


def full_state_dict(model: nn.Module, rank0_only: bool = False) -> OrderedDict[str, Any]:
    """The model's state dict with all values, as model.state_dict() of an unsharded model has it. Collective.

    Args:
        rank0_only: other ranks get an empty dict, and hold one parameter's values at a time.

    Returns:
        Names to tensors, in host memory. Tied parameters are one tensor under each of their names.
    """
    runtimes = [r for p in model.parameters() if (r := _step.runtime_of(p)) is not None]
    root = 0 if rank0_only else _ALL
    mine = not rank0_only or all(r.engine.rank == 0 for r in runtimes)
    with _keep_nan():
        names = model.state_dict(keep_vars=True)
    values: dict[int, torch.Tensor | None] = {}
    made: OrderedDict[str, Any] = OrderedDict()
    for name, p in names.items():
        if not isinstance(p, torch.Tensor):
            if mine:
                made[name] = p
            continue
        if id(p) not in values:
            _step.check_there(p, name)
            sharded = _step.runtime_of(p) is not None
            values[id(p)] = value_of(p, root) if sharded else p.detach().cpu().clone() if mine else None
        value = values[id(p)]
        if mine and value is not None:
            made[name] = value.cpu()
    return made


def load_state_dict(model: nn.Module, state_dict: Mapping[str, Any] | None, strict: bool = True) -> Any:
    """Writes values into a sharded model; moments of the optimizer stay. Collective.

    Args:
        state_dict: names to tensors, as full_state_dict() has them, the same on all ranks; or only on rank 0, and None
            on the others. It is read, never changed, and need not be in memory: one tensor is read at a time.
        strict: names must be those of the model.

    Returns:
        missing_keys and unexpected_keys, as torch.nn.Module.load_state_dict(); on ranks without a dict they are empty.

    Raises:
        RuntimeError: names are missing or unexpected, or shapes differ; the message has all of them. Nothing is
            written then.
    """
    runtimes: dict[int, Runtime] = {}
    for p in model.parameters():
        r = _step.runtime_of(p)
        if r is not None:
            runtimes[id(r)] = r
    if not runtimes:
        assert state_dict is not None
        return model.load_state_dict(state_dict, strict)
    engine = next(iter(runtimes.values())).engine
    without = engine.sum([float(state_dict is None)])[0] if engine.world > 1 else float(state_dict is None)
    root = 0 if without else _ALL
    if root == 0 and engine.rank == 0 and state_dict is None:
        raise ValueError("rank 0 has no state_dict")
    with _keep_nan():
        own = model.state_dict(keep_vars=True)
    given: Mapping[str, Any] = {} if state_dict is None else state_dict
    says = root == _ALL or engine.rank == 0
    missing = [n for n in own if n not in given] if says else []
    unexpected = [n for n in given if n not in own]
    errors = _mismatches(own, given, strict, missing, unexpected)
    bad = engine.sum([float(bool(errors))])[0] if engine.world > 1 else float(bool(errors))
    if bad:
        text = "\n\t".join(errors) if errors else "another rank refused its state_dict"
        raise RuntimeError(f"load_state_dict of {type(model).__name__}:\n\t{text}")
    _write_all(own, given, root, engine)
    for r in runtimes.values():
        _kept.show(r)
    return torch.nn.modules.module._IncompatibleKeys(missing, unexpected)


def _mismatches(
    own: Mapping[str, Any], given: Mapping[str, Any], strict: bool, missing: list[str], unexpected: list[str]
) -> list[str]:
    errors = []
    if strict and missing:
        errors.append(f"missing keys: {', '.join(missing)}")
    if strict and unexpected:
        errors.append(f"unexpected keys: {', '.join(unexpected)}")
    for name, p in own.items():
        if name in given and isinstance(p, torch.Tensor) and tuple(given[name].shape) != tuple(p.shape):
            errors.append(f"'{name}': shape {list(given[name].shape)} in the dict, {list(p.shape)} in the model")
    return errors


def _write_all(own: Mapping[str, Any], given: Mapping[str, Any], root: int, engine: Any) -> None:
    names = list(own)
    there = [n in given for n in names]
    if root == 0 and engine.world > 1:  # which ones rank 0 has
        for at in range(0, len(names), 4096):
            some = engine.sum([float(t and engine.rank == 0) for t in there[at : at + 4096]])
            there[at : at + 4096] = [v > 0 for v in some]
    done: set[int] = set()
    for name, yes in zip(names, there, strict=True):
        p = own[name]
        if not yes or not isinstance(p, torch.Tensor) or id(p) in done:
            continue
        done.add(id(p))
        runtime = _step.runtime_of(p)
        value = given.get(name)
        if runtime is not None:
            write_param(runtime, p, value, root)
        elif root == _ALL:
            with torch.no_grad():
                p.copy_(value)  # type: ignore[arg-type]
        else:
            _broadcast(p, value, engine)


def _broadcast(p: torch.Tensor, value: Any, engine: Any) -> None:
    """A buffer of rank 0's, to all ranks."""
    flat = torch.zeros(p.numel(), dtype=torch.float64)
    if engine.rank == 0:
        flat.copy_(value.detach().reshape(-1))
    for at in range(0, p.numel(), 4096):
        flat[at : at + 4096] = torch.tensor(engine.sum(flat[at : at + 4096].tolist()), dtype=torch.float64)
    with torch.no_grad():
        p.copy_(flat.view(p.shape))


# ---- model.state_dict() and model.load_state_dict() as they are


_nan_is_fine = 0


@contextlib.contextmanager
def _keep_nan() -> Iterator[None]:
    """state_dict() inside has the parameters themselves."""
    global _nan_is_fine
    _nan_is_fine += 1
    try:
        yield
    finally:
        _nan_is_fine -= 1


def _own(module: nn.Module, runtime: Runtime) -> dict[str, nn.Parameter]:
    return {leaf: p for leaf, p in module._parameters.items() if p is not None and runtime.plan.find(p) is not None}


def install(model: nn.Module, runtime: Runtime) -> None:
    """From now on the module's own state_dict() has values, and load_state_dict() writes them. Collective, both."""
    for module in model.modules():
        if _own(module, runtime):
            module._register_state_dict_hook(_on_state_dict)
            module._register_load_state_dict_pre_hook(_on_load, with_module=True)
            module.register_load_state_dict_post_hook(_on_loaded)


def _on_state_dict(module: nn.Module, state_dict: dict[str, Any], prefix: str, _: Any) -> None:
    if _nan_is_fine:
        return
    for leaf, p in module._parameters.items():
        if p is not None and prefix + leaf in state_dict:
            _step.check_there(p, prefix + leaf)
            if _step.runtime_of(p) is not None:
                state_dict[prefix + leaf] = value_of(p)


def _on_load(
    module: nn.Module, state_dict: Mapping[str, Any], prefix: str, local_metadata: dict[str, Any], *_: Any
) -> None:
    if local_metadata.get("assign_to_params_buffers"):
        raise RuntimeError(
            "load_state_dict(assign=True) would replace the parameters of a sharded model; use "
            "assign=False, which writes their values"
        )
    there = [
        p
        for p in module._parameters.values()
        if p is not None and _step.runtime_of(p) is not None and not (id(p) in _shown and _shown[id(p)].named)
    ]  # what a block around this call sends is only written here: that may be on one rank alone
    if there:
        block = gathered(there, write_rank=_ALL)
        block.__enter__()
        module.__dict__.setdefault("_zshard_loading", []).append(block)


def _on_loaded(module: nn.Module, _: Any) -> None:
    for block in module.__dict__.pop("_zshard_loading", []):
        block.__exit__(None, None, None)


# ---- the optimizer's state, and gradients


def state_of(p: torch.Tensor, name: str) -> torch.Tensor:
    """State of the optimizer for one parameter. Collective.

    Args:
        p: a trained parameter of a sharded model.
        name: "exp_avg", "exp_avg_sq" (AdamW, Adam), "exp_avg" (Lion), "momentum_buffer" (SGD, matrices of Muon),
            "sum" (Adagrad), "master" (the fp32 value from which the parameter is rounded), "step".

    Returns:
        fp32, of the parameter's shape, in host memory; "step": a scalar.

    Raises:
        ValueError: p is not of a sharded model, is frozen, or has no such state.
    """
    runtime = _runtime_of(p)
    _check_open(runtime)
    _check_whole(runtime)
    unit, piece = _found(runtime, p)
    if unit.frozen:
        raise ValueError(f"'{piece.name}' is frozen: it has no state")
    if name == "step":
        return _step.read_state(runtime, p, "step")
    kind = {"master": "master", **_step._WHATS}.get(name)
    if kind is None or (unit.muon and name not in ("master", *_step.MUON_STATES)):
        raise ValueError(f"there is no state '{name}'; there are master, step, {', '.join(_step._WHATS)}")
    return _read(runtime, unit.index, kind, piece.first, piece.numel).view(piece.shape)


def grad_of(p: torch.Tensor) -> torch.Tensor | None:
    """The gradient of one parameter so far in this step, averaged over ranks, after the backward pass. Collective.

    Returns:
        fp32, with the parameter's shape, in host memory, after clipping and unscaling; None if this step has no
        gradient for it.

    Raises:
        ValueError: p is not of a sharded model. RuntimeError: called inside a backward pass.
    """
    runtime = _runtime_of(p)
    _check_open(runtime)
    if runtime.in_backward:
        raise RuntimeError("grad_of() inside of a backward pass: the gradient is not reduced yet")
    unit, piece = _found(runtime, p)
    factor = getattr(p.grad, "factor", None)
    if factor is None or runtime.micros == 0:
        return None
    out = _read(runtime, unit.index, "grad", piece.first, piece.numel)
    return out.mul_(factor / runtime.world).view(piece.shape)
