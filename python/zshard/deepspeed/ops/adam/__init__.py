"""`deepspeed.ops.adam`: DeepSpeedCPUAdam and FusedAdam, stepped by the engine."""

from __future__ import annotations

from typing import Any

import torch

from ....torch._optim import Optimizer
from ....torch._step import RULES


class _Adam(Optimizer):
    """Adam, or AdamW where adamw_mode is set. State and arithmetic are the engine's."""

    def __init__(
        self,
        model_params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        adamw_mode: bool = True,
    ) -> None:
        if amsgrad:
            raise NotImplementedError(f"{type(self).__name__}(amsgrad=True): the engine's Adam has no amsgrad")
        if not bias_correction:
            raise NotImplementedError(f"{type(self).__name__}(bias_correction=False): the engine always corrects")
        self.zshard_rule = RULES[torch.optim.AdamW if adamw_mode else torch.optim.Adam]
        self.adam_w_mode = adamw_mode
        super().__init__(model_params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})


class DeepSpeedCPUAdam(_Adam):
    """DeepSpeed's Adam for offloaded state, under its name."""

    def __init__(
        self,
        model_params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        adamw_mode: bool = True,
        fp32_optimizer_states: bool = True,
    ) -> None:
        if not fp32_optimizer_states:
            raise NotImplementedError("DeepSpeedCPUAdam(fp32_optimizer_states=False): see shard(moments='bf16')")
        super().__init__(model_params, lr, bias_correction, betas, eps, weight_decay, amsgrad, adamw_mode)


class FusedAdam(_Adam):
    """DeepSpeed's Adam for GPUs, under its name."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
    ) -> None:
        super().__init__(params, lr, bias_correction, betas, eps, weight_decay, amsgrad, adam_w_mode)


__all__ = ["DeepSpeedCPUAdam", "FusedAdam"]
