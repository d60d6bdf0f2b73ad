"""What a released parameter shows: NaN, never another unit's weights.

Inside a pass a released unit's storage points at the guard: one read-only range of NaN bits, the same
page of a memfd mapped again and again, so that it costs address space alone. A write to it inside
a pass ends in SIGSEGV, as a write to gathered parameters does. Outside of a pass each parameter is
a NaN scalar of its own, expanded to its shape.

The guard is the process's, grows, and is never unmapped: storages may point at it as long as the
process lives.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading

import torch

STEP = 2 << 20  # bytes of the memfd
_PROT_NONE, _PROT_READ, _PROT_WRITE = 0, 1, 2
_MAP_SHARED, _MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS, _MAP_NORESERVE = 1, 2, 0x10, 0x20, 0x4000
_FAILED = ctypes.c_void_p(-1).value

_lock = threading.Lock()


class _Range:
    """A range of addresses in which one memfd is mapped again and again. It grows by being replaced."""

    def __init__(self, name: str, prot: int) -> None:
        self.name, self.prot = name, prot
        self.address = self.nbytes = 0
        self.fd = -1

    def grown(self, nbytes: int) -> int:
        """Its address, with room for so many bytes."""
        if nbytes <= self.nbytes:
            return self.address
        length = -(-nbytes // STEP) * STEP
        if self.fd < 0:
            self.fd = _memfd(self.name)
        base = _mmap(0, length, _PROT_NONE, _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE, -1)
        for at in range(base, base + length, STEP):
            _mmap(at, STEP, self.prot, _MAP_SHARED | _MAP_FIXED, self.fd)
        self.address, self.nbytes = base, length
        return base


_nan = _Range("zshard-nan", _PROT_READ)
_sink = _Range("zshard-sink", _PROT_READ | _PROT_WRITE)


def _mmap(address: int, nbytes: int, prot: int, flags: int, fd: int) -> int:
    call = ctypes.CDLL(None, use_errno=True).mmap
    call.restype = ctypes.c_void_p
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    got = call(address or None, nbytes, prot, flags, fd, 0)
    if got == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, f"mmap of {nbytes} bytes for the NaN guard: {os.strerror(code)}")
    return int(got)


def _memfd(name: str) -> int:
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    os.ftruncate(fd, STEP)
    with mmap.mmap(fd, STEP) as page:
        page[:] = b"\xff" * STEP  # all bits set is a NaN in every floating-point dtype
    return fd


def address(nbytes: int) -> int:
    """The address of at least `nbytes` read-only bytes of NaN. OSError: there is no address space."""
    with _lock:
        return _nan.grown(nbytes)


def sink_address(nbytes: int) -> int:
    """The address of at least `nbytes` bytes that may be written, and whose contents mean nothing. They take 2 MiB of
    memory, however many they are. OSError: there is no address space."""
    with _lock:
        return _sink.grown(nbytes)


def scalar(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A NaN of its own address, expanded to `shape`: reads are NaN, most writes raise torch's error."""
    return torch.full((), float("nan"), dtype=dtype, device=device).expand(shape)
