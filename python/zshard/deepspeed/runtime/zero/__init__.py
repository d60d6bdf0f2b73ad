"""`deepspeed.zero`: Init, GatheredParameters, register_external_parameter."""

from . import partition_parameters
from .partition_parameters import (
    GatheredParameters,
    Init,
    ZeroParamStatus,
    ZeroParamType,
    register_external_parameter,
    unregister_external_parameter,
)

__all__ = [
    "GatheredParameters",
    "Init",
    "ZeroParamStatus",
    "ZeroParamType",
    "partition_parameters",
    "register_external_parameter",
    "unregister_external_parameter",
]
