"""`initialize`: a configuration, a model and what goes with them become an engine."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .. import torch as zt
from ..torch import _announce, _kept
from ..torch._init import context
from . import _config, _spool
from ._dataloader import DeepSpeedDataLoader
from ._engine import DeepSpeedEngine
from .comm import init_distributed
from .runtime import lr_schedules
from .runtime.zero import partition_parameters
from .utils import get_z3_leaf_modules

_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": zt.AdamW,
    "adam": zt.Adam,
    "lion": zt.Lion,
    "sgd": zt.SGD,
    "adagrad": zt.Adagrad,
}


def initialize(
    args: Any = None,
    model: nn.Module | None = None,
    optimizer: Any = None,
    model_parameters: Any = None,
    training_data: Any = None,
    lr_scheduler: Any = None,
    distributed_port: int = 29500,
    mpu: Any = None,
    dist_init_required: bool | None = None,
    collate_fn: Any = None,
    config: Any = None,
    mesh_param: Any = None,
    config_params: Any = None,
) -> tuple[DeepSpeedEngine, torch.optim.Optimizer, DeepSpeedDataLoader | None, Any]:
    """Shards a model as a DeepSpeed configuration says. Collective.

    Args:
        args: an object whose deepspeed_config is the configuration, where `config` is not given.
        model: the module; changed in place.
        optimizer: a torch.optim or zshard.torch optimizer of the model's parameters, or a function that makes one of
            `model_parameters`. None: the configuration's; without one AdamW with torch's defaults, which a line on
            stderr reports. Where `model_parameters` is missing, too, the model may be for inference: optimizer state is
            allocated when the first forward pass with gradients comes.
        model_parameters: parameters or groups to train, for an optimizer that is made here; None: all that require a
            gradient.
        training_data: a dataset; the third result then gives this rank's micro-batches.
        lr_scheduler: a scheduler, or a function that makes one of the optimizer. None: the configuration's.
        config, config_params: a dict, a file's path, or JSON.

    Returns:
        (engine, optimizer, data loader or None, scheduler or None).

    Raises:
        DeepSpeedConfigError: the message begins with the key's path.
        NotImplementedError: an argument or a feature that zshard does not have; the message names what does the same.
        ValueError, TypeError, ZshardError: as zshard.torch.shard().
    """
    if model is None:
        raise ValueError("initialize() needs model=")
    for name, value in (("mpu", mpu), ("mesh_param", mesh_param)):
        if value is not None:
            raise NotImplementedError(f"initialize({name}=): model parallelism is not supported; ranks share the data")
    partition_parameters.shutdown_init_context()
    try:
        init_distributed(distributed_port=distributed_port, dist_init_required=dist_init_required)
        world = torch.distributed.get_world_size()
        settings = _config.read(_given(args, config, config_params), world)
        _cast(model, settings.dtype)
        _release(model)
        made = _optimizer(model, optimizer, model_parameters, settings)
        waits = optimizer is None and model_parameters is None and not settings.optimizer
        if not waits:
            say(settings, optimizer)
        handle = shard(model, None if waits else made, settings)
        scheduler = _scheduler(made, lr_scheduler, settings)
        loader = None
        if training_data is not None:
            loader = DeepSpeedDataLoader(
                training_data,
                settings.micro_batch or 1,
                collate_fn,
                bool(settings.raw.get("dataloader_drop_last", False)),
            )
        engine = DeepSpeedEngine(model, made, settings, handle, scheduler, loader, waits)
    finally:
        partition_parameters.restore_init_context()
    return engine, made, loader, scheduler


def _given(args: Any, config: Any, config_params: Any) -> _config.Given:
    found = [c for c in (config, config_params, getattr(args, "deepspeed_config", None)) if c is not None]
    if not found:
        raise ValueError("initialize() needs a configuration: config=, or args.deepspeed_config")
    if config is not None and getattr(args, "deepspeed_config", None) is not None:
        raise ValueError("initialize() got two configurations: config=, and args.deepspeed_config")
    return found[0]


def _cast(model: nn.Module, dtype: torch.dtype) -> None:
    """Parameters in the configuration's dtype, but for models that zero.Init has cast. Buffers keep theirs."""
    if dtype == torch.float32 or any(_spool.spooled(p) is not None for p in model.parameters()):
        return
    for p in model.parameters():
        if p.is_floating_point():
            p.data = p.data.to(dtype)


def _trained(model: nn.Module, given: Any) -> list[Any]:
    """The parameters or groups of an optimizer that is made here."""
    found = list(given) if given is not None else list(model.parameters())
    if found and isinstance(found[0], dict):
        return found
    if found and isinstance(found[0], tuple):  # named parameters
        found = [p for _, p in found]
    return [p for p in found if p.requires_grad]


def _optimizer(model: nn.Module, given: Any, parameters: Any, settings: _config.Settings) -> torch.optim.Optimizer:
    if isinstance(given, torch.optim.Optimizer):
        return given
    if callable(given):
        made = given(_trained(model, parameters))
        if not isinstance(made, torch.optim.Optimizer):
            raise TypeError(f"initialize(optimizer=): the function made a {type(made).__name__}, not an optimizer")
        return made
    if given is not None:
        raise TypeError(f"initialize(optimizer=): a {type(given).__name__} is neither an optimizer nor a function")
    params = _trained(model, parameters)
    if settings.optimizer and not params:
        raise ValueError("initialize(): no parameter requires a gradient, so there is nothing to train")
    if settings.optimizer == "muon":
        return zt.Muon(zt.muon_groups(model, _by_muon, params), **settings.optimizer_args)
    if settings.optimizer:
        return _OPTIMIZERS[settings.optimizer](params, **settings.optimizer_args)
    return zt.AdamW(params or list(model.parameters()))


