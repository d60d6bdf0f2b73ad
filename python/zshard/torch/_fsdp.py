"""The names of torch's FSDP2 and FSDP1 (_fsdp1.py), so that their scripts change one import.

    from zshard.torch import fully_shard                  # FSDP2: torch.distributed.fsdp
    for block in model.layers:
        fully_shard(block)
    fully_shard(model)

    from zshard.torch import FSDP                         # FSDP1
    model = FSDP(model, auto_wrap_policy=policy)

Both only mark what is gathered together. The engine starts with the first call of the outermost module (or handle_of()
of it), so an optimizer may be built before or after. What they cannot do raises NotImplementedError with the
argument's name. Parameters stay plain Parameters, under their own names.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn

from ._handle import Handle, shard
from ._runtime import task_id
from ._sources import Real, attach, attached, exact

_MARK = "_zshard_mark"


class _Mark:
    """What fully_shard() was told about one module."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.root: nn.Module | None = None  # the outermost marked module around
        self.handle: Handle | None = None  # of the root
        self.boundary = True
        self.param_dtype: torch.dtype | None = None
        self.output_dtype: torch.dtype | None = None
        self.cast_inputs = False
        self.cast_root_inputs = False  # FSDP1: those of the outermost module
        self.mesh: tuple[int, ...] | None = None
        self.held: list[Any] = []  # units of unshard()


def _mark_of(module: nn.Module) -> _Mark:
    mark = module.__dict__.get(_MARK)
    if not isinstance(mark, _Mark):
        raise ValueError(f"{type(module).__name__} was not given to fully_shard() or FSDP()")
    return mark


def _root_of(module: nn.Module) -> nn.Module:
    return _mark_of(module).root or module


def handle_of(module: nn.Module) -> Handle:
    """The handle of a module that was given to fully_shard() or FSDP(); starts its engine. Collective at the start."""
    root = _root_of(module)
    mark = _mark_of(root)
    if mark.handle is None:
        marked = [m for m in root.modules() if m is not root and _MARK in m.__dict__]
        done: set[int] = set()
        for m in [*reversed(marked), root]:  # inner ones before those around them
            _same_as_root(m, _mark_of(m), mark)
            _lower(m, _mark_of(m), done)
        wish: Any = mark.options.pop("units", None) or (marked if marked else "auto")
        mark.handle = shard(root, units=wish, **mark.options)
        _check_mesh(mark)
        mark.handle.set_boundary(mark.boundary)
    return mark.handle


def _same_as_root(module: nn.Module, mark: _Mark, root: _Mark) -> None:
    """Raises ValueError where an inner module was given what the root was not: the engine is the root's."""
    if mark is root:
        return
    if mark.mesh is not None and mark.mesh != root.mesh:
        raise ValueError(f"{type(module).__name__} has a mesh of shape {mark.mesh}, the outermost module {root.mesh}")
    for name, value in mark.options.items():
        if name != "keep_gathered" and name not in ("stage", "units") and root.options.get(name) != value:
            raise ValueError(f"{type(module).__name__} has {name}={value!r}: give it to the outermost module")


def _check_mesh(mark: _Mark) -> None:
    """Raises ValueError where the mesh does not have all ranks; the engine is closed then."""
    handle = mark.handle
    if handle is not None and mark.mesh is not None and math.prod(mark.mesh) != handle.engine.world:
        mark.handle = None
        handle.close(gather=True)
        raise ValueError(f"mesh of shape {mark.mesh}: it must have all {handle.engine.world} ranks")


def _lower(module: nn.Module, mark: _Mark, done: set[int]) -> None:
    """Mixed precision: parameters become of param_dtype; their fp32 values become the engine's masters, exactly.
    `done`: by id, those that a marked module inside has."""
    for p in module.parameters():
        if id(p) in done:
            continue
        done.add(id(p))
        if mark.param_dtype is not None and p.is_floating_point() and p.dtype != mark.param_dtype:
            source = attached(p) or (Real(p) if p.device.type != "meta" else None)
            p.data = p.data.to(mark.param_dtype)
            if source is not None:
                attach(p, exact(source))


def _link(module: nn.Module) -> None:
    """Marked modules inside are of this root from now on."""
    for m in module.modules():
        if m is not module and _MARK in m.__dict__:
            mark = _mark_of(m)
            if mark.handle is not None:
                raise ValueError(
                    f"{type(m).__name__} inside of {type(module).__name__} has run already, as a model of "
                    "its own; mark all modules before the first call"
                )
            mark.root = module


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_cast(v, dtype) for v in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_cast(v, dtype) for v in value)
    if isinstance(value, dict):
        made = {k: _cast(v, dtype) for k, v in value.items()}
        return made if type(value) is dict else type(value)(**made)
    return value


