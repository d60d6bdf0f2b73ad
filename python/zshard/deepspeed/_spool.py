"""First values of parameters that zero.Init took away from their modules: one file that the ranks of a node share.

A model under zero.Init is built module by module. As soon as a module is complete, the values of its parameters go to
the file, and its parameters are views of it: constructors of outer modules may still change them. They take no memory
but the page cache's. At the end of the context they become NaN scalars of their own shapes. GatheredParameters shows
and changes values; the start of the engine reads them by slices (Spooled is a Source of ../torch/_sources.py).

One rank of each node, the first, writes what modules were built with; on the others, parameters are views of memory
whose contents mean nothing. All ranks build the same modules in the same order, so they agree on every position. The
file has no name: it is gone with the last process that has it open.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import socket
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from .._daemon import show_bytes
from ..torch import _guard
from ..torch._memory import tensor_at
from ..torch._sources import Source, attach, attached

_ALIGN = 64
_PIECE = 1 << 24  # bytes written at a time
_WINDOW = 1 << 26  # bytes of the file that are mapped together


class Spool:
    """The file, and this rank's part in it. Making it is collective."""

    def __init__(self, folder: str | None = None) -> None:
        self.folder = folder or _default_folder()
        os.makedirs(self.folder, exist_ok=True)
        self.world = dist.get_world_size() if dist.is_initialized() else 1
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        hosts = _exchange(_host(), self.world)
        self.leaders = sorted({hosts.index(h) for h in hosts})
        self.leader = hosts.index(hosts[self.rank])
        self.end = 0
        self.window: tuple[int, int, mmap.mmap | None] = (0, 0, None)  # first and last byte, its memory
        path = ""
        if self.rank == self.leader:
            self.fd, path = tempfile.mkstemp(prefix=".zshard-init-", dir=self.folder)
        paths = _exchange(path, self.world)
        if self.rank != self.leader:
            self.fd = os.open(paths[self.leader], os.O_RDWR | os.O_CLOEXEC)
        self.wait()
        if self.rank == self.leader:
            os.unlink(path)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if getattr(self, "fd", -1) >= 0:
            close(self.fd)
            self.fd = -1

    def wait(self) -> None:
        """All ranks have done what they did so far. Collective."""
        if self.world > 1:
            dist.barrier()

    def add(self, value: torch.Tensor) -> tuple[Spooled, torch.Tensor]:
        """Takes a value. Every rank does so in the same order. Returns its place, and a view of it."""
        size = -(-value.numel() * value.itemsize // _ALIGN) * _ALIGN
        if self.end + size > self.window[1]:
            self._next_window(size)
        made = Spooled(self, self.end, tuple(value.shape), value.dtype)
        self.end += size
        view = self._view(made)
        if self.rank == self.leader:
            view.copy_(value)
        return made, view

    def _next_window(self, size: int) -> None:
        first = self.window[1]
        last = first + max(_WINDOW, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
        memory = None
        if self.rank == self.leader:
            try:
                os.posix_fallocate(self.fd, first, last - first)  # a full disk is an error here, not a signal later
                memory = mmap.mmap(self.fd, last - first, offset=first)
            except OSError as e:
                raise self._failed(e, last) from None
        self.window, self.end = (first, last, memory), first
        trim()

    def _view(self, at: Spooled) -> torch.Tensor:
        if at.numel == 0:
            return torch.empty(at.shape, dtype=at.dtype)
        first, _, memory = self.window
        if memory is None:
            flat = tensor_at(_guard.sink_address(at.nbytes), at.numel, at.dtype, torch.device("cpu"))
        else:
            flat = torch.frombuffer(memory, dtype=at.dtype, count=at.numel, offset=at.position - first)
        return flat.view(at.shape)

    def _failed(self, e: OSError, needed: int) -> OSError:
        return OSError(
            e.errno,
            f"zero.Init keeps the model's first values in '{self.folder}', and needs {show_bytes(needed)} so far: "
            f"{e.strerror}. Name another folder in offload_param.nvme_path or ZSHARD_DATA",
        )

    def write(self, at: Spooled, value: torch.Tensor) -> None:
        """Replaces a value in this node's file."""
        raw = _bytes_of(value.detach().to("cpu", at.dtype).contiguous().reshape(-1))
        done = 0
        while done < len(raw):
            try:
                done += os.pwrite(self.fd, raw[done : done + _PIECE], at.position + done)
            except OSError as e:
                raise self._failed(e, self.end) from None

    def share(self, at: Spooled, value: torch.Tensor, root: int) -> None:
        """Replaces a value with that of rank root, in the files of all nodes. Collective."""
        if len(self.leaders) > 1:
            device = "cuda" if dist.get_backend() == "nccl" else "cpu"
            sent = value.detach().to(device).contiguous()
            dist.broadcast(sent, root)
            if self.rank == self.leader:
                self.write(at, sent)
        elif self.rank == root:
            self.write(at, value)


class Spooled(Source):
    """A value in the spool.

    Attributes:
        hidden: its parameter is a NaN scalar.
    """

    def __init__(self, spool: Spool, position: int, shape: Sequence[int], dtype: torch.dtype) -> None:
        self.spool, self.position, self.shape, self.dtype = spool, position, tuple(shape), dtype
        self.hidden = False

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return self.numel * self.dtype.itemsize

    def _raw(self, first: int, count: int) -> torch.Tensor:
        size = self.dtype.itemsize
        made = torch.empty(count, dtype=self.dtype)
        raw = _bytes_of(made)
        done = 0
        while done < len(raw):
            got = os.preadv(self.spool.fd, [raw[done:]], self.position + first * size + done)
            if got == 0:
                raise RuntimeError("zero.Init: a value was read before the node's first rank had written it")
            done += got
        return made

    def read(self, first: int, out: torch.Tensor) -> None:
        out.copy_(self._raw(first, out.numel()))

    def tensor(self) -> torch.Tensor:
        return self._raw(0, self.numel).view(self.shape)


_shown = 0  # bytes that were shown and hidden since trim()


def trim() -> None:
    """Freed memory goes back to the system: glibc may keep as much as the model."""
    global _shown
    _shown = 0
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _bytes_of(flat: torch.Tensor) -> memoryview:
    """The memory of a tensor of one dimension."""
    raw: Any = flat.view(torch.uint8).numpy()
    return memoryview(raw)


def _default_folder() -> str:
    data = os.environ.get("ZSHARD_DATA")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return data or os.path.join(cache, "zshard", "init")


def _host() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
            return f"{socket.gethostname()}/{f.read().strip()}"
    except OSError:
        return socket.gethostname()


def _exchange(mine: str, world: int) -> list[str]:
    if world == 1:
        return [mine]
    made: list[Any] = [None] * world
    dist.all_gather_object(made, mine)
    return made


# ---- parameters

_ids = 0


def mark(p: torch.Tensor) -> None:
    """Sets the attributes by which other libraries recognise a parameter of ZeRO."""
    global _ids
    if not hasattr(p, "ds_id"):
        _ids += 1
        p.ds_id, p.ds_shape, p.ds_numel = _ids - 1, p.shape, p.numel()  # type: ignore[attr-defined]
        p.ds_active_sub_modules = set()  # type: ignore[attr-defined]


def spooled(p: torch.Tensor) -> Spooled | None:
    """Where a parameter's value is, if it is in the spool."""
    source = attached(p)
    return source if isinstance(source, Spooled) else None


def take(p: torch.nn.Parameter, spool: Spool, dtype: torch.dtype) -> torch.Tensor:
    """The parameter's value goes to the spool, rounded to dtype if it is a floating-point number; the parameter is a
    view of it, which is returned."""
    value = p.detach()
    if value.is_floating_point():
        value = value.to(dtype)
    source, view = spool.add(value)
    attach(p, source)
    p.data = view
    mark(p)
    return view


def hide(p: torch.nn.Parameter, device: torch.device) -> None:
    """The parameter is a NaN scalar of its shape."""
    global _shown
    source = spooled(p)
    assert source is not None
    p.data = _guard.scalar(torch.Size(source.shape), source.dtype, device)
    source.hidden = True
    _shown += source.nbytes
    if _shown >= _WINDOW:
        trim()


def show(p: torch.nn.Parameter) -> None:
    """The parameter has its value, a copy."""
    source = spooled(p)
    assert source is not None
    p.data = source.tensor().to(p.device)
    source.hidden = False
