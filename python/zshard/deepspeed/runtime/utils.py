"""`deepspeed.runtime.utils`."""

from __future__ import annotations

from typing import Any

import torch


def move_to_device(item: Any, device: Any, criterion_func: Any = None) -> Any:
    """Tensors of nested lists, tuples and dicts, on a device. criterion_func: which tensors; None: all."""
    if isinstance(item, torch.Tensor):
        return item.to(device) if criterion_func is None or criterion_func(item) else item
    if isinstance(item, (list, tuple)):
        return type(item)(move_to_device(v, device, criterion_func) for v in item)
    if isinstance(item, dict):
        return {k: move_to_device(v, device, criterion_func) for k, v in item.items()}
    return item


def see_memory_usage(message: str, force: bool = False) -> None:
    """Prints torch's GPU memory, where `force` is set and there is a GPU."""
    if force and torch.cuda.is_available():
        used, most = torch.cuda.memory_allocated() / 2**30, torch.cuda.max_memory_allocated() / 2**30
        print(f"{message}: {used:.2f} GiB allocated, {most:.2f} GiB at most", flush=True)
