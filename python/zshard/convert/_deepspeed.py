"""What DeepSpeed's ZeRO and universal checkpoints share: the files of model states, and the names of both."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass, field
from typing import Any

import torch

from ._content import FP32, Content, Joined, Problems, Tensor, number
from ._pickle import Foreign, Named, load_pt

VERSION = "0.19.8"  # of DeepSpeed, whose layout is written
KNOWN = frozenset(
    "module buffer_names optimizer param_shapes frozen_param_shapes shared_params frozen_param_fragments lr_scheduler "
    "data_sampler random_ltd skipped_steps global_steps global_samples dp_world_size mp_world_size "
    "checkpoint_parallel_dimensions ds_config ds_version universal_checkpoint_info".split()
)  # of a file of model states; all else is the user's client_state
MODEL_FILE = re.compile(r"(?:zero_pp_rank_(\d+)_)?mp_rank_(\d+)_model_states\.pt")


@dataclass
class ModelStates:
    """The model states of a checkpoint.

    Attributes:
        state: rank 0's file.
        ranks: of each rank: its frozen parameters' parts, where parameters are partitioned; else {}.
        shapes: [group or sub-group] name: shape, of what the optimizer has, in its order.
    """

    state: dict[str, Any]
    ranks: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)
    shapes: list[dict[str, tuple[int, ...]]] = field(default_factory=list)

    @property
    def trained(self) -> set[str]:
        return {name for group in self.shapes for name in group}

    @property
    def step(self) -> int:
        return number(self.state.get("global_steps"))

    @property
    def applied(self) -> int:
        """Steps that were not skipped."""
        return max(0, self.step - number(self.state.get("skipped_steps")))


def files_of(path: str, partitioned: bool, problems: Problems) -> dict[int, str]:
    """The files of model states by rank; a single one, rank 0's, where parameters are not partitioned."""
    found: dict[int, str] = {}
    for name in sorted(os.listdir(path)):
        match = MODEL_FILE.fullmatch(name)
        if match is None:
            if re.match(r"layer_\d+", name):
                problems.add(f"{name}: mixtures of experts and pipelines, which have files by layer, are not supported")
            continue
        if int(match[2]):
            problems.add(f"{name}: tensor-parallel checkpoints are not supported")
        elif (match[1] is not None) == partitioned:
            found[int(match[1] or 0)] = os.path.join(path, name)
    if 0 not in found:
        name = "zero_pp_rank_0_mp_rank_00_model_states.pt" if partitioned else "mp_rank_00_model_states.pt"
        problems.add(f"{name} is missing")
    return found


def read_model(files: dict[int, str], problems: Problems) -> ModelStates:
    """The model states of these files. Raises ConvertError where they cannot be read."""
    states = {}
    for rank, file in files.items():
        try:
            states[rank] = load_pt(file)
        except ValueError as e:
            problems.add(str(e))
    problems.check()
    state = states[0]
    if not isinstance(state, dict) or not isinstance(state.get("module"), dict):
        problems.add(f"{os.path.basename(files[0])} has no model states")
        problems.check()
    versions = sorted({str(s.get("ds_version")) for s in states.values()})
    if len(versions) > 1:
        problems.add(f"files of model states are of different versions of DeepSpeed: {', '.join(versions)}")
    steps = sorted({number(s.get("global_steps")) for s in states.values()})
    if len(steps) > 1:
        problems.add(f"files of model states are of different steps: {', '.join(map(str, steps))}")
    if state.get("ds_autoep_layers") or state.get("autoep_layers"):
        problems.add("experts that are placed on ranks (AutoEP) are not supported")
    shapes = state.get("param_shapes")
    if not shapes:
        problems.add(
            f"{os.path.basename(files[0])} has no param_shapes: it was saved without ZeRO, or with an old version"
        )
    shapes = [shapes] if isinstance(shapes, dict) else list(shapes or [])
    made = ModelStates(state, shapes=[{n: tuple(s) for n, s in group.items()} for group in shapes])
    if len(states) > 1 or files[0].rpartition("/")[2].startswith("zero_pp"):
        made.ranks = {rank: s.get("frozen_param_fragments") or {} for rank, s in states.items()}
    return made


