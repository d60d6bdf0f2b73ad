"""zshard.deepspeed: DeepSpeed's names on zshard.

    import zshard.deepspeed as deepspeed
    engine, optimizer, _, scheduler = deepspeed.initialize(model=model, config="ds.json")

docs/pytorch/DEEPSPEED.md lists what is there, what differs, and what raises. `python -m zshard.run script.py` answers
for `import deepspeed` itself.
"""

from .._finder import VERSION, install
from . import accelerator, checkpoint, comm, launcher, ops, runtime, utils
from ._config import DeepSpeedConfig, DeepSpeedConfigError
from ._dataloader import DeepSpeedDataLoader
from ._engine import DeepSpeedEngine
from ._initialize import add_config_arguments, initialize
from .accelerator import get_accelerator
from .comm import init_distributed
from .runtime import zero
from .utils import OnDevice, log_dist, logger

__version__ = version = VERSION
__version_major__, __version_minor__, __version_patch__ = map(int, VERSION.split("."))

_NOT_HERE = {
    "init_inference": "run the model under zshard.torch.gathered(), or serve exported weights",
    "tp_model_init": "ranks share the data; see shard(group_ranks=) for hybrid sharding",
    "PipelineModule": "stages are not split over ranks; shard the model with ZeRO-3",
    "PipelineEngine": "stages are not split over ranks; shard the model with ZeRO-3",
    "DeepSpeedHybridEngine": "generate() works on the sharded model as it is",
    "InferenceEngine": "run the model under zshard.torch.gathered()",
    "DeepSpeedTransformerLayer": "use PyTorch's modules",
    "DeepSpeedTransformerConfig": "use PyTorch's modules",
}


def __getattr__(name: str) -> object:
    if name in _NOT_HERE:
        raise NotImplementedError(f"zshard has no deepspeed.{name}: {_NOT_HERE[name]}")
    raise AttributeError(f"module 'zshard.deepspeed' has no attribute '{name}'")


__all__ = [
    "DeepSpeedConfig",
    "DeepSpeedConfigError",
    "DeepSpeedDataLoader",
    "DeepSpeedEngine",
    "OnDevice",
    "accelerator",
    "add_config_arguments",
    "checkpoint",
    "comm",
    "get_accelerator",
    "init_distributed",
    "initialize",
    "install",
    "launcher",
    "log_dist",
    "logger",
    "ops",
    "runtime",
    "utils",
    "zero",
]
