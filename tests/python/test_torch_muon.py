# ctest: LABELS full COST 15
"""Muon for PyTorch modules: a model with grouped-query attention against plain fp32 PyTorch in one process."""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import zygote
from muon_models import BETAS, EPS, LR, STEPS, WEIGHT_DECAY, Gqa, is_matrix, loss_of, plain
from own_daemon import ROOT, Daemon
from ports import free_port
from torch import nn

import zshard.deepspeed as zd
import zshard.torch as zt
from zshard.torch._units import plan

SHORT = 8  # steps of several ranks
BOUNDS = {"f32": 1e-5, "bf16": 0.05, "q8": 0.4}  # absolute; rms of what the steps change


@pytest.fixture(scope="module")
def want() -> dict[str, torch.Tensor]:
    torch.set_num_threads(1)
    return plain()


@pytest.fixture(scope="module")
def short() -> dict[str, torch.Tensor]:
    return plain(SHORT)


def train(model: nn.Module, *opts: Any, first: int = 0, steps: int = STEPS) -> None:
    for step in range(first, steps):
        loss_of(model, step).backward()
        for opt in opts:
            opt.step()
            opt.zero_grad()


def off(ours: dict[str, Any], theirs: dict[str, Any], exact: bool = True) -> float:
    """The largest absolute difference; or the rms of all."""
    each = torch.cat([(ours[n].detach() - t).flatten() for n, t in theirs.items()])
    return float(each.abs().max() if exact else each.square().mean().sqrt())


def trained(make: Callable[[nn.Module], Any], **how: Any) -> dict[str, torch.Tensor]:
    model = Gqa()
    opts = make(model)
    opts = opts if isinstance(opts, list) else [opts]
    with zt.shard(model, opts, offload="none", **how):
        train(model, *opts)
        return zt.full_state_dict(model)


def torch_pair(model: nn.Module) -> list[torch.optim.Optimizer]:
    named = list(model.named_parameters())
    muon = torch.optim.Muon([p for n, p in named if is_matrix(n, p)], lr=LR, weight_decay=WEIGHT_DECAY,
                            adjust_lr_fn="match_rms_adamw")  # fmt: skip
    rest = [p for n, p in named if not is_matrix(n, p)]
    return [torch.optim.AdamW(rest, lr=LR, betas=BETAS, eps=EPS, weight_decay=WEIGHT_DECAY), muon]


def is_matrix_name(name: str) -> bool:
    return name.startswith("layers.") and name.endswith("weight") and "norm" not in name


@pytest.mark.parametrize("moments", BOUNDS)
def test_gqa(moments: str, want: dict[str, torch.Tensor]) -> None:
    got, exact = trained(zt.Muon, moments=moments), moments == "f32"
    moved = off(dict(Gqa().named_parameters()), want, exact)
    assert off(got, want, exact) <= BOUNDS[moments] * (1 if exact else moved) < moved / 2


def test_the_pair_of_torch(want: dict[str, torch.Tensor]) -> None:
    """torch.optim.Muon and AdamW: the same bits as ours, in either order."""
    ours = trained(zt.Muon)
    for order in (1, -1):
        pair = trained(lambda model, order=order: torch_pair(model)[::order])
        assert all(torch.equal(t, ours[n]) for n, t in pair.items())


def test_scale_and_groups() -> None:
    """The other scale, another learning rate for everything else; chosen by groups, attributes or a function."""
    want = plain(5, "shape", lr=3e-3, weight_decay=0.0)
    rest = {"lr": 3e-3, "weight_decay": 0.0}

    def by_groups(model: nn.Module) -> Any:
        named = list(model.named_parameters())
        groups = [
            {"params": [p for n, p in named if is_matrix(n, p)], "use_muon": True},
            {"params": [p for n, p in named if not is_matrix(n, p)], "use_muon": False, **rest},
        ]
        return zt.Muon(groups, scale="shape")

    def by_attribute(model: nn.Module) -> Any:
        for n, p in model.named_parameters():
            p.use_muon = is_matrix(n, p)  # type: ignore[attr-defined]
        opt = zt.Muon(model.parameters(), scale="shape")
        opt.param_groups[1] |= rest
        return opt

    def by_function(model: nn.Module) -> Any:
        return zt.Muon(model, scale="shape", select=is_matrix, adamw=rest)

    for make in (by_groups, by_attribute, by_function):
        model = Gqa()
        opt = make(model)
        with zt.shard(model, opt, offload="none"):
            train(model, opt, steps=5)
            assert off(zt.full_state_dict(model), want) <= 1e-5