def _policy(mark: _Mark, policy: Any) -> None:
    """mp_policy of FSDP2, or mixed_precision of FSDP1."""
    if policy is None:
        return
    mark.param_dtype = getattr(policy, "param_dtype", None)
    mark.output_dtype = getattr(policy, "output_dtype", None)
    mark.cast_inputs = bool(getattr(policy, "cast_forward_inputs", True)) and mark.param_dtype is not None
    mark.cast_root_inputs = bool(getattr(policy, "cast_root_forward_inputs", False)) and mark.param_dtype is not None
    if getattr(policy, "buffer_dtype", None) is not None:
        raise NotImplementedError("mixed precision with buffer_dtype: buffers keep their dtype; convert them before")
    for name in ("keep_low_precision_grads",):
        if getattr(policy, name, False):
            raise NotImplementedError(f"mixed precision with {name}=True: gradients are summed in fp32")


def _mesh(mark: _Mark, mesh: Any) -> None:
    if mesh is None:
        return
    shape = mark.mesh = tuple(mesh.shape)
    if len(shape) == 2:
        mark.options["group_ranks"] = int(shape[1])
    elif len(shape) != 1:
        raise NotImplementedError(f"mesh of shape {shape}: one dimension (all ranks), or two (replicas, shards)")


class FSDPModule:
    """The class that fully_shard() gives a module: its calls start the engine, and it has these methods."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = cast(nn.Module, self)
        mark = _mark_of(module)
        if _mark_of(_root_of(module)).handle is None:
            handle_of(module)
        if mark.cast_inputs and mark.param_dtype is not None:
            args, kwargs = _cast(args, mark.param_dtype), _cast(kwargs, mark.param_dtype)
        made = super().__call__(*args, **kwargs)  # type: ignore[misc]
        if not _keeps(module):
            self.reshard()
        return made if mark.output_dtype is None else _cast(made, mark.output_dtype)

    def unshard(self, async_op: bool = False) -> Any:
        """Gathers the module's parameters, until reshard() or the end of the module's next call. Returns None, or with
        async_op an object with wait()."""
        module = cast(nn.Module, self)
        handle, mark = handle_of(module), _mark_of(module)
        runtime = handle.runtime
        with runtime.lock:
            for state in _units(handle, module):
                if state not in mark.held:
                    runtime.acquire(state)
                    mark.held.append(state)
        return _Done() if async_op else None

    def reshard(self) -> None:
        """Releases what unshard() gathered."""
        module = cast(nn.Module, self)
        handle, mark = handle_of(module), _mark_of(module)
        with handle.runtime.lock:
            while mark.held:
                handle.runtime.release(mark.held.pop())
            handle.runtime.leave()

    def set_requires_gradient_sync(self, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
        """False: the next backward passes are not the step's last. Gradients are added in any case."""
        root = _mark_of(_root_of(cast(nn.Module, self)))
        root.boundary = requires_gradient_sync
        if root.handle is not None:
            root.handle.set_boundary(requires_gradient_sync)

    def set_is_last_backward(self, is_last_backward: bool) -> None:
        """As set_requires_gradient_sync()."""
        self.set_requires_gradient_sync(is_last_backward)

    def set_requires_all_reduce(self, requires_all_reduce: bool, *, recurse: bool = True) -> None:
        """As set_requires_gradient_sync()."""
        self.set_requires_gradient_sync(requires_all_reduce)

    def set_reshard_after_forward(self, reshard_after_forward: bool, recurse: bool = True) -> None:
        """A hint, which changes no value; the engine decides what stays gathered."""

    def set_reshard_after_backward(self, reshard_after_backward: bool, *, recurse: bool = True) -> None:
        """A hint, which changes no value."""

    def set_modules_to_forward_prefetch(self, modules: list[nn.Module]) -> None:
        """A hint, which changes no value; shard(prefetch=) sets how many units are gathered ahead."""

    def set_modules_to_backward_prefetch(self, modules: list[nn.Module]) -> None:
        """A hint, which changes no value."""

    def set_unshard_in_backward(self, unshard_in_backward: bool) -> None:
        """A hint, which changes no value: the parameters that a backward pass needs are always gathered."""

    def set_gradient_divide_factor(self, factor: float) -> None:
        """Raises NotImplementedError: gradients are averaged over ranks."""
        raise NotImplementedError("set_gradient_divide_factor: gradients are averaged over ranks; scale the loss")

    def set_reduce_scatter_divide_factor(self, factor: float) -> None:
        """Raises NotImplementedError: gradients are averaged over ranks."""
        raise NotImplementedError("set_reduce_scatter_divide_factor: gradients are averaged over ranks; scale the loss")

    def set_all_reduce_hook(self, hook: Any, *, stream: Any = None) -> None:
        """Raises NotImplementedError: the engine reduces."""
        raise NotImplementedError("set_all_reduce_hook: the engine reduces gradients")

    def set_force_sum_reduction_for_comms(self, enable: bool) -> None:
        """A hint, which changes no value."""

    def set_allocate_memory_from_process_group_for_comm(self, enable: bool) -> None:
        """A hint, which changes no value."""

    def set_post_optim_event(self, event: Any) -> None:
        """A hint: the engine waits for its own step."""

    def set_custom_all_gather(self, comm: Any) -> None:
        """Raises NotImplementedError: the engine gathers."""
        raise NotImplementedError("set_custom_all_gather: the engine gathers parameters")

    def set_custom_reduce_scatter(self, comm: Any) -> None:
        """Raises NotImplementedError: the engine reduces."""
        raise NotImplementedError("set_custom_reduce_scatter: the engine reduces gradients")

    def reset_iter_state(self) -> None:
        """After an exception in a pass: drops this step's gradients. Collective."""
        handle_of(cast(nn.Module, self)).reset(skip=True)


