# ctest: TRAINER LABELS full COST 40 TIMEOUT 600
"""LoRA of peft on a frozen base four times the daemon's host memory: trained from NVMe, which the base is read from and
never written to; the adapters open in plain peft, with the same logits."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import zygote

pytest.importorskip("transformers")
pytest.importorskip("peft")

HERE = os.path.dirname(os.path.abspath(__file__))
MIB = 1 << 20
HOST = 16 * MIB
WIDTH = 384
LAYERS = {False: 34, True: 66}  # by whether the base is int8


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, str]:
    """Folders of Llamas in bf16."""
    from transformers import LlamaConfig, LlamaForCausalLM

    made = {}
    for quantize, layers in LAYERS.items():
        torch.manual_seed(5)
        sizes = {"hidden_size": WIDTH, "intermediate_size": WIDTH, "num_hidden_layers": layers}
        config = LlamaConfig(
            vocab_size=64, num_attention_heads=8, num_key_value_heads=8, initializer_range=0.05, **sizes
        )
        made[quantize] = str(tmp_path_factory.mktemp(f"base{layers}"))
        LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(made[quantize])
    return made


def config(quantize: bool) -> dict[str, Any]:
    """As a DeepSpeed recipe has it."""
    zero: dict[str, Any] = {"stage": 3, "offload_param": {"device": "nvme"}, "offload_optimizer": {"device": "nvme"}}
    if quantize:
        zero["zero_quantized_nontrainable_weights"] = True
    return {
        "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True}, "gradient_clipping": 0.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.01}}, "zero_optimization": zero,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("how", "quantize"),
    [
        pytest.param("trainer", False, marks=pytest.mark.long),
        ("deepspeed", True),
        pytest.param("loop", False, marks=pytest.mark.long),
        pytest.param("loop", True, marks=pytest.mark.long),
        pytest.param("trainer", True, marks=pytest.mark.long),
    ],
)
def test_lora_on_a_base_larger_than_memory(tmp_path: Path, bases: dict[bool, str], how: str, quantize: bool) -> None:
    base, out, adapters = bases[quantize], str(tmp_path / "out"), str(tmp_path / "adapters")
    case = {"how": how, "base": base, "adapters": adapters, "quantize": quantize, "config": config(quantize)}
    (tmp_path / "run").mkdir(mode=0o700)
    env = os.environ | {
        "XDG_RUNTIME_DIR": str(tmp_path / "run"), "ZSHARD_DATA": str(tmp_path / "data"), "HF_HUB_OFFLINE": "1",
        "ZSHARD_HOST_BYTES": str(HOST), "ZSHARD_NVME_BYTES": "512M",
    }  # fmt: skip
    words = [*(["-m", "zshard.run"] if how != "loop" else []), os.path.join(HERE, "peft_program.py")]
    preload = zygote.TRAINER if how == "loop" else zygote.BELOW_TRANSFORMERS
    done = zygote.run([sys.executable, "-B", *words, out, json.dumps(case)],
                      preload=preload, env=env, capture_output=True, text=True, timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(Path(out).read_text(encoding="utf-8"))
    counted(seen, quantize)
    saved = torch.load(f"{out}.pt", weights_only=True)
    opens(base, adapters, saved, quantize, how == "loop")


def counted(seen: dict[str, Any], quantize: bool) -> None:
    """The base was read in each pass; what was written is less than a block of it, and the adapters' states."""
    before, after = seen["before"], seen["after"]
    stored = seen["frozen"] * (1 if quantize else 2)
    assert stored >= 4 * HOST
    assert after["read"] - before["read"] > 3 * (stored - HOST)
    assert after["written"] - before["written"] <= 3 * 20 * seen["trained"] < stored / LAYERS[quantize] / 2


def opens(base: str, adapters: str, saved: dict[str, Any], quantize: bool, fp32: bool) -> None:
    """Plain peft, on the base that the model computed with. fp32: adapters are fp32, as peft makes them; a DeepSpeed
    configuration of bf16 makes them bf16."""
    import peft_program
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
    plain = PeftModel.from_pretrained(model, adapters, autocast_adapter_dtype=fp32)
    off = max(
        float((saved["base"][n].float() - v.float()).abs().max())
        for n, v in plain.state_dict().items()
        if "lora_" not in n
    )
    assert (0 < off < 0.01) if quantize else off == 0.0
    plain.load_state_dict(saved["base"], strict=False)
    plain.eval()
    with torch.no_grad():
        logits = plain(input_ids=peft_program.batch(99)).logits.float()
    assert torch.equal(logits, saved["logits"])