def _by_muon(name: str, p: nn.Parameter) -> bool:
    """What DeepSpeed's Muon steps, by its dimensions and its name, but for tensors of more than 2 dimensions. A
    parameter's own `use_muon` counts."""
    hidden = not any(word in name.lower() for word in ("embed", "lm_head"))
    return bool(getattr(p, "use_muon", p.ndim == 2 and hidden))


def _release(model: nn.Module) -> None:
    """A model that another engine has gets its values back, and that engine ends. Collective."""
    handle = model.__dict__.get("_zshard")
    if handle is not None and not handle.runtime.closed:
        handle.close(gather=True)


def say(settings: _config.Settings, given: Any) -> None:
    """What a user might not expect, once."""
    if torch.distributed.get_rank() != 0:
        return
    if given is None and not settings.optimizer:
        context().say(
            "zshard: the configuration has no optimizer and initialize() got none: AdamW, lr 1e-3, weight decay 0.01"
        )
    if settings.clip and not settings.clip_given:
        context().say(
            f"zshard: gradients are clipped at {settings.clip:g}, DeepSpeed's default since 0.19; "
            "gradient_clipping sets another limit, 0 none"
        )


def shard(model: nn.Module, optimizer: torch.optim.Optimizer | None, settings: _config.Settings) -> zt.Handle:
    """zshard.torch.shard() with a configuration's settings. None: no optimizer, and so no state. Collective."""
    options: dict[str, Any] = dict(settings.engine) | _early(settings, optimizer is not None)
    if settings.stage > 0 or settings.dtype != torch.float32:
        options["step_unused"] = True  # as DeepSpeed steps a tensor without a gradient
    wishes = context().wishes
    if settings.data is not None and wishes.data is None and wishes.socket is None and settings.offload == "nvme":
        zt.init(**{**wishes.__dict__, "data": settings.data})
    for p in model.parameters():
        _spool.mark(p)
    if optimizer is None:
        model.requires_grad_(False)
    handle = zt.shard(
        model,
        optimizer,
        stage=settings.stage,
        offload=settings.offload,
        external=partition_parameters.external_of(model),
        leaf=get_z3_leaf_modules(model) if settings.stage == 3 else (),
        quantize_frozen=settings.quantize_frozen,
        **options,
    )
    handle.runtime.tells_skipped = not settings.loss_scale  # a loss scale is found by such steps
    if settings.stage < 3:
        _kept.keep(handle.runtime)
    for p in model.parameters():
        p.ds_status = partition_parameters.status_of(p)  # type: ignore[attr-defined]
    model.__dict__["ds_external_parameters"] = _no_external
    return handle


def _early(settings: _config.Settings, trains: bool) -> dict[str, Any]:
    """Arguments of zshard.torch.shard() for steps that begin during the backward pass: the engine says of each pass
    whether it is the last one. DeepSpeedConfigError: the keys contradict each other."""
    ring = bool(settings.engine.get("grad_ring"))
    if not trains:
        return {"grad_ring": False} if ring else {}
    if not _announce.early_mode(settings.engine):
        if ring:
            raise _config.DeepSpeedConfigError(
                'zshard.grad_ring: clipping by a global norm needs all gradients; zshard.clip_mode is "tensor", or '
                '"none" to clip nothing'
            )
        return {}
    if settings.offload == "none" and not ring:
        return {}  # there is nothing to begin early
    if settings.loss_scale.get("dynamic"):
        if ring:
            raise _config.DeepSpeedConfigError(
                "zshard.grad_ring: with a dynamic loss scale (fp16.loss_scale is 0) an overflow is known too late; "
                "use bf16, or a fixed scale"
            )
        return {}
    local = {"accumulate": "local"} if ring and settings.accumulation > 1 else {}
    return {"gradient_accumulation_steps": 1 if settings.accumulation == 1 else _announce.NO_SYNC, **local}


def _no_external() -> tuple[Any, ...]:
    """Parameters that a module uses from outside, as TRL asks for them: the hooks know them."""
    return ()


def _scheduler(optimizer: torch.optim.Optimizer, given: Any, settings: _config.Settings) -> Any:
    if given is not None:
        made = given(optimizer) if callable(given) and not hasattr(given, "step") else given
        if not hasattr(made, "step"):
            raise TypeError(f"initialize(lr_scheduler=): a {type(made).__name__} has no step()")
        return made
    if not settings.scheduler:
        return None
    kind = getattr(lr_schedules, settings.scheduler, None)
    if settings.scheduler not in lr_schedules.VALID_LR_SCHEDULES or kind is None:
        raise NotImplementedError(
            f"scheduler.type='{settings.scheduler}': there are {', '.join(lr_schedules.VALID_LR_SCHEDULES)}; pass "
            "another one to initialize(lr_scheduler=)"
        )
    return kind(optimizer, **settings.scheduler_args)


def add_config_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds --deepspeed and --deepspeed_config to a parser."""
    group = parser.add_argument_group("DeepSpeed", "DeepSpeed configuration, read by zshard")
    group.add_argument("--deepspeed", default=False, action="store_true", help="for scripts; without effect here")
    group.add_argument("--deepspeed_config", default=None, type=str, help="the configuration, a JSON file")
    return parser
