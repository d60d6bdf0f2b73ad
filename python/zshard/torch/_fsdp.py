"""The names of torch's FSDP2 and FSDP1, so that their scripts change one import.

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

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import nn

from . import _state
from ._handle import Handle, shard
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
        for m in [*marked, root]:
            _lower(m, _mark_of(m))
        wish: Any = mark.options.pop("units", None) or (marked if marked else "auto")
        mark.handle = shard(root, units=wish, **mark.options)
        mark.handle.set_boundary(mark.boundary)
    return mark.handle


def _lower(module: nn.Module, mark: _Mark) -> None:
    """Mixed precision: parameters become of param_dtype; their fp32 values become the engine's masters, exactly."""
    if mark.param_dtype is None:
        return
    for p in module.parameters():
        if p.is_floating_point() and p.dtype != mark.param_dtype:
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
    for name in ("keep_low_precision_grads",):
        if getattr(policy, name, False):
            raise NotImplementedError(f"mixed precision with {name}=True: gradients are summed in fp32")


def _mesh(options: dict[str, Any], mesh: Any) -> None:
    if mesh is None:
        return
    shape = tuple(mesh.shape)
    if len(shape) == 2:
        options["group_ranks"] = int(shape[1])
    elif len(shape) != 1:
        raise NotImplementedError(f"mesh of shape {shape}: one dimension (all ranks), or two (replicas, shards)")


class FSDPModule:
    """What fully_shard() makes of a module's class: its calls start the engine, and these methods."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = cast(nn.Module, self)
        mark = _mark_of(module)
        if _mark_of(_root_of(module)).handle is None:
            handle_of(module)
        if mark.cast_inputs and mark.param_dtype is not None:
            args, kwargs = _cast(args, mark.param_dtype), _cast(kwargs, mark.param_dtype)
        made = super().__call__(*args, **kwargs)  # type: ignore[misc]
        return made if mark.output_dtype is None else _cast(made, mark.output_dtype)

    def unshard(self, async_op: bool = False) -> Any:
        """Gathers the module's parameters, until reshard(). Returns None, or with async_op an object with wait()."""
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
        """False: the next backward passes are not the step's last. Gradients add up all the same."""
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
        """A hint, which changes no value; shard(prefetch=) says how many units are gathered ahead."""

    def set_modules_to_backward_prefetch(self, modules: list[nn.Module]) -> None:
        """A hint, which changes no value."""

    def set_unshard_in_backward(self, unshard_in_backward: bool) -> None:
        """A hint, which changes no value: what a backward pass needs is gathered."""

    def set_gradient_divide_factor(self, factor: float) -> None:
        """Raises NotImplementedError: gradients are averaged over ranks."""
        raise NotImplementedError("set_gradient_divide_factor: gradients are averaged over ranks; scale the loss")

    def set_reduce_scatter_divide_factor(self, factor: float) -> None:
        """Raises NotImplementedError: gradients are averaged over ranks."""
        raise NotImplementedError("set_reduce_scatter_divide_factor: gradients are averaged over ranks; scale the loss")

    def set_all_reduce_hook(self, hook: Any, *, stream: Any = None) -> None:
        """Raises NotImplementedError: the engine reduces."""
        raise NotImplementedError("set_all_reduce_hook: the engine reduces gradients")

    def reset_iter_state(self) -> None:
        """After an exception in a pass: drops this step's gradients. Collective."""
        handle_of(cast(nn.Module, self)).reset(skip=True)


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
        offload_policy: torch's, accepted: where state lives is said by `offload`.
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
        raise ValueError(f"this {type(module).__name__} is marked already")
    mark = _Mark(**options)
    _mesh(mark.options, mesh)
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

    Raises AttributeError where the module has no such method.
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


# ---- FSDP1


_PREFIX = "_fsdp_wrapped_module."
_STAGES = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3, "_HYBRID_SHARD_ZERO2": 2}


def _wrapped_by(policy: Any, module: nn.Module) -> list[nn.Module]:
    """The modules that an auto_wrap_policy of torch chooses, inner ones first."""
    if policy is None:
        return []
    if hasattr(policy, "_run_policy"):
        return [m for m in policy._run_policy(module, set(), {}) if m is not module]
    chosen: list[nn.Module] = []

    def walk(m: nn.Module) -> int:
        """Elements of m that are in chosen modules."""
        total = sum(p.numel() for p in m.parameters())
        if not policy(module=m, recurse=True, nonwrapped_numel=total):
            return 0
        inside = sum(walk(child) for child in m.children())
        if m is not module and policy(module=m, recurse=False, nonwrapped_numel=total - inside):
            chosen.append(m)
            return total
        return inside

    walk(module)
    return chosen


