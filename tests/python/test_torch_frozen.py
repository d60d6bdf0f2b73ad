# ctest: LABELS full COST 30 TIMEOUT 600
"""Adapters on a frozen base that is four times the daemon's host memory: bf16, and int8 of our own."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import zshard.torch as zt
from zshard.torch._init import context

WIDTH, MIB = 1024, 1 << 20
HOST = 16 * MIB


class Adapted(nn.Module):
    """A frozen linear map, and a trained low-rank one beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16)
        self.base.weight.requires_grad_(False)
        self.down, self.up = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.05 * (self.base(x.bfloat16()).float() + self.up(self.down(x)))


class Tower(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Adapted() for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[None]:
    """One of this test's own, with little memory."""
    zt.init(data=str(tmp_path / "data"), host_bytes=HOST, nvme_bytes=800 * MIB)
    yield
    found = context().daemon
    if found is not None:
        pid = found.client.server()["pid"]
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 15)
    zt.init()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    losses = []
    for i in range(steps):
        x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(i))
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(("quantize", "depth"), [pytest.param(False, 32, marks=pytest.mark.long), (True, 64)])
def test_adapters_on_a_base_larger_than_memory(daemon: None, quantize: bool, depth: int) -> None:
    """The base is read from NVMe and never written after the start; losses are those of plain torch."""
    torch.manual_seed(0)
    model = Tower(depth)
    trained = [p for p in model.parameters() if p.requires_grad]
    plain = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    handle = zt.shard(model, optimizer, units=[Adapted], offload="nvme", quantize_frozen=quantize)
    base = depth * WIDTH * WIDTH * (1 if quantize else 2)
    assert base >= 4 * HOST
    state = zt.full_state_dict(model)
    off = max(float((state[n] - p).abs().max() / p.abs().max()) for n, p in plain.named_parameters() if "base" in n)
    assert (0.001 < off < 0.01) if quantize else off == 0.0
    plain.load_state_dict(state)
    client = context().daemon.client  # type: ignore[union-attr]
    before = client.stat()
    got = train(model, optimizer, 3)
    after = client.stat()
    assert after["nvme_read_bytes"] - before["nvme_read_bytes"] > 3 * (base - HOST)
    state_bytes = 20 * sum(p.numel() for p in trained)  # what a step writes of the adapters, at most
    assert after["nvme_written_bytes"] - before["nvme_written_bytes"] <= 3 * state_bytes < base / 4
    want = train(plain, torch.optim.AdamW([p for p in plain.parameters() if p.requires_grad], lr=1e-3), 3)
    assert got == pytest.approx(want, rel=2e-4)  # activations are rounded to bf16
    handle.close()


def test_quantizing_needs_stage_3() -> None:
    model = Adapted()
    with pytest.raises(Exception, match="stage 3"):
        zt.shard(model, stage=2, offload="none", quantize_frozen=True)
