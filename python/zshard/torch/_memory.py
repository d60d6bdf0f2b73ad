"""How a unit's gathered memory becomes its parameters' data, and what they show when released.

All parameters of a unit are views of one UntypedStorage that lives as long as the model. Three
ways; the first that works is taken (a self-test, once), ZSHARD_MEMORY=swap|view|copy forces one:

    swap   the storage's pointer is exchanged: views and saved tensors follow; nothing is copied
    view   each parameter's `.data` becomes a view of the gathered memory; what autograd saved is
           found again by saved_tensors_hooks
    copy   gathered memory is copied into a storage of torch's own

A unit is *shown* (gathered), *hidden* (released, inside a pass) or *outside* (released, outside of
a pass): there each parameter is a NaN scalar. A write that would be lost is found: `_written_outside()` looks when the
unit is shown, `written_shown()` when it is released, and `written_hidden()` when the pass is over.
Not thread-safe: the runtime's lock is held.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable
from typing import Any

import torch

from . import _guard
from ._units import Unit

HOLDERS_MAX = 64  # addresses remembered per unit
MODES = ("swap", "view", "copy")


def storage_at(address: int, nbytes: int, device: torch.device) -> Any:
    """A storage over memory that is not torch's, which must outlive every use of it."""
    return torch._C._construct_storage_from_data_pointer(address, device, nbytes)