class FullyShardedDataParallel(nn.Module):
    """torch.distributed.fsdp.FullyShardedDataParallel, by this engine. Names of parameters are the module's own.

    Args:
        module: the model; wrapped modules inside, and those that auto_wrap_policy chooses, are gathered together.
        sharding_strategy: FULL_SHARD (None), SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD (groups of LOCAL_WORLD_SIZE ranks).
        auto_wrap_policy: of torch.distributed.fsdp.wrap, or a function of their kind.
        mixed_precision: torch's MixedPrecision: param_dtype is the parameters' dtype, with fp32 masters; gradients are
            summed in fp32.
        param_init_fn: as shard(init_fn=).
        device_id: the device to compute on.
        cpu_offload, backward_prefetch, forward_prefetch, limit_all_gathers, use_orig_params, sync_module_states:
            accepted; they change no value (parameters always start as rank 0's, and keep their shapes).
        **options: arguments of shard(), such as offload="nvme".

    Raises:
        NotImplementedError: process_group, ignored_modules, ignored_states.
    """

    def __init__(
        self,
        module: nn.Module,
        process_group: Any = None,
        sharding_strategy: Any = None,
        cpu_offload: Any = None,
        auto_wrap_policy: Any = None,
        backward_prefetch: Any = None,
        mixed_precision: Any = None,
        ignored_modules: Any = None,
        param_init_fn: Callable[[nn.Module], object] | None = None,
        device_id: Any = None,
        sync_module_states: bool = False,
        forward_prefetch: bool = False,
        limit_all_gathers: bool = True,
        use_orig_params: bool = True,
        ignored_states: Any = None,
        device_mesh: Any = None,
        **options: Any,
    ) -> None:
        for name, value in (
            ("process_group", process_group),
            ("ignored_modules", ignored_modules),
            ("ignored_states", ignored_states),
        ):
            if value:
                raise NotImplementedError(f"FullyShardedDataParallel({name}=)")
        super().__init__()
        self._fsdp_wrapped_module = module
        mark = _Mark(**options)
        _mesh(mark.options, device_mesh)
        if sharding_strategy is not None:
            name = getattr(sharding_strategy, "name", str(sharding_strategy))
            if name not in _STAGES:
                raise NotImplementedError(f"FullyShardedDataParallel(sharding_strategy={name})")
            mark.options.setdefault("stage", _STAGES[name])
            if "HYBRID" in name:
                mark.options.setdefault("group_ranks", int(os.environ.get("LOCAL_WORLD_SIZE", "0")))
        if param_init_fn is not None:
            mark.options["init_fn"] = param_init_fn
        if device_id is not None:
            mark.options["device"] = torch.device("cuda", device_id) if isinstance(device_id, int) else device_id
        _policy(mark, mixed_precision)
        self._type: tuple[str, Any] = ("FULL_STATE_DICT", None)
        self.__dict__[_MARK] = mark
        chosen = _wrapped_by(auto_wrap_policy, module)
        if chosen:
            inner = [m for m in module.modules() if isinstance(m, FullyShardedDataParallel)]
            mark.options.setdefault("units", [*chosen, *inner])
        _link(self)

    @property
    def module(self) -> nn.Module:
        """The wrapped module."""
        inner = self._fsdp_wrapped_module
        return inner.module if isinstance(inner, FullyShardedDataParallel) else inner

    @property
    def handle(self) -> Handle:
        """The engine's handle; starts it."""
        return handle_of(self)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_fsdp_wrapped_module"), name)

    def __getitem__(self, key: int) -> Any:
        return cast(Any, self.module)[key]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        mark = _mark_of(self)
        if _mark_of(_root_of(self)).handle is None:
            handle_of(self)
        if mark.cast_inputs and mark.param_dtype is not None:
            args, kwargs = _cast(args, mark.param_dtype), _cast(kwargs, mark.param_dtype)
        return super().__call__(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped module's."""
        return self._fsdp_wrapped_module(*args, **kwargs)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """With the names that they have in the wrapped module."""
        for name, p in super().named_parameters(*args, **kwargs):
            yield name.replace(_PREFIX, ""), p

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
        """With the names that they have in the wrapped module."""
        for name, b in super().named_buffers(*args, **kwargs):
            yield name.replace(_PREFIX, ""), b

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """All values, under the wrapped module's names; on ranks other than 0 {} where state_dict_type() says so.
        Collective."""
        if args or kwargs.get("destination") is not None or kwargs.get("prefix") or kwargs.get("keep_vars"):
            return super().state_dict(*args, **kwargs)
        config = self._type[1]
        rank0_only = bool(getattr(config, "rank0_only", False))
        if _mark_of(_root_of(self)).handle is None:
            made = super().state_dict()
        else:
            made = _state.full_state_dict(self, rank0_only=rank0_only)
        return type(made)((k.replace(_PREFIX, ""), v) for k, v in made.items())

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """Writes values, under the wrapped module's names. Collective."""
        if assign:
            raise NotImplementedError("load_state_dict(assign=True)")
        names = {n.replace(_PREFIX, ""): n for n in super().state_dict(keep_vars=True)}
        given = {names.get(k, k): v for k, v in state_dict.items()}
        if _mark_of(_root_of(self)).handle is None:
            return super().load_state_dict(given, strict)
        return _state.load_state_dict(self, given, strict)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Clips the norm of all gradients; returns the norm before. Collective. norm_type: 2 or inf."""
        return nn.utils.clip_grad_norm_(self.parameters(), max_norm, norm_type)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside are not the step's last."""
        with handle_of(self).no_sync():
            yield

    @staticmethod
    @contextlib.contextmanager
    def summon_full_params(
        module: nn.Module,
        recurse: bool = True,
        writeback: bool = True,
        rank0_only: bool = False,
        offload_to_cpu: bool = False,
        with_grads: bool = False,
    ) -> Iterator[None]:
        """gathered() under FSDP's name: inside, parameters have their values. Collective.

        Raises NotImplementedError for with_grads (see grad_of) and for recurse=False.
        """
        if with_grads:
            raise NotImplementedError("summon_full_params(with_grads=True): zshard.torch.grad_of(p) reads gradients")
        if not recurse:
            raise NotImplementedError("summon_full_params(recurse=False): zshard.torch.gathered() takes parameters")
        if rank0_only and writeback:
            raise NotImplementedError(
                "summon_full_params(rank0_only=True, writeback=True): zshard.torch.gathered() with write_rank=0"
            )
        if isinstance(module, FullyShardedDataParallel):
            handle_of(module)
        with _state.gathered(module, write_rank=-1 if writeback else None):
            yield

    @staticmethod
    def set_state_dict_type(
        module: nn.Module, state_dict_type: Any, state_dict_config: Any = None, optim_state_dict_config: Any = None
    ) -> None:
        """What state_dict() returns: FULL_STATE_DICT. Raises NotImplementedError for the others."""
        name = getattr(state_dict_type, "name", str(state_dict_type))
        if name != "FULL_STATE_DICT":
            raise NotImplementedError(
                f"state_dict_type {name}: there is FULL_STATE_DICT; the handle's commit() is the sharded checkpoint"
            )
        for m in module.modules():
            if isinstance(m, FullyShardedDataParallel):
                m._type = (name, state_dict_config)

    @staticmethod
    @contextlib.contextmanager
    def state_dict_type(
        module: nn.Module, state_dict_type: Any, state_dict_config: Any = None, optim_state_dict_config: Any = None
    ) -> Iterator[None]:
        """set_state_dict_type() inside of the block."""
        every = [m for m in module.modules() if isinstance(m, FullyShardedDataParallel)]
        before = [m._type for m in every]
        FullyShardedDataParallel.set_state_dict_type(module, state_dict_type, state_dict_config)
        try:
            yield
        finally:
            for m, kept in zip(every, before, strict=True):
                m._type = kept

    @staticmethod
    def optim_state_dict(model: nn.Module, optim: torch.optim.Optimizer, *_: Any) -> dict[str, Any]:
        """The optimizer's state dict with parameters' names in place of numbers. Collective."""
        names = {id(p): n.replace(_PREFIX, "") for n, p in model.named_parameters()}
        made = optim.state_dict()
        numbers = {
            i: names[id(p)]
            for g, packed in zip(optim.param_groups, made["param_groups"], strict=True)
            for i, p in zip(packed["params"], g["params"], strict=True)
        }
        return {
            "state": {numbers[i]: dict(s.items()) for i, s in made["state"].items()},
            "param_groups": [{**g, "params": [numbers[i] for i in g["params"]]} for g in made["param_groups"]],
        }

    @staticmethod
    def optim_state_dict_to_load(
        model: nn.Module, optim: torch.optim.Optimizer, optim_state_dict: dict[str, Any], *_: Any
    ) -> dict[str, Any]:
        """What optim_state_dict() returned, as optim.load_state_dict() takes it."""
        names = {id(p): n.replace(_PREFIX, "") for n, p in model.named_parameters()}
        own = optim.state_dict()["param_groups"]
        numbers = {
            names[id(p)]: i
            for g, packed in zip(optim.param_groups, own, strict=True)
            for i, p in zip(packed["params"], g["params"], strict=True)
        }
        return {
            "state": {numbers[n]: s for n, s in optim_state_dict["state"].items()},
            "param_groups": [
                {**g, "params": [numbers[n] for n in g["params"]]} for g in optim_state_dict["param_groups"]
            ],
        }


FSDP = FullyShardedDataParallel
