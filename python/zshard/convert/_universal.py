"""DeepSpeed's universal checkpoints, read and written.

    global_stepN/
        mp_rank_00_model_states.pt                    as in ZeRO stages 1 and 2; of stage 3: those of all ranks
        zero/optimizer_state.pt                       param_groups and the optimizer's own state
        zero/NAME/{fp32,exp_avg,exp_avg_sq}.pt        {"param": tensor}, or a flat tensor (from stage 3)
        zero/NAME/step.pt

What is written has both names of the file of model states, so that stages 1 to 3 find it.
"""

from __future__ import annotations

import math
import os
from typing import Any

import torch

from ..torch._sources import Real, Source
from ._content import FP32, Content, ConvertError, Problems, Tensor, Writing, number, ranges
from ._deepspeed import (
    KNOWN,
    VERSION,
    ModelStates,
    base_content,
    dtype_of,
    files_of,
    group_settings,
    is_fp16,
    read_model,
    scaling,
    take_scaler,
)
from ._pickle import hollow, load_pt, reserve_pt, save_pt


def is_here(path: str) -> bool:
    """Whether the folder is a universal checkpoint."""
    zero = os.path.join(path, "zero")
    if not os.path.isdir(zero):
        return False
    if os.path.isfile(os.path.join(zero, "optimizer_state.pt")):
        return True
    return any(os.path.isfile(os.path.join(zero, n, "fp32.pt")) for n in os.listdir(zero))


def read(path: str, tag: str | None = None) -> Content:
    """A universal checkpoint. Raises ConvertError with all that is wrong with it."""
    problems = Problems(f"'{path}' cannot be read as a universal checkpoint of DeepSpeed")
    zero = os.path.join(path, "zero")
    partitioned = not os.path.isfile(os.path.join(path, "mp_rank_00_model_states.pt"))
    files = files_of(path, partitioned, problems)
    optimizer: dict[str, Any] = {}
    try:
        optimizer = load_pt(os.path.join(zero, "optimizer_state.pt"))
    except ConvertError as e:
        problems.add(str(e))
    problems.check()
    model = read_model(files, problems)
    content = base_content("universal", path, tag, model, problems)
    inner = optimizer.get("optimizer_state_dict")
    source = inner if isinstance(inner, dict) else optimizer
    content.groups = group_settings(source.get("param_groups"), model.shapes, problems)
    take_scaler(content, optimizer.get("loss_scaler"))
    common = _common_step(source, model)
    for group in model.shapes:
        for name, shape in group.items():
            _read_one(os.path.join(zero, name), name, shape, model, content, common, problems)
    for name in sorted(os.listdir(zero)):  # values of what the optimizer never had
        if os.path.isdir(os.path.join(zero, name)) and content.find([name]) is None and name not in model.trained:
            value = _tensor(os.path.join(zero, name, "fp32.pt"), problems)
            if value is not None:
                content.tensors[name] = Tensor(name, tuple(value.shape), value.dtype, "frozen", {FP32: Real(value)})
    problems.check()
    return content


def _common_step(source: dict[str, Any], model: ModelStates) -> int:
    """The count of tensors that have no file of their own for it."""
    for entry in dict(source.get("state") or {}).values():
        if isinstance(entry, dict) and "step" in entry:
            return number(entry["step"])
    for group in source.get("param_groups") or []:
        if "step" in group:
            return number(group["step"])
    return model.applied


def _tensor(file: str, problems: Problems) -> torch.Tensor | None:
    try:
        found = load_pt(file)
    except ConvertError as e:
        problems.add(str(e))
        return None
    value = found.get("param") if isinstance(found, dict) else found
    if not isinstance(value, torch.Tensor):
        problems.add(f"'{file}' has no tensor")
        return None
    return value.detach()


def _read_one(
    folder: str,
    name: str,
    shape: tuple[int, ...],
    model: ModelStates,
    content: Content,
    common: int,
    problems: Problems,
) -> None:
    if not os.path.isdir(folder):
        problems.add(f"'{folder}' is missing")
        return
    planes: dict[str, Any] = {}
    step = common
    for file in sorted(os.listdir(folder)):
        plane, dot, end = file.rpartition(".")
        if not dot or end != "pt":
            continue
        if plane == "step":
            step = number(load_pt(os.path.join(folder, file)))
            continue
        value = _tensor(os.path.join(folder, file), problems)
        if value is None:
            continue
        if value.numel() != math.prod(shape):
            problems.add(f"'{name}', {plane}: {list(value.shape)} in the file, {list(shape)} in the model states")
            continue
        planes[plane] = Real(value.reshape(shape))
    if FP32 not in planes:
        problems.add(f"'{os.path.join(folder, 'fp32.pt')}' is missing or unreadable")
        return
    if len(planes) == 1:
        step = 0
    content.tensors[name] = Tensor(name, shape, dtype_of(model, name), "trained", planes, step)


# ---- writing


def check_client(content: Content, more: tuple[str, ...] = ()) -> None:
    """Raises ConvertError where the client state has names of DeepSpeed's."""
    taken = sorted(set(content.client_state) & (KNOWN | set(more)))
    if taken:
        raise ConvertError(f"client_state has names that DeepSpeed's files have themselves: {', '.join(taken)}")


