"""Writes DeepSpeed's ZeRO checkpoints for a given stage and number of ranks (their layout: _zero.py)."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ._content import FP32, Content, ConvertError, Tensor, Writing, ranges
from ._deepspeed import VERSION, is_fp16, scaling
from ._pickle import allocate, hollow, reserve_pt, save_pt
from ._universal import check_client, hyper_groups, model_states

SUB_GROUP = 1_000_000_000  # DeepSpeed's default of sub_group_size
Groups = list[tuple[dict[str, Any], list[Tensor]]]
Put = Callable[[Tensor, str, int, torch.Tensor], None]  # (tensor, plane, first, values)


@dataclass
class Zero:
    """What is written: the stage, for how many ranks, and of stage 3 elements of a rank's sub-group."""

    stage: int = 3
    ranks: int = 1
    sub_group: int = SUB_GROUP

    def __post_init__(self) -> None:
        if self.stage not in (1, 2, 3) or self.ranks < 1 or self.sub_group < 1:
            raise ConvertError(f"ZeRO stage {self.stage} for {self.ranks} ranks: stages are 1, 2, 3, ranks at least 1")


def write(content: Content, folder: str | None, how: Zero) -> Writing:
    """Writes a ZeRO checkpoint; folder None: only says what is read, in the same order."""
    groups = content.grouped()
    check_client(content)
    bad = [t.name for _, mine in groups for t in mine if t.step != mine[0].step]
    if bad:
        raise ConvertError(
            f"a ZeRO checkpoint has one step count for a group of the optimizer: {', '.join(bad[:8])} were stepped at "
            "other times than the rest of their group. Another form keeps them apart"
        )
    sets = [(group, sub) for group, (_, mine) in enumerate(groups) for sub in _sub_groups(mine, how)]
    writer = _Writer(content, folder, how, groups, sets) if folder is not None else None
    for number, (_, mine) in enumerate(sets):
        for t in mine:
            for plane, source in t.planes.items():
                for first, n in ranges(source):
                    values = yield source, first, n
                    if writer is not None and values is not None:
                        writer.put(number, t, plane, first, values)
    for t in content.of_kind("frozen"):
        for first, n in ranges(t.planes[FP32]):
            values = yield t.planes[FP32], first, n
            if writer is not None and values is not None:
                writer.put_frozen(t, first, values)
    if writer is not None:
        writer.finish()


