"""Programs as DeepSpeed's documents have them, one after the other: one rank of test_deepspeed.py.

    deepspeed_program.py MODULE OUT CASE,CASE...    MODULE: deepspeed (DeepSpeed itself, or zshard under its name by
                                                    python -m zshard.run) or zshard.deepspeed: all that differs

Writes the losses of the micro-steps, and what else a case looks at, to OUT.RANK (JSON, by case).
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

import torch
import zoo

deepspeed = importlib.import_module(sys.argv[1])
ADAMW = {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.01}}
BASE = {"train_micro_batch_size_per_gpu": 2, "steps_per_print": 1000, "optimizer": ADAMW, "gradient_clipping": 0.0}
CASES: dict[str, dict[str, Any]] = {
    "zero1": BASE | {"zero_optimization": {"stage": 1}},
    "zero2": BASE | {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}}},
    "zero3": BASE | {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"},
                                           "offload_param": {"device": "cpu"}}},
    "stage0": BASE | {"zero_optimization": {"stage": 0}},
    "steps": BASE | {"gradient_accumulation_steps": 3, "gradient_clipping": 0.05, "zero_optimization": {"stage": 3},
                     "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 1e-3,
                                                                       "warmup_num_steps": 4, "total_num_steps": 9}}},
    "bare": BASE | {"gradient_accumulation_steps": 2, "zero_optimization": {"stage": 3},
                    "optimizer": {"type": "SGD", "params": {"lr": 0.05}}},  # steps as large as the gradient is
    "sum": BASE | {"gradient_allreduce_op": "sum", "zero_optimization": {"stage": 1},
                   "optimizer": {"type": "SGD", "params": {"lr": 0.025}}},
    "bf16": BASE | {"bf16": {"enabled": True}, "zero_optimization": {"stage": 3}},
    "fp16": BASE | {"fp16": {"enabled": True, "initial_scale_power": 40, "hysteresis": 1},
                    "zero_optimization": {"stage": 2}},
    "init": BASE | {"zero_optimization": {"stage": 3}},
    "own": {k: v for k, v in BASE.items() if k != "optimizer"} | {"zero_optimization": {"stage": 2}},
}  # fmt: skip
STEPS = 6


def train(case: str) -> dict[str, Any]:
    rank, config = deepspeed.comm.get_rank(), CASES[case]
    name = os.environ.get("ZSHARD_TEST_MODEL", "gpt2")
    if case == "init":
        model = built_under_init(name, config)
    else:
        model = zoo.build(name)
    given: dict[str, Any] = {"model_parameters": model.parameters()}
    if case == "own":
        given = {"optimizer": torch.optim.AdamW(model.parameters(), lr=2e-3)}
        given["lr_scheduler"] = lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5)
    engine, optimizer, _, scheduler = deepspeed.initialize(model=model, config=config, **given)
    if case == "zero3":  # as documents of DeepSpeed and of Hugging Face load weights
        with deepspeed.zero.GatheredParameters(list(engine.module.parameters()), modifier_rank=0):
            if rank == 0:
                engine.module.load_state_dict(zoo.build(name).state_dict())
    data, losses, seen = zoo.batches(name, rank), [], []
    for _ in range(STEPS * engine.gradient_accumulation_steps()):
        loss = zoo.loss_of(engine, next(data))
        if case == "bare":
            loss.backward()
        else:
            engine.backward(loss)
        engine.step()
        losses.append(loss.item())
        seen.append([engine.global_steps, engine.skipped_steps, engine.get_lr()[0], engine.get_global_grad_norm()])
    if "fp16" not in config and "bf16" not in config and engine.zero_optimization_stage() in (1, 2):
        for p in list(engine.module.parameters())[:2]:  # whole on each rank, as the masters are together
            assert torch.equal(p, deepspeed.utils.safe_get_full_fp32_param(p))
    engine.destroy()
    return {"losses": losses, "seen": [[None if v is None else float(v) for v in row] for row in seen]}


def built_under_init(name: str, config: dict[str, Any]) -> torch.nn.Module:
    """The values of rank 0's GatheredParameters, module by module; all else would be another model."""
    want = {n: p.detach().clone() for n, p in zoo.build(name).named_parameters()}
    with deepspeed.zero.Init(config_dict_or_path=config):
        model = zoo.build(name, seed=2)
    for n, p in model.named_parameters():
        assert tuple(getattr(p, "ds_shape", p.shape)) == tuple(want[n].shape)
        with deepspeed.zero.GatheredParameters(p, modifier_rank=0):
            if deepspeed.comm.get_rank() == 0:
                p.data.copy_(want[n])
    return model


torch.set_num_threads(1)
deepspeed.init_distributed(dist_backend="gloo")
made = {case: train(case) for case in sys.argv[3].split(",")}
with open(f"{sys.argv[2]}.{deepspeed.comm.get_rank()}", "w", encoding="utf-8") as file:
    json.dump(made, file)
