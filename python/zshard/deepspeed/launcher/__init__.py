"""`deepspeed.launcher`."""

from . import runner

__all__ = ["runner"]
