"""Reads DeepSpeed's ZeRO checkpoints, stages 1 to 3, of any number of ranks.

    global_stepN/
        mp_rank_00_model_states.pt                    stages 1, 2: modules, shapes, client state
        zero_pp_rank_R_mp_rank_00_model_states.pt     stage 3: the same, of each rank
        [bf16_]zero_pp_rank_R_mp_rank_00_optim_states.pt

Stages 1 and 2: a group's parameters, one after the other, are one vector, cut in as many equal partitions as there are
ranks; fp32 values are saved without the padding at its end, moments with it (without, in elastic checkpoints).
Stage 3: each parameter is cut in as many equal parts as there are ranks, the last ones padded; a rank's parts of a
sub-group's parameters are one vector.
"""

from __future__ import annotations

import math
import os
import re
from typing import Any

import torch

from ._content import FP32, Content, Joined, Problems, Tensor, number
from ._deepspeed import ModelStates, base_content, dtype_of, files_of, group_settings, read_model, take_scaler
from ._pickle import load_pt

FILE = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_?optim_states\.pt")


def files(path: str, problems: Problems) -> dict[int, str]:
    """The files of optimizer states by rank."""
    found: dict[int, str] = {}
    for name in sorted(os.listdir(path)):
        match = FILE.fullmatch(name)
        if match is None:
            continue
        rank = int(match[1])
        if int(match[2]):
            problems.add(f"{name}: tensor-parallel checkpoints are not supported")
        elif rank in found:
            problems.add(f"rank {rank} has two files: {os.path.basename(found[rank])}, {name}")
        else:
            found[rank] = os.path.join(path, name)
    return found


