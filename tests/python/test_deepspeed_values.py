# ctest: LABELS full COST 20 TIMEOUT 600
"""zshard.deepspeed: values of parameters where DeepSpeed's users read them: between steps below stage 3, after the
engine, and in checkpoints."""

from __future__ import annotations

import copy
import gc
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch


@pytest.fixture
def ds() -> Any:
    import zshard.deepspeed as module
    import zshard.torch as zt

    zt.init()
    return module


class Tied(torch.nn.Module):
    """A first layer whose weight the last one uses again, a frozen layer, a buffer, and an external use."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.frozen, self.last = (torch.nn.Linear(8, 8, bias=bias) for bias in (True, True, False))
        self.last.weight = self.first.weight
        self.frozen.requires_grad_(False)
        self.register_buffer("scale", torch.full((8,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.last(self.frozen(self.first(x)).tanh() * self.scale.to(x.dtype))
        return torch.nn.functional.linear(y, self.first.weight)


def model() -> Tied:
    torch.manual_seed(0)
    return Tied()


def engine_of(ds: Any, stage: int, **more: Any) -> Any:
    made = model()
    config = {"train_batch_size": 4, "optimizer": {"type": "SGD", "params": {"lr": 0.1, "weight_decay": 0.0}},
              "zero_optimization": {"stage": stage}, "gradient_clipping": 0}  # fmt: skip
    return ds.initialize(model=made, model_parameters=made.parameters(), config=config | more)[0]


X = torch.randn(4, 8, generator=torch.Generator().manual_seed(3))


def step(module: Any, engine: Any = None) -> None:
    """Of an engine, or of plain torch."""
    loss = module(X).pow(2).mean()
    if engine is not None:
        engine.backward(loss)
        engine.step()
        return
    loss.backward()
    with torch.no_grad():
        for p in module.parameters():
            if p.grad is not None:
                p -= 0.1 * p.grad
                p.grad = None


def equal(a: torch.nn.Module, b: torch.nn.Module) -> None:
    for (name, p), q in zip(a.named_parameters(), b.parameters(), strict=True):
        assert torch.allclose(p, q, rtol=1e-5, atol=1e-6), name


@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize("mode", ["swap", "view", "copy"])
def test_below_stage_3_parameters_have_their_values(ds: Any, monkeypatch: Any, stage: int, mode: str) -> None:
    """Before, between and after steps, and when the engine has ended; views of them follow."""
    monkeypatch.setenv("ZSHARD_MEMORY", mode)
    engine, want = engine_of(ds, stage), model()
    equal(engine.module, want)
    weight = engine.module.first.weight
    assert weight.ds_status == ds.zero.ZeroParamStatus.AVAILABLE
    view = weight.detach()
    for _ in range(3):
        step(engine, engine)
        step(want)
        equal(engine.module, want)
    engine.empty_partition_cache()
    equal(engine.module, want)
    assert mode != "swap" or torch.equal(view, weight)
    engine.destroy()
    equal(engine.module, want)
    assert mode != "swap" or torch.equal(view, weight)
    step(engine.module)  # an ordinary module
    step(want)
    equal(engine.module, want)
    equal(copy.deepcopy(engine.module), want)


def test_keys_of_zshard(ds: Any) -> None:
    """The block "zshard" reaches the engine; DeepSpeed would ignore it."""
    ours = {"clip_mode": "tensor", "clip_tensor_ratio": 1.5, "clip_tensor_warmup": 2, "node_gather": "auto",
            "moments": "8bit-lo"}  # fmt: skip
    engine = engine_of(ds, 2, zshard=ours, gradient_clipping=1.0)
    options = engine.handle.runtime.engine.options
    assert options["clip_mode"] == 1 and options["node_gather"] == 2
    assert options["clip_tensor_ratio"] == 1.5 and options["clip_tensor_warmup"] == 2
    assert "clip_tensor_beta" not in options and options["moments"] == 4
    step(engine, engine)
    assert 0 < engine.handle.runtime.last.clip_scale <= 1
    engine.destroy()


def test_in_stage_3_they_are_nan(ds: Any) -> None:
    engine = engine_of(ds, 3)
    assert torch.isnan(engine.module.first.weight).all()
    with ds.zero.unwrap_model_for_generation(engine) as unwrapped:
        equal(unwrapped.module, model())
    assert torch.isnan(engine.module.first.weight).all()
    engine.destroy()


@pytest.mark.parametrize("device", ["none", "cpu"])
def test_writes_below_stage_3(ds: Any, device: str) -> None:
    """In GatheredParameters they count; elsewhere the next step refuses them, and the one after it goes on. With the
    state in the daemon, too, whose memory cannot be written."""
    engine, want = engine_of(ds, 2, zero_optimization={"stage": 2, "offload_optimizer": {"device": device}}), model()
    weight = engine.module.first.weight
    with ds.zero.GatheredParameters(weight, modifier_rank=0), torch.no_grad():
        weight.fill_(0.25)
    assert bool((weight == 0.25).all())
    ds.utils.safe_set_full_fp32_param(weight, torch.full((8, 8), 0.125))
    assert bool((weight == 0.125).all())
    engine.module.load_state_dict(want.state_dict())
    equal(engine.module, want)
    step(engine, engine)
    step(want)
    for other_data in (False, True):
        with torch.no_grad():
            if other_data:
                weight.data = weight * 2
            else:
                weight.mul_(2)
        with pytest.raises(RuntimeError, match="'first.weight' was written"):
            step(engine, engine)
        engine.handle.reset()
    ds.utils.safe_set_full_fp32_param(weight, want.first.weight)
    equal(engine.module, want)
    step(engine, engine)
    step(want)
    equal(engine.module, want)
    engine.destroy()


@pytest.mark.parametrize("scaled", [False, True])
def test_a_step_that_is_skipped(ds: Any, scaled: bool) -> None:
    """Is reported where there is no loss scale: DeepSpeed's weights would be NaN. A scale is found by such steps."""
    engine = engine_of(ds, 2, fp16={"enabled": True, "initial_scale_power": 4} if scaled else {"enabled": False})
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            engine.backward(engine.module(X.to(engine.module.first.weight.dtype)).sum() * float("inf"))
            engine.step()
    assert engine.skipped_steps == 2
    assert ["step 1 was skipped" in str(w.message) for w in told if "skipped" in str(w.message)] == [True] * (
        not scaled
    )
    engine.destroy()


