"""`deepspeed.ops.adagrad`: DeepSpeedCPUAdagrad, stepped by the engine."""

from __future__ import annotations

from typing import Any

from ....torch._optim import Adagrad


class DeepSpeedCPUAdagrad(Adagrad):
    """DeepSpeed's Adagrad for offloaded state, under its name."""

    def __init__(
        self,
        model_params: Any,
        lr: float = 1e-2,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        fp32_optimizer_states: bool = True,
    ) -> None:
        if amsgrad or not fp32_optimizer_states:
            raise NotImplementedError("DeepSpeedCPUAdagrad(amsgrad=, fp32_optimizer_states=): the engine has neither")
        super().__init__(model_params, lr=lr, eps=eps, weight_decay=weight_decay)


__all__ = ["DeepSpeedCPUAdagrad"]
