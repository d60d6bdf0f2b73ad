"""Collectives between ranks (struct zc_comm) for Python, without torch: `Comm`."""

import ctypes
import struct
import time
from ctypes import POINTER, byref, c_void_p, cast
from typing import Any

from . import _c
from ._lib import load
from .errors import error

__all__ = ["Comm"]

_ERROR_BYTES = 1024


class Comm:
    """Collectives between ranks. It outlives the engines that use it.

    Args:
        backend: "auto", "self", "tcp", "mpi", "nccl".
        lib: of load(); None: load().

    Raises:
        ZshardError: it did not start; the message says why.
    """

    def __init__(self, backend: str = "auto", *, lib: ctypes.CDLL | None = None) -> None:
        self.lib = lib or load()
        self.handle: int | None = None
        self._keep: Any = None
        ret, text = c_void_p(), ctypes.create_string_buffer(_ERROR_BYTES)
        rc = self.lib.zc_comm_open(byref(ret), backend.encode(), text, _ERROR_BYTES)
        if rc < 0:
            raise error(rc, text.value.decode(errors="replace"))
        self._adopt(ret.value)

    @classmethod
    def from_ops(
        cls, ops: Any, rank: int, world: int, *, arg: int | None = None, lib: ctypes.CDLL | None = None
    ) -> "Comm":
        """Collectives made elsewhere: `ops` is the address of, or a ctypes object that is, a struct zc_comm_ops."""
        self = cls.__new__(cls)
        self.lib, self.handle, self._keep = lib or load(), None, ops
        ret = c_void_p()
        at = ops if isinstance(ops, int) else ctypes.addressof(ops)
        rc = self.lib.zc_comm_from_ops(byref(ret), at, arg, rank, world)
        if rc < 0:
            raise error(rc, self.lib.zc_strerror(rc).decode())
        self._adopt(ret.value)
        return self

    def _adopt(self, handle: int | None) -> None:
        assert handle is not None
        self.handle = handle
        c = cast(handle, POINTER(_c.zc_comm)).contents
        self.rank: int = c.rank
        self.world: int = c.world

    def all_gather(self, data: bytes) -> list[bytes]:
        """[world] what each rank gave. Collective, and no engine may be at work; the lengths may differ."""
        lengths = self._all_gather(struct.pack("<Q", len(data)), 8)
        counts = [struct.unpack("<Q", n)[0] for n in lengths]
        most = max(1, *counts)
        return [d[:n] for d, n in zip(self._all_gather(data.ljust(most, b"\0"), most), counts, strict=True)]

    def _all_gather(self, data: bytes, size: int) -> list[bytes]:
        ops = cast(cast(self.handle or 0, POINTER(_c.zc_comm)).contents.ops, POINTER(_c.zc_comm_ops)).contents
        send, recv = ctypes.create_string_buffer(data, size), ctypes.create_string_buffer(self.world * size)
        op, done = c_void_p(), ctypes.c_bool(False)
        rc = _c.COMM_START(ops.all_gather)(self.handle, send, recv, size, byref(op))
        pause = 1e-5
        while rc == 0:
            rc = _c.COMM_TEST(ops.test)(self.handle, op, byref(done))
            if done.value:
                break
            time.sleep(pause)
            pause = min(2 * pause, 0.002)
        if rc < 0:
            text = _c.COMM_ERROR(ops.error)(self.handle) if ops.error else None
            raise error(rc, (text or self.lib.zc_strerror(rc)).decode(errors="replace"))
        return [recv.raw[r * size : (r + 1) * size] for r in range(self.world)]

    def close(self, clean: bool = True) -> None:
        """After the engines' close, with the same `clean`; may be called again."""
        if self.handle is not None:
            self.lib.zc_comm_close(self.handle, clean)
            self.handle = None

    def __enter__(self) -> "Comm":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(kind is None)