def model_states(content: Content, world: int, groups: list[tuple[dict[str, Any], list[Tensor]]]) -> dict[str, Any]:
    """A file of model states without trained and frozen parameters."""
    return {
        "module": {t.name: t.planes[FP32].tensor() for t in content.of_kind("buffer")},
        "buffer_names": [t.name for t in content.of_kind("buffer")],
        "optimizer": None,
        "param_shapes": [{t.name: torch.Size(t.shape) for t in mine} for _, mine in groups],
        "frozen_param_shapes": {t.name: torch.Size(t.shape) for t in content.of_kind("frozen")},
        "shared_params": dict(content.aliases),
        "frozen_param_fragments": {},
        "lr_scheduler": content.lr_scheduler,
        "data_sampler": None,
        "random_ltd": None,
        "skipped_steps": 0,
        "global_steps": content.step,
        **{k: content.engine_state[k] for k in ("skipped_steps", "global_samples") if k in content.engine_state},
        "dp_world_size": world,
        "mp_world_size": 1,
        "ds_config": {},
        "ds_version": VERSION,
        **content.client_state,
    }


def hyper_groups(content: Content, groups: list[tuple[dict[str, Any], list[Tensor]]]) -> list[dict[str, Any]]:
    """param_groups as DeepSpeed's files have them: one number each."""
    made = []
    always = {"bias_correction": True} if "exp_avg_sq" in content.moments() else {}  # DeepSpeed's Adam reads it
    for i, (settings, mine) in enumerate(groups):
        steps = max((t.step for t in mine), default=0)
        made.append({**always, **settings, "step": steps, "params": [i]})
    return made


def write(content: Content, folder: str | None, step_as: str = "tensor") -> Writing:
    """Writes a universal checkpoint; folder None: only says what is read, in the same order.

    step_as: "tensor", as torch's optimizers keep their counts, or "int", as DeepSpeed's do.
    """
    if step_as not in ("tensor", "int"):
        raise ValueError(f"step_as={step_as!r}: 'tensor' or 'int'")
    groups = content.grouped()
    check_client(content)
    uneven = [t.name for _, mine in groups for t in mine if len({u.step for u in mine}) > 1 and t.step != mine[0].step]
    if uneven:
        raise ConvertError(
            f"a universal checkpoint has one step count for a group of the optimizer: {', '.join(uneven[:8])} were "
            "stepped at other times than the rest of their group. Another form keeps them apart"
        )
    if folder is not None:
        os.mkdir(os.path.join(folder, "zero"))
    for _, mine in groups:
        for t in mine:
            place = None if folder is None else os.path.join(folder, "zero", t.name)
            if place is not None:
                os.makedirs(place)
                save_pt(_count(t.step, step_as), os.path.join(place, "step.pt"))
            for plane, source in t.planes.items():
                yield from _write_plane(t, source, None if place is None else os.path.join(place, f"{plane}.pt"))
    for t in content.of_kind("frozen"):
        place = None if folder is None else os.path.join(folder, "zero", t.name)
        if place is not None:
            os.makedirs(place)
        yield from _write_plane(t, t.planes[FP32], None if place is None else os.path.join(place, "fp32.pt"), t.dtype)
    if folder is not None:
        _write_common(content, folder, groups, step_as)


def _write_plane(t: Tensor, source: Source, file: str | None, dtype: torch.dtype = torch.float32) -> Writing:
    target: torch.Tensor | None = None
    for first, n in ranges(source):
        values = yield source, first, n
        if file is None or values is None:
            continue
        if n == t.numel:
            save_pt({"param": values.to(dtype, copy=True).view(t.shape), "cat_dim": 0}, file)
            return
        if target is None:
            target = reserve_pt({"param": hollow(t.shape, dtype), "cat_dim": 0}, file)["param"].view(-1)
        target[first : first + n] = values.to(dtype)


def _count(step: int, step_as: str) -> Any:
    return step if step_as == "int" else torch.tensor(float(step))


def _write_common(
    content: Content, folder: str, groups: list[tuple[dict[str, Any], list[Tensor]]], step_as: str
) -> None:
    hyper = hyper_groups(content, groups)
    states = {i: {"step": _count(g["step"], step_as)} for i, g in enumerate(hyper)}
    optimizer = {
        "ds_version": VERSION,
        **(scaling(content) if is_fp16(content) else {}),
        "param_groups": hyper,
        "optimizer_state_dict": {"state": states, "param_groups": hyper},
    }
    save_pt(optimizer, os.path.join(folder, "zero", "optimizer_state.pt"))
    model = model_states(content, 1, groups)
    model["frozen_param_shapes"] = {}  # they are in zero/, as others
    model["universal_checkpoint_info"] = {"universal_checkpoint_version": 0.4}
    first = os.path.join(folder, "mp_rank_00_model_states.pt")
    save_pt(model, first)
    os.link(first, os.path.join(folder, "zero_pp_rank_0_mp_rank_00_model_states.pt"))