def _sub_groups(mine: list[Tensor], how: Zero) -> list[list[Tensor]]:
    """A group's tensors as DeepSpeed splits them."""
    if how.stage < 3:
        return [mine]
    sizes = [-(-t.numel // how.ranks) for t in mine]
    if how.sub_group >= sum(sizes):
        return [mine]
    made: list[list[Tensor]] = []
    now: list[Tensor] = []
    count = 0
    for t, size in zip(mine, sizes, strict=True):
        now.append(t)
        count += size
        if count >= how.sub_group or t is mine[-1]:
            made.append(now)
            now, count = [], 0
    return made


class _Writer:
    """The files of all ranks, mapped."""

    def __init__(
        self, content: Content, folder: str, how: Zero, groups: Groups, sets: list[tuple[int, list[Tensor]]]
    ) -> None:
        self.content, self.folder, self.how, self.groups, self.sets = content, folder, how, groups, sets
        self.places = [self._places(mine) for _, mine in sets]
        self.sizes = [self._size(mine) for _, mine in sets]  # of a rank's vector
        self.files = [self._optim_file(rank) for rank in range(how.ranks)]
        cut = how.ranks if how.stage == 3 else 1
        self.frozen = {
            t.name: [self._scratch(-(-t.numel // cut), t.dtype) for _ in range(cut)] for t in content.of_kind("frozen")
        }  # [rank] parts
        self.module: dict[str, torch.Tensor] = {}
        if how.stage < 3:
            for t in content.of_kind("trained"):
                self.module[t.name] = self._scratch(t.numel, t.dtype)

    def _scratch(self, n: int, dtype: torch.dtype) -> torch.Tensor:
        """A tensor in a file without a name: torch.save() reads it from there."""
        if n == 0:
            return torch.empty(0, dtype=dtype)
        path = os.path.join(self.folder, "scratch")
        with open(path, "wb") as file:
            file.truncate(n * dtype.itemsize)
        allocate(path)
        made = torch.from_file(path, shared=True, size=n, dtype=dtype)
        os.unlink(path)
        return made

    def _places(self, mine: list[Tensor]) -> dict[str, int]:
        """Where each tensor begins: in the group's vector (stages 1, 2), or in each rank's (stage 3)."""
        at, made = 0, {}
        for t in mine:
            made[t.name] = at
            at += t.numel if self.how.stage < 3 else -(-t.numel // self.how.ranks)
        return made

    def _size(self, mine: list[Tensor]) -> int:
        if self.how.stage == 3:
            return sum(-(-t.numel // self.how.ranks) for t in mine)
        total, unit = sum(t.numel for t in mine), 2 * self.how.ranks
        return math.ceil(total / unit) * unit // self.how.ranks

    def _padding(self, rank: int, number: int) -> int:
        total, size = sum(t.numel for t in self.sets[number][1]), self.sizes[number]
        return size - max(0, min(size, total - rank * size))

    def _state(self, rank: int) -> dict[str, Any]:
        """state and param_groups of one rank's optimizer."""
        state: dict[int, dict[str, Any]] = {}
        moments = [m for m in self.content.moments()]
        hyper = hyper_groups(self.content, self.groups)
        for group in hyper:
            group["params"] = []
        for number, (place, mine) in enumerate(self.sets):
            hyper[place]["params"].append(number)
            planes = [m for m in moments if all(m in t.planes for t in mine)]
            state[number] = {m: hollow(self.sizes[number]) for m in planes}
            if planes:  # a number: torch's optimizers make a tensor of it, and DeepSpeed's need a number
                state[number]["step"] = mine[0].step if mine else 0
        return {"state": state, "param_groups": hyper}

    def _optim_file(self, rank: int) -> dict[str, Any]:
        """Makes a rank's file, and returns its tensors."""
        prefix = "bf16_" if any(t.dtype == torch.bfloat16 for t in self.content.of_kind("trained")) else ""
        path = os.path.join(self.folder, f"{prefix}zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        common = scaling(self.content)
        if self.how.stage == 3:
            made: dict[str, Any] = {
                "zero_stage": 3,
                **common,
                "partition_count": self.how.ranks,
                "optimizer_state_dict": self._state(rank),
                "fp32_flat_groups": [hollow(n) for n in self.sizes],
            }
        else:
            pads = [self._padding(rank, i) for i in range(len(self.sets))]
            made = {
                **(common if is_fp16(self.content) else {}),
                "base_optimizer_state": self._state(rank),
                "single_partition_of_fp32_groups": [hollow(n - p) for n, p in zip(self.sizes, pads, strict=True)],
                "zero_stage": self.how.stage,
                "group_paddings": pads,
                "partition_count": [self.how.ranks] * len(self.sets),
                "ds_version": VERSION,
            }
        whole = reserve_pt({"optimizer_state_dict": made, "ds_config": {}, "ds_version": VERSION}, path)
        state = whole["optimizer_state_dict"]
        inner = state["optimizer_state_dict" if self.how.stage == 3 else "base_optimizer_state"]["state"]
        for number in range(len(self.sets)):
            if self.how.stage == 3:
                state["fp32_flat_groups"][number].zero_()
            for name, value in inner[number].items():
                if name != "step":
                    value.zero_()
        return state

    def put(self, number: int, t: Tensor, plane: str, first: int, values: torch.Tensor) -> None:
        """Elements of a trained tensor's plane, into the ranks' vectors."""
        size, at, n = self.sizes[number], self.places[number][t.name], values.numel()
        part = size if self.how.stage < 3 else -(-t.numel // self.how.ranks)
        begin = at + first if self.how.stage < 3 else first
        done = 0
        while done < n:
            rank, offset = divmod(begin + done, part)
            m = min(n - done, part - offset)
            target = self._vector(rank, number, plane)
            if target is not None:
                where = offset if self.how.stage < 3 else at + offset
                target[where : where + m] = values[done : done + m]
            done += m
        if plane == FP32 and self.how.stage < 3:
            self.module[t.name][first : first + n] = values.to(t.dtype)

    def _vector(self, rank: int, number: int, plane: str) -> torch.Tensor | None:
        state = self.files[rank]
        if plane == FP32:
            key = "fp32_flat_groups" if self.how.stage == 3 else "single_partition_of_fp32_groups"
            return state[key][number]
        inner = state["optimizer_state_dict" if self.how.stage == 3 else "base_optimizer_state"]["state"]
        return inner[number].get(plane)

    def put_frozen(self, t: Tensor, first: int, values: torch.Tensor) -> None:
        """Elements of a frozen parameter."""
        parts = self.frozen[t.name]
        size, done = parts[0].numel(), 0
        while done < values.numel():
            rank, offset = divmod(first + done, size)
            m = min(values.numel() - done, size - offset)
            parts[rank][offset : offset + m] = values[done : done + m].to(t.dtype)
            done += m

    def finish(self) -> None:
        """The files of model states."""
        subs: Groups = [(self.groups[group][0], mine) for group, mine in self.sets]
        shared, content, ranks = self.content.aliases, self.content, self.how.ranks
        for rank in range(ranks if self.how.stage == 3 else 1):
            made = model_states(content, ranks, subs)
            module = dict(made["module"])
            fragments: dict[str, torch.Tensor] = {}
            for t in content.of_kind("frozen"):
                parts = self.frozen[t.name]
                if self.how.stage == 3:
                    fragments[t.name] = parts[rank]
                    module[t.name] = torch.empty(0, dtype=t.dtype)
                else:
                    fragments[t.name] = module[t.name] = parts[0].view(t.shape)
            for t in content.of_kind("trained"):
                empty = torch.empty(0, dtype=t.dtype)
                module[t.name] = empty if self.how.stage == 3 else self.module[t.name].view(t.shape)
            for alias, name in shared.items():
                module[alias] = module[name]
            made["module"], made["frozen_param_fragments"] = module, fragments
            name = (
                f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt"
                if self.how.stage == 3
                else "mp_rank_00_model_states.pt"
            )
            save_pt(made, os.path.join(self.folder, name))
