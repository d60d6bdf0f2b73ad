# ctest: TRAINER LABELS full COST 25
"""Steps that begin during the backward pass, and rings, by the doors of DeepSpeed, Accelerate and Trainer: what they
know about a step reaches the engine, and the bits are those of steps that are not announced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import early_daemon
import pytest
import torch
from early_daemon import net, pages_early
from torch_models import Net, assert_same, batch, loss_of, values

import zshard.torch as zt
from zshard._engine import Engine

NVME = {"device": "nvme"}
TENSOR = {"clip_mode": "tensor", "clip_tensor_warmup": 1}


@pytest.fixture(scope="module")
def socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with early_daemon.daemon(tmp_path_factory.mktemp("doors")) as made:
        zt.init(socket=made)
        yield made
        zt.init()


@pytest.fixture
def announced(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The divisor of each step that is announced."""
    made: list[float] = []
    call = Engine.announce_by

    def seen(self: Engine, *args: Any, **more: Any) -> None:
        made.append(more["divide"])
        call(self, *args, **more)

    monkeypatch.setattr(Engine, "announce_by", seen)
    return made


# ---- DeepSpeed


def engine_of(model: torch.nn.Module, n: int, ours: dict[str, Any], **more: Any) -> Any:
    import zshard.deepspeed as ds

    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": n,
        "gradient_clipping": 0.5,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "eps": 1e-4}},
        "zero_optimization": {"stage": 3, "offload_optimizer": NVME, "offload_param": NVME},
        "zshard": ours,
    }
    return ds.initialize(model=model, model_parameters=model.parameters(), config=config | more)[0]


def deepspeed(n: int, ours: dict[str, Any], bare: bool = False, **more: Any) -> dict[str, torch.Tensor]:
    """Parameters after 3 steps."""
    torch.manual_seed(0)
    model = net()
    engine = engine_of(model, n, ours, **more)
    for i in range(3 * n):
        loss = loss_of(engine, batch(i))
        if bare:
            loss.backward()
        else:
            engine.backward(loss)
        engine.step()
    assert engine.global_steps == 3
    made = values(model)
    engine.destroy()
    return made


@pytest.mark.parametrize("ours", [TENSOR, {"clip_mode": "none"}], ids=["tensor", "none"])
@pytest.mark.parametrize(("n", "bare"), [(1, False), (2, False), (2, True)])
def test_deepspeed(
    socket: str, announced: list[float], monkeypatch: pytest.MonkeyPatch, n: int, bare: bool, ours: dict[str, Any]
) -> None:
    from zshard.deepspeed import _initialize

    before = pages_early(socket)
    ring = deepspeed(n, {**ours, "grad_ring": True}, bare)
    assert pages_early(socket) > before
    before = pages_early(socket)
    early = deepspeed(n, ours, bare)
    assert pages_early(socket) > before
    assert announced == [float(n if bare else 1)] * 6
    monkeypatch.setattr(_initialize, "_early", lambda settings, trains: {})
    before = pages_early(socket)
    want = deepspeed(n, ours, bare)
    assert pages_early(socket) == before and len(announced) == 6
    assert_same(want, early)
    assert_same(want, ring)  # on one rank adding up here and there is the same


def test_deepspeeds_boundary(socket: str, announced: list[float]) -> None:
    """set_gradient_accumulation_boundary(), as Accelerate uses it: a shorter step, a longer one."""
    torch.manual_seed(0)
    model = net()
    engine = engine_of(model, 2, {"clip_mode": "none", "grad_ring": True})
    for i, last in enumerate([True, False, False, False, True]):
        engine.set_gradient_accumulation_boundary(last)
        engine.backward(loss_of(engine, batch(i)))
        assert len(announced) == (1 if i < 4 else 2)
        engine.step()
    assert engine.global_steps == 2
    engine.destroy()


def test_deepspeeds_step_again(socket: str) -> None:
    """A learning rate that changed too late is set back, and the step is made."""
    made = []
    for late in (False, True):
        torch.manual_seed(0)
        model = net()
        engine = engine_of(model, 2, {"clip_mode": "none"})
        for i in range(4):
            engine.backward(loss_of(engine, batch(i)))
            if late and i == 3:
                engine.optimizer.param_groups[0]["lr"] = 0.5
                with pytest.raises(RuntimeError, match="'lr' of group 0 is 0.5"):
                    engine.step()
                engine.optimizer.param_groups[0]["lr"] = 1e-2
            engine.step()
        assert engine.global_steps == 2
        made.append(values(model))
        engine.destroy()
    assert_same(*made)


FP16 = {"fp16": {"enabled": True, "loss_scale": 0}}


