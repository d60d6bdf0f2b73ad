"""Writes ZeRO checkpoints as DeepSpeed 0.19.8 lays them out, without DeepSpeed: whole vectors, padded and cut.

It shares no code with zshard.convert. Classes of DeepSpeed's that its files name are made up for the time of a save, so
that the files name them, too.
"""

from __future__ import annotations

import contextlib
import enum
import math
import os
import sys
import types
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch


@contextlib.contextmanager
def classes() -> Iterator[types.SimpleNamespace]:
    """LossScaler, ZeroStageEnum and fragment_address, under DeepSpeed's names."""
    made: dict[str, Any] = {}

    def put(module: str, cls: Any) -> Any:
        for i, _ in enumerate(parts := module.split(".")):
            name = ".".join(parts[: i + 1])
            if name not in sys.modules:
                sys.modules[name] = types.ModuleType(name)
                made[name] = None
        cls.__module__, cls.__qualname__ = module, cls.__name__
        setattr(sys.modules[module], cls.__name__, cls)
        return cls

    scaler = type("LossScaler", (), {})
    stage = enum.IntEnum("ZeroStageEnum", {"optimizer_states": 1, "gradients": 2, "weights": 3})
    address = type("fragment_address", (), {})
    try:
        yield types.SimpleNamespace(
            scaler=put("deepspeed.runtime.fp16.loss_scaler", scaler),
            stage=put("deepspeed.runtime.zero.config", stage),
            address=put("deepspeed.utils.tensor_fragment", address),
        )
    finally:
        for name in made:
            del sys.modules[name]


