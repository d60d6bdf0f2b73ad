"""LoRA of peft on a frozen Llama, in a process of its own: test_frozen_peft.py.

    peft_program.py OUT CASE     CASE: a JSON object: how ("loop", "deepspeed", "trainer"), base (the model's folder),
                                 adapters (a folder that is written), config (of DeepSpeed), quantize

Trains the adapters, saves them with peft, and writes losses and the daemon's counters to OUT (JSON), logits, and the
base as the model computed with it, to OUT.pt.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments, set_seed

VOCAB, SEQ, STEPS = 64, 8, 3


def batch(i: int) -> torch.Tensor:
    return torch.randint(0, VOCAB, (2, SEQ), generator=torch.Generator().manual_seed(i))


def adapted(folder: str) -> Any:
    """Adapters on the first two blocks, so that gradients pass all of them; the same for each run."""
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    set_seed(7)
    config = LoraConfig(r=2, lora_alpha=8, init_lora_weights=False, target_modules=["q_proj", "up_proj"],
                        layers_to_transform=[0, 1])  # fmt: skip
    return get_peft_model(base, config)


def counters() -> dict[str, int]:
    """Bytes that the daemon's drives read and wrote."""
    from zshard.torch._init import context

    stat = context().daemon.client.stat()  # type: ignore[union-attr]
    return {"read": stat["nvme_read_bytes"], "written": stat["nvme_written_bytes"]}


def loop(model: Any, case: dict[str, Any], seen: dict[str, Any]) -> None:
    import zshard.torch as zt

    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    zt.shard(model, optimizer, offload="nvme", quantize_frozen=case["quantize"])
    seen["before"] = counters()
    for i in range(STEPS):
        loss = model(input_ids=batch(i), labels=batch(i)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seen["losses"].append(loss.item())
    seen["after"] = counters()
    with zt.gathered(trained):
        model.save_pretrained(case["adapters"])


def by_hand(model: Any, case: dict[str, Any], seen: dict[str, Any]) -> None:
    import deepspeed

    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=case["config"])
    seen["before"] = counters()
    for i in range(STEPS):
        loss = engine(input_ids=batch(i), labels=batch(i)).loss
        engine.backward(loss)
        engine.step()
        seen["losses"].append(loss.item())
    seen["after"] = counters()
    state = engine._zero3_consolidated_16bit_state_dict(exclude_frozen_parameters=True)
    model.save_pretrained(case["adapters"], state_dict=state)


class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 2 * STEPS

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        row = batch(i // 2)[i % 2]
        return {"input_ids": row, "labels": row}


class Watched(Trainer):
    """Trainer that looks at the counters before the first step; batches come in their order."""

    seen: dict[str, Any]

    def _get_train_sampler(self, *_: Any) -> Any:
        return torch.utils.data.SequentialSampler(Rows())

    def training_step(self, *args: Any, **how: Any) -> Any:
        self.seen.setdefault("before", counters())
        return super().training_step(*args, **how)


def trainer(model: Any, case: dict[str, Any], seen: dict[str, Any]) -> None:
    args = TrainingArguments(
        case["adapters"] + ".run", per_device_train_batch_size=2, max_steps=STEPS, learning_rate=1e-3, logging_steps=1,
        lr_scheduler_type="constant", report_to=[], use_cpu=True, bf16=True, save_strategy="no", disable_tqdm=True,
        max_grad_norm=0.0, weight_decay=0.01, deepspeed=case["config"],
    )  # fmt: skip
    made = Watched(model, args, train_dataset=Rows())
    made.seen = seen
    made.train()
    seen["after"] = counters()
    seen["losses"] = [row["loss"] for row in made.state.log_history if "loss" in row]
    made.save_model(case["adapters"])


def main(out: str, case: dict[str, Any]) -> None:
    import zshard.torch as zt

    torch.set_num_threads(1)
    seen: dict[str, Any] = {"losses": []}
    model = adapted(case["base"])
    {"loop": loop, "deepspeed": by_hand, "trainer": trainer}[case["how"]](model, case, seen)
    state = zt.full_state_dict(model)
    base = {n: v for n, v in state.items() if "lora_" not in n}
    with torch.no_grad():
        model.eval()
        logits = model(input_ids=batch(99)).logits
    torch.save({"logits": logits.float(), "base": base}, f"{out}.pt")
    seen["frozen"] = sum(p.numel() for p in model.parameters() if not p.requires_grad)
    seen["trained"] = sum(p.numel() for p in model.parameters() if p.requires_grad)
    with open(out, "w", encoding="utf-8") as f:
        json.dump(seen, f)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
