"""zshard.torch: sharded, offloaded, durable training of any torch.nn.Module."""

import importlib
from typing import TYPE_CHECKING, Any

from ._clip import clip_grad_norm_
from ._fsdp import FSDPModule, fully_shard, handle_of, register_forward_method
from ._fsdp1 import FSDP, FullyShardedDataParallel
from ._handle import Handle, shard
from ._host import HostOptimizer
from ._init import init
from ._load import from_config, from_pretrained
from ._meta import meta_parameters
from ._muon import Muon, muon_groups
from ._optim import SGD, Adagrad, Adam, AdamW, Lion, Optimizer
from ._save import Saving, save_pretrained
from ._state import full_state_dict, gathered, grad_of, load_state_dict, state_of

if TYPE_CHECKING:
    from ._accelerate import Accelerator
    from ._trainer import TrainerMixin

__all__ = [
    "FSDP",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "FSDPModule",
    "FullyShardedDataParallel",
    "Handle",
    "HostOptimizer",
    "Lion",
    "Muon",
    "Optimizer",
    "Saving",
    "clip_grad_norm_",
    "from_config",
    "from_pretrained",
    "full_state_dict",
    "fully_shard",
    "gathered",
    "grad_of",
    "handle_of",
    "init",
    "load_state_dict",
    "meta_parameters",
    "muon_groups",
    "register_forward_method",
    "save_pretrained",
    "shard",
    "state_of",
]

# Of other libraries, which are imported when the name is asked for: the module, and what it needs. Not in __all__: so
# `import *` needs none of them.
_LAZY = {"Accelerator": ("_accelerate", "accelerate"), "TrainerMixin": ("_trainer", "transformers accelerate")}


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, needed = _LAZY[name]
    try:
        return getattr(importlib.import_module(f".{module}", __name__), name)
    except ImportError as e:
        raise ImportError(f"zshard.torch.{name} needs other packages: pip install {needed} ({e})") from e
