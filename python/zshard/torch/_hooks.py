"""Hooks of a sharded model: when units are gathered, and who tells that gradients come.

For each group: a forward pre-hook (first of all, with keyword arguments), a forward hook (called after an
exception, too; a recomputation that stops early hands None to it), a tensor hook on each output that
needs a gradient, and a post-accumulate hook on each trained parameter. Compilers leave them alone.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter_ns
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ._memory import written_inside
from ._runtime import Runtime, task_id
from ._unit_state import Group, UnitState


def undone(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which torch.compile calls and does not trace."""
    if "torch._dynamo" in sys.modules:
        return torch._dynamo.disable(function)
    function.__dict__["_torchdynamo_disable"] = True
    return function


class _Watch(torch.autograd.Function):
    """The identity of a group's inputs; its backward runs when the group's own backward is over."""

    @staticmethod
    def forward(ctx: Any, done: Callable[[], None], *inputs: torch.Tensor) -> Any:
        ctx.done = done
        return inputs

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        ctx.done()
        return (None, *grads)


class Hooks:
    """The hooks of one runtime; `remove()` takes them off."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.handles: list[Any] = []
        self.learner: _Learner | None = None

    def install(self, group: Group) -> None:
        """On a group's module."""
        module = group.module
        self.handles.append(
            module.register_forward_pre_hook(undone(self._before(group)), prepend=True, with_kwargs=True)
        )
        self.handles.append(
            module.register_forward_hook(undone(self._after(group)), with_kwargs=True, always_call=True)
        )

    def install_gradients(self, state: UnitState) -> None:
        """On a unit's trained parameters."""
        if not state.trainable:
            return
        for i, param in enumerate(state.params):
            self.handles.append(param.register_post_accumulate_grad_hook(undone(self._accumulated(state, i))))

    def remove(self) -> None:
        """Takes all hooks off."""
        for handle in self.handles:
            handle.remove()
        self.handles.clear()

    def _before(self, group: Group) -> Callable[..., Any]:
        runtime = self.runtime

        def pre_forward(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            start = perf_counter_ns() - runtime.c_ns
            try:
                with runtime.lock:
                    if runtime.enter(group):
                        return self._watched(group, args, kwargs)
                return None
            finally:
                runtime.busy_ns += perf_counter_ns() - runtime.c_ns - start

        return pre_forward

    def _after(self, group: Group) -> Callable[..., Any]:
        runtime = self.runtime

        def post_forward(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            start = perf_counter_ns() - runtime.c_ns
            try:
                with runtime.lock:
                    entry = group.stack[-1] if group.stack else None
                    if entry is None or output is None:
                        runtime.exit(group)
                        return None
                    output, changed = self._hooked(group, output)
                    runtime.exit(group)
                    if runtime.depth == 0:
                        runtime.check_lost()
                    return output if changed else None
            finally:
                runtime.busy_ns += perf_counter_ns() - runtime.c_ns - start

        return post_forward

    def _accumulated(self, state: UnitState, i: int) -> Callable[[torch.Tensor], None]:
        """Holds nothing of the model's: Python's collector does not see what hooks of parameters refer to."""
        of_model, unit = weakref.ref(self.runtime), state.index

        def accumulated(param: torch.Tensor) -> None:
            runtime = of_model()
            if runtime is None:
                return
            start = perf_counter_ns() - runtime.c_ns
            with runtime.lock:
                runtime.accumulated(runtime.units[unit], i)
            runtime.busy_ns += perf_counter_ns() - runtime.c_ns - start

        return accumulated

    # ---- outputs

    def _hooked(self, group: Group, output: Any) -> tuple[Any, bool]:
        """The output with a hook on each tensor that needs a gradient; whether it is another object."""
        if isinstance(output, torch.Tensor):
            made = self._hook_one(group, output)
            return made, made is not output
        if type(output) is tuple and all(isinstance(o, torch.Tensor) or o is None for o in output):
            made_all = tuple(self._hook_one(group, o) if o is not None else None for o in output)
            return made_all, any(a is not b for a, b in zip(made_all, output, strict=True))
        leaves, spec = pytree.tree_flatten(output)
        new = [self._hook_one(group, o) if isinstance(o, torch.Tensor) else self._opaque(group, o) for o in leaves]
        if all(a is b for a, b in zip(new, leaves, strict=True)):
            return output, False
        return pytree.tree_unflatten(new, spec), True

    def _opaque(self, group: Group, output: Any) -> Any:
        """An output that pytree does not know, such as a dataclass: its attributes that are tensors are hooked."""
        for name, value in list(getattr(output, "__dict__", {}).items()):
            if isinstance(value, torch.Tensor):
                made = self._hook_one(group, value)
                if made is not value:
                    object.__setattr__(output, name, made)
        return output

    def _hook_one(self, group: Group, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout is torch.strided and any(u.memory.owns(tensor) for u in group.units if u.memory.shown):
            tensor = tensor.clone()  # a parameter, or a view of one: NaN after the release
        if not tensor.requires_grad or not torch.is_grad_enabled():
            return tensor
        runtime = self.runtime

        def pre_backward(grad: torch.Tensor) -> None:
            start = perf_counter_ns() - runtime.c_ns
            with runtime.lock:
                runtime.before_backward(group)
            runtime.busy_ns += perf_counter_ns() - runtime.c_ns - start

        # An in-place operation on a view takes the view's hook away (pytorch#181832), not its base's.
        base = tensor._base if tensor._is_view() else None
        target = base if base is not None and base.grad_fn is not None else tensor
        if target.grad_fn is None:
            return tensor  # a leaf of the user's
        target.register_hook(undone(pre_backward))
        return tensor

    # ---- inputs of groups with frozen parameters

    def _watched(self, group: Group, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """(args, kwargs) after an identity that tells when gradients of all inputs are there; None: none needs any."""
        runtime = self.runtime
        leaves, spec = pytree.tree_flatten((args, kwargs))
        at = [i for i, t in enumerate(leaves) if isinstance(t, torch.Tensor) and t.requires_grad]
        if not at:  # gradients of groups inside of it may come after its own, and need what is frozen in it
            group.late = group.late or group.encloses
            return None
        if task_id() == -1 or group.inputs == 0:
            group.inputs += 1

        def done() -> None:
            start = perf_counter_ns() - runtime.c_ns
            with runtime.lock:
                if group.inputs > 0:
                    group.inputs -= 1
                runtime.finish(group)
            runtime.busy_ns += perf_counter_ns() - runtime.c_ns - start

        outputs = _Watch.apply(undone(done), *[leaves[i] for i in at])
        for i, tensor in zip(at, outputs, strict=True):
            leaves[i] = tensor
        return pytree.tree_unflatten(leaves, spec)

    # ---- external parameters

    def learn(self, begins: bool) -> None:
        """The outermost forward call begins or ends: a mode sees Parameters used outside of their module."""
        if begins:
            if self.learner is None:
                self.learner = _Learner(self.runtime)
                self.learner.__enter__()
        elif self.learner is not None:
            learner, self.learner = self.learner, None
            learner.__exit__(None, None, None)


class _Learner(TorchFunctionMode):
    """Gathers a unit whose parameter is an argument while nobody holds it, and remembers that the innermost
    group needs it."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self.runtime = runtime

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        for item in _flat(args):
            if isinstance(item, nn.Parameter):
                self._see(item, func)
        for item in _flat((kwargs or {}).values()):
            if isinstance(item, nn.Parameter):
                self._see(item, func)
        if args and type(args[0]) in (torch.Tensor, nn.Parameter) and _in_place(func):
            self._refuse(args[0])
        return func(*args, **(kwargs or {}))

    def _refuse(self, tensor: torch.Tensor) -> None:
        """A write to gathered memory: lost in this process's memory, and the end of the process in the daemon's."""
        if tensor.layout is not torch.strided:
            return
        for state in self.runtime.units:
            memory = state.memory
            if memory.loses(tensor):
                raise written_inside(memory.name_at(tensor))

    def _see(self, param: nn.Parameter, func: Any) -> None:
        runtime = self.runtime
        found = runtime.plan.find(param)
        if found is None or not runtime.stack:
            return
        state = runtime.units[found[0].index]
        if func in _DETACHES:  # what is computed with it can need it when its gradient has come
            for group in state.groups:
                group.detached = group.late = True
        if func in _LOOKS:
            return
        if state.holds > state.kept:
            return
        with runtime.lock:
            group = runtime.stack[-1]
            entry = group.stack[-1]
            if entry is None:
                return
            runtime.acquire(state)
            entry[0].append(state)
            group.add(state)
            state.entries += 1
            if entry[1] and group.backward:  # in a recomputation: the backward pass holds it, too
                runtime.acquire(state)


# What looks at a Parameter and not at its elements.
_NAMES = (
    "shape",
    "dtype",
    "device",
    "requires_grad",
    "grad",
    "is_leaf",
    "layout",
    "ndim",
    "data",
    "is_cuda",
    "grad_fn",
    "is_meta",
    "is_sparse",
    "is_quantized",
    "itemsize",
    "nbytes",
    "names",
    "_version",
    "grad_dtype",
    "_base",
)
_LOOKS: set[Any] = {
    torch.Tensor.dim,
    torch.Tensor.size,
    torch.Tensor.numel,
    torch.Tensor.stride,
    torch.Tensor.is_floating_point,
    torch.Tensor.is_contiguous,
    torch.Tensor.is_set_to,
    torch.Tensor.element_size,
    torch.Tensor.data_ptr,
    torch.Tensor.requires_grad_,
    torch.Tensor.register_hook,
    torch.Tensor.is_complex,
    torch.is_floating_point,
    torch.is_complex,
}
_DETACHES: set[Any] = {torch.Tensor.detach, torch.Tensor.data.__get__}  # type: ignore[attr-defined]
for _name in _NAMES:
    _LOOKS.update(getattr(getattr(torch.Tensor, _name, None), how, None) for how in ("__get__", "__set__"))


def _in_place(func: Any) -> bool:
    """Whether a function of torch writes to its first argument, by its name: copy_, __iadd__, __setitem__."""
    name = getattr(func, "__name__", "")
    if name.startswith("__"):
        return name in _IN_PLACE
    return name.endswith("_") and func not in _LOOKS


_IN_PLACE = {f"__i{n}__" for n in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")} | {"__setitem__"}


def _flat(items: Iterable[Any]) -> Iterable[Any]:
    for item in items:
        if isinstance(item, (list, tuple)):
            yield from item
        else:
            yield item
