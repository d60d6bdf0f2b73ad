"""Checkpoints of DeepSpeedEngine.

    DIR/latest      the newest tag
    DIR/TAG/        global_stepN, or the tag that was given: weights, optimizer state, counts, scheduler, client_state,
                    in the portable form of zshard.convert

A folder is written beside its place and renamed when it is whole. It loads on any number of ranks. Checkpoints that
DeepSpeed wrote load as well: zshard.convert recognises them.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from .. import torch as zt

if TYPE_CHECKING:
    from ._engine import DeepSpeedEngine

_COUNTS = ("skipped_steps", "global_samples")


def _wait() -> None:
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.barrier()


def save(
    engine: DeepSpeedEngine,
    save_dir: str,
    tag: Any,
    client_state: dict[str, Any],
    save_latest: bool,
    exclude_frozen: bool,
) -> bool:
    """See DeepSpeedEngine.save_checkpoint()."""
    from .. import convert

    if not save_dir:
        raise ValueError(f"save_checkpoint(save_dir={save_dir!r}): the folder's name")
    tag = str(tag) if tag is not None else f"global_step{engine.global_steps}"
    if os.path.basename(tag) != tag or tag in ("", ".", ".."):
        raise ValueError(f"save_checkpoint(tag='{tag}'): a name, not a path")
    convert.save(
        engine.module,
        engine.optimizer,
        save_dir if save_latest else os.path.join(save_dir, tag),
        tag=tag if save_latest else None,
        step=engine.global_steps,
        client_state=client_state,
        lr_scheduler=engine.lr_scheduler,
        engine_state=_state(engine),
        frozen=not exclude_frozen,
        in_step=True,
    )
    return True


def load(
    engine: DeepSpeedEngine,
    load_dir: str,
    tag: Any,
    strict: bool,
    with_optimizer: bool,
    with_scheduler: bool,
    module_only: bool,
) -> tuple[str | None, dict[str, Any] | None]:
    """See DeepSpeedEngine.load_checkpoint()."""
    from .. import convert

    if tag is None:
        latest = os.path.join(load_dir, "latest")
        if not os.path.isfile(latest):
            engine_log(f"load_checkpoint: there is no '{latest}', so nothing was loaded; name a tag")
            return None, None
        with open(latest, encoding="utf-8") as f:
            tag = f.read().strip()
    folder = os.path.join(load_dir, str(tag))
    if not os.path.isdir(folder):
        engine_log(f"load_checkpoint: there is no '{folder}', so nothing was loaded")
        return None, None
    loaded = convert.load(engine.module, engine.optimizer if with_optimizer else None, folder, strict=strict)
    if not module_only:
        _counts(engine, loaded.engine_state, loaded.step)
        if with_optimizer:
            engine.loss_scaler.load(loaded.engine_state.get("loss_scaler", {}))
        if with_scheduler and engine.lr_scheduler is not None and loaded.lr_scheduler is not None:
            engine.lr_scheduler.load_state_dict(loaded.lr_scheduler)
    engine.loaded_checkpoint_tag = str(tag)
    return folder, dict(loaded.client_state)


def engine_log(message: str) -> None:
    """A warning on every rank."""
    from .utils import logger

    logger.warning(message)


def _state(engine: DeepSpeedEngine) -> dict[str, Any]:
    """What belongs to the engine, and is kept beside tensors."""
    made: dict[str, Any] = {name: getattr(engine, name) for name in _COUNTS}
    if engine.fp16_enabled():
        made["loss_scaler"] = engine.loss_scaler.state()
    return made


def _counts(engine: DeepSpeedEngine, state: dict[str, Any], step: int) -> None:
    """Counts as they were saved; samples that were not counted are those of this engine's batches."""
    engine.global_steps, engine.skipped_steps = step, int(state.get("skipped_steps", 0))
    engine.global_samples = int(state.get("global_samples", step * engine.train_batch_size()))
    engine.micro_steps = step * engine.gradient_accumulation_steps()


# ---- weights alone


def state_dict(engine: DeepSpeedEngine, exclude_frozen: bool, rank0_only: bool) -> dict[str, Any]:
    """All weights; without frozen parameters where that is asked."""
    made = zt.full_state_dict(engine.module, rank0_only=rank0_only)
    if exclude_frozen:
        frozen = {name for name, p in engine.module.named_parameters(remove_duplicate=False) if not p.requires_grad}
        for name in frozen:
            made.pop(name, None)
    return made


def save_16bit(engine: DeepSpeedEngine, save_dir: str, filename: str, exclude_frozen: bool) -> bool:
    """See DeepSpeedEngine.save_16bit_model()."""
    path = os.path.join(save_dir, filename)
    if filename.endswith(".safetensors") and not exclude_frozen:
        _safetensors(engine, save_dir, path)
        return True
    made = state_dict(engine, exclude_frozen, rank0_only=True)
    if engine.global_rank == 0:
        os.makedirs(save_dir, exist_ok=True)
        torch.save(made, f"{path}.tmp")
        os.replace(f"{path}.tmp", path)
    _wait()
    return True


def _safetensors(engine: DeepSpeedEngine, save_dir: str, path: str) -> None:
    """Streamed: rank 0 holds a piece of a tensor at a time."""
    made = os.path.join(save_dir, f".{os.path.basename(path)}.tmp")
    mine = engine.global_rank == 0
    if mine:
        os.makedirs(save_dir, exist_ok=True)
        shutil.rmtree(made, ignore_errors=True)
        os.mkdir(made)
    zt.save_pretrained(engine.module, made, max_shard_size=1 << 62)
    if mine:
        os.replace(os.path.join(made, "model.safetensors"), path)
        shutil.rmtree(made)
    _wait()


__all__ = ["load", "save", "save_16bit", "state_dict"]
