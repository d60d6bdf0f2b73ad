"""A sharded model as a checkpoint (`content`), and a checkpoint into a sharded model (`fill`).

Both are collective. Rank 0 has the files; values go from or to the engine piece by piece, so that no rank ever holds
more than a piece of a tensor.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..torch import _plain, _state, _step
from ..torch._handle import Handle
from ..torch._host import HostOptimizer
from ..torch._optim import show_state
from ..torch._runtime import Runtime
from ..torch._sources import Real, Source
from ..torch._units import Piece, Unit
from ._content import (
    FP32,
    HYPER,
    PIECE,
    Content,
    ConvertError,
    Problems,
    Tensor,
    Writing,
    names_text,
    settings,
)

SUM = 4096  # numbers in one sum
BYTES = 6  # in one number: exact in a double


class EngineSource(Source):
    """A plane of one parameter in the engine. Reads are collective: rank 0 gets the values."""

    def __init__(self, runtime: Runtime, unit: Unit, piece: Piece, what: str) -> None:
        self.runtime, self.unit, self.piece, self.what = runtime, unit, piece, what
        self.shape, self.dtype = tuple(piece.shape), torch.float32

    def read(self, first: int, out: torch.Tensor) -> None:
        engine = self.runtime.engine
        address = out.data_ptr() if engine.rank == 0 else None
        first += self.piece.first
        self.runtime.call(engine.read_on, 0, self.unit.index, self.what, first, out.numel(), "f32", address)


def handle_of(model: Any) -> Handle:
    """The handle of a sharded model, or of what fully_shard() or FSDP() were given. ValueError: it is not sharded."""
    if isinstance(model, Handle):
        return model
    if not isinstance(model, nn.Module):
        raise TypeError(f"the model is a {type(model).__name__}, not a torch.nn.Module or a handle of zshard.torch")
    found = model.__dict__.get("_zshard")
    if isinstance(found, Handle):
        return found
    from ..torch import handle_of as of_marked

    try:
        return of_marked(model)
    except Exception as e:
        raise ValueError("the model is not sharded: call zshard.torch.shard(model, optimizer) first") from e


def check_ready(runtime: Runtime, what: str, in_step: bool = False) -> None:
    """Raises RuntimeError where the model is closed, or is in the middle of a step. in_step: of a pass."""
    _state._check_open(runtime)
    _state._check_whole(runtime)
    if runtime.depth or runtime.in_backward or runtime.micros and not in_step:
        raise RuntimeError(f"{what} in the middle of a step: call it after optimizer.step() and zero_grad()")
    runtime.let_go()


def rule_of(optimizer: torch.optim.Optimizer | None) -> _step.Rule | None:
    """The engine's counterpart. Raises TypeError where an optimizer's state is not in the engine."""
    if optimizer is None:
        return None
    if isinstance(optimizer, HostOptimizer):
        raise TypeError("HostOptimizer keeps its state in this process: use its state_dict() and load_state_dict()")
    return _plain.check(optimizer)


def names_of(runtime: Runtime, piece: Piece) -> list[str]:
    """A parameter's name, and its further ones where it is tied."""
    return [piece.name, *(a for a, n in runtime.plan.aliases.items() if n == piece.name)]


def others(model: nn.Module, runtime: Runtime) -> dict[str, torch.Tensor]:
    """What the state dict has besides sharded parameters. NotImplementedError: something that is no tensor."""
    with _state._keep_nan():
        every = model.state_dict(keep_vars=True)
    made = {}
    for name, t in every.items():
        if not isinstance(t, torch.Tensor):
            raise NotImplementedError(f"'{name}' of the state dict is no tensor (get_extra_state): it is not converted")
        if runtime.plan.find(t) is None:
            made[name] = t
    return made


# ---- words between ranks


