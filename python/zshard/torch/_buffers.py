"""Persistent buffers that training changes, such as a BatchNorm's running means: a kept job has the parameters alone,
so they go with its notes (_notes.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

STEP_MAX = 32768  # bytes that may go with each step


class Buffers:
    """The persistent buffers of one model that are no longer as they were when this was made."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._first = {name: (b, _version(b)) for name, _, _, b in self._all()}

    def _all(self) -> Iterator[tuple[str, nn.Module, str, torch.Tensor]]:
        for prefix, module in self.model.named_modules():
            for leaf, buffer in module._buffers.items():
                if buffer is not None and leaf not in module._non_persistent_buffers_set:
                    if buffer.layout is torch.strided and buffer.numel():
                        yield f"{prefix}.{leaf}" if prefix else leaf, module, leaf, buffer

    def changed(self) -> dict[str, torch.Tensor]:
        """By name, not copies; with a buffer, all others of its module."""
        rows = list(self._all())
        touched = set()
        for name, module, leaf, buffer in rows:
            first, version = self._first.get(name, (None, -1))
            if first is not buffer or _version(buffer) != version or leaf.startswith("running_"):
                touched.add(id(module))  # torch's batch_norm changes them, and not their versions
        return {name: buffer for name, module, _, buffer in rows if id(module) in touched}

    def restore(self, packed: list[Any]) -> None:
        """Writes what pack() made. Names that the model does not have are left out."""
        places = {name: (module, leaf) for name, module, leaf, _ in self._all()}
        for names, shapes, flat in packed:
            at = 0
            for name, shape in zip(names, shapes, strict=True):
                n = torch.Size(shape).numel()
                value, at = flat[at : at + n].view(shape), at + n
                if name not in places:
                    continue
                module, leaf = places[name]
                buffer = module._buffers[leaf]
                assert buffer is not None
                if buffer.shape == value.shape:
                    with torch.no_grad():
                        buffer.copy_(value)
                else:
                    module._buffers[leaf] = value.to(buffer.device, buffer.dtype).clone()


def size(buffers: dict[str, torch.Tensor]) -> int:
    """Bytes."""
    return sum(b.numel() * b.itemsize for b in buffers.values())


def pack(buffers: dict[str, torch.Tensor]) -> list[Any]:
    """(names, shapes, all elements on the host) for each dtype and device: few copies from a device."""
    rows: dict[Any, list[str]] = {}
    for name, buffer in buffers.items():
        rows.setdefault((buffer.dtype, buffer.device), []).append(name)
    made = []
    for names in rows.values():
        flat = torch.cat([buffers[n].detach().reshape(-1) for n in names])
        made.append((names, [tuple(buffers[n].shape) for n in names], flat.cpu()))
    return made


def _version(buffer: torch.Tensor) -> int:
    return -2 if buffer.is_inference() else buffer._version