def test_a_parameter_may_outlive_its_engine(ds: Any) -> None:
    """It reads as NaN then, and not what the engine's memory holds by chance."""
    engine = engine_of(ds, 2)
    weight = engine.module.first.weight
    assert not torch.isnan(weight).any()
    del engine
    gc.collect()
    assert torch.isnan(weight).all()


def test_writes_in_gathered_parameters_under_init(ds: Any) -> None:
    """Refused without a rank, also before there is an engine; nested blocks send what was written."""
    with ds.zero.Init(dtype=torch.float32):
        made = model()
    weight = made.first.weight
    with pytest.raises(RuntimeError, match="in-place modification"), torch.no_grad():
        with ds.zero.GatheredParameters([weight]):
            weight.add_(0.0)
    with ds.zero.GatheredParameters([weight]), torch.no_grad():
        with ds.zero.GatheredParameters([weight], modifier_rank=0):
            weight.fill_(3)
    with ds.zero.GatheredParameters([weight], modifier_rank=0), torch.no_grad():
        with ds.zero.GatheredParameters([weight]):
            assert bool((weight == 3).all())
            weight.fill_(4)
    with ds.zero.GatheredParameters([weight]):
        assert bool((weight == 4).all())


def test_in_the_middle_of_a_step(ds: Any, tmp_path: Path) -> None:
    """Checkpoints are of the last step; empty_partition_cache() and offload_states() leave the gradients alone."""
    states = ds.runtime.zero.offload_config.OffloadStateTypeEnum
    engine, want = engine_of(ds, 3, train_micro_batch_size_per_gpu=2), model()
    for half in (X[:2], X[2:]):
        engine.backward(engine(half).pow(2).mean())
        engine.empty_partition_cache()
        engine.offload_states(include=[states.optim_states], device="cpu")
        engine.reload_states()
        assert engine.save_checkpoint(str(tmp_path)) and engine.save_16bit_model(str(tmp_path))
        engine.step()
    step(want)
    with ds.zero.GatheredParameters(list(engine.parameters())):
        equal(engine.module, want)
    engine.load_checkpoint(str(tmp_path))
    with ds.zero.GatheredParameters(list(engine.parameters())):
        equal(engine.module, model())
    engine.destroy()


