"""zshard.convert: training checkpoints of DeepSpeed and torch.distributed.checkpoint, into a sharded model and back.

    import zshard.convert as zc

    handle = zshard.torch.shard(model, optimizer)
    loaded = zc.load(model, optimizer, "checkpoints")   # weights, moments, step counts; the form is recognised
    zc.save(model, optimizer, "out", form="universal")  # DeepSpeed continues from it, at any stage, on any ranks

Forms: "portable" (safetensors), "universal" and "zero" (DeepSpeed), "dcp" (torch.distributed.checkpoint). Between
files, without a daemon: `convert()`, or `python -m zshard.convert`. Format and limits: docs/pytorch/CONVERT.md.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import torch

from ..torch import _kept
from . import _live
from ._content import ConvertError
from ._folder import Place, open_
from ._offline import convert, finish, options_of, target_of, writing
from ._pickle import Foreign

__all__ = ["ConvertError", "Foreign", "Loaded", "convert", "load", "save"]


@dataclass
class Loaded:
    """What load() found.

    Attributes:
        form: "portable", "universal", "dcp" or "zero".
        path: of the checkpoint; `tag`: its name below the folder that was given, or None.
        step: steps of the run that saved it, with skipped ones as far as they were counted. The handle's step_number
            does not change.
        client_state: what the user saved along. Objects of classes that are not plain are `Foreign`.
        lr_scheduler: the scheduler's state, for its load_state_dict(); None: there was none.
        loss_scale: of fp16 training; None: not known.
        engine_state: what a training engine keeps besides, under DeepSpeed's names, as far as it is known:
            skipped_steps, global_samples, loss_scaler (a dict).
        missing, unexpected: names, with strict=False.
    """

    form: str
    path: str
    tag: str | None
    step: int
    client_state: dict[str, Any] = field(default_factory=dict)
    lr_scheduler: Any = None
    loss_scale: float | None = None
    engine_state: dict[str, Any] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)


def load(
    model: Any,
    optimizer: torch.optim.Optimizer | None,
    folder: str | os.PathLike[str],
    *,
    tag: str | None = None,
    strict: bool = True,
    hyperparameters: bool = True,
) -> Loaded:
    """Loads a checkpoint of any form into a sharded model: fp32 masters, moments, step counts, buffers. Collective.

    Rank 0 reads the files, and sends what it reads piece by piece. Nothing is written before all was checked.

    Args:
        model: a sharded model, or its handle.
        optimizer: the one that steps it; None: weights and buffers alone.
        folder: the checkpoint's folder, or one with a file `latest` (as DeepSpeed has it), or with one checkpoint.
        tag: the checkpoint's name in the folder.
        strict: names must be those of the model, and each trained parameter must have its state. False: a tensor that
            is missing stays as it is; one without state begins with zeros; what is not expected is left.
        hyperparameters: the optimizer's groups get the checkpoint's lr, betas, eps, weight decay and momentum.

    Raises:
        ConvertError: files are missing, truncated or of several runs, there are several checkpoints, or names and
            shapes are not those of the model; the message has all of it, on all ranks, and nothing is changed. A file
            that fails later leaves the model closed.
        RuntimeError: in the middle of a step. TypeError: the optimizer's state is not in the engine.
    """
    handle = _live.handle_of(model)
    runtime = handle.runtime
    _live.rule_of(optimizer)
    with runtime.lock:
        _live.check_ready(runtime, "load()")
        target: list[_live.Target] = []

        def look() -> tuple[dict[str, Any], Loaded]:
            found = open_(folder, tag)
            made = _live.Target(handle, optimizer, found, strict, hyperparameters)
            made.problems.check()
            target.append(made)
            said = Loaded(found.form, found.path, found.tag, found.step, found.client_state, found.lr_scheduler,
                          found.loss_scale, found.engine_state, made.missing, made.unexpected)  # fmt: skip
            return _live.plan_of(made), said

        plan, loaded = _live.on_first(runtime, look)
        _live.Filler(handle, optimizer, plan, target[0] if target else None).run()
        _kept.show(runtime)
    return loaded


def save(
    model: Any,
    optimizer: torch.optim.Optimizer | None,
    folder: str | os.PathLike[str],
    form: str = "portable",
    *,
    tag: str | None = None,
    step: int | None = None,
    client_state: dict[str, Any] | None = None,
    lr_scheduler: Any = None,
    frozen: bool = True,
    engine_state: dict[str, Any] | None = None,
    in_step: bool = False,
    **options: Any,
) -> str:
    """Saves a sharded model and its optimizer in one of the forms. Collective; rank 0 writes, piece by piece.

    Args:
        model: a sharded model, or its handle.
        optimizer: the one that steps it; None: weights alone, without state and groups.
        folder: the checkpoint's folder; with a tag, the folder around it. "universal" and "zero" always have one.
        form: "portable", "universal", "dcp" or "zero".
        tag: the checkpoint's name; `latest` (of "universal": `latest_universal`) then names it. None: for DeepSpeed's
            forms global_stepN, else none.
        step: the run's step; None: the largest number of steps that a parameter was given.
        client_state: a dict of what else is to be kept.
        lr_scheduler: a scheduler, or its state_dict().
        frozen: False leaves frozen parameters out, such as the base of an adapter; load() then needs strict=False.
        engine_state: as Loaded has it, for load() and for DeepSpeed.
        in_step: allowed between the backward passes of a step, whose gradients are not saved.
        **options: of "zero": stage= (3), ranks= (1), sub_group= (elements; DeepSpeed's sub_group_size); of "dcp":
            model_key=, optim_key=, the names above theirs ("model", "optim"); of "universal": step_as=, "tensor" for
            torch's optimizers, or "int" for DeepSpeed's own.

    Returns:
        The path of the checkpoint. A folder that was there is replaced when the new one is complete.

    Raises:
        ConvertError: the form cannot hold it. OSError, ZshardError: it cannot be written. On all ranks; what was there
            stays. RuntimeError: in the middle of a step.
    """
    handle = _live.handle_of(model)
    runtime = handle.runtime
    options = options_of(form, options)
    with runtime.lock:
        _live.check_ready(runtime, "save()", in_step)
        found = _live.content(handle, optimizer, step, client_state, lr_scheduler, frozen)
        found.engine_state = dict(engine_state or {})
        found.loss_scale = found.engine_state.get("loss_scaler", {}).get("cur_scale")
        path, tag = target_of(folder, form, tag, found.step)
        plan = writing(found, form, None, options)
        place: list[Place] = []
        _live.on_first(runtime, lambda: place.append(Place(path)))
        failed: list[BaseException] = []
        try:
            work = writing(found, form, place[0].folder, options) if place else None
            _live.drive(runtime, plan, work, failed.append)

            def end() -> None:
                if failed:
                    raise failed[0]
                finish(place[0], form, tag)

            _live.on_first(runtime, end)
        finally:
            for one in place:
                one.discard()
        _kept.show(runtime)
    return path
