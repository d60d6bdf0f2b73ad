# ctest: LABELS full COST 10 TIMEOUT 900
"""zshard.torch.HostOptimizer against plain torch, in one process; two ranks: test_torch_ranks.py."""

from __future__ import annotations

import copy
import math
import signal
from typing import Any

import pytest
import torch
from torch import nn
from torch_models import Net, batch, loss_of

import zshard.torch as zt

HOSTED: dict[str, dict[str, Any]] = {
    "RAdam": {"lr": 1e-2, "eps": 1e-4},
    "NAdam": {"lr": 1e-2, "eps": 1e-4, "weight_decay": 0.1},
    "Adamax": {"lr": 1e-2, "eps": 1e-4},
    "RMSprop": {"lr": 1e-3, "momentum": 0.9, "centered": True, "eps": 1e-4},
    "Adadelta": {"lr": 1.0},
}


@pytest.mark.parametrize("name", HOSTED)
def test_host_optimizer(name: str) -> None:
    """As plain torch: clipped, with a schedule, and a parameter that gets its first gradient later; then its state
    goes over: torch's into ours, and this rank's slices into another one's."""
    cls, plain = getattr(torch.optim, name), Net()
    model = copy.deepcopy(plain)
    opt = cls(plain.parameters(), **HOSTED[name])
    ours = zt.HostOptimizer(cls, model.parameters(), **HOSTED[name])
    handle = zt.shard(model, ours, offload="none")
    schedules = {o: torch.optim.lr_scheduler.LambdaLR(o, lambda i: 1.0 / (1 + i)) for o in (opt, ours)}

    def step(model: nn.Module, opt: Any, i: int) -> float:
        loss = loss_of(model, batch(i)) if i != 1 else model.embed(batch(i)).square().mean()  # type: ignore[operator]
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        opt.step()
        opt.zero_grad()
        schedules[opt].step()
        return float(loss.detach())

    want = [step(plain, opt, i) for i in range(6)]
    assert [step(model, ours, i) for i in range(6)] == pytest.approx(want, rel=1e-6)
    for p, value in zip(plain.parameters(), zt.full_state_dict(model).values(), strict=True):
        assert torch.allclose(p.detach(), value, rtol=1e-6, atol=1e-6)
    assert handle.step_number == 6 and ours.grad_norm > 0
    for source in (opt, ours):
        other = copy.deepcopy(plain)
        third = zt.HostOptimizer(cls, other.parameters(), **HOSTED[name])
        third.load_state_dict(copy.deepcopy(source.state_dict()))
        schedules[third] = torch.optim.lr_scheduler.LambdaLR(third, lambda i: 1.0 / (7 + i))
        with zt.shard(other, third, offload="none"):
            again = copy.deepcopy(plain)
            fourth = cls(again.parameters(), **HOSTED[name])
            fourth.load_state_dict(copy.deepcopy(opt.state_dict()))
            schedules[fourth] = torch.optim.lr_scheduler.LambdaLR(fourth, lambda i: 1.0 / (7 + i))
            want = [step(again, fourth, i) for i in range(6, 9)]
            assert [step(other, third, i) for i in range(6, 9)] == pytest.approx(want, rel=1e-6)
    handle.close()


def test_host_optimizer_refuses() -> None:
    for name in ("LBFGS", "Adafactor", "Muon", "SparseAdam"):
        if hasattr(torch.optim, name):
            with pytest.raises(TypeError, match=f"cannot run {name} on slices"):
                zt.HostOptimizer(getattr(torch.optim, name), Net().parameters())
    with pytest.raises(TypeError, match="runs a class of torch.optim"):
        zt.HostOptimizer(zt.AdamW, Net().parameters())
    model = Net()
    opt = zt.HostOptimizer(torch.optim.RAdam, model.blocks.parameters())
    with zt.shard(model, opt, offload="none"):
        loss_of(model, batch(0)).backward()
        with pytest.raises(ValueError, match="has all trained parameters"):
            opt.step()


class Breaks(torch.optim.RAdam):
    """Raises in call `at` of step(), which comes once for each unit."""

    calls, at = 0, -1

    def step(self, closure: Any = None) -> Any:
        Breaks.calls += 1
        if Breaks.calls == Breaks.at:
            raise ArithmeticError("in the middle")
        return super().step(closure)


