"""HostOptimizer: optimizers of torch.optim that the engine has no counterpart for, on this rank's slices.

The engine keeps masters and reduces gradients. A step here, unit by unit: this rank's slice of the gradient and of the
master are read, and torch's own optimizer steps them as flat tensors. When all ranks have stepped all units, the
masters are written back. The engine then makes a step of its own with a learning rate of 0, which drops the gradients,
counts, and carries notes and commits.

A step that fails is never half made without a word:

    before the first slice is stepped     nothing has changed
    until all slices are stepped          no weight has changed; the optimizer steps again when it was given a state
    from the first write to the step      Ctrl-C waits. The model is closed. A kept job is marked (_notes.py), and is
                                          not resumed from there, also after kill -9
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .._c import GROUP_NONE
from .._interrupt import held_back
from . import _grads
from ._optim import Optimizer
from ._step import Rule

if TYPE_CHECKING:
    from ._runtime import Runtime
    from ._unit_state import UnitState
    from ._units import Piece

_NOT_ELEMENTWISE = {
    "LBFGS": "a step needs all parameters at once",
    "Adafactor": "its state goes by rows and columns",
    "Muon": "a step needs a whole matrix; the engine has it: give torch.optim.Muon or zshard.torch.Muon to shard()",
    "SparseAdam": "gradients are dense here",
}
_COUNTS = ("step", "eta", "mu", "mu_product")  # of a parameter, not of its elements
_SUM_MAX = 4096
_STATE_TORN = (
    "no weight has changed, but parts of the optimizer's state are a step ahead. Give it the state of this step "
    "(load_state_dict()), or resume the job on all ranks"
)


class _HostRule(Rule):
    """The engine's part: plain SGD that changes nothing."""

    def group(self, group: Mapping[str, Any]) -> dict[str, Any]:
        return {"lr": 0.0, "weight_decay": 0.0}


HOST = _HostRule("sgd", (), {})


class _Slice:
    """One parameter's elements [first, last) that are this rank's, flat."""

    def __init__(self, state: UnitState, place: int, piece: Piece, first: int, last: int) -> None:
        self.place, self.piece = place, piece
        self.first, self.last = first, last  # of the unit
        self.number = -1  # of the parameter in the optimizer
        # As long as it is not stepped it is empty.
        self.value = nn.Parameter(torch.empty(0), requires_grad=True)

    def cut(self, whole: torch.Tensor) -> torch.Tensor:
        """This slice of a tensor of the parameter's shape."""
        at = self.piece.first
        return whole.detach().reshape(-1)[self.first - at : self.last - at].float().clone()


class _Slices:
    """What one rank has of one model."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.units: list[tuple[UnitState, int, int, list[_Slice]]] = []
        self.of_param: dict[int, _Slice] = {}
        for state in runtime.units:
            if not state.trainable:
                continue
            first, count = runtime.engine.slice(state.index)
            last, rows = first + count, []
            for place, piece in enumerate(state.unit.pieces):
                begin, end = max(piece.first, first), min(piece.first + piece.numel, last)
                if begin < end:
                    row = _Slice(state, place, piece, begin, end)
                    rows.append(row)
                    self.of_param[id(piece.param)] = row
            self.units.append((state, first, last, rows))

    @property
    def cut(self) -> list[tuple[int, int]]:
        """How this rank's slices are cut: what state_dict() is of."""
        return [(first, last) for _, first, last, _ in self.units]

    def had(self) -> list[bool]:
        """[trainable]: which tensors got a gradient on any rank. Collective."""
        runtime = self.runtime
        mine = [float(state.had[i]) for state, i in runtime.trainable]
        if runtime.world > 1:
            for at in range(0, len(mine), _SUM_MAX):
                mine[at : at + _SUM_MAX] = runtime.call(runtime.engine.sum, mine[at : at + _SUM_MAX])
        return [n > 0 for n in mine]

    def read(self, state: UnitState, what: str, first: int, last: int) -> torch.Tensor:
        """[elems of the unit] fp32, of which this rank's slice is right. Collective."""
        runtime, elems = self.runtime, state.unit.elems
        out = torch.empty(elems, dtype=torch.float32)
        engine = runtime.engine
        if what == "grad" or not engine.options.get("gather_alone"):
            runtime.call(engine.read_on, -1, state.index, what, 0, elems, "f32", out.data_ptr())
        elif first < last:  # this rank's own affair
            at = out.data_ptr() + 4 * first
            runtime.call(engine.read_on, engine.rank, state.index, what, first, last - first, "f32", at)
        return out

    def own(self, whole: torch.Tensor, state: UnitState, first: int, last: int) -> torch.Tensor:
        """The same, with memory for this rank's slice alone: what was never touched has no memory."""
        if last - first == state.unit.elems:
            return whole
        made = torch.empty_like(whole)
        made[first:last] = whole[first:last]
        return made


