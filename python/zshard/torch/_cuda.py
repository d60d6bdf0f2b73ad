"""What the engine uses of torch's on a GPU: the stream that the model computes on, and torch's memory.

torch.cuda's accounting then sees gathered units and gradients, and its cache lends them memory. The engine orders
itself against the stream that is current when the model is sharded; train on that one.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

ALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
LEGACY = 1  # cudaStreamLegacy: the default stream, whose own handle is NULL


def options(place: torch.device) -> dict[str, Any]:
    """The engine's options `stream`, `alloc` and `free` for a device of CUDA; it keeps the functions alive."""
    stream = torch.cuda.current_stream(place).cuda_stream

    def alloc(_arg: int | None, size: int, _stream: int | None) -> int | None:
        """Device memory for works after those on the stream. None: there is no room (nothing may be raised here)."""
        try:
            return int(torch.cuda.caching_allocator_alloc(size, place, stream))
        except Exception:  # out of memory; the engine's error message says how much it wanted
            return None

    def free(_arg: int | None, memory: int, _size: int, _stream: int | None) -> None:
        torch.cuda.caching_allocator_delete(memory)

    return {"stream": stream or LEGACY, "alloc": ALLOC(alloc), "free": FREE(free)}
