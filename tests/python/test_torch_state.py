# ctest: LABELS full COST 10
"""What a loop does to its optimizer besides stepping it: groups and state that change. Against plain torch."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch_models import Net, adamw, batch, loss_of, plain_step

import zshard
import zshard.torch as zt

Change = Callable[[nn.Module, torch.optim.Optimizer], torch.optim.Optimizer]


def swapped(model: nn.Module, opt: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Groups exchange a parameter, and stay as long as they were."""
    one, two = (g["params"] for g in opt.param_groups)
    one[0], two[0] = two[0], one[0]
    return opt


def reloaded(model: nn.Module, opt: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The state of an optimizer that has not stepped."""
    opt.load_state_dict({"state": {}, "param_groups": opt.state_dict()["param_groups"]})
    return opt


def reset(model: nn.Module, opt: torch.optim.Optimizer) -> torch.optim.Optimizer:
    opt.state = defaultdict(dict)
    return opt


def emptied(model: nn.Module, opt: torch.optim.Optimizer) -> torch.optim.Optimizer:
    for group in opt.param_groups:
        opt.state[group["params"][0]] = {}
    return opt


def another(model: nn.Module, opt: torch.optim.Optimizer) -> torch.optim.Optimizer:
    return type(opt)(opt.param_groups, **{k: v for k, v in opt.defaults.items() if k in ("lr", "eps", "momentum")})


def set_by_hand(model: nn.Module, opt: torch.optim.Optimizer) -> torch.optim.Optimizer:
    for entry in opt.state.values():
        if "step" in entry and "exp_avg" in entry:
            entry["step"] = entry["step"] * 0 + 2
            entry["exp_avg"] = entry["exp_avg"] * 0.5
        else:
            entry["momentum_buffer"] = None
    return opt


CHANGES: list[Change] = [swapped, reloaded, reset, emptied, another, set_by_hand]


def adam_of(params: Any) -> torch.optim.Optimizer:
    return adamw(params)


def sgd_of(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.05, momentum=0.9, dampening=0.5)


def rms_of(params: Any) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(params, lr=1e-3, eps=1e-2)


def grouped(model: nn.Module, lr: float) -> list[dict[str, Any]]:
    params = list(model.parameters())
    return [{"params": params[::2], "lr": lr}, {"params": params[1::2], "lr": lr / 100}]


def alike(plain: nn.Module, model: nn.Module) -> None:
    for name, value in zt.full_state_dict(model).items():
        assert torch.allclose(value, plain.state_dict()[name], atol=1e-5), name


@pytest.mark.parametrize("make", [adam_of, sgd_of])
@pytest.mark.parametrize("change", CHANGES, ids=lambda c: c.__name__)
def test_changes(change: Change, make: Callable[[Any], torch.optim.Optimizer]) -> None:
    """Moments begin at zero where torch's do: nothing of what the engine has stays without a word."""
    plain = Net()
    model = copy.deepcopy(plain)
    opts = make(grouped(plain, 1e-2)), make(grouped(model, 1e-2))
    handle = zt.shard(model, opts[1], offload="none")
    for m, opt in zip((plain, model), opts, strict=True):
        for i in range(3):
            plain_step(m, opt, i)
        opt = change(m, opt)
        for i in range(3, 6):
            plain_step(m, opt, i)
    alike(plain, model)
    handle.close()


def test_groups_of_a_host_optimizer() -> None:
    plain = Net()
    model = copy.deepcopy(plain)
    ours = zt.HostOptimizer(torch.optim.RMSprop, grouped(model, 1e-3), eps=1e-2)
    handle = zt.shard(model, ours, offload="none")
    for m, opt in ((plain, rms_of(grouped(plain, 1e-3))), (model, ours)):
        for i in range(6):
            plain_step(m, swapped(m, opt), i)
    alike(plain, model)
    handle.close()


def test_clip_of_a_host_optimizer() -> None:
    """shard(clip=) is clip_grad_norm_ in each step, as with the engine's optimizers."""
    plain = Net()
    model = copy.deepcopy(plain)
    opt = rms_of(plain.parameters())
    ours = zt.HostOptimizer(torch.optim.RMSprop, model.parameters(), lr=1e-3, eps=1e-2)
    handle = zt.shard(model, ours, offload="none", clip=0.01)
    for i in range(3):
        loss_of(plain, batch(i)).backward()
        assert nn.utils.clip_grad_norm_(plain.parameters(), 0.01) > 0.02
        opt.step()
        opt.zero_grad()
        plain_step(model, ours, i)
    alike(plain, model)
    handle.close()
    model = Net()
    ours = zt.HostOptimizer(torch.optim.RMSprop, model.parameters())
    with zt.shard(model, ours, offload="none", clip=0.01, clip_mode="tensor"):
        with pytest.raises(ValueError, match="clip_mode='tensor'"):
            plain_step(model, ours, 0)


def test_two_optimizers_in_turn() -> None:
    """The engine keeps one state of a parameter."""
    model = Net()
    one, two = adamw(model.parameters()), adamw(model.parameters())
    handle = zt.shard(model, one, offload="none")
    plain_step(model, one, 0)
    plain_step(model, two, 1)
    with pytest.raises(RuntimeError, match="another optimizer has stepped parameter 'embed.weight'"):
        plain_step(model, one, 2)
    handle.close()
    model = Net()
    one, two = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    with zt.shard(model, offload="none"):  # nothing is kept
        for i, opt in enumerate((one, two, one)):
            plain_step(model, opt, i)


def test_state_that_is_read_is_not_written() -> None:
    model = Net()
    opt = adamw(model.parameters())
    handle = zt.shard(model, opt, offload="none")
    plain_step(model, opt, 0)
    with pytest.raises(RuntimeError, match="[Ii]nplace update"):
        opt.state[model.head.bias]["exp_avg"].zero_()
    with pytest.raises(KeyError, match="'head.bias' has step, exp_avg, exp_avg_sq, and no 'max_exp_avg_sq'"):
        opt.state[model.head.bias]["max_exp_avg_sq"] = torch.zeros(1)
    handle.close()


def test_state_of_a_closed_model() -> None:
    """It is gone with the engine: the process ended by a signal, or moments began at zero."""
    plain = Net()
    model = copy.deepcopy(plain)
    opts = adamw(plain.parameters()), adamw(model.parameters())
    handle = zt.shard(model, opts[1], offload="none")
    for m, opt in zip((plain, model), opts, strict=True):
        for i in range(3):
            plain_step(m, opt, i)
    saved = copy.deepcopy(opts[1].state_dict())
    handle.close(gather=True)
    with pytest.raises(RuntimeError, match="'embed.weight' was in the engine of a model that was closed"):
        plain_step(model, opts[1], 3)
    model.zero_grad()
    handle = zt.shard(model, opts[1], offload="none")
    with pytest.raises(RuntimeError, match="'embed.weight' was in the engine of a model that was closed"):
        plain_step(model, opts[1], 3)
    opts[1].zero_grad()
    opts[1].load_state_dict(saved)
    for m, opt in zip((plain, model), opts, strict=True):
        for i in range(3, 6):
            plain_step(m, opt, i)
    alike(plain, model)
    engine = handle.engine
    handle.close()
    for call in (lambda: engine.read(0, "param", 0, 1), lambda: engine.gather(0), engine.stats):
        with pytest.raises(zshard.ZshardError, match="the engine is closed"):
            call()


def test_decoupled_weight_decay_of_some() -> None:
    """The engine's optimizer is one for all groups."""
    model = Net()
    groups = grouped(model, 1e-2)
    groups[0]["decoupled_weight_decay"] = True
    with pytest.raises(ValueError, match="decoupled_weight_decay=False has no counterpart in the engine's adamw"):
        zt.shard(model, torch.optim.Adam(groups, weight_decay=0.1), offload="none")
    opt = torch.optim.Adam(model.parameters(), weight_decay=0.1)
    with zt.shard(model, opt, offload="none"):
        opt.param_groups[0]["decoupled_weight_decay"] = True
        with pytest.raises(ValueError, match="decoupled_weight_decay=True has no counterpart in the engine's adam"):
            plain_step(model, opt, 0)


@pytest.mark.parametrize("apart", [False, True])
def test_clipped_by_a_norm_that_is_not_finite(apart: bool) -> None:
    """Of two models one has a gradient of NaN, and both are clipped together. torch has NaN in both; here neither is
    stepped: not by zeros either, which would move weights by moments."""
    models, opts, handles = [Net(), Net()], [], []
    for model in models:
        some = [g["params"] for g in grouped(model, 1.0)] if apart else [model.parameters()]
        opts += [sgd_of(params) for params in some]
        handles.append(zt.shard(model, opts[-len(some) :], offload="none"))

    def step(by: float) -> None:
        for model, factor in zip(models, (by, 1.0), strict=True):
            (loss_of(model, batch(0)) * factor).backward()
        nn.utils.clip_grad_norm_([p for m in models for p in m.parameters()], 1.0)
        for opt in opts:
            opt.step()
        for opt in opts:
            opt.zero_grad()

    step(1.0)
    before = [zt.full_state_dict(m) for m in models]
    with pytest.warns(UserWarning, match="step 2 was skipped, because a gradient is not finite"):
        step(float("nan"))
    for model, old in zip(models, before, strict=True):
        assert all(torch.equal(v, old[n]) for n, v in zt.full_state_dict(model).items())
    step(1.0)
    for model, old, handle in zip(models, before, handles, strict=True):
        assert not all(torch.equal(v, old[n]) for n, v in zt.full_state_dict(model).items())
        assert handle.step_number == 3
        handle.close()
