"""One rank of test_hf_deepspeed.py: a recipe of Transformers or TRL, with a DeepSpeed configuration or without one.

    hf_program.py OUT CASE [ds.json]    CASE: a JSON object, see CASES of the test

Writes the logged losses, and what else the case looks at, to OUT.RANK (JSON).
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

VOCAB, SEQ = 64, 16


class Rows(Dataset):  # type: ignore[type-arg]
    """Sequences with a pattern that can be learnt."""

    def __init__(self, n: int, seed: int) -> None:
        dice = torch.Generator().manual_seed(seed)
        start = torch.randint(0, VOCAB, (n, 1), generator=dice)
        step = torch.randint(1, 5, (n, 1), generator=dice)
        self.rows = (start + step * torch.arange(SEQ)) % VOCAB

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[i], "labels": self.rows[i]}


def model_of(folder: str) -> Any:
    """A local GPT-2, made once, loaded as a recipe loads it."""
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")


def make_model(folder: str) -> None:
    torch.manual_seed(5)
    config = GPT2Config(
        vocab_size=VOCAB, n_positions=SEQ, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    GPT2LMHeadModel(config).save_pretrained(folder)


def main(out: str, case: dict[str, Any], config: str | None) -> None:
    torch.set_num_threads(1)
    rank = int(os.environ.get("RANK", "0"))
    args: dict[str, Any] = {
        "output_dir": case["dir"], "per_device_train_batch_size": 2, "max_steps": 6, "learning_rate": 1e-3,
        "logging_steps": 1, "report_to": [], "use_cpu": not torch.cuda.is_available(), "seed": 3, "save_strategy": "no",
        "lr_scheduler_type": "linear", "warmup_steps": 2, "max_grad_norm": 1.0, "disable_tqdm": True,
        "dataloader_num_workers": 0, "weight_decay": 0.0, "average_tokens_across_devices": False,
    } | case.get("args", {})  # fmt: skip
    if config:
        args["deepspeed"] = config
    set_seed(3)
    trainer = KINDS[case.get("kind", "trainer")](case, args)
    kinds: list[str] = []
    original = trainer.training_step

    def watched(model: Any, *more: Any, **how: Any) -> Any:
        kinds.append(type(model).__module__)
        return original(model, *more, **how)

    trainer.training_step = watched
    made = trainer.train(resume_from_checkpoint=case.get("resume"))
    seen: dict[str, Any] = {
        "losses": [row["loss"] for row in trainer.state.log_history if "loss" in row],
        "evals": [row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row],
        "norms": [row["grad_norm"] for row in trainer.state.log_history if "grad_norm" in row],
        "steps": made.global_step, "best": trainer.state.best_model_checkpoint,
        "engine": kinds[0],
    }  # fmt: skip
    if case.get("generate"):
        prompt = torch.tensor([[1, 3, 5, 7]])
        seen["tokens"] = trainer.model.generate(prompt, max_new_tokens=4, do_sample=False, pad_token_id=0).tolist()
    if case.get("save"):
        trainer.save_model(case["save"])
    with open(f"{out}.{rank}", "w", encoding="utf-8") as f:
        json.dump(seen, f)


def plain(case: dict[str, Any], args: dict[str, Any]) -> Any:
    arguments = TrainingArguments(**args)  # before the model: it says that ZeRO-3 is on
    data = Rows(case.get("rows", 64), 1)
    return Trainer(model_of(case["model"]), arguments, train_dataset=data, eval_dataset=Rows(6, 2))


def lora(case: dict[str, Any], args: dict[str, Any]) -> Any:
    from peft import LoraConfig, get_peft_model

    arguments = TrainingArguments(**args)
    set_seed(7)
    config = LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules=["c_attn"], fan_in_fan_out=True,
                        use_dora=bool(case.get("dora")))  # fmt: skip
    model = get_peft_model(model_of(case["model"]), config)
    return Trainer(model, arguments, train_dataset=Rows(64, 1))


def sft(case: dict[str, Any], args: dict[str, Any]) -> Any:
    from datasets import Dataset as Table
    from trl import SFTConfig, SFTTrainer

    config = SFTConfig(**args, max_length=SEQ, dataset_kwargs={"skip_prepare_dataset": True}, packing=False,
                       remove_unused_columns=False)  # fmt: skip
    data = Table.from_dict({"input_ids": Rows(case.get("rows", 64), 1).rows.tolist()})
    return SFTTrainer(model_of(case["model"]), args=config, train_dataset=data, processing_class=tokenizer())


def words(ids: torch.Tensor) -> str:
    return " ".join(f"t{int(i)}" for i in ids)


def dpo(case: dict[str, Any], args: dict[str, Any]) -> Any:
    """A second model beside the trained one: the reference."""
    from datasets import Dataset as Table
    from trl import DPOConfig, DPOTrainer

    rows = Rows(32, 1).rows
    data = Table.from_dict({
        "prompt": [words(r[:6]) for r in rows], "chosen": [words(r[6:12]) for r in rows],
        "rejected": [words(r[6:12].flip(0)) for r in rows],
    })  # fmt: skip
    config = DPOConfig(**args)
    return DPOTrainer(model_of(case["model"]), ref_model=model_of(case["model"]), args=config, train_dataset=data,
                      processing_class=tokenizer())  # fmt: skip


def grpo(case: dict[str, Any], args: dict[str, Any]) -> Any:
    """Generation in between, and a reference model."""
    from datasets import Dataset as Table
    from trl import GRPOConfig, GRPOTrainer

    def reward(completions: list[str], **_: Any) -> list[float]:
        return [float(len(set(c.split()))) for c in completions]

    config = GRPOConfig(**args, num_generations=2, max_completion_length=6, beta=0.04)
    data = Table.from_dict({"prompt": [words(r[:6]) for r in Rows(32, 1).rows]})
    return GRPOTrainer(model_of(case["model"]), reward_funcs=reward, args=config, train_dataset=data,
                       processing_class=tokenizer())  # fmt: skip


KINDS = {"trainer": plain, "lora": lora, "sft": sft, "dpo": dpo, "grpo": grpo}


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel({f"t{i}": i for i in range(VOCAB)}, unk_token="t0"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="t0", eos_token="t0", unk_token="t0",
                                   padding_side="left")  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None)
