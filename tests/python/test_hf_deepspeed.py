# ctest: TRAINER LABELS full COST 90 TIMEOUT 900
"""Transformers' Trainer and TRL's SFTTrainer with `deepspeed=`, under zshard.run, against the same run without."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import zygote
from ports import free_port

pytest.importorskip("transformers")
pytest.importorskip("accelerate")
if importlib.util.find_spec("deepspeed") is not None:
    pytest.skip("DeepSpeed itself is installed here", allow_module_level=True)

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.path.join(HERE, "hf_program.py")
SECONDS = 300
AUTO = {
    "train_micro_batch_size_per_gpu": "auto", "train_batch_size": "auto", "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto", "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
}  # fmt: skip


def json_of(tmp_path: Path, stage: int, offload: str = "none", optimizer: bool = True, **more: Any) -> str:
    zero: dict[str, Any] = {"stage": stage, "reduce_bucket_size": "auto"}
    if offload != "none":
        zero["offload_optimizer"] = {"device": offload}
    if stage == 3:
        zero |= {"stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto",
                 "stage3_gather_16bit_weights_on_model_save": True}  # fmt: skip
        if offload != "none":
            zero["offload_param"] = {"device": offload}
    config = {k: v for k, v in AUTO.items() if optimizer or k != "optimizer"} | {"zero_optimization": zero} | more
    path = tmp_path / f"ds-{stage}-{offload}.json"
    path.write_text(json.dumps(config))
    return str(path)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a tiny GPT-2."""
    folder = str(tmp_path_factory.mktemp("gpt2"))
    zygote.run(
        [sys.executable, "-c", f"import hf_program; hf_program.make_model({folder!r})"],
        cwd=HERE,
        preload=zygote.TRAINER,
        check=True,
        timeout=120,
    )
    return folder


def run(tmp_path: Path, name: str, case: dict[str, Any], world: int, config: str | None) -> list[dict[str, Any]]:
    """What each rank wrote."""
    at = str(free_port())
    out = str(tmp_path / name)
    case = {"dir": str(tmp_path / f"{name}.dir")} | case
    words = [sys.executable, "-B", *(["-m", "zshard.run"] if config else []), PROGRAM, out, json.dumps(case)]
    words += [config] if config else []
    ranks = []
    for rank in range(world):
        env = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1"}
        if world > 1 or config:
            env |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1",
                    "LOCAL_WORLD_SIZE": str(world), "MASTER_PORT": at}  # fmt: skip
        preload = zygote.BELOW_TRANSFORMERS if config else zygote.TRAINER
        options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        ranks.append(zygote.Popen(words, preload=preload, env=env, **options))
    try:
        errors = [process.communicate(timeout=SECONDS)[1] for process in ranks]
        failed = [err[-3000:] for process, err in zip(ranks, errors, strict=True) if process.returncode != 0]
        assert not failed, "\n".join(failed)
    finally:
        for process in ranks:
            process.kill()
    made = [json.loads(Path(f"{out}.{rank}").read_text(encoding="utf-8")) for rank in range(world)]
    if config:
        assert all(m["engine"].startswith("zshard.deepspeed") for m in made)
    return made


def same(got: list[dict[str, Any]], want: list[dict[str, Any]], rel: float = 2e-6) -> None:
    for mine, theirs in zip(got, want, strict=True):
        for key in ("losses", "evals", "norms"):
            assert mine[key] == pytest.approx(theirs[key], rel=rel * (10 if key == "norms" else 1)), key
        assert mine["steps"] == theirs["steps"]


