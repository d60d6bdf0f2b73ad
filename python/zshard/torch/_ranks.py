"""Ranks start alike: parameters and buffers are rank 0's, as in DDP."""

from __future__ import annotations

import hashlib

import torch
from torch import nn

from .._engine import Engine
from ._sources import attached
from ._units import DTYPES, Plan, Unit

CHUNK = 4096  # numbers in one sum
BYTES = 6  # of a buffer in one number: exact in a double


def fingerprint(values: torch.Tensor) -> int:
    """48 bits of a hash of a tensor's bytes."""
    raw = values.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return int.from_bytes(hashlib.blake2b(raw.tobytes(), digest_size=BYTES).digest(), "little")


def differing(engine: Engine, marks: list[int]) -> list[bool]:
    """[n] whether any rank's mark is not rank 0's; the same on all ranks. Collective."""
    made: list[bool] = []
    for at in range(0, len(marks), CHUNK):
        part = marks[at : at + CHUNK]
        first = engine.sum([float(m) if engine.rank == 0 else 0.0 for m in part])
        made += [d > 0 for d in engine.sum([float(f != m) for f, m in zip(first, part, strict=True)])]
    return made


def same_parameters(engine: Engine, planned: Plan) -> None:
    """Writes rank 0's values where a unit's differ. Collective."""

    def mark(unit: Unit) -> int:
        total = 0
        for piece in unit.pieces:
            if attached(piece.param) is None:  # what comes from files or a seed is alike
                total = (total * 31 + fingerprint(piece.param)) % (1 << 48)
        return total

    for unit, differs in zip(planned.units, differing(engine, [mark(u) for u in planned.units]), strict=True):
        if not differs:
            continue
        for piece in unit.pieces:
            if attached(piece.param) is not None:
                continue
            values = piece.param.detach().to("cpu", torch.float32).contiguous()
            engine.write_on(0, unit.index, "master", piece.first, piece.numel, "f32", values.data_ptr())


def same_buffers(engine: Engine, model: nn.Module) -> None:
    """Buffers become rank 0's, and parameters that no unit has, such as packed integers. Collective."""
    loose = [p.detach() for p in model.parameters() if p.dtype not in DTYPES and p.device.type != "meta"]
    buffers = [b for b in (*model.buffers(), *loose) if b is not None and b.layout is torch.strided and b.numel()]
    for buffer, differs in zip(buffers, differing(engine, [fingerprint(b) for b in buffers]), strict=True):
        if differs:
            buffer.copy_(_from_first(engine, buffer))


def _from_first(engine: Engine, buffer: torch.Tensor) -> torch.Tensor:
    """Rank 0's values, sent as sums of numbers that the others have as zeros."""
    host = buffer.detach().cpu().contiguous()
    raw = host.view(-1).view(torch.uint8).numpy().tobytes()
    numbers = [
        float(int.from_bytes(raw[i : i + BYTES], "little")) if engine.rank == 0 else 0.0
        for i in range(0, len(raw), BYTES)
    ]
    summed: list[float] = []
    for at in range(0, len(numbers), CHUNK):
        summed += engine.sum(numbers[at : at + CHUNK])
    data = b"".join(int(n).to_bytes(BYTES, "little") for n in summed)[: len(raw)]
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(host.dtype).view(host.shape)