def hosted(monkeypatch: pytest.MonkeyPatch) -> tuple[nn.Module, Any, zt.Handle]:
    """A model after two steps, with gradients for the third."""
    monkeypatch.setattr(Breaks, "calls", 0)
    monkeypatch.setattr(Breaks, "at", -1)
    torch.manual_seed(0)
    model = Net()
    opt = zt.HostOptimizer(Breaks, model.parameters(), lr=1e-2)
    handle = zt.shard(model, opt, offload="none")
    for i in range(3):
        loss_of(model, batch(i)).backward()
        if i < 2:
            opt.step()
            opt.zero_grad()
    assert Breaks.calls >= 4, "one unit: nothing is in the middle of it"
    return model, opt, handle


def values_of(model: nn.Module) -> list[torch.Tensor]:
    return list(zt.full_state_dict(model).values())


def stepped(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The values after a step that nothing disturbs."""
    model, opt, handle = hosted(monkeypatch)
    opt.step()
    values = values_of(model)
    handle.close()
    return values


def test_a_step_that_fails_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    """No weight changes, and nothing goes on silently; with its state of before, the optimizer makes the same step."""
    want = stepped(monkeypatch)
    model, opt, handle = hosted(monkeypatch)
    state, before = copy.deepcopy(opt.state_dict()), values_of(model)
    Breaks.at = Breaks.calls + 2
    with pytest.raises(ArithmeticError):
        opt.step()
    assert all(torch.equal(a, b) for a, b in zip(values_of(model), before, strict=True))
    for refused in (opt.step, opt.state_dict):
        with pytest.raises(RuntimeError, match="a step ahead.*load_state_dict"):
            refused()
    opt.load_state_dict(state)
    opt.step()
    assert all(torch.equal(a, b) for a, b in zip(values_of(model), want, strict=True))
    assert handle.step_number == 3
    handle.close()


def test_a_step_inside_of_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit that is held cannot be written: this is found before the first one is."""
    model, opt, handle = hosted(monkeypatch)
    before = values_of(model)
    with zt.gathered(model.blocks[1]), pytest.raises(RuntimeError, match="step outside of it"):  # type: ignore[index]
        opt.step()
    assert all(torch.equal(a, b) for a, b in zip(values_of(model), before, strict=True))
    handle.close()


def test_a_write_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights may be half written: the model is closed, and says why."""
    model, opt, handle = hosted(monkeypatch)
    write_on, calls = handle.engine.write_on, []

    def fails(*args: Any) -> None:
        calls.append(args)
        if len(calls) == 2:
            raise OSError("the drive")
        write_on(*args)

    monkeypatch.setattr(handle.engine, "write_on", fails)
    with pytest.raises(OSError):
        opt.step()
    for refused in (opt.step, lambda: model(batch(0))):
        with pytest.raises(RuntimeError, match="failed while weights were written"):
            refused()
    handle.close()


def test_ctrl_c_waits_for_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """KeyboardInterrupt comes when the step is whole."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may start a job with SIGINT ignored
    try:
        interrupted_step(monkeypatch)
    finally:
        signal.signal(signal.SIGINT, before)


def interrupted_step(monkeypatch: pytest.MonkeyPatch) -> None:
    want = stepped(monkeypatch)
    model, opt, handle = hosted(monkeypatch)
    write_on = handle.engine.write_on

    def interrupted(*args: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        write_on(*args)

    monkeypatch.setattr(handle.engine, "write_on", interrupted)
    with pytest.raises(KeyboardInterrupt):
        opt.step()
    assert handle.step_number == 3
    assert all(torch.equal(a, b) for a, b in zip(values_of(model), want, strict=True))
    handle.close()


def test_host_optimizer_skips_what_is_not_finite() -> None:
    model = Net()
    opt = zt.HostOptimizer(torch.optim.RAdam, model.parameters(), lr=1.0)
    with zt.shard(model, opt, offload="none"):
        before = zt.full_state_dict(model)
        (loss_of(model, batch(0)) * math.inf).backward()
        opt.step()
        assert opt.overflow
        assert all(torch.equal(a, b) for a, b in zip(before.values(), zt.full_state_dict(model).values(), strict=True))
