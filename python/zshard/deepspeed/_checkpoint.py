"""Checkpoints of DeepSpeedEngine.

    DIR/latest                      the newest tag
    DIR/TAG/                        global_stepN, or the tag that was given
        ...                         weights, optimizer state, counts, scheduler, client_state: the portable form of
                                    zshard.convert

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

_COUNTS = ("global_steps", "skipped_steps", "micro_steps", "global_samples")


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
    target = os.path.join(save_dir, tag)
    if engine.global_rank == 0:
        os.makedirs(save_dir, exist_ok=True)
    _wait()
    convert.save(
        engine.module,
        engine.optimizer,
        target,
        form="portable",
        client_state=_state(engine, client_state),
        exclude_frozen=exclude_frozen,
    )
    if engine.global_rank == 0 and save_latest:
        _write(os.path.join(save_dir, "latest"), tag.encode())
    _wait()
    return True


def _state(engine: DeepSpeedEngine, client_state: dict[str, Any]) -> dict[str, Any]:
    scheduler = engine.lr_scheduler
    return {
        "counts": {name: getattr(engine, name) for name in _COUNTS},
        "lr_scheduler": scheduler.state_dict() if scheduler is not None else None,
        "lr": [float(g["lr"]) for g in engine.optimizer.param_groups],
        "client_state": dict(client_state),
    }


def _write(path: str, data: bytes) -> None:
    with open(f"{path}.tmp", "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
    os.replace(f"{path}.tmp", path)


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
    state = loaded.client_state or {}
    client = state.get("client_state", state) if "counts" in state else state
    if not module_only:
        _counts(engine, state, loaded)
        if with_scheduler:
            _scheduler(engine, state.get("lr_scheduler") or getattr(loaded, "lr_scheduler", None), state)
    engine.loaded_checkpoint_tag = str(tag)
    _wait()
    return folder, dict(client)


def engine_log(message: str) -> None:
    """A warning on every rank."""
    from .utils import logger

    logger.warning(message)


def _counts(engine: DeepSpeedEngine, state: dict[str, Any], loaded: Any) -> None:
    counts = state.get("counts") or {}
    for name in _COUNTS:
        value = counts.get(name, state.get(name))
        if value is not None:
            setattr(engine, name, int(value))
    if "global_steps" not in counts and loaded.step is not None and "global_steps" not in state:
        engine.global_steps = int(loaded.step)
    engine.micro_steps = engine.global_steps * engine.gradient_accumulation_steps()


def _scheduler(engine: DeepSpeedEngine, saved: Any, state: dict[str, Any]) -> None:
    if engine.lr_scheduler is not None and saved is not None:
        engine.lr_scheduler.load_state_dict(saved)
    for group, lr in zip(engine.optimizer.param_groups, state.get("lr") or (), strict=False):
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


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
