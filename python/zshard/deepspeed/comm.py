"""`deepspeed.comm`: torch.distributed under DeepSpeed's names, with the answers of one process where no process group
is initialised."""

from __future__ import annotations

import datetime
import os
from typing import Any

import torch
import torch.distributed as dist

_ALONE = {"get_rank": 0, "get_world_size": 1, "is_initialized": False, "barrier": None}
_PASSED = frozenset(
    "ReduceOp all_gather all_gather_into_tensor all_gather_object all_reduce all_to_all all_to_all_single "
    "barrier broadcast broadcast_object_list destroy_process_group gather gather_object get_backend get_global_rank "
    "get_group_rank get_process_group_ranks get_rank get_world_size irecv is_available is_initialized isend "
    "monitored_barrier new_group recv reduce reduce_scatter reduce_scatter_tensor scatter send".split()
)


def __getattr__(name: str) -> Any:
    if name not in _PASSED:
        raise AttributeError(f"zshard.deepspeed.comm has no '{name}'; use torch.distributed")
    if name in _ALONE and not dist.is_initialized():
        return lambda *args, **kwargs: _ALONE[name]
    return getattr(dist, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PASSED})


def get_local_rank() -> int:
    """This process's number on its node; 0 without a launcher."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def get_world_group() -> Any:
    """The group of all ranks; None without a process group."""
    return dist.group.WORLD if dist.is_initialized() else None


def init_distributed(
    dist_backend: str | None = None,
    auto_mpi_discovery: bool = True,
    distributed_port: int = 29500,
    verbose: bool = True,
    timeout: datetime.timedelta | None = None,
    init_method: str | None = None,
    dist_init_required: bool | None = None,
    config: Any = None,
    rank: int = -1,
    world_size: int = -1,
) -> None:
    """Initialises torch.distributed, unless it is already: from the launcher's environment, from Open MPI's or Slurm's
    where auto_mpi_discovery is set, else with this process alone.

    Args:
        dist_backend: None, or a backend that this machine does not have: nccl with a GPU, else gloo.
        rank, world_size: instead of the environment's.

    Raises RuntimeError: dist_init_required is False, and nothing is initialised.
    """
    if dist.is_initialized():
        return
    if dist_init_required is False:
        raise RuntimeError("init_distributed(dist_init_required=False): torch.distributed is not initialised")
    backend = _backend(dist_backend)
    options: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    if rank >= 0 and world_size > 0:
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world_size)}
    if "RANK" not in os.environ and auto_mpi_discovery:
        _from_launcher(distributed_port)
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", str(distributed_port))
        os.environ.setdefault("LOCAL_RANK", os.environ["RANK"] if int(os.environ["WORLD_SIZE"]) == 1 else "0")
        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group(backend, init_method=init_method, rank=rank, world_size=world_size, **options)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, **options)
    if torch.cuda.is_available() and "LOCAL_RANK" in os.environ:
        torch.cuda.set_device(get_local_rank() % torch.cuda.device_count())


def _backend(wish: str | None) -> str:
    there = "nccl" if torch.cuda.is_available() else "gloo"
    if wish is None or wish in ("ccl", "hccl", "mpi") or (wish == "nccl" and there != "nccl"):
        return there
    return wish


def _from_launcher(port: int) -> None:
    """What mpirun and srun have set, under torchrun's names."""
    for rank, size, local in (
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
        ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    ):
        env = os.environ
        if rank in env and size in env and (env.get("MASTER_ADDR") or env[size] == "1"):
            env |= {"RANK": env[rank], "WORLD_SIZE": env[size], "LOCAL_RANK": env.get(local, "0")}
            env.setdefault("MASTER_ADDR", "127.0.0.1")
            env.setdefault("MASTER_PORT", str(port))
            return


def initialize_mesh_device(*_: Any, **__: Any) -> Any:
    """Not supported: ranks are not split into meshes."""
    raise NotImplementedError("comm.initialize_mesh_device: all ranks form one group; see shard(group_ranks=)")