@pytest.mark.parametrize(
    ("stage", "offload", "world"),
    [
        (3, "nvme", 2),
        pytest.param(2, "cpu", 1, marks=pytest.mark.long),
        pytest.param(3, "none", 1, marks=pytest.mark.long),
        pytest.param(2, "none", 2, marks=pytest.mark.long),
    ],
)  # fmt: skip
def test_trainer(tmp_path: Path, model: str, stage: int, offload: str, world: int) -> None:
    """Losses, norms and evaluations; accumulation with a short last step, checkpointing, clipping, generation."""
    case = {
        "model": model, "rows": 10 * world, "generate": True,
        "args": {"gradient_accumulation_steps": 2, "max_steps": -1, "num_train_epochs": 2, "eval_strategy": "epoch",
                 "gradient_checkpointing": True, "max_grad_norm": 0.5},
    }  # fmt: skip
    config = json_of(tmp_path, stage, offload)
    got, want = run(tmp_path, "ours", case, world, config), run(tmp_path, "plain", case, world, None)
    same(got, want)
    assert got[0]["tokens"] == want[0]["tokens"]


@pytest.mark.long
def test_bf16(tmp_path: Path, model: str) -> None:
    """bf16 parameters with fp32 masters; plain Trainer's bf16 is autocast with fp32 parameters."""
    case = {"model": model, "args": {"bf16": True}}
    got = run(tmp_path, "ours", case, 1, json_of(tmp_path, 3, "cpu"))
    assert got[0]["losses"] == pytest.approx(run(tmp_path, "plain", case, 1, None)[0]["losses"], rel=2e-3)


def test_resume_and_best_model(tmp_path: Path, model: str) -> None:
    """A run that resumes from its checkpoint has the losses of the one that went on; the best model is loaded."""
    args = {"save_strategy": "steps", "save_steps": 3, "eval_strategy": "steps", "eval_steps": 3, "max_steps": 6,
            "load_best_model_at_end": True}  # fmt: skip
    config = json_of(tmp_path, 3, "cpu")
    (whole,) = run(tmp_path, "whole", {"model": model, "args": args}, 1, config)
    assert whole["best"]
    checkpoint = str(tmp_path / "whole.dir" / "checkpoint-3")
    assert os.path.isdir(os.path.join(checkpoint, "global_step3"))
    (again,) = run(tmp_path, "again", {"model": model, "args": args, "resume": checkpoint}, 1, config)
    assert again["losses"][-3:] == whole["losses"][-3:]


def test_saved_models_open_in_transformers(tmp_path: Path, model: str) -> None:
    case = {"model": model, "save": str(tmp_path / "saved"), "args": {"max_steps": 1, "learning_rate": 0.0}}
    run(tmp_path, "ours", case, 1, json_of(tmp_path, 3, "none"))
    from transformers import AutoModelForCausalLM

    want = AutoModelForCausalLM.from_pretrained(model).state_dict()
    for name, value in AutoModelForCausalLM.from_pretrained(str(tmp_path / "saved")).state_dict().items():
        assert torch.equal(value, want[name]), name


@pytest.mark.parametrize(
    ("kind", "stage", "world", "more"),
    [
        ("sft", 3, 2, {}),
        pytest.param("sft", 2, 1, {}, marks=pytest.mark.long),
        pytest.param("dpo", 3, 1, {}, marks=pytest.mark.long),
        pytest.param("dpo", 2, 2, {}, marks=pytest.mark.long),
        pytest.param("grpo", 3, 1, {}, marks=pytest.mark.long),
        pytest.param("grpo", 3, 2, {}, marks=pytest.mark.long),
        pytest.param("lora", 3, 1, {}, marks=pytest.mark.long),
        pytest.param("lora", 2, 2, {"dora": True}, marks=pytest.mark.long),
    ],
)
def test_recipes(tmp_path: Path, model: str, kind: str, stage: int, world: int, more: dict[str, Any]) -> None:
    """TRL's trainers and peft's adapters. Their defaults are bf16; fp32 shows that it is the same arithmetic."""
    pytest.importorskip({"lora": "peft"}.get(kind, "trl"))
    case = {"model": model, "kind": kind, "args": {"bf16": False, "max_steps": 5}} | more
    config = json_of(tmp_path, stage, "cpu", optimizer=kind == "lora")
    same(run(tmp_path, "ours", case, world, config), run(tmp_path, "plain", case, world, None))
