# ctest: LABELS full COST 20 TIMEOUT 900
"""The three ways in which gathered memory becomes parameters give the same bits; so do the three stores."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch_models import Net, adamw, batch, loss_of, plain_step, values

import zshard.torch as zt
from zshard.torch._memory import tensor_at


def train(recompute: str | None = None, offload: str = "none") -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and parameters of 5 steps, with an evaluation between forward and backward."""
    torch.manual_seed(0)
    model = Net(tied=True, recompute=recompute)
    opt = adamw(model.parameters())
    with zt.shard(model, opt, offload=offload):
        losses = [plain_step(model, opt, i) for i in range(4)]
        loss = loss_of(model, batch(9))
        model.eval()
        with torch.no_grad():
            losses.append(float(loss_of(model, batch(10))))
        model.train()
        loss.backward()
        opt.step()
        return losses, values(model)


def same(a: tuple[list[float], dict[str, torch.Tensor]], b: tuple[list[float], dict[str, torch.Tensor]]) -> bool:
    """Bit for bit."""
    return a[0] == b[0] and all(torch.equal(a[1][n], b[1][n]) for n in a[1])


@pytest.mark.parametrize("recompute", [None, "non-reentrant"])
def test_ways_of_memory(recompute: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for mode in ("swap", "view", "copy"):
        monkeypatch.setenv("ZSHARD_MEMORY", mode)
        made.append(train(recompute))
    assert same(made[0], made[1]) and same(made[0], made[2])


def test_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    zt.init(data=str(tmp_path / "data"), host_bytes="64M", nvme_bytes="256M")
    try:
        made = [train(offload=offload) for offload in ("host", "nvme")]
    finally:
        zt.init()
    made.append(train())
    assert same(made[0], made[1]) and same(made[0], made[2])


def moving(handle: zt.Handle) -> None:
    """From now on each gather of the handle's units is at another address, and what was released becomes NaN."""
    engine, units = handle.engine, handle.runtime.units
    gather, release, taken, gone = engine.gather, engine.release, {}, []

    def gather_elsewhere(unit: int) -> int:
        elems, dtype = units[unit].unit.elems, units[unit].unit.dtype
        taken[unit] = tensor_at(gather(unit), elems, dtype, torch.device("cpu")).clone()
        return int(taken[unit].data_ptr())

    def release_for_good(unit: int) -> None:
        gone.append(taken.pop(unit).fill_(float("nan")))  # kept, so that no address is used twice
        release(unit)

    engine.gather, engine.release = gather_elsewhere, release_for_good


def fail(*_: object) -> None:
    raise ValueError("on purpose")


@pytest.mark.parametrize("recompute", [None, "reentrant", "non-reentrant"])
@pytest.mark.parametrize("mode", ["swap", "view", "copy"])
def test_memory_that_moves(mode: str, recompute: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What autograd saved follows the parameters to where the backward pass gathers them."""
    monkeypatch.setenv("ZSHARD_MEMORY", mode)
    made = []
    for moves in (False, True):
        torch.manual_seed(0)
        model = Net(tied=True, recompute=recompute)
        opt = adamw(model.parameters())
        with zt.shard(model, opt, offload="none") as handle:
            if moves:
                moving(handle)
            losses = [plain_step(model, opt, i) for i in range(3)]
            fails = model.blocks[1].register_forward_hook(fail)
            with pytest.raises(ValueError, match="on purpose"):  # the leftovers of a failed pass do no harm
                loss_of(model, batch(3))
            fails.remove()
            losses.append(plain_step(model, opt, 4))
            made.append((losses, values(model)))
    assert same(made[0], made[1])


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_sleep() -> None:
    """Gradient buffers go between steps, and come again by themselves; nothing else changes."""

    def losses(sleeps: bool) -> tuple[list[float], list[int]]:
        torch.manual_seed(0)
        model = Net(width=512)  # a block's gradient is 4 MiB
        opt = adamw(model.parameters())
        made, freed = [], []
        with zt.shard(model, opt, offload="none") as handle:
            for i in range(3):
                made.append(plain_step(model, opt, i))
                before = _resident()
                if sleeps:
                    handle.sleep()
                    handle.sleep()
                    freed.append(before - _resident())
            loss_of(model, batch(9)).backward()
            with pytest.raises(RuntimeError, match="in the middle of a step"):
                handle.sleep()
        with pytest.raises(RuntimeError, match="closed"):
            handle.wake()
        return made, freed

    want, _ = losses(False)
    got, freed = losses(True)
    assert got == want
    assert min(freed) >= 4 << 20, freed
