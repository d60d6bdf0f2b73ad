# ctest: LABELS full COST 20 TIMEOUT 300
"""What a checkpoint of zshard.deepspeed restores besides tensors: counts, the scheduler, fp16's loss scale."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

import zshard.convert as zc
import zshard.deepspeed as ds
import zshard.torch as zt
from zshard.deepspeed._scaler import LossScaler

STEPS = 8  # after the checkpoint
ADAM = {"type": "Adam", "params": {"lr": 0.01}}
BASE = {"train_batch_size": 4, "optimizer": ADAM, "gradient_clipping": 0, "zero_optimization": {"stage": 3}}
WARM = {"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.01, "warmup_num_steps": 12}}}
MICRO = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 4}
# Overflows in steps 1 to 4, then doubles every third step, and overflows again.
FP16 = {"fp16": {"enabled": True, "initial_scale_power": 26, "loss_scale_window": 3, "hysteresis": 2}}
FIXED = {"fp16": {"enabled": True, "loss_scale": 64.0}}
CASES = [
    ("plain", {}, 3),
    ("scheduler", WARM, 3),
    ("accumulation", MICRO | WARM, 2),
    ("bf16", {"bf16": {"enabled": True}} | WARM, 3),
    *((f"fp16 after step {n}", FP16 | WARM, n) for n in (1, 2, 4, 7, 9)),
    ("fp16 in fixed scale", FIXED, 2),
    ("fp16, stage 1", FP16 | {"zero_optimization": {"stage": 1}}, 6),
]


def tiny() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))


def engine_of(config: dict[str, Any]) -> Any:
    return ds.initialize(model=tiny(), config=BASE | config)[0]


def step(engine: Any, number: int) -> float:
    loss = torch.zeros(())
    for i in range(engine.gradient_accumulation_steps()):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * number + i))
        loss = engine(x.to(engine._settings.dtype)).float().pow(2).mean()
        engine.backward(loss)
        engine.step()
    return loss.item()


def state(engine: Any) -> dict[str, Any]:
    """What a script may ask for."""
    return {
        "global_steps": engine.global_steps,
        "global_samples": engine.global_samples,
        "skipped_steps": engine.skipped_steps,
        "micro_steps": engine.micro_steps,
        "boundary": engine.is_gradient_accumulation_boundary(),
        "lr": engine.get_lr(),
        "betas": engine.get_mom(),
        "scheduler": engine.lr_scheduler.state_dict() if engine.lr_scheduler else None,
        "loss_scale": engine.loss_scale(),
        "scaler": engine.optimizer.loss_scaler.state(),
    }


@pytest.fixture
def daemon() -> None:
    zt.init()


@pytest.mark.parametrize(("name", "config", "at"), CASES, ids=[c[0] for c in CASES])
def test_a_loaded_engine_is_where_the_saved_one_was(
    daemon: None, tmp_path: Path, name: str, config: dict[str, Any], at: int
) -> None:
    """At once, and after each of the next steps, whose losses are the same."""
    engine = engine_of(config)
    for i in range(at):
        step(engine, i)
    engine.save_checkpoint(str(tmp_path), client_state={"name": name})
    want = [(state(engine), step(engine, at + i)) for i in range(STEPS)]
    engine.destroy()
    if "fp16" in config and name != "fp16 in fixed scale":
        assert len({row["loss_scale"] for row, _ in want}) > 1  # the scale moved
    again = engine_of(config)
    _, client = again.load_checkpoint(str(tmp_path))
    got = [(state(again), step(again, at + i)) for i in range(STEPS)]
    again.destroy()
    assert client == {"name": name}
    for row, (mine, theirs) in enumerate(zip(got, want, strict=True)):
        assert mine == theirs, f"{row} steps after the load"


@pytest.mark.parametrize(
    ("how", "kept"),
    [({"load_module_only": True}, 0), ({"load_optimizer_states": False}, 4), ({}, 4)],
    ids=["module", "no optimizer", "all"],
)
def test_parts_of_a_checkpoint(daemon: None, tmp_path: Path, how: dict[str, bool], kept: int) -> None:
    """The loss scale is part of the optimizer, as DeepSpeed has it."""
    engine = engine_of(FP16)
    for i in range(4):
        step(engine, i)
    scale = engine.loss_scale()
    engine.save_checkpoint(str(tmp_path))
    engine.destroy()
    again = engine_of(FP16)
    again.load_checkpoint(str(tmp_path), **how)
    assert again.global_steps == again.skipped_steps == kept
    assert again.loss_scale() == (scale if not how else 2.0**26)
    again.destroy()


@pytest.mark.parametrize("form", ["universal", "zero", "portable"])
def test_deepspeeds_files_have_it_too(daemon: None, tmp_path: Path, form: str) -> None:
    """There and back through a form: the run goes on as it would have gone on."""
    engine = engine_of(FP16 | WARM)
    for i in range(7):
        step(engine, i)
    engine.save_checkpoint(str(tmp_path / "ours"))
    want = [(state(engine), step(engine, 7 + i)) for i in range(STEPS)]
    engine.destroy()
    zc.convert(tmp_path / "ours", tmp_path / "theirs", form, out_tag="global_step7")
    (tmp_path / "theirs" / "latest").write_text("global_step7")
    again = engine_of(FP16 | WARM)
    again.load_checkpoint(str(tmp_path / "theirs"))
    assert [(state(again), step(again, 7 + i)) for i in range(STEPS)] == want
    again.destroy()


def test_the_smallest_scale_ends_the_run(daemon: None) -> None:
    engine = engine_of({"fp16": {"enabled": True, "initial_scale_power": 4, "hysteresis": 1, "min_loss_scale": 8}})
    x = torch.full((4, 8), 1e4, dtype=torch.float16)
    with pytest.raises(RuntimeError, match="loss scale is 8, its minimum"):
        for _ in range(2):
            engine.backward(engine(x).float().pow(2).mean() * 1e4)
            engine.step()
    assert engine.global_steps == 1
    engine.destroy()


RULES = [
    {"dynamic": True, "power": power, "window": window, "hysteresis": hysteresis, "consecutive": consecutive, "min": 1}
    for power, window, hysteresis, consecutive in [
        (16, 2, 1, False), (16, 2, 2, False), (20, 3, 3, True), (12, 1, 2, True), (126, 1, 1, False)]
]  # fmt: skip


@pytest.mark.parametrize("rules", RULES, ids=lambda r: "-".join(str(v) for v in r.values()))
def test_the_rules_are_the_engines(daemon: None, rules: dict[str, Any]) -> None:
    """The same scales as the engine's in C, over steps of which some overflow."""
    model = torch.nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    handle = zt.shard(model, optimizer, loss_scale=rules)
    mine, dice = LossScaler(rules), random.Random(1)
    for _ in range(40):
        assert mine.cur_scale == handle.engine.loss_scale
        overflow = dice.random() < 0.3
        model(torch.ones(1, 2)).sum().mul(float("inf") if overflow else 1.0).backward()
        optimizer.step()
        optimizer.zero_grad()
        mine.update(overflow)
    handle.close()