def base_content(form: str, path: str, tag: str | None, model: ModelStates, problems: Problems) -> Content:
    """Buffers, frozen parameters, aliases and what is beside tensors."""
    state = model.state
    made = Content(form, path, tag, model.step)
    made.aliases = {str(a): str(n) for a, n in dict(state.get("shared_params") or {}).items()}
    made.client_state = {k: v for k, v in state.items() if k not in KNOWN}
    made.lr_scheduler = state.get("lr_scheduler")
    made.engine_state = {k: number(state[k]) for k in ("skipped_steps", "global_samples") if k in state}
    made.about["deepspeed"] = state.get("ds_version")
    buffers = set(state.get("buffer_names") or ())
    frozen = {n: tuple(s) for n, s in (state.get("frozen_param_shapes") or {}).items()}
    parts = state.get("frozen_param_fragments") or {}
    for name, value in state["module"].items():
        if not isinstance(value, torch.Tensor) or name in model.trained or name in made.aliases:
            continue
        if name in buffers:
            made.tensors[name] = _whole(name, value, "buffer")
        elif name in frozen and (model.ranks or math.prod(frozen[name]) != value.numel()):
            continue
        elif value.numel() or name in frozen:
            made.tensors[name] = _whole(name, value, "frozen")
    for name, shape in frozen.items():
        if name in made.tensors or math.prod(shape) == 0:
            continue
        rows = [model.ranks[r].get(name) for r in sorted(model.ranks)] if model.ranks else [parts.get(name)]
        there = [r.reshape(-1) for r in rows if isinstance(r, torch.Tensor)]
        if len(there) < len(rows) or sum(t.numel() for t in there) < math.prod(shape):
            problems.add(f"frozen parameter '{name}': its values are not in the files")
            continue
        made.tensors[name] = Tensor(name, shape, there[0].dtype, "frozen", {FP32: Joined(_cut(there, shape), shape)})
    return made


def _whole(name: str, value: torch.Tensor, kind: str) -> Tensor:
    from ..torch._sources import Real

    return Tensor(name, tuple(value.shape), value.dtype, kind, {FP32: Real(value)})


def _cut(parts: list[torch.Tensor], shape: tuple[int, ...]) -> list[torch.Tensor]:
    """Fragments without the padding at their end."""
    left, made = math.prod(shape), []
    for part in parts:
        made.append(part[: max(0, min(left, part.numel()))])
        left -= made[-1].numel()
    return made


def dtype_of(model: ModelStates, name: str) -> torch.dtype:
    """The dtype that a trained parameter has in the module."""
    value = model.state["module"].get(name)
    return value.dtype if isinstance(value, torch.Tensor) else torch.float32


def group_settings(groups: Any, shapes: list[dict[str, tuple[int, ...]]], problems: Problems) -> list[dict[str, Any]]:
    """param_groups with names: their "params" are numbers of groups or sub-groups of shapes."""
    from ._content import settings

    made = []
    for i, group in enumerate(groups or []):
        places = [number(p, -1) for p in group.get("params", [])] or ([i] if len(groups) == len(shapes) else [])
        names = [n for p in places if 0 <= p < len(shapes) for n in shapes[p]]
        kept = settings(group)
        if kept.get("bias_correction") is False:
            problems.add("bias_correction is off, which the engine's Adam does not have")
        made.append({**kept, "params": names})
    covered = {n for g in made for n in g["params"]}
    return made if covered >= {n for s in shapes for n in s} else []


def take_scaler(content: Content, scaler: Any) -> None:
    """The loss scale and its state, from a loss scaler of DeepSpeed's; nothing where there is no scaling."""
    fields = scaler.state if isinstance(scaler, Foreign) and isinstance(scaler.state, dict) else {}
    kept = {str(k): v for k, v in fields.items() if isinstance(v, (bool, int, float))}
    scale = kept.get("cur_scale")
    if isinstance(scale, (int, float)) and (kept.get("dynamic") or scale != 1):
        content.loss_scale, content.engine_state["loss_scaler"] = float(scale), kept


def scaler(content: Content) -> Named:
    """A loss scaler of DeepSpeed's, dynamic for a model in fp16."""
    module = "deepspeed.runtime.fp16.loss_scaler"
    if not is_fp16(content):
        return Named(module, "LossScaler", {"cur_scale": 1.0, "dynamic": False})
    there = content.engine_state.get("loss_scaler", {})
    scale = content.loss_scale or there.get("cur_scale") or 65536.0
    if there and not there.get("dynamic"):
        return Named(module, "LossScaler", {"cur_scale": scale, "dynamic": False})
    state = {
        "cur_iter": 0, "last_overflow_iter": -1, "scale_factor": 2.0, "scale_window": 1000, "min_scale": 1,
        "delayed_shift": 2, "cur_hysteresis": 2, "consecutive_hysteresis": False, "raise_error_at_min_scale": True,
    }  # fmt: skip
    state |= {k: v for k, v in there.items() if k in state}
    return Named(module, "DynamicLossScaler", {**state, "cur_scale": scale, "dynamic": True, "dtype": torch.float16})


def scaling(content: Content) -> dict[str, Any]:
    """What optimizer states have about the loss scale."""
    made = scaler(content)
    return {"loss_scaler": made, "dynamic_loss_scale": made.state["dynamic"], "overflow": False}


def is_fp16(content: Content) -> bool:
    """Whether trained parameters are fp16."""
    return any(t.dtype == torch.float16 for t in content.of_kind("trained"))