def _keeps(module: nn.Module) -> bool:
    """Nothing to release after this call: unshard() was not called, or a checkpoint recomputes."""
    return not _mark_of(module).held or task_id() != -1


class _Done:
    def wait(self) -> None:
        """Nothing: the parameters are there."""


def _units(handle: Handle, module: nn.Module) -> list[Any]:
    """The units that have the module's parameters."""
    found: dict[int, Any] = {}
    for p in module.parameters():
        place = handle.runtime.plan.find(p)
        if place is not None:
            found[place[0].index] = handle.runtime.units[place[0].index]
    return list(found.values())


def fully_shard(
    module: nn.Module,
    *,
    mesh: Any = None,
    reshard_after_forward: bool | int | None = None,
    shard_placement_fn: Any = None,
    mp_policy: Any = None,
    offload_policy: Any = None,
    ignored_params: Any = None,
    **options: Any,
) -> nn.Module:
    """Marks a module as a unit, as torch.distributed.fsdp.fully_shard() does; inner modules first, the model last.

    The first call of the outermost marked module starts the engine.

    Args:
        mesh: None or one dimension: all ranks; two: replicas and shards.
        reshard_after_forward: True, None: gathered parameters are released after forward; False, of the outermost
            module: the engine may keep them until the backward pass.
        mp_policy: torch's MixedPrecisionPolicy: parameters become of param_dtype, with fp32 masters in the engine;
            gradients are summed in fp32 whatever reduce_dtype says.
        offload_policy: torch's, accepted: `offload` decides where state is stored.
        **options: of the outermost module: arguments of shard(), such as offload="nvme".

    Returns:
        The module, whose class is now one of FSDPModule and its own.

    Raises:
        NotImplementedError: shard_placement_fn, ignored_params, a number as reshard_after_forward.
    """
    if shard_placement_fn is not None:
        raise NotImplementedError("fully_shard(shard_placement_fn=): the engine cuts units into equal slices")
    if ignored_params:
        raise NotImplementedError("fully_shard(ignored_params=): freeze parameters that are not to be trained")
    if reshard_after_forward is not None and not isinstance(reshard_after_forward, bool):
        raise NotImplementedError("fully_shard(reshard_after_forward=) is True or False")
    if isinstance(module, (nn.ModuleList, nn.ModuleDict)) and type(module).forward is nn.Module.forward:
        raise ValueError(f"fully_shard() of a {type(module).__name__}, which has no forward: mark its modules")
    if _MARK in module.__dict__:
        raise ValueError(f"this {type(module).__name__} was marked already")
    mark = _Mark(**options)
    _mesh(mark, mesh)
    if reshard_after_forward is False:
        mark.options.setdefault("keep_gathered", True)
    _policy(mark, mp_policy)
    module.__dict__[_MARK] = mark
    _link(module)
    cls = type(module)
    module.__class__ = type(f"FSDP{cls.__name__}", (FSDPModule, cls), {"__module__": cls.__module__})
    return module


def register_forward_method(module: nn.Module, method_name: str) -> None:
    """Another method of a module counts as its forward: its parameters are gathered, and trained through it.

        zt.register_forward_method(model.vision, "encode")

    Raises AttributeError if the module has no such method.
    """
    method: Callable[..., Any] = getattr(module, method_name)

    def call(*args: Any, **kwargs: Any) -> Any:
        before = module.__dict__.get("forward")

        def restore() -> None:
            module.__dict__.pop("forward", None)
            if before is not None:
                module.__dict__["forward"] = before

        def once(*a: Any, **k: Any) -> Any:
            restore()
            return method(*a, **k)

        module.__dict__["forward"] = once
        try:
            return module(*args, **kwargs)
        finally:
            if module.__dict__.get("forward") is once:
                restore()

    module.__dict__[method_name] = call