def read(path: str, tag: str | None = None) -> Content:
    """A ZeRO checkpoint. Raises ConvertError with all that is wrong with it."""
    problems = Problems(f"'{path}' cannot be read as a ZeRO checkpoint of DeepSpeed")
    states: dict[int, dict[str, Any]] = {}
    versions: set[str] = set()
    for rank, file in files(path, problems).items():
        try:
            whole = load_pt(file)
            state = whole.get("optimizer_state_dict") if isinstance(whole, dict) else None
            if not isinstance(state, dict):
                problems.add(f"{os.path.basename(file)} has no optimizer_state_dict")
                continue
            states[rank] = state
            versions.add(str(whole.get("ds_version")))
        except ValueError as e:
            problems.add(str(e))
    if not states:
        problems.add("no file of optimizer states can be read")
        problems.check()
    stage, world = _agree(states, versions, problems)
    model_files = files_of(path, stage == 3, problems)
    if stage == 3:
        for rank in sorted(set(range(world)) - set(model_files)):
            problems.add(f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt is missing")
    problems.check()
    model = read_model(model_files, problems)
    content = base_content("zero", path, tag, model, problems)
    content.about |= {"stage": stage, "ranks": world, "deepspeed": ", ".join(sorted(versions))}
    if str(model.state.get("ds_version")) not in versions:
        problems.add(
            f"model states are of DeepSpeed {model.state.get('ds_version')}, optimizer states of {', '.join(versions)}"
        )
    rows = [states[r] for r in range(world)]
    take_scaler(content, rows[0].get("loss_scaler"))
    _Reader(stage, rows, model, content, problems).run()
    problems.check()
    return content


def _agree(states: dict[int, dict[str, Any]], versions: set[str], problems: Problems) -> tuple[int, int]:
    """The stage and the number of ranks, which all files must have alike, with a file of each rank."""
    stages = sorted({number(s.get("zero_stage", 1), 1) for s in states.values()})
    counts: set[int] = set()
    for state in states.values():
        count = state.get("partition_count")
        several = {number(c) for c in count} if isinstance(count, (list, tuple)) else {number(count)}
        counts |= several
    if len(versions) > 1:
        problems.add(f"files are of different versions of DeepSpeed: {', '.join(sorted(versions))}")
    if len(stages) > 1:
        problems.add(f"files are of different stages: {', '.join(map(str, stages))}")
    if len(counts) > 1:
        problems.add(f"files are of different numbers of ranks: {', '.join(map(str, sorted(counts)))}")
    world = max(counts)
    missing = sorted(set(range(world)) - set(states))
    more = sorted(set(states) - set(range(world)))
    if missing:
        problems.add(
            f"{world} ranks saved it, and files of optimizer states of ranks {missing} are missing or unreadable"
        )
    if more:
        problems.add(f"{world} ranks saved it, and there are files of ranks {more}: of an older checkpoint?")
    if any(s.get("ds_zero_partition_groups") for s in states.values()):
        problems.add("experts that are placed on ranks (AutoEP) are not supported")
    return stages[0], world


class _Reader:
    """Cuts the ranks' vectors into parameters."""

    def __init__(
        self, stage: int, rows: list[dict[str, Any]], model: ModelStates, content: Content, problems: Problems
    ) -> None:
        self.stage, self.rows, self.model, self.content, self.problems = stage, rows, model, content, problems
        self.world = len(rows)
        self.applied = model.applied

    def run(self) -> None:
        shapes = self.model.shapes
        key = "fp32_flat_groups" if self.stage == 3 else "single_partition_of_fp32_groups"
        for r, row in enumerate(self.rows):
            n = len(row.get(key) or ())
            if n != len(shapes):
                self.problems.add(f"rank {r} has {n} groups in {key}, the model states have {len(shapes)}")
        self.problems.check()
        for number_, group in enumerate(shapes):
            masters = [row[key][number_].detach() for row in self.rows]
            states = [self._state(row, number_) for row in self.rows]
            step = self._step(number_, states)
            planes = self._planes(number_, masters, states)
            cut = self._cut3 if self.stage == 3 else self._cut12
            cut(number_, group, {FP32: masters, **planes}, step)
        base = self.rows[0].get("optimizer_state_dict" if self.stage == 3 else "base_optimizer_state")
        groups = base.get("param_groups") if isinstance(base, dict) else None
        self.content.groups = group_settings(groups, shapes, self.problems)

    def _state(self, row: dict[str, Any], group: int) -> dict[str, Any]:
        """What the optimizer of one rank has of one group."""
        base = row.get("optimizer_state_dict" if self.stage == 3 else "base_optimizer_state")
        if isinstance(base, (list, tuple)):  # elastic
            return dict(base[group]) if group < len(base) else {}
        if not isinstance(base, dict):
            return {}
        found = dict(base.get("state", {}).get(group, {}))
        for settings in base.get("param_groups", []):
            if group in settings.get("params", []) and "step" in settings:
                found.setdefault("step", settings["step"])
        return found

    def _step(self, group: int, states: list[dict[str, Any]]) -> int:
        steps = set()
        for row, state in zip(self.rows, states, strict=True):
            if "step" in state or "base_optimizer_state_step" in row:
                steps.add(number(state.get("step", row.get("base_optimizer_state_step"))))
            elif any(isinstance(v, torch.Tensor) for v in state.values()):
                steps.add(self.applied)
        if len(steps) > 1:
            self.problems.add(f"ranks are of different steps in group {group}: {', '.join(map(str, sorted(steps)))}")
        return max(steps, default=0)

    def _planes(
        self, group: int, masters: list[torch.Tensor], states: list[dict[str, Any]]
    ) -> dict[str, list[torch.Tensor]]:
        """Moments by name, [rank]."""
        names = sorted({k for s in states for k, v in s.items() if isinstance(v, torch.Tensor) and v.dim() > 0})
        made = {}
        for name in names:
            rows = [s.get(name) for s in states]
            missing = [r for r, t in enumerate(rows) if not isinstance(t, torch.Tensor)]
            short = [
                r
                for r, (t, m) in enumerate(zip(rows, masters, strict=True))
                if isinstance(t, torch.Tensor) and t.numel() < m.numel()
            ]
            if missing or short:
                self.problems.add(f"group {group}: '{name}' is missing or too short in ranks {missing + short}")
            else:
                made[name] = [t.detach().reshape(-1) for t in rows if t is not None]
        return made

    def _add(self, name: str, shape: tuple[int, ...], parts: dict[str, list[torch.Tensor]], step: int) -> None:
        numel = math.prod(shape)
        for plane, rows in parts.items():
            n = sum(p.numel() for p in rows)
            if n != numel:
                self.problems.add(
                    f"'{name}', {plane}: the files have {n} of {numel} elements. They are truncated, or the "
                    "optimizer's state is on NVMe (offloaded_tensors/), from where it is not read"
                )
                return
        planes = {plane: Joined(rows, shape) for plane, rows in parts.items()}
        self.content.tensors[name] = Tensor(name, shape, dtype_of(self.model, name), "trained", dict(planes), step)

    def _cut12(self, group: int, shapes: dict[str, Any], planes: dict[str, list[torch.Tensor]], step: int) -> None:
        padded = "zero_stage" in self.rows[0]  # BF16_Optimizer, which names no stage, saves values with padding
        sizes = [
            master.numel() + (number(row["group_paddings"][group]) if padded else 0)
            for row, master in zip(self.rows, planes[FP32], strict=True)
        ]
        if len(set(sizes)) > 1:
            self.problems.add(f"group {group}: partitions have different sizes: {sizes}")
            return
        size, at = sizes[0], 0
        between = self.rows[0].get("param_alignment_paddings")
        for i, (name, shape) in enumerate(shapes.items()):
            end = at + math.prod(shape)
            parts = {
                plane: [t[max(at - r * size, 0) : max(min(end - r * size, size), 0)] for r, t in enumerate(rows)]
                for plane, rows in planes.items()
            }
            self._add(name, shape, parts, step)
            at = end + (number(between[group][i]) if between else 0)

    def _cut3(self, group: int, shapes: dict[str, Any], planes: dict[str, list[torch.Tensor]], step: int) -> None:
        at = 0
        for name, shape in shapes.items():
            numel = math.prod(shape)
            part = -(-numel // self.world)
            parts = {
                plane: [t[at : at + max(0, min(part, numel - r * part))] for r, t in enumerate(rows)]
                for plane, rows in planes.items()
            }
            self._add(name, shape, parts, step)
            at += part
