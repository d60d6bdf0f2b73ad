"""`deepspeed.ops`: optimizers under DeepSpeed's names. All of them are the engine's."""

from . import adagrad, adam, lion

__all__ = ["adagrad", "adam", "lion"]
