# ctest: LABELS full COST 3
"""What the engine gets of torch.cuda (zshard/torch/_cuda.py), without a GPU: torch's functions are replaced, and the
engine runs on the emulated device with their callbacks. tests/gpu.sh runs the other tests on a real one."""

from __future__ import annotations

import ctypes
import types
from typing import Any

import pytest
import torch

import zshard
from zshard._engine import Comm, Engine
from zshard.torch import _cuda


@pytest.fixture
def cuda(monkeypatch: Any) -> dict[str, Any]:
    """torch.cuda with a default stream, and room for `left` allocations of host memory."""
    state: dict[str, Any] = {"live": {}, "left": 1 << 30, "streams": set()}

    def alloc(size: int, device: Any, stream: int) -> int:
        if state["left"] == 0:
            raise torch.OutOfMemoryError("no room")
        state["left"] -= 1
        state["streams"].add(stream)
        memory = ctypes.create_string_buffer(size)
        state["live"][ctypes.addressof(memory)] = memory
        return ctypes.addressof(memory)

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: types.SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(torch.cuda, "caching_allocator_alloc", alloc)
    monkeypatch.setattr(torch.cuda, "caching_allocator_delete", lambda memory: state["live"].pop(memory))
    return state


def test_callbacks(cuda: dict[str, Any]) -> None:
    given = _cuda.options(torch.device("cuda", 0))
    assert given["stream"] == 1, "the default stream by its name: NULL would be no stream"
    memory = given["alloc"](None, 4096, None)
    assert memory in cuda["live"] and cuda["streams"] == {0}
    given["free"](None, memory, 4096, None)
    assert not cuda["live"]
    cuda["left"] = 0
    assert given["alloc"](None, 4096, None) is None


def test_engine_uses_them(cuda: dict[str, Any]) -> None:
    """The engine calls what it was given: here there is no room, and its error message says so."""
    cuda["left"] = 0
    given = _cuda.options(torch.device("cuda", 0))
    del given["stream"]  # the emulated device has its own kind of streams
    comm = Comm("self")
    with Engine(comm, device="emulated", **given) as engine:
        engine.add_unit("u", 1 << 20, [("w", 0, (1 << 20,), 0)])
        engine.start(lambda unit, first, count, out: None)
        with pytest.raises(zshard.NoSpace, match="alloc has no"):
            engine.grad(0)
    comm.close()
