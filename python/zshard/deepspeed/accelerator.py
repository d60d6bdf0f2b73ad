"""`deepspeed.accelerator`: the device of this process. Importing it opens no device."""

from __future__ import annotations

import os
from typing import Any

import torch

from .comm import get_local_rank


class _Accelerator:
    """What scripts ask of DeepSpeed's accelerator."""

    def _cuda(self) -> bool:
        return torch.cuda.is_available()

    def device_name(self, device_index: int | str | None = None) -> str:
        """ "cuda", "cuda:N" or "cpu"."""
        if not self._cuda():
            return "cpu"
        return "cuda" if device_index is None else f"cuda:{device_index}"

    def current_device(self) -> Any:
        """Number of the device; "cpu" without a GPU."""
        return torch.cuda.current_device() if self._cuda() else "cpu"

    def current_device_name(self) -> str:
        """ "cuda:N" or "cpu"."""
        return f"cuda:{torch.cuda.current_device()}" if self._cuda() else "cpu"

    def device(self, device_index: int | str | None = None) -> Any:
        """A context manager or device, as torch.cuda.device."""
        return torch.cuda.device(device_index) if self._cuda() else torch.device("cpu")

    def set_device(self, device_index: Any) -> None:
        """Sets the current GPU; nothing without one."""
        if self._cuda():
            torch.cuda.set_device(device_index)

    def device_count(self) -> int:
        """Number of GPUs; without any the ranks of this node, as the launcher says."""
        if self._cuda():
            return torch.cuda.device_count()
        return max(1, int(os.environ.get("LOCAL_SIZE") or os.environ.get("LOCAL_WORLD_SIZE") or 1))

    def is_available(self) -> bool:
        """Whether there is a device to compute on: always."""
        return True

    def communication_backend_name(self) -> str:
        """ "nccl" or "gloo"."""
        return "nccl" if self._cuda() else "gloo"

    def is_bf16_supported(self) -> bool:
        """Whether the device computes in bf16."""
        return torch.cuda.is_bf16_supported() if self._cuda() else True

    def is_fp16_supported(self) -> bool:
        """Whether the device computes in fp16."""
        return True

    def supported_dtypes(self) -> list[torch.dtype]:
        """Floating-point dtypes that the device computes in."""
        return [torch.float32, torch.float16, *([torch.bfloat16] if self.is_bf16_supported() else [])]

    def is_synchronized_device(self) -> bool:
        """Whether the device has no queue of its own."""
        return not self._cuda()

    def synchronize(self, device_index: Any = None) -> None:
        """Waits for the GPU."""
        if self._cuda():
            torch.cuda.synchronize(device_index)

    def empty_cache(self) -> None:
        """Gives torch's unused GPU memory back to the driver."""
        if self._cuda():
            torch.cuda.empty_cache()

    def memory_allocated(self, device_index: Any = None) -> int:
        """Bytes that torch has allocated on the GPU; 0 without one."""
        return torch.cuda.memory_allocated(device_index) if self._cuda() else 0

    def max_memory_allocated(self, device_index: Any = None) -> int:
        """The most of that; 0 without a GPU."""
        return torch.cuda.max_memory_allocated(device_index) if self._cuda() else 0

    def reset_peak_memory_stats(self, device_index: Any = None) -> None:
        """Starts that count over."""
        if self._cuda():
            torch.cuda.reset_peak_memory_stats(device_index)

    def total_memory(self, device_index: Any = None) -> int:
        """Bytes of memory of the GPU; without one of the machine."""
        if self._cuda():
            return torch.cuda.get_device_properties(device_index).total_memory
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def available_memory(self, device_index: Any = None) -> int:
        """Bytes of that which are free."""
        if self._cuda():
            return torch.cuda.mem_get_info(device_index)[0]
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def manual_seed(self, seed: int) -> None:
        """Seeds the generator of the device."""
        torch.cuda.manual_seed(seed) if self._cuda() else torch.manual_seed(seed)

    def initial_seed(self) -> int:
        """What it was seeded with."""
        return torch.cuda.initial_seed() if self._cuda() else torch.initial_seed()

    def get_rng_state(self, device_index: Any = None) -> torch.Tensor:
        """The state of the generator of the device."""
        if not self._cuda():
            return torch.get_rng_state()
        return torch.cuda.get_rng_state("cuda" if device_index is None else device_index)

    def set_rng_state(self, new_state: torch.Tensor, device_index: Any = None) -> None:
        """Sets that state."""
        if not self._cuda():
            torch.set_rng_state(new_state)
        else:
            torch.cuda.set_rng_state(new_state, "cuda" if device_index is None else device_index)

    def manual_seed_all(self, seed: int) -> None:
        """Seeds all generators."""
        torch.manual_seed(seed)

    def random(self) -> Any:
        """torch.random."""
        return torch.random

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is on the device."""
        return tensor.device.type == ("cuda" if self._cuda() else "cpu")

    def local_rank(self) -> int:
        """This process's number on its node."""
        return get_local_rank()


_accelerator = _Accelerator()


def get_accelerator() -> _Accelerator:
    """The device of this process."""
    return _accelerator