def test_units_and_state() -> None:
    """Matrices are units of their own, so they have one moment. A loaded state_dict() continues with the same bits."""
    whole = trained(zt.Muon)
    model = Gqa()
    opt = zt.Muon(model)
    handle = zt.shard(model, opt, offload="none")
    units = {u.name: u for u in handle.runtime.plan.units}
    assert [n for n, u in units.items() if u.muon] == ["layers.0-muon", "layers.1-muon"]
    muon = {p.name for u in units.values() if u.muon for p in u.pieces}
    assert muon == {n for n in dict(model.named_parameters()) if is_matrix_name(n)}
    train(model, opt, steps=8)
    matrix, vector = model.layers[0].attention.v.weight, model.layers[0].attention.v.bias  # type: ignore[union-attr, index]
    assert set(opt.state[matrix]) == {"step", "momentum_buffer"}
    assert set(opt.state[vector]) == {"step", "exp_avg", "exp_avg_sq"}
    assert zt.state_of(matrix, "momentum_buffer").abs().max() > 0
    with pytest.raises(ValueError, match="there is no state 'exp_avg_sq'"):
        zt.state_of(matrix, "exp_avg_sq")
    saved, weights = copy.deepcopy(opt.state_dict()), zt.full_state_dict(model)
    handle.close()
    again = Gqa()
    again.load_state_dict(weights)
    opt = zt.Muon(again)
    opt.load_state_dict(saved)
    with zt.shard(again, opt, offload="none"):
        train(again, opt, first=8)
        assert all(torch.equal(t, whole[n]) for n, t in zt.full_state_dict(again).items())


