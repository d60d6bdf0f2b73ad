"""`deepspeed.runtime`."""

from . import lr_schedules, utils, zero

__all__ = ["lr_schedules", "utils", "zero"]
