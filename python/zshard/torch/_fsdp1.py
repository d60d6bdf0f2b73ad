"""The names of torch's FSDP1, beside those of FSDP2 (_fsdp.py): a module around the model."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import nn

from . import _state
from ._fsdp import _MARK, _cast, _link, _Mark, _mark_of, _mesh, _policy, _root_of, handle_of
from ._handle import Handle

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
    """torch.distributed.fsdp.FullyShardedDataParallel with this engine. Parameters keep the module's own names.

    Args:
        module: the model; wrapped modules inside, and those that auto_wrap_policy chooses, are gathered together.
        sharding_strategy: FULL_SHARD (None), SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD (groups of LOCAL_WORLD_SIZE ranks).
        auto_wrap_policy: from torch.distributed.fsdp.wrap, or a similar function.
        mixed_precision: torch's MixedPrecision: param_dtype is the parameters' dtype, with fp32 masters; gradients are
            summed in fp32.
        param_init_fn: as shard(init_fn=).
        device_id: the device to compute on.
        cpu_offload, backward_prefetch, forward_prefetch, limit_all_gathers, use_orig_params, sync_module_states:
            accepted; they change no value (parameters always start with the values of rank 0, and keep their shapes).
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
        _mesh(mark, device_mesh)
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
        casts = mark.cast_inputs or mark.cast_root_inputs and mark.root is None
        if casts and mark.param_dtype is not None:
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
        """All values, under the wrapped module's names; on ranks other than 0 {} if state_dict_type() requests that.
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