class HostOptimizer(Optimizer):
    """Runs a class of torch.optim that the engine has no counterpart for, such as RAdam, NAdam, Adamax, RMSprop or
    Adadelta, on this rank's slices, in host memory.

        opt = zt.HostOptimizer(torch.optim.RAdam, model.parameters(), lr=1e-3)
        handle = zt.shard(model, opt)

    The class must be elementwise: what it does to an element depends on that element's value, gradient and state, and
    on counts. Hyperparameters, LR schedulers, clipping and GradScaler work as with the others. The optimizer has all
    trained parameters of the model.

    Cost: the state is in this process's memory (for RAdam 8 bytes per element of this rank's slice), not in the daemon,
    and not on NVMe. A step also needs 4 bytes per element of the slice and twice the largest unit in fp32, and sends
    each gradient and, without the daemon, each master to all ranks.

    The job does not save this state: pass `state_dict()`, which has this rank's slices, to `handle.commit(note=)`, and
    call `load_state_dict(handle.note)` after a resume, on the same number of ranks. If a job was killed later than its
    last commit, it resumes at a later step than that of this state (`handle.note_step`). Any number of ranks can load
    a state_dict() of torch's own optimizer.

    A step that raises, or is ended by Ctrl-C, has changed no weight. But slices of the optimizer's state may have been
    stepped already: then step() and state_dict() raise until load_state_dict() is called. If weights were being
    written, the model is closed, and a kept job must be rolled back: an attempt to resume it says so.

    Args:
        cls: a subclass of torch.optim.Optimizer.
        params: as torch's.
        **defaults: its arguments.

    Raises:
        TypeError: the class is not an optimizer, or not elementwise (LBFGS, Adafactor, Muon, SparseAdam).
    """

    zshard_rule = HOST

    def __init__(self, cls: type[torch.optim.Optimizer], params: Any, **defaults: Any) -> None:
        if not (isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer)) or issubclass(cls, Optimizer):
            raise TypeError(f"HostOptimizer runs a class of torch.optim, not {cls!r}")
        for name in (c.__name__ for c in cls.__mro__):
            if name in _NOT_ELEMENTWISE:
                raise TypeError(f"HostOptimizer cannot run {cls.__name__} on slices: {_NOT_ELEMENTWISE[name]}")
        self._cls, self._arguments = cls, dict(defaults)
        self._made: dict[int, tuple[_Slices, torch.optim.Optimizer]] = {}
        self._loaded: dict[int, Any] = {}
        self._loaded_of: list[tuple[int, int]] | None = None  # how its slices are cut; None: whole tensors
        self._torn = ""  # why some slices of the state are a step ahead of others
        super().__init__(params, cls([nn.Parameter(torch.zeros(1))], **defaults).defaults)

    def _numbers(self) -> Iterator[tuple[int, int, torch.Tensor]]:
        """(number of the group, number of the parameter, parameter)."""
        number = 0
        for group, of in enumerate(self.param_groups):
            for param in of["params"]:
                yield group, number, param
                number += 1

    def _inner(self, runtime: Runtime) -> tuple[_Slices, torch.optim.Optimizer]:
        """This rank's slices, and torch's optimizer of them, with the hyperparameters of now."""
        made = self._made.get(id(runtime))
        if made is None or made[0].runtime is not runtime or self._regrouped(*made):
            slices = _Slices(runtime)
            rows: list[list[nn.Parameter]] = [[] for _ in self.param_groups]
            for group, number, param in self._numbers():
                row = slices.of_param.get(id(param))
                if row is not None:
                    row.number = number
                    rows[group].append(row.value)
            groups = [{**g, "params": r} for g, r in zip(self.param_groups, rows, strict=True)]
            inner = self._cls(groups, **self._arguments)
            if made is not None and made[0].runtime is runtime:  # groups were changed: state stays
                for key, row in slices.of_param.items():
                    old = made[0].of_param.get(key)
                    if old is not None and old.value in made[1].state:
                        inner.state[row.value] = made[1].state[old.value]
            made = self._made[id(runtime)] = (slices, inner)
        for mine, theirs in zip(self.param_groups, made[1].param_groups, strict=True):
            theirs.update({k: v for k, v in mine.items() if k != "params"})
        self._take_loaded(*made)
        return made

    def _regrouped(self, slices: _Slices, inner: torch.optim.Optimizer) -> bool:
        """Whether groups have other parameters than those of torch's optimizer."""
        if len(inner.param_groups) != len(self.param_groups):
            return True
        for mine, theirs in zip(self.param_groups, inner.param_groups, strict=True):
            rows = [row.value for p in mine["params"] if (row := slices.of_param.get(id(p))) is not None]
            if len(rows) != len(theirs["params"]) or any(
                a is not b for a, b in zip(rows, theirs["params"], strict=True)
            ):
                return True
        return False

    def _take_loaded(self, slices: _Slices, inner: torch.optim.Optimizer) -> None:
        if not self._loaded:
            return
        if self._loaded_of not in (None, slices.cut):
            raise ValueError(
                "the optimizer's state is for other slices than this rank has: load it on the same number of ranks"
            )
        for row in slices.of_param.values():
            entry = self._loaded.pop(row.number, None)
            if entry is not None:
                inner.state[row.value] = {k: self._taken(row, k, v) for k, v in entry.items()}

    def _taken(self, row: _Slice, key: str, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if self._loaded_of is None and value.shape == row.piece.shape and (value.dim() > 0 or key not in _COUNTS):
            return row.cut(value)
        return value.detach().clone()

    @contextlib.contextmanager
    def zshard_host_step(self, runtime: Runtime, group_of: Any, factors: Any, common: float) -> Iterator[None]:
        """Around the engine's step: torch's optimizer updates the masters. Collective."""
        self._check_whole()
        slices, inner = self._inner(runtime)
        if math.isnan(runtime.call(runtime.engine.norm)):
            yield  # not finite: the engine skips the step on all ranks
            return
        common *= _clip_factor(runtime, group_of, factors, common)
        made = self._step_slices(slices, inner, group_of, factors, common)
        with held_back():
            if runtime.writing is not None:
                runtime.writing()
            self._torn = ""
            try:
                for state, master in made:
                    at = master.data_ptr()
                    runtime.call(runtime.engine.write_on, -1, state.index, "master", 0, state.unit.elems, "f32", at)
                yield
            except BaseException:
                self._torn = "a step failed while weights were written"
                runtime.fail(
                    "closed: a step of HostOptimizer failed while weights were written, and some may be a step ahead"
                )
                raise

    def _step_slices(
        self, slices: _Slices, inner: torch.optim.Optimizer, group_of: Any, factors: Any, common: float
    ) -> list[tuple[UnitState, torch.Tensor]]:
        """Steps all slices in this process: the masters to be written. Raises on all ranks where one of them fails."""
        runtime, had = slices.runtime, slices.had()
        made: list[tuple[UnitState, torch.Tensor]] = []
        error: Exception | None = None
        for state, first, last, rows in slices.units:
            base = runtime.first_trainable[state.index]
            ours = [i for i in range(len(state.params)) if had[base + i] and group_of[base + i] != GROUP_NONE]
            if not ours:
                continue
            grad = slices.read(state, "grad", first, last)
            master = slices.read(state, "master", first, last)
            if error is not None:  # the other ranks wait for these reads
                continue
            try:
                if state.holds:
                    raise RuntimeError(f"unit '{state.unit.name}' is held, as by gathered(): step outside of it")
                self._step_unit(
                    inner, [r for r in rows if r.place in ours], base, master, grad, factors, common, runtime
                )
            except Exception as e:
                error = e
            made.append((state, slices.own(master, state, first, last)))
        failed = float(error is not None)
        if runtime.world > 1:
            failed = runtime.call(runtime.engine.sum, [failed])[0]
        if failed and runtime.world > 1:
            self._torn = self._torn or "a step failed on one rank"
        if error is not None:
            raise error
        if failed:
            raise RuntimeError(f"HostOptimizer: {self._torn}: {_STATE_TORN}")
        return made

    def _step_unit(
        self,
        inner: torch.optim.Optimizer,
        rows: list[_Slice],
        base: int,
        master: torch.Tensor,
        grad: torch.Tensor,
        factors: Any,
        common: float,
        runtime: Runtime,
    ) -> None:
        """torch's step of one unit's slices."""
        try:
            for row in rows:
                factor = common * (factors[base + row.place] if factors is not None else 1.0) / runtime.world
                row.value.data = master[row.first : row.last]
                row.value.grad = grad[row.first : row.last].mul_(factor)
            self._torn = "a step failed between two slices"
            inner.step()
        finally:
            for row in rows:
                row.value.grad = None
                row.value.data = torch.empty(0)

    def _check_whole(self) -> None:
        if self._torn:
            raise RuntimeError(f"HostOptimizer: {self._torn}: {_STATE_TORN}")

    def state_dict(self) -> dict[str, Any]:
        """This rank's slices, and the groups; for the same number of ranks. Not collective."""
        self._check_whole()
        made: dict[str, Any] = super().state_dict()
        if self._loaded:
            return {**made, "state": dict(self._loaded), "zshard_slice": self._loaded_of}
        made["state"] = {}
        for slices, inner in self._made.values():
            made["zshard_slice"] = slices.cut
            for row in slices.of_param.values():
                if row.value in inner.state:
                    made["state"][row.number] = dict(inner.state[row.value])
        return made

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the result of state_dict() on this rank, or that of torch's own optimizer for the whole model. The next
        step uses it.

        After a step that failed in the middle, it makes the optimizer usable again. Raises ValueError if the slices are
        those of another number of ranks.
        """
        super().load_state_dict({"state": {}, "param_groups": state_dict["param_groups"]})
        self._made.clear()
        self._torn = ""
        self._loaded, self._loaded_of = dict(state_dict["state"]), state_dict.get("zshard_slice")

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_made": {}}


def _clip_factor(runtime: Runtime, group_of: Any, factors: Any, common: float) -> float:
    """What shard(clip=) multiplies the gradient by. Collective. ValueError: a way to clip that there is only in the
    engine's own steps."""
    mode = runtime.engine.options.get("clip_mode", "global")
    if mode == "tensor":
        raise ValueError("HostOptimizer: clip_mode='tensor' clips the engine's own steps; use clip_mode='global'")
    if not runtime.step_clip or mode != "global":
        return 1.0
    total = 0.0
    for i, row in enumerate(_grads.norms(runtime)):
        if group_of[i] != GROUP_NONE:
            factor = common * (factors[i] if factors is not None else 1.0) / runtime.world
            total += factor * factor * row.sum_of_squares
    return min(1.0, runtime.step_clip / (math.sqrt(total) + 1e-6))