def test_switches_may_be_numbers(ds: Any) -> None:
    """1 and 0 for true and false, of each key that docs/CONFIG.md has as such; other numbers are refused."""
    from zshard.deepspeed import _config

    text = Path(__file__).parents[2].joinpath("docs", "CONFIG.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([^`]+)` \| ([^|]*?) \|", text, re.M)
    assert {name for name, kind in rows if kind == "bool"} == _config._BOOLS
    assert not _config._BOOLS & {name for name, kind in rows if kind != "bool"}
    base = {"train_batch_size": 1, "zero_optimization": {"stage": 3, "overlap_comm": 0}, "bf16": {"enabled": 1}}
    made = _config.read(base, 1)
    assert made.dtype == torch.bfloat16 and made.engine["reduce_waits"]
    with pytest.raises(ds.DeepSpeedConfigError, match="bf16.enabled"):
        _config.read(base | {"bf16": {"enabled": 2}}, 1)


@pytest.mark.parametrize("stage", [1, 3])
def test_zero_to_fp32(ds: Any, tmp_path: Path, stage: int) -> None:
    """The state dict of a checkpoint, a model that gets it, and files."""
    from zshard.deepspeed.utils import zero_to_fp32 as z

    engine = engine_of(ds, stage, bf16={"enabled": True})
    step(lambda x: engine(x.bfloat16()), engine)
    master = ds.utils.safe_get_full_fp32_param(engine.module.first.weight)
    engine.save_checkpoint(str(tmp_path))
    made = z.get_fp32_state_dict_from_zero_checkpoint(tmp_path)
    assert made.keys() == model().state_dict().keys() and {t.dtype for t in made.values()} == {torch.float32}
    assert torch.equal(made["first.weight"], master) and made["last.weight"] is made["first.weight"]
    without = z.get_fp32_state_dict_from_zero_checkpoint(tmp_path, "global_step1", exclude_frozen_parameters=True)
    assert made.keys() - without.keys() == {"frozen.weight", "frozen.bias"}
    fresh = z.load_state_dict_from_zero_checkpoint(Tied(), tmp_path)
    assert torch.equal(fresh.first.weight, master)
    given = z.load_state_dict_from_zero_checkpoint(engine.module, tmp_path)  # it leaves the engine
    assert given is engine.module and torch.equal(given.first.weight, master.bfloat16())
    z.convert_zero_checkpoint_to_fp32_state_dict(tmp_path, tmp_path / "a")
    assert torch.equal(torch.load(tmp_path / "a" / "pytorch_model.bin")["first.weight"], master)
    z.convert_zero_checkpoint_to_fp32_state_dict(tmp_path, tmp_path / "b", safe_serialization=True)
    assert (tmp_path / "b" / "model.safetensors").is_file()
    for error, call in [
        (ValueError, lambda: z.get_fp32_state_dict_from_zero_checkpoint(tmp_path / "a")),
        (FileNotFoundError, lambda: z.get_fp32_state_dict_from_zero_checkpoint(tmp_path, "none")),
        (NotImplementedError, lambda: z.get_fp32_state_dict_from_zero_checkpoint(tmp_path, lazy_mode=True)),
    ]:
        with pytest.raises(error):
            call()


def test_the_accelerator(ds: Any) -> None:
    """Names that do not depend on the device."""
    it = ds.get_accelerator()
    assert torch.float32 in it.supported_dtypes() and it.total_memory() >= it.available_memory() > 0
    it.manual_seed(5)
    state = it.get_rng_state()
    assert it.initial_seed() == 5
    a = torch.rand(3)
    it.set_rng_state(state)
    if it.device_name() == "cpu":
        assert torch.equal(torch.rand(3), a)
