"""`deepspeed.runtime.lr_schedules`: WarmupLR, WarmupDecayLR and WarmupCosineLR.

The formulas are those of DeepSpeed 0.19; zc_lr_at() (zc_config.h) has the same in C. `step()` counts applied steps,
from 0: after k calls the learning rate is that of iteration k - 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

WARMUP_LR, WARMUP_DECAY_LR, WARMUP_COSINE_LR = "WarmupLR", "WarmupDecayLR", "WarmupCosineLR"
VALID_LR_SCHEDULES = [WARMUP_LR, WARMUP_DECAY_LR, WARMUP_COSINE_LR]
WARMUP_LOG_RATE, WARMUP_LINEAR_RATE = "log", "linear"

Number = float | Sequence[float]


def _torch_optimizer(optimizer: Any) -> torch.optim.Optimizer:
    inner = optimizer if isinstance(optimizer, torch.optim.Optimizer) else getattr(optimizer, "optimizer", None)
    if not isinstance(inner, torch.optim.Optimizer):
        raise TypeError(f"{type(optimizer).__name__} is not a torch.optim.Optimizer")
    return inner


class _Schedule:
    """What the three have in common."""

    def __init__(
        self, optimizer: Any, warmup_num_steps: int, warmup_type: str, last_batch_iteration: int, total: int | None
    ) -> None:
        if not isinstance(warmup_num_steps, int) or warmup_num_steps <= 0:
            raise ValueError(f"warmup_num_steps={warmup_num_steps}: a positive number of steps")
        if warmup_type not in (WARMUP_LOG_RATE, WARMUP_LINEAR_RATE):
            raise ValueError(f"warmup_type='{warmup_type}': 'log' or 'linear'")
        self.optimizer = _torch_optimizer(optimizer)
        self.warmup_num_steps = max(2, warmup_num_steps)
        self.warmup_type = warmup_type
        self.total_num_steps = total
        self.last_batch_iteration = last_batch_iteration
        self._last_lr: list[float] = []

    def _begin(self) -> None:
        if self.last_batch_iteration == -1:
            self._set()

    def _warm(self) -> float:
        """The part of the warm-up that is done, in an iteration of it."""
        if self.warmup_type == WARMUP_LOG_RATE:
            return math.log(self.last_batch_iteration + 1) * (1.0 / math.log(self.warmup_num_steps))
        return self.last_batch_iteration / self.warmup_num_steps

    def _set(self) -> None:
        for group, lr in zip(self.optimizer.param_groups, self.get_lr(), strict=True):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr
        self._last_lr = [float(group["lr"]) for group in self.optimizer.param_groups]

    def get_lr(self) -> list[float]:
        """The learning rate of each group in the current iteration."""
        raise NotImplementedError

    def get_last_lr(self) -> list[float]:
        """The learning rates that were set last."""
        return self._last_lr

    def step(self, last_batch_iteration: int | None = None) -> None:
        """Sets the learning rates of the next iteration, or of the one that is given."""
        self.last_batch_iteration = (
            self.last_batch_iteration + 1 if last_batch_iteration is None else last_batch_iteration
        )
        self._set()

    def state_dict(self) -> dict[str, Any]:
        """The iteration."""
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, sd: dict[str, Any]) -> None:
        """Sets the iteration; groups get its learning rates with the next step()."""
        self.last_batch_iteration = sd["last_batch_iteration"]


class WarmupLR(_Schedule):
    """From warmup_min_lr to warmup_max_lr (None: the groups' learning rates) in warmup_num_steps; then constant.

    Numbers may be lists with one for each group.
    """

    def __init__(
        self,
        optimizer: Any,
        warmup_min_lr: Number = 0.0,
        warmup_max_lr: Number | None = None,
        warmup_num_steps: int = 1000,
        warmup_type: str = WARMUP_LOG_RATE,
        last_batch_iteration: int = -1,
        _total: int | None = None,
    ) -> None:
        super().__init__(optimizer, warmup_num_steps, warmup_type, last_batch_iteration, _total)
        if warmup_max_lr is None:
            warmup_max_lr = [float(g["lr"]) for g in self.optimizer.param_groups]
        self.min_lrs = self._each(warmup_min_lr, "warmup_min_lr")
        self.max_lrs = self._each(warmup_max_lr, "warmup_max_lr")
        self._begin()

    def _each(self, value: Number, name: str) -> list[float]:
        groups = len(self.optimizer.param_groups)
        if isinstance(value, Sequence):
            if len(value) != groups:
                raise ValueError(f"{name} has {len(value)} values, and the optimizer {groups} groups")
            return list(value)
        return [value] * groups

    def _gamma(self) -> float:
        return self._warm() if self.last_batch_iteration < self.warmup_num_steps else 1.0

    def get_lr(self) -> list[float]:
        if self.last_batch_iteration < 0:
            return self.min_lrs
        gamma = self._gamma()
        return [low + (high - low) * gamma for low, high in zip(self.min_lrs, self.max_lrs, strict=True)]


class WarmupDecayLR(WarmupLR):
    """As WarmupLR; after the warm-up it decays linearly to 0 in iteration total_num_steps."""

    def __init__(
        self,
        optimizer: Any,
        total_num_steps: int,
        warmup_min_lr: Number = 0.0,
        warmup_max_lr: Number = 0.001,
        warmup_num_steps: int = 1000,
        warmup_type: str = WARMUP_LOG_RATE,
        last_batch_iteration: int = -1,
    ) -> None:
        super().__init__(
            optimizer,
            warmup_min_lr,
            warmup_max_lr,
            warmup_num_steps,
            warmup_type,
            last_batch_iteration,
            total_num_steps,
        )

    def _gamma(self) -> float:
        if self.last_batch_iteration < self.warmup_num_steps:
            return self._warm()
        assert self.total_num_steps is not None
        left = self.total_num_steps - self.last_batch_iteration
        return max(0.0, float(left) / float(max(1.0, self.total_num_steps - self.warmup_num_steps)))


class WarmupCosineLR(_Schedule):
    """Factors of the groups' own learning rates: from warmup_min_ratio to 1, then to cos_min_ratio by half a cosine."""

    def __init__(
        self,
        optimizer: Any,
        total_num_steps: int,
        warmup_min_ratio: float = 0.0,
        warmup_num_steps: int = 1000,
        cos_min_ratio: float = 0.0001,
        warmup_type: str = WARMUP_LOG_RATE,
        last_batch_iteration: int = -1,
    ) -> None:
        super().__init__(optimizer, warmup_num_steps, warmup_type, last_batch_iteration, total_num_steps)
        self.warmup_min_ratio, self.cos_min_ratio = warmup_min_ratio, cos_min_ratio
        self.org_lrs = [float(g["lr"]) for g in self.optimizer.param_groups]
        self._begin()

    def get_lr_ratio(self) -> float:
        """The factor of the current iteration."""
        if self.last_batch_iteration < 0:
            return 0.0
        if self.last_batch_iteration < self.warmup_num_steps:
            return self.warmup_min_ratio + self._warm() * (1.0 - self.warmup_min_ratio)
        assert self.total_num_steps is not None
        done = self.last_batch_iteration - self.warmup_num_steps + 1
        progress = min(1.0, done / max(1, self.total_num_steps - self.warmup_num_steps))
        return max(0.0, self.cos_min_ratio + (1.0 - self.cos_min_ratio) * (1 + math.cos(math.pi * progress)) / 2)

    def get_lr(self) -> list[float]:
        ratio = self.get_lr_ratio()
        return [lr * ratio for lr in self.org_lrs]