@pytest.mark.parametrize(
    ("ours", "more", "words"),
    [
        ({"grad_ring": True}, {}, "zshard.grad_ring: clipping by a global norm"),
        ({"grad_ring": True, **TENSOR}, FP16, "zshard.grad_ring: with a dynamic loss scale"),
    ],
    ids=["global", "fp16"],
)
def test_keys_that_contradict(socket: str, ours: dict[str, Any], more: dict[str, Any], words: str) -> None:
    from zshard.deepspeed._config import DeepSpeedConfigError

    with pytest.raises(DeepSpeedConfigError, match=words):
        engine_of(Net(), 1, ours, **more)


def test_deepspeed_without_early_steps(socket: str, announced: list[float]) -> None:
    """With global clipping, and with a dynamic loss scale."""
    for ours, more in (({}, {}), (TENSOR, FP16)):
        model = Net()
        engine = engine_of(model, 1, ours, **more)
        engine.backward(loss_of(engine, batch(0)))
        engine.step()
        engine.destroy()
    assert announced == []


def test_a_fixed_scale(socket: str, announced: list[float]) -> None:
    engine = engine_of(Net(), 1, TENSOR, fp16={"enabled": True, "loss_scale": 64})
    for i in range(2):
        engine.backward(loss_of(engine, batch(i)))
        engine.step()
    assert announced == [64.0] * 2 and engine.was_step_applied()
    engine.destroy()


def test_more_micro_steps_later(socket: str) -> None:
    engine = engine_of(net(), 1, {"clip_mode": "none", "grad_ring": True})
    with pytest.raises(ValueError, match="grad_ring was set up for one micro-step"):
        engine.set_train_batch_size(4)
    engine.destroy()


# ---- Trainer, Accelerate


def trainer(folder: Path, shard: dict[str, Any], n: int, **more: Any) -> Any:
    import transformers
    from hf_models import Data, build

    class Ours(zt.TrainerMixin, transformers.Trainer):  # type: ignore[misc]
        """Trainer on zshard."""

    given = {
        "output_dir": str(folder), "per_device_train_batch_size": 2, "gradient_accumulation_steps": n,
        "num_train_epochs": 1, "learning_rate": 5e-3, "logging_steps": 1, "report_to": "none", "use_cpu": True,
        "save_strategy": "no", "max_grad_norm": 0.5, "disable_tqdm": True, "seed": 1,
    }  # fmt: skip
    args = transformers.TrainingArguments(**given | more)
    return Ours(build("llama"), args=args, train_dataset=Data(10), shard={"offload": "nvme", **shard})


@pytest.mark.parametrize("n", [1, 2])
def test_trainer(socket: str, announced: list[float], tmp_path: Path, n: int) -> None:
    """Also the last step of an epoch, which has fewer passes; `max_grad_norm` is the limit of the warm-up."""
    pytest.importorskip("transformers")
    made = []
    local = {"accumulate": "local"}
    for shard in (
        {"gradient_accumulation_steps": None, "clip": 0.5, **local},
        local,
        {"grad_ring": True, **local},
    ):
        announced.clear()
        one = trainer(tmp_path, {**TENSOR, **shard}, n, max_grad_norm=0.5 if "clip" not in shard else 0.0)
        one.train()
        assert len(announced) == (0 if "clip" in shard else one.state.global_step)
        assert one.model._zshard.runtime.step_clip == 0.5
        made.append({k: v.clone() for k, v in one.model.state_dict().items()})
        one.model._zshard.close()
    assert_same(made[0], made[1])
    assert_same(made[0], made[2])


def test_trainer_that_clips_twice(socket: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(ValueError, match="set max_grad_norm=0"):
        trainer(tmp_path, {"clip_mode": "none"}, 1)


def test_accelerate(socket: str, announced: list[float]) -> None:
    """accumulate() marks the passes; the number is asked for."""
    pytest.importorskip("accelerate")
    from accelerate.state import AcceleratorState, GradientState

    made = []
    for said in (None, "no_sync"):
        AcceleratorState._reset_state()
        GradientState._reset_state()
        torch.manual_seed(0)
        shard = {"offload": "nvme", "clip_mode": "none", "gradient_accumulation_steps": said}
        accelerator = zt.Accelerator(cpu=True, gradient_accumulation_steps=2, shard=shard)
        model = net()
        opt = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)
        loader = torch.utils.data.DataLoader([batch(i)[0] for i in range(10)], batch_size=2)
        model, opt, loader = accelerator.prepare(model, opt, loader)
        for x in loader:
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model, x))
                opt.step()
                opt.zero_grad()
        assert len(announced) == (3 if said else 0)  # 5 passes: the last step has one
        made.append(values(model))
        model.__dict__["_zshard"].close()
    assert_same(*made)