def tensor_at(address: int, numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """[numel] over memory that is not torch's."""
    flat = torch.empty(0, dtype=dtype, device=device)
    return flat.set_(storage_at(address, numel * dtype.itemsize, device), 0, (numel,), (1,))


def contiguous_strides(shape: torch.Size) -> tuple[int, ...]:
    """Strides of a dense row-major tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _swap_works() -> bool:
    """Whether a storage's pointer can be exchanged, and views follow."""
    if not hasattr(torch.UntypedStorage, "_swap_data_ptr_") or not hasattr(
        torch._C, "_construct_storage_from_data_pointer"
    ):
        return False
    one, two = torch.arange(4.0), torch.arange(4.0, 8.0)
    cpu = torch.device("cpu")
    whole = storage_at(one.data_ptr(), 16, cpu)
    view = torch.empty(0).set_(whole, 1, (2,), (1,))
    other = storage_at(two.data_ptr(), 16, cpu)
    whole._swap_data_ptr_(other)
    ok = view.tolist() == [5.0, 6.0] and view.data_ptr() == two.data_ptr() + 4
    whole._swap_data_ptr_(other)
    return bool(ok and view.tolist() == [1.0, 2.0])


@functools.cache
def best_mode() -> str:
    """swap, or the fallback of older torch, which is reported once on stderr."""
    try:
        if _swap_works():
            return "swap"
        why = "UntypedStorage._swap_data_ptr_ is missing or does not move views"
    except Exception as error:  # a private call: anything can have changed
        why = str(error)
    fallback = "view" if hasattr(torch._C, "_construct_storage_from_data_pointer") else "copy"
    print(
        f"zshard: torch {torch.__version__}: {why}; parameters are set by '{fallback}', which is slower",
        file=sys.stderr,
    )
    return fallback


def choose_mode() -> str:
    """The mode of this process. ValueError: ZSHARD_MEMORY is none, or not possible with this torch."""
    wish = os.environ.get("ZSHARD_MEMORY", "")
    if not wish:
        return best_mode()
    if wish not in MODES:
        raise ValueError(f"ZSHARD_MEMORY={wish}: one of {', '.join(MODES)}")
    if wish == "swap" and best_mode() != "swap":
        raise ValueError(f"ZSHARD_MEMORY=swap: torch {torch.__version__} cannot exchange the memory of a storage")
    return wish


class UnitMemory:
    """The parameters of one unit as tensors; made with the model's parameters still real."""

    def __init__(self, unit: Unit, device: torch.device, mode: str) -> None:
        self.unit, self.device, self.mode = unit, device, mode
        self.nbytes = unit.elems * unit.dtype.itemsize
        self.shown = 0  # the address that parameters show; 0: released
        self.outside = False  # parameters are scalars
        self.pieces = [(p.param, p.first, p.shape, contiguous_strides(p.shape)) for p in unit.pieces]
        self.params = [p.param for p in unit.pieces]
        self.scalars = [_guard.scalar(p.shape, unit.dtype, device) for p in unit.pieces]
        # Of each parameter, what it had when it was last as the engine has it:
        self.versions = [0] * len(self.params)
        self.places = [0] * len(self.params)  # data_ptr()
        # What is written to shown parameters stays: they are this process's own. The runtime knows whether they are.
        self.lasting = mode != "copy" and device.type == "cpu" and unit.dtype == torch.float32
        cells = {4: ctypes.c_uint32, 2: ctypes.c_uint16}[unit.dtype.itemsize]
        self.cells = [cells.from_address(s.data_ptr()) for s in self.scalars] if device.type == "cpu" else []
        self.nan = self.cells[0].value if self.cells else 0
        self.doubted = True  # on a device: scalars were not looked at since the last step
        self.holders: dict[int, Any] = {}
        self.views: dict[int, list[torch.Tensor]] = {}
        self.storage: Any = None
        self.held: Any = None  # swap: what the guard's pointer waits in
        if mode == "swap":
            guard = _guard.address(self.nbytes) if device.type == "cpu" else self._device_guard()
            self.storage = storage_at(guard, self.nbytes, device)
            self.fixed = self._views(self.storage)
        elif mode == "copy":
            self.whole = torch.empty(unit.elems, dtype=unit.dtype, device=device)
            self.storage = self.whole.untyped_storage()
            self.fixed = self._views(self.storage)
            self.storage.resize_(0)

    def _device_guard(self) -> int:
        """On a device: NaN of the unit's own length (kept by the process, as the host's guard is)."""
        return _device_guard(self.device, self.nbytes)

    def _views(self, storage: Any) -> list[torch.Tensor]:
        return [
            torch.empty(0, dtype=self.unit.dtype, device=self.device).set_(storage, first, shape, strides)
            for _, first, shape, strides in self.pieces
        ]

    def owns(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor looks at this unit's gathered memory, and would be NaN after release."""
        if self.storage is not None:
            return bool(tensor.untyped_storage()._cdata == self.storage._cdata)
        at = tensor.untyped_storage().data_ptr()
        return bool(self.shown and self.shown <= at < self.shown + self.nbytes)

    def show(self, address: int) -> None:
        """Parameters are what lies at `address` (elems of the dtype). RuntimeError: one was written while
        it was released."""
        self._check_unwritten()
        if self.mode == "swap":
            self._swap_in(address)
        elif self.mode == "copy":
            self.storage.resize_(self.nbytes)
            self.whole.set_(self.storage, 0, (self.unit.elems,), (1,))
            self.whole.copy_(tensor_at(address, self.unit.elems, self.unit.dtype, self.device))
        self.shown = address
        if self.mode == "view":
            if address not in self.views:
                self._trim()
                self.views[address] = self._views(storage_at(address, self.nbytes, self.device))
            self._set(self.views[address])
        elif self.outside:
            self._set(self.fixed)
        self.outside = False
        base = self.storage.data_ptr() if self.mode == "copy" else address
        for i, (param, first, _, _) in enumerate(self.pieces):
            self.versions[i], self.places[i] = param._version, base + first * self.unit.dtype.itemsize

    def tensors(self) -> list[torch.Tensor]:
        """What parameters are inside of a pass; view: while they are shown."""
        return self.views[self.shown] if self.mode == "view" else self.fixed

    def name_at(self, tensor: torch.Tensor) -> str:
        """Which parameter a tensor looks at, which looks at this unit's gathered memory."""
        base = self.storage.data_ptr() if self.storage is not None else self.shown
        at = (tensor.data_ptr() - base) // self.unit.dtype.itemsize
        return next((p.name for p in reversed(self.unit.pieces) if p.first <= at), self.unit.name)

    def loses(self, tensor: torch.Tensor) -> bool:
        """Whether a write to a tensor inside of a pass is lost, or ends the process."""
        stays = self.lasting if self.shown else self.mode != "swap"
        return not stays and self.owns(tensor)

    def remember(self, i: int) -> None:
        """What was written to parameter i so far is known."""
        self.versions[i], self.places[i] = self.params[i]._version, self.params[i].data_ptr()

    def written_shown(self) -> str:
        """The name of a shown parameter whose change is lost with the release; "": there is none. Other data with the
        same values are no change: RNNs on a device move their weights."""
        if not self.shown:
            return ""
        for i, param in enumerate(self.params):
            if param._version != self.versions[i] and not self.lasting:
                return self.unit.pieces[i].name
            if param.data_ptr() != self.places[i]:
                with torch._C.DisableTorchFunction():
                    if not same_bits(param.detach(), self.tensors()[i]):
                        return self.unit.pieces[i].name
        return ""

    def written_hidden(self) -> str:
        """swap: the name of a parameter that was given other data inside of a pass while it was hidden; "": there is
        none. (In other modes it is a scalar then, as outside of a pass.)"""
        if self.mode == "swap" and not self.shown and not self.outside:
            for param, tensor, piece in zip(self.params, self.fixed, self.unit.pieces, strict=True):
                if param.data_ptr() != tensor.data_ptr():
                    return piece.name
        return ""

    def _set(self, tensors: list[torch.Tensor]) -> None:
        for param, tensor in zip(self.params, tensors, strict=True):
            param.data = tensor

    def _swap_in(self, address: int) -> None:
        holder = self.holders.get(address)
        if holder is None:
            self._trim()
            holder = self.holders[address] = storage_at(address, self.nbytes, self.device)
        self.storage._swap_data_ptr_(holder)
        self.held = holder

    def _trim(self) -> None:
        if len(self.holders) >= HOLDERS_MAX:
            self.holders.clear()
        if len(self.views) >= HOLDERS_MAX:
            self.views.clear()

    def forget(self) -> None:
        """Released units: addresses that will not come again."""
        if not self.shown:
            self.holders.clear()
            self.views.clear()

    def hide(self) -> None:
        """Parameters are NaN: the gathered memory is going away."""
        self.shown = 0
        if self.mode == "swap":
            for param, tensor in zip(self.params, self.fixed, strict=True):
                if param.data_ptr() != tensor.data_ptr():
                    param.data = tensor
            self.storage._swap_data_ptr_(self.held)
            self.held = None
        else:
            self.leave()
            if self.mode == "copy":
                self.storage.resize_(0)

    def own(self) -> None:
        """Parameters that are shown become ordinary tensors, with a copy of what they show. swap: so do their views."""
        if self.mode == "swap":
            whole = tensor_at(self.shown, self.unit.elems, self.unit.dtype, self.device).clone()
            self.storage._swap_data_ptr_(whole.untyped_storage())
            self.held = None
        elif self.mode == "view":
            self._set([t.clone() for t in self.views[self.shown]])
        self.shown = 0

    def leave(self) -> None:
        """Outside of a pass: each parameter is a NaN scalar of its own."""
        if self.outside:
            return
        self.outside = True
        self._set(self.scalars)
        for i in range(len(self.params)):
            self.remember(i)

    def _check_unwritten(self) -> None:
        written = self._written_outside() if self.outside else ""
        if not written:
            return
        for i, scalar in enumerate(self.scalars):
            scalar.as_strided((), ()).fill_(float("nan"))
            self.params[i].data = scalar
            self.remember(i)
        raise RuntimeError(
            f"parameter '{written}' was written while released: the engine keeps its values, so the change is lost. "
            "Write it in zshard.torch.gathered(p, write_rank=)"
        )

    def _written_outside(self) -> str:
        """The name of a parameter that was written while it was released: by an operation, by `p.data = x`, which does
        not change its version, or through `p.data`, which has a version of its own. On a device the last is looked for
        once a step."""
        for i, (param, scalar) in enumerate(zip(self.params, self.scalars, strict=True)):
            if param._version != self.versions[i] or not param.is_set_to(scalar):
                return self.unit.pieces[i].name
        for i, cell in enumerate(self.cells):
            if cell.value != self.nan:
                return self.unit.pieces[i].name
        if not self.cells and self.doubted:
            self.doubted = False
            whole = torch.stack([s.as_strided((), ()) for s in self.scalars]).isnan()
            if not whole.all():
                return self.unit.pieces[int(whole.int().argmin())].name
        return ""


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are the same."""
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
        return False
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def written_inside(name: str) -> RuntimeError:
    """The error of a parameter that is written inside of a pass."""
    return RuntimeError(
        f"parameter '{name}' was written inside of a forward or backward pass: the engine keeps its values, so the "
        "change is lost. Write between passes, in zshard.torch.gathered(p, write_rank=), or compute with a changed copy"
    )


@functools.cache
def _device_guard_tensor(device: torch.device, nbytes: int) -> torch.Tensor:
    return torch.full((nbytes,), 255, dtype=torch.uint8, device=device)


def _device_guard(device: torch.device, nbytes: int) -> int:
    rounded = 1 << max(nbytes - 1, 1).bit_length()
    return _device_guard_tensor(device, rounded).data_ptr()


def saved_hooks(units: Callable[[], list[UnitMemory]]) -> torch.autograd.graph.saved_tensors_hooks:
    """view: what autograd saves of gathered memory is remembered as a place in the unit, and found again
    when it is used. `units`: those that are shown now."""

    def pack(tensor: torch.Tensor) -> Any:
        if tensor.is_leaf and tensor.requires_grad or tensor.layout is not torch.strided:
            return tensor
        at = tensor.untyped_storage().data_ptr()
        for memory in units():
            if memory.shown and memory.shown <= at < memory.shown + memory.nbytes:
                offset = tensor.data_ptr() - memory.shown
                return memory, offset, tensor.shape, tensor.stride(), tensor.dtype
        return tensor

    def unpack(packed: Any) -> torch.Tensor:
        if isinstance(packed, torch.Tensor):
            return packed
        memory, offset, shape, stride, dtype = packed
        address = memory.shown or _guard.address(memory.nbytes)
        storage = storage_at(address, memory.nbytes, memory.device)
        return torch.empty(0, dtype=dtype, device=memory.device).set_(storage, offset // dtype.itemsize, shape, stride)

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)
