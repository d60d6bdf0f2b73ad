"""`deepspeed.runtime.zero.offload_config`: names of devices and of states."""

from __future__ import annotations

from enum import Enum


class OffloadDeviceEnum(str, Enum):
    """Where states may be offloaded."""

    none = "none"
    cpu = "cpu"
    nvme = "nvme"


class OffloadStateTypeEnum(str, Enum):
    """What engine.offload_states(include=) may name. Here it makes no difference."""

    optim_states = "optim_states"
    hp_params = "hp_params"
    lp_params = "lp_params"
    lp_grads = "lp_grads"
    contiguous_grad_buffer = "contiguous_grad_buffer"


__all__ = ["OffloadDeviceEnum", "OffloadStateTypeEnum"]