def test_overflow(tmp_path: Path) -> None:
    """fp16: a step that is skipped changes neither weights nor momentum; the one after it does."""
    model = Gqa()
    config = {
        "train_micro_batch_size_per_gpu": 6, "fp16": {"enabled": True, "initial_scale_power": 4, "hysteresis": 1},
        "optimizer": {"type": "Muon", "params": {"lr": LR, "weight_decay": WEIGHT_DECAY}},
        "zero_optimization": {"stage": 0}}  # fmt: skip
    engine, opt, _, _ = zd.initialize(model=model, config=config)
    assert isinstance(opt, zt.Muon) and {g["scale"] for g in opt.param_groups} == {"shape"}
    by_muon = {id(p) for p in opt.param_groups[0]["params"]}
    assert {n for n, p in model.named_parameters() if id(p) in by_muon} == {
        n for n in dict(model.named_parameters()) if is_matrix_name(n) or n == "head.weight"
    }  # as DeepSpeed chooses
    matrix = model.layers[1].up.weight  # type: ignore[union-attr, index]

    def now() -> list[torch.Tensor]:
        return [zt.state_of(matrix, n).clone() for n in ("master", "momentum_buffer")]

    seen = []
    for step, factor in enumerate((1.0, float("inf"), 1.0)):
        engine.backward(loss_of(engine, step) * factor)
        engine.step()
        seen.append(now())
    assert engine.skipped_steps == 1
    assert all(torch.equal(a, b) for a, b in zip(seen[0], seen[1], strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(seen[1], seen[2], strict=True))
    assert seen[0][1].abs().max() > 0
    engine.destroy()


def ranks(daemon: Daemon, world: int, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The weights that ranks end with in each case, one after the other."""
    port = str(free_port())
    words = [sys.executable, ROOT / "tests" / "python" / "muon_ranks.py", daemon.folder, json.dumps(cases)]
    made = []
    for rank in range(world):
        env = os.environ | {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1",
            "ZSHARD_PORT": port, "MASTER_PORT": port, "ZSHARD_COMM": "tcp", "OMP_NUM_THREADS": "1",
            "ZSHARD_SOCKET": daemon.socket, "PYTHONPATH": str(ROOT / "python")}  # fmt: skip
        made.append(zygote.Popen(words, env=env))
    assert [r.wait(200) for r in made] == [0] * world
    return [torch.load(daemon.folder / (case["name"] + ".pt")) for case in cases]


# What fails in DeepSpeed's Muon, by the number of the issue there.
ISSUES: dict[str, dict[str, Any]] = {
    "8463": {"shard": {"stage": 2, "offload": "host"}},  # offloaded shards are flat, and lose the matrix
    "8438": {"shard": {"stage": 3, "offload": "nvme"}},  # with partitioned parameters none of them is Muon's
    "8441": {"shard": {"stage": 0, "offload": "none"}},  # at stage 0 it is SGD
    "8600": {"shard": {"stage": 1, "offload": "host"}, "micros": 3},  # it orthogonalizes each micro-batch
}


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The weights of two ranks in each of these cases."""
    daemon = Daemon(tmp_path_factory.mktemp("muon"))
    try:
        cases = [{"name": n, "steps": SHORT, **case} for n, case in ISSUES.items()]
        yield dict(zip(ISSUES, ranks(daemon, 2, cases), strict=True))
    finally:
        daemon.kill()


@pytest.mark.parametrize("issue", ISSUES)
def test_deepspeed_issue(issue: str, two_ranks: dict[str, Any], short: dict[str, torch.Tensor]) -> None:
    assert off(two_ranks[issue], short) <= 1e-5


def test_other_numbers_of_ranks(daemon: Daemon, short: dict[str, torch.Tensor]) -> None:
    """Checkpoints of 3 ranks go on with 2, and then with 1."""
    how = {"shard": {"stage": 3, "offload": "nvme"}}
    three = {"name": "three", "steps": 3, "form": "portable", **how}
    two = {"name": "two", "steps": 6, "load": "three", "form": "universal", **how}
    ranks(daemon, 3, [three])
    ranks(daemon, 2, [two])
    (got,) = ranks(daemon, 1, [{"name": "one", "steps": SHORT, "load": "two", **how}])
    assert off(got, short) <= 1e-5


def test_refused() -> None:
    model = Gqa()
    with pytest.raises(ValueError, match=r"Muon has to know which matrices it steps: .* muon_groups\(model\)"):
        zt.Muon(model.parameters())
    with pytest.raises(ValueError, match=r"'norm.weight' has 1 dimensions: Muon steps matrices"):
        zt.Muon(model, select=lambda n, p: n == "norm.weight")
    with pytest.raises(ValueError, match="scale='huge'"):
        zt.Muon(model, scale="huge")
    opt = zt.Muon(model)
    with zt.shard(model, opt, offload="none"):
        opt.param_groups[0]["use_muon"] = False
        loss_of(model, 0).backward()
        with pytest.raises(ValueError, match=r"'layers.0.* was sharded for Muon, and is now in a group of another"):
            opt.step()
    model = Gqa()
    with zt.shard(model, offload="none"):
        loss_of(model, 0).backward()
        with pytest.raises(ValueError, match="Muon is chosen when a model is sharded"):
            zt.Muon(model).step()
    with pytest.raises(ValueError, match="ns_steps=3 has no counterpart"):
        zt.shard(Gqa(), torch.optim.Muon([next(iter(Gqa().parameters()))], ns_steps=3), offload="none")
    tied = Gqa()
    tied.head.weight = tied.embed.weight
    assert not [u for u in plan(tied).units if u.muon]
