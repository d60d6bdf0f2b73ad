"""A sharded model becomes an ordinary one."""

from __future__ import annotations

from ._runtime import Runtime


def materialize(runtime: Runtime) -> None:
    """Parameters get memory of torch's own with their values, on every rank. Collective."""
    for state in runtime.units:
        real = []
        for piece in state.unit.pieces:
            flat = runtime.read(state.index, "param", piece.first, piece.numel)
            real.append(flat.to(state.unit.dtype).view(piece.shape).to(state.memory.device))
        for param, tensor in zip(state.params, real, strict=True):
            if state.trainable and hasattr(param, "grad_dtype"):
                param.grad = None
                param.grad_dtype = param.dtype
            param.data = tensor