@dataclass
class Zero:
    """What is written. trained: [group] name: {"fp32": tensor, "exp_avg": ...}."""

    stage: int
    ranks: int
    trained: list[dict[str, dict[str, torch.Tensor]]]
    frozen: dict[str, torch.Tensor] = field(default_factory=dict)
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    step: int = 5
    skipped: int = 0
    elastic: bool = False
    bf16_optimizer: bool = False
    dtype: torch.dtype = torch.float32
    prefix: str = ""
    version: str = "0.19.8"
    client: dict[str, Any] = field(default_factory=dict)
    hyper: dict[str, Any] = field(default_factory=lambda: {"lr": 0.5, "betas": (0.8, 0.9), "eps": 1e-7})

    def planes(self) -> list[str]:
        return [p for p in next(iter(self.trained[0].values())) if p != "fp32"]

    def cut(self, group: int, plane: str) -> list[torch.Tensor]:
        """[rank] a group's vector of one plane."""
        tensors = [planes[plane].reshape(-1) for planes in self.trained[group].values()]
        if self.stage == 3:
            parts: list[list[torch.Tensor]] = [[] for _ in range(self.ranks)]
            for t in tensors:
                size = math.ceil(t.numel() / self.ranks)
                padded = torch.cat([t, torch.zeros(size * self.ranks - t.numel())])
                for rank in range(self.ranks):
                    parts[rank].append(padded[rank * size : (rank + 1) * size])
            return [torch.cat(p) for p in parts]
        whole = torch.cat(tensors)
        unit = 2 * self.ranks
        whole = torch.cat([whole, torch.zeros(math.ceil(whole.numel() / unit) * unit - whole.numel())])
        return list(whole.chunk(self.ranks))

    def pads(self, group: int) -> list[int]:
        """[rank] elements of padding at the end of a rank's part."""
        total = sum(p["fp32"].numel() for p in self.trained[group].values())
        size = self.cut(group, "fp32")[0].numel()
        return [size - max(0, min(size, total - r * size)) for r in range(self.ranks)]

    def optimizer(self, rank: int) -> dict[str, Any]:
        """state_dict() of one rank's optimizer."""
        state = {}
        for g in range(len(self.trained)):
            state[g] = {"step": torch.tensor(float(self.step - self.skipped))}
            state[g] |= {p: self.cut(g, p)[rank].clone() for p in self.planes()}
        groups = [{**self.hyper, "weight_decay": 0.1 * g, "params": [g]} for g in range(len(self.trained))]
        return {"state": state, "param_groups": groups}

    def optim_state(self, rank: int, kinds: Any) -> dict[str, Any]:
        scaler = kinds.scaler()
        scaler.cur_scale, scaler.dynamic = 1.0, False
        masters = [self.cut(g, "fp32")[rank].clone() for g in range(len(self.trained))]
        if self.stage == 3:
            return {
                "zero_stage": kinds.stage(3), "loss_scaler": scaler, "dynamic_loss_scale": False, "overflow": False,
                "partition_count": self.ranks, "optimizer_state_dict": self.optimizer(rank),
                "fp32_flat_groups": masters,
            }  # fmt: skip
        pads = [self.pads(g)[rank] for g in range(len(self.trained))]
        lean = [m if self.bf16_optimizer else m[: m.numel() - p] for m, p in zip(masters, pads, strict=True)]
        address = kinds.address()
        address.numel, address.start = 4, 0
        base: Any = self.optimizer(rank)
        made: dict[str, Any] = {
            "loss_scaler": scaler, "clip_grad": 0.0, "single_partition_of_fp32_groups": lean, "group_paddings": pads,
            "partition_count": [self.ranks] * len(self.trained), "ds_version": self.version,
            "param_slice_mappings": [OrderedDict(x=address)],
        }  # fmt: skip
        if self.elastic:
            states = [base["state"][g] for g in range(len(self.trained))]
            base = [
                {k: v[: v.numel() - pad] if v.dim() else v for k, v in s.items()}
                for s, pad in zip(states, pads, strict=True)
            ]
            made["base_optimizer_state_step"] = self.step - self.skipped
        made["base_optimizer_state"] = base
        if not self.bf16_optimizer:
            made["zero_stage"] = kinds.stage(self.stage)
        return made

    def model_state(self, rank: int) -> dict[str, Any]:
        three = self.stage == 3
        values = {n: p["fp32"].to(self.dtype) for g in self.trained for n, p in g.items()} | self.frozen
        module: dict[str, torch.Tensor] = OrderedDict()
        for name, value in values.items():
            module[name] = torch.empty(0, dtype=value.dtype) if three else value
        for alias, name in self.aliases.items():
            module[alias] = module[name]
        module |= self.buffers
        fragments = {}
        for name, value in self.frozen.items():
            size = math.ceil(value.numel() / self.ranks)
            padded = torch.cat([value.reshape(-1), torch.zeros(size * self.ranks - value.numel(), dtype=value.dtype)])
            fragments[name] = padded[rank * size : (rank + 1) * size].clone() if three else value
        return {
            "module": module, "buffer_names": list(self.buffers), "optimizer": None,
            "param_shapes": [OrderedDict((n, p["fp32"].shape) for n, p in g.items()) for g in self.trained],
            "frozen_param_shapes": {n: v.shape for n, v in self.frozen.items()} if self.stage > 1 else None,
            "frozen_param_fragments": fragments if self.stage > 1 else None, "shared_params": self.aliases,
            "lr_scheduler": {"last_batch_iteration": self.step - 1}, "data_sampler": None, "random_ltd": None,
            "skipped_steps": self.skipped, "global_steps": self.step, "global_samples": 8 * self.step,
            "dp_world_size": self.ranks, "mp_world_size": 1, "ds_config": {"zero_optimization": {}},
            "ds_version": self.version, **self.client,
        }  # fmt: skip

    def write(self, folder: Any) -> str:
        """FOLDER/global_stepN and `latest`. Returns the former's path."""
        path = os.path.join(folder, f"global_step{self.step}")
        os.makedirs(path)
        with classes() as kinds:
            for rank in range(self.ranks):
                whole = {"optimizer_state_dict": self.optim_state(rank, kinds), "ds_config": {}}
                whole["ds_version"] = self.version
                name = f"{self.prefix}zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
                torch.save(whole, os.path.join(path, name))
                if self.stage == 3:
                    torch.save(
                        self.model_state(rank), os.path.join(path, f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
                    )
            if self.stage < 3:
                torch.save(self.model_state(0), os.path.join(path, "mp_rank_00_model_states.pt"))
        with open(os.path.join(folder, "latest"), "w", encoding="utf-8") as f:
            f.write(os.path.basename(path))
        return path
