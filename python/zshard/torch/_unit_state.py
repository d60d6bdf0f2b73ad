"""What `Runtime` keeps of each unit, and of each module with hooks.

`UnitState` says who holds a unit, and which of its gradients have come in this micro-step. `Group` says which units a
module's forward and backward pass need. Both are plain state: `Runtime` (_runtime.py) changes them, under its lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from . import _grads
from ._memory import UnitMemory, contiguous_strides, storage_at
from ._units import Unit

if TYPE_CHECKING:
    from ._runtime import Runtime


class UnitState:
    """A unit at work."""

    def __init__(self, unit: Unit, memory: UnitMemory) -> None:
        self.unit, self.memory = unit, memory
        self.index = unit.index
        self.holds = 0
        self.kept = 0  # 1: one of them is of _kept.py
        self.trainable = not unit.frozen
        self.frozen = False  # trainable, and frozen in the engine now: no parameter of it has requires_grad
        self.params = [p.param for p in unit.pieces]
        self.places = {id(p): i for i, p in enumerate(self.params)}
        n = len(self.params)
        self.groups: list[Group] = []
        self.entries = 0  # forward calls since the last backward pass
        # This micro-step:
        self.grads: list[torch.Tensor] = []  # views of the engine's buffer, [] before it was asked for
        self.armed = [False] * n  # a gradient is expected, or came
        self.fired = [False] * n
        self.stamps = [0] * n  # versions of `grads` before autograd has added to them
        self.aside: list[int] = []  # parameters whose handle was taken out of .grad for this backward pass
        self.nested = False  # gradients come from a backward pass inside of this one (a reentrant checkpoint)
        self.tasks = [0] * n  # of autograd, in which it fired
        self.left = 0  # expected gradients that have not come
        self.reduced = False
        # This step: which tensors have a gradient here
        self.had = [False] * n
        self.views: dict[int, list[torch.Tensor]] = {}
        self.nodes: list[Any] = []
        self.handles: list[_grads.Gradient] = []
        self.shown: list[Any] = [None] * n  # the entry of an optimizer's `state` that the engine has (LazyState)
        self.direct = False  # AccumulateGrad adds into the engine's buffer

    def prepare(self, runtime: Runtime) -> None:
        """After parameters are in their final place: gradient nodes and handles."""
        if not self.trainable:
            return
        self.direct = self.unit.dtype == torch.float32 or hasattr(self.params[0], "grad_dtype")
        if self.direct and self.unit.dtype != torch.float32:
            for param in self.params:
                param.grad_dtype = torch.float32
        self.nodes = [torch.autograd.graph.get_gradient_edge(p).node for p in self.params]
        dtype = torch.float32 if self.direct else self.unit.dtype
        self.handles = [_grads.Gradient(runtime, self, i, p, dtype) for i, p in enumerate(self.params)]

    def gradients(self, address: int) -> list[torch.Tensor]:
        """Views of the engine's fp32 buffer, with versions of their own."""
        views = self.views.get(address)
        if views is None:
            if len(self.views) >= 64:
                self.views.clear()
            device = self.memory.device
            whole = storage_at(address, 4 * self.unit.elems, device)
            views = self.views[address] = [
                torch.empty(0, dtype=torch.float32, device=device).set_(
                    whole, p.first, p.shape, contiguous_strides(p.shape)
                )
                for p in self.unit.pieces
            ]
        return views

    def forget(self) -> None:
        """The micro-step is over."""
        n = len(self.params)
        self.armed, self.fired = [False] * n, [False] * n
        self.grads, self.left, self.reduced, self.entries, self.nested = [], 0, False, 0, False


class Group:
    """A module with hooks, and the units that it needs: its own, tied and external ones."""

    def __init__(self, module: nn.Module, name: str) -> None:
        self.module, self.name = module, name
        self.units: list[UnitState] = []
        self.owner: Group | None = None  # hooks of a part of `owner`: at work only outside of its forward
        self.stack: list[tuple[list[UnitState], bool] | None] = []
        self.backward = False  # holds its units for a backward pass
        self.inputs = 0  # gradients of inputs that have not come, where that is watched
        self.detached = False  # a parameter was seen detached in a forward call
        self.late = False  # its backward pass is over with the whole one: no input tells when
        self.encloses = False  # other groups with trained parameters are inside of the module

    def add(self, state: UnitState) -> None:
        if state not in self.units:
            self.units.append(state)
            state.groups.append(self)

    def watches(self) -> bool:
        """Whether some parameter is frozen now, or was detached: the backward pass is over only with the gradients of
        inputs, which may need it after the last gradient of a parameter came."""
        return self.detached or not all(u.trainable and all([p.requires_grad for p in u.params]) for u in self.units)


def will_execute(node: Any) -> bool:
    """Whether this backward pass accumulates into the node's parameter (torch.autograd.grad does not)."""
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:
        return False
