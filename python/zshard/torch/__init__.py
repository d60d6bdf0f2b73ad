"""zshard.torch: sharded, offloaded, durable training of any torch.nn.Module."""
from ._handle import Handle, shard
from ._optim import SGD, Adagrad, Adam, AdamW, Lion, Optimizer

__all__ = ["SGD", "Adagrad", "Adam", "AdamW", "Handle", "Lion", "Optimizer", "shard"]
