"""`deepspeed.ops.lion`: DeepSpeedCPULion and FusedLion, stepped by the engine."""

from __future__ import annotations

from typing import Any

from ....torch._optim import Lion


class DeepSpeedCPULion(Lion):
    """DeepSpeed's Lion for offloaded state, under its name."""

    def __init__(
        self,
        model_params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        fp32_optimizer_states: bool = True,
    ) -> None:
        if not fp32_optimizer_states:
            raise NotImplementedError("DeepSpeedCPULion(fp32_optimizer_states=False): see shard(moments='bf16')")
        super().__init__(model_params, lr=lr, betas=betas, weight_decay=weight_decay)


class FusedLion(Lion):
    """DeepSpeed's Lion for GPUs, under its name."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        set_grad_none: bool = True,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, weight_decay=weight_decay)


__all__ = ["DeepSpeedCPULion", "FusedLion"]