def from_first(runtime: Runtime, data: bytes) -> bytes:
    """Rank 0's bytes, on all ranks. Collective."""
    engine = runtime.engine
    if engine.world == 1:
        return data
    mine = engine.rank == 0
    size = int(engine.sum([float(len(data)) if mine else 0.0])[0])
    made = bytearray()
    for at in range(0, size, BYTES * SUM):
        part = data[at : at + BYTES * SUM]
        count = -(-min(BYTES * SUM, size - at) // BYTES)
        numbers = [
            float(int.from_bytes(part[i * BYTES : (i + 1) * BYTES], "little")) if mine else 0.0 for i in range(count)
        ]
        made += b"".join(int(n).to_bytes(BYTES, "little") for n in engine.sum(numbers))
    return bytes(made[:size])


def on_first(runtime: Runtime, work: Callable[[], Any]) -> Any:
    """What work() returns on rank 0, on all ranks; what it raises there, on all ranks. Collective."""
    if runtime.engine.world == 1:
        return work()
    failed: BaseException | None = None
    data = b""
    if runtime.engine.rank == 0:
        try:
            data = pickle.dumps((True, work()))
        except Exception as e:
            failed, data = e, pickle.dumps((False, (type(e).__name__, str(e))))
    ok, value = pickle.loads(from_first(runtime, data))
    if failed is not None:
        raise failed
    if ok:
        return value
    raise (ConvertError(value[1]) if value[0] == "ConvertError" else RuntimeError(f"rank 0: {value[0]}: {value[1]}"))


# ---- out


def content(
    handle: Handle,
    optimizer: torch.optim.Optimizer | None,
    step: int | None,
    client_state: dict[str, Any] | None,
    lr_scheduler: Any,
    frozen: bool = True,
) -> Content:
    """The model as it is now, with frozen parameters or without them. Collective; its sources are, too."""
    runtime, rule = handle.runtime, rule_of(optimizer)
    made = Content("live", "", client_state=dict(client_state or {}))
    if lr_scheduler is not None:
        made.lr_scheduler = lr_scheduler.state_dict() if hasattr(lr_scheduler, "state_dict") else lr_scheduler
    there = rule is not None and rule.fits(runtime.kind)
    momentum = rule is not None and _keeps_momentum(rule, optimizer)
    for unit in runtime.plan.units:
        if unit.frozen and not frozen:
            continue
        steps = [0] * len(unit.pieces)
        if not unit.frozen:
            steps = runtime.call(runtime.engine.tensor_steps, unit.index)
        for piece, n in zip(unit.pieces, steps, strict=True):
            planes: dict[str, Source] = {FP32: EngineSource(runtime, unit, piece, "param" if unit.frozen else "master")}
            if rule is not None and there and momentum and not unit.frozen:
                planes |= {s: EngineSource(runtime, unit, piece, _step._WHATS[s]) for s in rule.states_in(unit)}
            kind = "frozen" if unit.frozen else "trained"
            made.tensors[piece.name] = Tensor(piece.name, tuple(piece.shape), unit.dtype, kind, planes, int(n))
    for name, t in others(handle.model, runtime).items():
        value = t.detach().cpu()
        made.tensors[name] = Tensor(name, tuple(value.shape), value.dtype, "buffer", {FP32: Real(value)})
    made.aliases = {a: n for a, n in runtime.plan.aliases.items() if n in made.tensors}
    if optimizer is not None:
        made.groups, made.optimizer = _groups(runtime, optimizer), rule.kind if rule is not None else ""
    made.step = step if step is not None else max((t.step for t in made.tensors.values()), default=0)
    return made


def _keeps_momentum(rule: _step.Rule, optimizer: torch.optim.Optimizer | None) -> bool:
    if rule.kind != "sgd" or optimizer is None:
        return True
    return any(float(g.get("momentum", 0.0)) != 0.0 for g in optimizer.param_groups)


def _groups(runtime: Runtime, optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    made = []
    for group in optimizer.param_groups:
        names = []
        for p in group["params"]:
            found = runtime.plan.find(p)
            if found is None:
                raise ValueError("the optimizer has parameters that are not of this sharded model")
            names.append(found[1].name)
        made.append({**settings(group), "params": names})
    return made


def drive(
    runtime: Runtime | None, plan: Writing, work: Writing | None, stop: Callable[[BaseException], None] | None = None
) -> None:
    """Reads what `plan` asks for, in its order, on all ranks; `work`, rank 0's, is sent the values.

    A failure of `work` goes to `stop`, and the reads go on: the other ranks make them, too.
    """
    alive = work
    if alive is not None:
        alive = _send(alive, None, stop)
    for source, first, n in plan:
        out = torch.empty(n, dtype=torch.float32)
        source.read(first, out)
        if alive is not None:
            alive = _send(alive, out, stop)


def _send(work: Writing, values: torch.Tensor | None, stop: Callable[[BaseException], None] | None) -> Writing | None:
    try:
        work.send(values)
        return work
    except StopIteration:
        return None
    except Exception as e:
        if stop is None:
            raise
        stop(e)
        return None


# ---- in


class Target:
    """Where the tensors of a checkpoint go in a model: all that is written, or why nothing is."""

    def __init__(
        self, handle: Handle, optimizer: torch.optim.Optimizer | None, found: Content, strict: bool, hyper: bool
    ) -> None:
        self.handle, self.runtime, self.optimizer = handle, handle.runtime, optimizer
        self.rule, self.found, self.strict = rule_of(optimizer), found, strict
        self.missing: list[str] = []
        self.unexpected: list[str] = []
        self.problems = Problems(f"'{found.path}' ({found.form}) does not fit the model")
        self.values: list[tuple[int, int, Tensor]] = []  # unit, piece
        self.moments: dict[tuple[int, int], dict[str, Source]] = {}
        self.steps: dict[int, list[int | None]] = {}  # None: as it is
        self.buffers: dict[str, Tensor] = {}
        used = self._match()
        self._left(used)
        self.groups = self._hyper() if hyper and optimizer is not None else []

    def _match(self) -> set[str]:
        used: set[str] = set()
        runtime = self.runtime
        has_state = bool(self.found.moments()) or any(t.step for t in self.found.tensors.values())
        needs = self.rule is not None and _keeps_momentum(self.rule, self.optimizer)
        self.bare = needs and not has_state and not self.found.of_kind("trained")
        if self.bare and self.strict:
            self.problems.add("it has no state of an optimizer: give optimizer=None to load the weights alone")
        for unit in runtime.plan.units:
            steps: list[int | None] = [None] * len(unit.pieces)
            for i, piece in enumerate(unit.pieces):
                names = names_of(runtime, piece)
                t = self.found.find(names)
                if t is None:
                    self.missing.append(piece.name)
                    continue
                used |= {t.name, *names}
                if t.shape != tuple(piece.shape):
                    self.problems.add(
                        f"'{piece.name}': {list(t.shape)} in the checkpoint, {list(piece.shape)} in the model"
                    )
                    continue
                self.values.append((unit.index, i, t))
                if not unit.frozen and self.rule is not None:
                    self.moments[(unit.index, i)] = self._moments(unit, piece, t)
                    steps[i] = t.step
                elif unit.frozen and self.rule is not None and len(t.planes) > 1 and self.strict:
                    self.problems.add(f"'{piece.name}' is frozen in the model, and the checkpoint has state of it")
            if not unit.frozen and self.rule is not None:
                self.steps[unit.index] = steps
        for name, own in others(self.handle.model, runtime).items():
            t = self.found.find([name])
            if t is None:
                self.missing.append(name)
                continue
            used |= {t.name, name}
            if t.shape != tuple(own.shape):
                self.problems.add(f"'{name}': {list(t.shape)} in the checkpoint, {list(own.shape)} in the model")
            else:
                self.buffers[name] = t
        return used

    def _moments(self, unit: Unit, piece: Piece, t: Tensor) -> dict[str, Source]:
        """The state of one trained parameter, by the names of the model's optimizer."""
        assert self.rule is not None
        there = {p: s for p, s in t.planes.items() if p != FP32}
        wanted = self.rule.states_in(unit)
        if self.rule.kind == "adagrad" and set(there) == {"exp_avg_sq"}:  # as DeepSpeed's CPU Adagrad names it
            there = {"sum": there["exp_avg_sq"]}
        more = sorted(set(there) - set(wanted))
        lack = [w for w in wanted if w not in there]
        if more and self.strict:
            kind = type(self.optimizer).__name__
            self.problems.add(
                f"'{piece.name}' has state {', '.join(more)}, which {kind} ({self.rule.kind}) does not keep"
            )
        needs = lack and (t.step > 0 or t.kind != "trained" or bool(there))
        if needs and self.strict and not self.bare and _keeps_momentum(self.rule, self.optimizer):
            self.problems.add(
                f"'{piece.name}' has no state {', '.join(lack)} in the checkpoint, and is trained in the model"
            )
        return {w: there[w] for w in wanted if w in there}

    def _left(self, used: set[str]) -> None:
        found = self.found
        self.unexpected = [n for n in found.tensors if n not in used and found.tensors[n].numel]
        self.unexpected = [n for n in self.unexpected if not used & {a for a, o in found.aliases.items() if o == n}]
        if self.strict and self.missing:
            self.problems.add(f"the checkpoint lacks {names_text(self.missing)}")
        if self.strict and self.unexpected:
            self.problems.add(f"the model lacks {names_text(self.unexpected)}")

    def _hyper(self) -> list[dict[str, Any]]:
        """Each group's hyperparameters; [] where the checkpoint has none."""
        theirs = self.found.groups
        if not theirs or self.optimizer is None:
            return []
        made = []
        groups = self.optimizer.param_groups
        owner = {n: p.name for u in self.runtime.plan.units for p in u.pieces for n in names_of(self.runtime, p)}
        mine = [
            {f[1].name for p in g["params"] if (f := self.runtime.plan.find(p)) and not f[0].frozen} for g in groups
        ]
        known = set().union(*mine)
        sets = [{owner.get(self.found.aliases.get(n, n), n) for n in g["params"]} & known for g in theirs]
        places = [next((i for i, s in enumerate(sets) if names <= s), None) for names in mine]
        if None in places:
            self.problems.add(
                f"the optimizer's {len(groups)} param_groups hold other parameters than the checkpoint's {len(theirs)}"
                ": give hyperparameters=False to keep the optimizer's own"
            )
            return []
        for own, place, names in zip(groups, places, mine, strict=True):
            their = theirs[place] if place is not None and names else {}
            made.append({k: v for k, v in their.items() if k in HYPER and (k in own or k == "initial_lr")})
        return made


def plan_of(target: Target) -> dict[str, Any]:
    """What rank 0 tells the others."""
    return {
        "values": [(unit, i, sorted(target.moments.get((unit, i), {}))) for unit, i, _ in target.values],
        "steps": target.steps,
        "buffers": sorted(target.buffers),
        "groups": target.groups,
        "missing": target.missing,
        "unexpected": target.unexpected,
    }


class Filler:
    """Writes a checkpoint into a model, as plan_of() says. Collective.

    A file that cannot be read any more when some values are written leaves the model unusable: it is closed.
    """

    def __init__(
        self, handle: Handle, optimizer: torch.optim.Optimizer | None, plan: dict[str, Any], target: Target | None
    ) -> None:
        self.runtime, self.model, self.optimizer = handle.runtime, handle.model, optimizer
        self.plan, self.target = plan, target
        self.error: Exception | None = None

    def run(self) -> None:
        runtime, rule = self.runtime, rule_of(self.optimizer)
        if rule is not None and not rule.fits(runtime.kind):
            _step.become(runtime, rule.kind)
        values = {(u, i): t for u, i, t in self.target.values} if self.target is not None else {}
        for unit, i, _ in self.plan["values"]:  # all values first: before the first step they clear a unit's moments
            t = values.get((unit, i))
            self._put(unit, runtime.plan.units[unit].pieces[i], "master", None if t is None else t.planes[FP32])
        for unit, i, names in self.plan["values"]:
            if rule is None or unit not in self.plan["steps"]:
                continue
            moments = self.target.moments[(unit, i)] if self.target is not None else {}
            steps = runtime.call(runtime.engine.tensor_steps, unit)[i]
            for name in rule.states_in(runtime.plan.units[unit]):
                if name in names or steps or runtime.steps:
                    self._put(unit, runtime.plan.units[unit].pieces[i], _step._WHATS[name], moments.get(name))
        for unit, steps in self.plan["steps"].items():
            own = runtime.call(runtime.engine.tensor_steps, unit)
            made = [o if s is None else s for s, o in zip(steps, own, strict=True)]
            runtime.call(runtime.engine.set_tensor_steps, unit, made)
        self._buffers()
        self._hyperparameters(rule)
        self._check()

    def _put(self, unit: int, piece: Piece, what: str, source: Source | None) -> None:
        """Elements of one plane, from rank 0; source None: zeros, on rank 0."""
        mine = self.runtime.engine.rank == 0
        for first in range(0, piece.numel, PIECE):
            n = min(PIECE, piece.numel - first)
            out = torch.zeros(n if mine else 0, dtype=torch.float32)
            if mine and source is not None and self.error is None:
                try:
                    source.read(first, out)
                except Exception as e:
                    self.error = e
            address = out.data_ptr() if mine else None
            self.runtime.call(self.runtime.engine.write_on, 0, unit, what, piece.first + first, n, "f32", address)

    def _buffers(self) -> None:
        own = others(self.model, self.runtime)
        for name in self.plan["buffers"]:
            target = own[name]
            data = b""
            if self.target is not None and self.error is None:
                try:
                    value = self.target.buffers[name].planes[FP32].tensor().to(target.dtype).contiguous()
                    data = value.view(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
                except Exception as e:
                    self.error = e
            data = from_first(self.runtime, data)
            if data:
                with torch.no_grad():
                    flat = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(target.dtype)
                    target.copy_(flat.view(target.shape))

    def _hyperparameters(self, rule: _step.Rule | None) -> None:
        if self.optimizer is None or rule is None:
            return
        for own, their in zip(self.optimizer.param_groups, self.plan["groups"], strict=False):
            for key, value in their.items():
                own[key] = tuple(value) if isinstance(value, list) else value
        show_state(self.optimizer, self.runtime, rule)

    def _check(self) -> None:
        text = "" if self.error is None else f"{type(self.error).__name__}: {self.error}"
        said = from_first(self.runtime, text.encode())
        if said:
            self.runtime.fail("closed: a checkpoint could not be read to its end")
            raise ConvertError(
                "the checkpoint could not be read to its end, and the model has values of it and its own: "
                + said.decode()
            ) from self.error
