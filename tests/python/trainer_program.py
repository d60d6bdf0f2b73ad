"""One rank of test_trainer.py: trainers with and without zshard.torch.TrainerMixin. Arguments: hf_models.py."""

from __future__ import annotations

import functools
import os
from typing import Any

import torch
import transformers
from hf_models import VOCAB, WORLD, Data, apart, build, config, main

import zshard.torch as zt


class Ours(zt.TrainerMixin, transformers.Trainer):  # type: ignore[misc]
    """Trainer on zshard."""


class OursSeq2Seq(zt.TrainerMixin, transformers.Seq2SeqTrainer):  # type: ignore[misc]
    """Seq2SeqTrainer on zshard."""


def arguments(folder: str, cls: Any = transformers.TrainingArguments, **more: Any) -> Any:
    """What all cases have in common."""
    given: dict[str, Any] = {
        "output_dir": folder, "per_device_train_batch_size": 2, "per_device_eval_batch_size": 2, "num_train_epochs": 1,
        "learning_rate": 5e-3, "weight_decay": 0.1, "lr_scheduler_type": "cosine", "logging_steps": 1, "seed": 1,
        "adam_epsilon": 1e-4, "report_to": "none", "use_cpu": True, "save_strategy": "no", "max_grad_norm": 0.5,
        "disable_tqdm": True,
    }  # fmt: skip
    return cls(**(given | more))


def logged(trainer: Any, *names: str) -> dict[str, list[float]]:
    """What was logged, by name."""
    return {n: [row[n] for row in trainer.state.log_history if n in row] for n in names}


LOGGED = ("loss", "grad_norm", "eval_loss", "learning_rate")


def parity(folder: str, kind: str, n: int = 14, model: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """The same run with and without the mixin."""
    found: dict[str, Any] = {}
    states = []
    for cls in (transformers.Trainer, Ours):
        trainer = cls(
            build(kind, **(model or {})),
            args=arguments(folder, **more),
            train_dataset=Data(n * WORLD),
            eval_dataset=Data(4 * WORLD, seed=6),
        )
        trainer.train()
        found[cls.__name__] = logged(trainer, *LOGGED)
        states.append({k: v.clone() for k, v in trainer.model.state_dict().items()})
        if cls is Ours:
            assert trainer.model._zshard.engine.world == WORLD
            trainer.model._zshard.close()
    return found | {"apart": apart(states[1], states[0])}


def resumed(folder: str, kind: str, dtype: str = "float32", **more: Any) -> dict[str, Any]:
    """A run that goes through, and one that continues from its second checkpoint with another model."""
    kinds = getattr(torch, dtype)
    same = {"save_strategy": "steps", "save_steps": 2, "gradient_accumulation_steps": 2, "num_train_epochs": 2} | more
    args = arguments(folder, **same)
    whole = Ours(build(kind, dtype=kinds), args=args, train_dataset=Data(10 * WORLD))
    whole.train()
    end = whole.model.state_dict()
    whole.model._zshard.close()
    fresh = zt.from_config(transformers.AutoModelForCausalLM, config(kind), dtype=kinds, seed=9)
    again = Ours(fresh, args=args, train_dataset=Data(10 * WORLD))
    again.train(resume_from_checkpoint=os.path.join(folder, "checkpoint-2"))
    equal = all(torch.equal(v, end[k]) for k, v in again.model.state_dict().items())
    found = {"whole": logged(whole, *LOGGED), "again": logged(again, *LOGGED), "equal": equal}
    again.model._zshard.close()
    files = sorted(os.listdir(os.path.join(folder, "checkpoint-2")))
    opened = transformers.AutoModelForCausalLM.from_pretrained(os.path.join(folder, "checkpoint-4"), dtype=kinds)
    assert all(p.isfinite().all() for p in opened.parameters())
    return found | {"files": files}


def best(folder: str) -> dict[str, Any]:
    """load_best_model_at_end, with save_only_model; the best one is here that of the largest loss, not the last."""
    args = arguments(
        folder, save_strategy="steps", eval_strategy="steps", save_steps=1, eval_steps=1, max_steps=4,
        load_best_model_at_end=True, greater_is_better=True, save_only_model=True,
    )  # fmt: skip
    trainer = Ours(build("llama"), args=args, train_dataset=Data(8 * WORLD), eval_dataset=Data(8 * WORLD))
    trainer.train()
    chosen = trainer.state.best_model_checkpoint
    kept = transformers.AutoModelForCausalLM.from_pretrained(chosen).state_dict()
    found = {
        "best": chosen[-1],
        "apart": apart(trainer.model.state_dict(), kept),
        "files": sorted(os.listdir(chosen)),
        "eval": trainer.evaluate()["eval_loss"] - trainer.state.best_metric,
    }
    trainer.model._zshard.close()
    return found


def generate(folder: str) -> dict[str, Any]:
    """predict_with_generate in the middle of a run, and at its end; with the daemon and without."""
    found = {}
    for name, cls, shard in (
        ("plain", transformers.Seq2SeqTrainer, None),
        ("ours", OursSeq2Seq, {}),
        ("none", OursSeq2Seq, {"offload": "none"}),
    ):
        args = arguments(
            folder, transformers.Seq2SeqTrainingArguments, predict_with_generate=True, generation_max_length=8,
            eval_strategy="steps", eval_steps=2, learning_rate=2e-4, per_device_eval_batch_size=1,
        )  # fmt: skip
        more = {} if shard is None else {"shard": shard}
        data = Data(8 * WORLD)
        model = build("t5", dropout_rate=0.0, initializer_factor=2.0, eos_token_id=60)
        trainer = cls(model, args=args, train_dataset=data, eval_dataset=Data(3 * WORLD + 1, seed=7), **more)
        trainer.train()
        got = trainer.predict(data)
        found[name] = {"tokens": got.predictions.tolist(), **logged(trainer, "loss", "eval_loss")}
        if shard is not None:
            trainer.model._zshard.close()
    return found


def lora(folder: str) -> dict[str, Any]:
    """Adapters of peft: saved alone, resumed exactly."""
    import peft

    def model(seed: int) -> Any:
        how = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], modules_to_save=["lm_head"], lora_dropout=0.1)
        torch.manual_seed(seed)
        made = peft.get_peft_model(build("llama"), how)
        torch.manual_seed(seed)
        for n, p in made.named_parameters():
            if "lora_B" in n:
                torch.nn.init.normal_(p, std=0.1)
        return made

    runs: dict[str, Any] = {}
    for name, cls, seed in (("plain", transformers.Trainer, 3), ("whole", Ours, 3), ("again", Ours, 4)):
        there = os.path.join(folder, "plain") if name == "plain" else folder
        args = arguments(there, save_strategy="steps", save_steps=2, gradient_checkpointing=True, num_train_epochs=2)
        trainer = cls(model(seed), args=args, train_dataset=Data(6 * WORLD))
        trainer.train(resume_from_checkpoint=os.path.join(folder, "checkpoint-2") if name == "again" else None)
        runs[name] = logged(trainer, "loss", "grad_norm")
        if name != "plain":
            trainer.model._zshard.close()
    runs["files"] = sorted(os.listdir(os.path.join(folder, "checkpoint-2")))
    return runs


def from_plain(folder: str) -> dict[str, Any]:
    """A checkpoint of Trainer without the mixin is continued with it."""
    args = arguments(folder, save_strategy="steps", save_steps=2, num_train_epochs=2)
    plain = transformers.Trainer(build("gpt2"), args=args, train_dataset=Data(6 * WORLD))
    plain.train()
    ours = Ours(build("gpt2", seed=8), args=args, train_dataset=Data(6 * WORLD))
    ours.train(resume_from_checkpoint=os.path.join(folder, "checkpoint-2"))
    ours.model._zshard.close()
    return {"plain": logged(plain, "loss"), "ours": logged(ours, "loss")}


def worlds(folder: str) -> dict[str, Any]:
    """A checkpoint of one rank; a run of several continues it. Dropout would differ between them."""
    shared = os.path.join(os.path.dirname(folder), "of-one-rank")
    args = arguments(shared, save_strategy="steps", save_steps=2, per_device_train_batch_size=4 // WORLD, max_steps=5)
    model = build("llama", seed=WORLD)
    trainer = Ours(model, args=args, train_dataset=Data(20))
    trainer.train(resume_from_checkpoint=os.path.join(shared, "checkpoint-2") if WORLD > 1 else None)
    trainer.model._zshard.close()
    return logged(trainer, "loss", "grad_norm")


def mistakes(folder: str) -> dict[str, Any]:
    """What is refused, and how."""
    said: dict[str, str] = {}

    def raises(name: str, call: Any) -> None:
        try:
            call()
        except (TypeError, ValueError, NotImplementedError, FileNotFoundError) as e:
            said[name] = f"{type(e).__name__}: {e}"

    class Other(zt.TrainerMixin):  # type: ignore[misc]
        pass

    class SyncRefModelCallback(transformers.TrainerCallback):
        pass

    def trainer(**more: Any) -> Any:
        return Ours(build("gpt2"), args=arguments(folder, **more), train_dataset=Data(4 * WORLD))

    raises("mixin", Other)
    raises("fsdp", lambda: trainer(fsdp=True))
    raises("callback", lambda: trainer().add_callback(SyncRefModelCallback))
    raises("optimizer", lambda: trainer(optim="rmsprop").train())
    raises("no weights", lambda: trainer().train(resume_from_checkpoint=folder))
    one = trainer(save_strategy="steps", save_steps=1, max_steps=1)
    one.train()
    one.model._zshard.close()
    other = Ours(
        build("gpt2", activation_function="relu"),
        args=arguments(folder, optim="sgd"),
        train_dataset=Data(4 * WORLD),
    )
    raises("another optimizer", lambda: other.train(resume_from_checkpoint=os.path.join(folder, "checkpoint-1")))
    other.model._zshard.close()
    job = f"resumed-{os.environ.get('MASTER_PORT', os.getpid())}"
    zt.init(job=job, keep=True)
    first = trainer(max_steps=1)
    first.train()
    first.model._zshard.close()
    zt.init()
    zt.init(job=job, keep=True, resume=True)
    raises("resumed", lambda: trainer().train())
    zt.init()
    return said


# ---- trl


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {f"w{i}": i for i in range(3, VOCAB)} | {"<pad>": 0, "<eos>": 1, "<unk>": 2}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def text(row: torch.Tensor) -> str:
    return " ".join(f"w{int(i)}" for i in row)


def trl_parity(folder: str, which: str) -> dict[str, Any]:
    """SFTTrainer, DPOTrainer or GRPOTrainer, with and without the mixin."""
    import datasets
    import trl

    rows = Data(10 * WORLD).rows
    base: Any = getattr(trl, f"{which}Trainer")
    ours = type("Ours", (zt.TrainerMixin, base), {})
    found: dict[str, Any] = {}
    for name, cls in (("plain", base), ("ours", ours)):
        more: dict[str, Any] = {}
        given: dict[str, Any] = {"max_steps": 5}
        columns: dict[str, Any] = {"text": [text(r) for r in rows]}
        if which == "DPO":
            columns = {k: [text(r[s]) for r in rows] for k, s in
                       (("prompt", slice(0, 4)), ("chosen", slice(4, 8)), ("rejected", slice(8, 12)))}  # fmt: skip
            more["ref_model"] = build("llama", seed=3).requires_grad_(False)
        if which == "GRPO":
            columns = {"prompt": [text(r[:4]) for r in rows]}
            given |= {"num_generations": 2, "max_completion_length": 6, "max_steps": 2, "beta": 0.0}
            more["reward_funcs"] = functools.partial(reward)
        if which == "SFT" and name == "ours":  # the head, which TRL uses without its forward, is not in the root's unit
            more["shard"] = {"units": ["lm_head", "LlamaDecoderLayer"]}
        args = arguments(folder, getattr(trl, f"{which}Config"), bf16=False, **given)
        data = datasets.Dataset.from_dict(columns)
        trainer = cls(build("llama"), args=args, train_dataset=data, processing_class=tokenizer(), **more)
        trainer.train()
        found[name] = logged(trainer, "loss", "grad_norm")
        if name == "ours":
            found["sharded"] = [
                m is not None and "_zshard" in m.__dict__ for m in (trainer.model, getattr(trainer, "ref_model", None))
            ]
            trainer.save_model(os.path.join(folder, "saved"))
            found["saved"] = sorted(os.listdir(os.path.join(folder, "saved")))
            for m in (trainer.model, getattr(trainer, "ref_model", None)):
                if m is not None and "_zshard" in m.__dict__:
                    m._zshard.close()
    return found


def reward(completions: list[str], **_: Any) -> list[float]:
    """Of GRPO: how many of the words are even."""
    return [sum(1.0 for w in c.split() if w[1:].isdigit() and int(w[1:]) % 2 == 0) for c in completions]


CASES = {
    "gpt2": lambda f: parity(f, "gpt2", gradient_accumulation_steps=2, eval_strategy="steps", eval_steps=2),
    "short": lambda f: parity(f, "llama", 10, gradient_accumulation_steps=3, num_train_epochs=2, max_grad_norm=0.0),
    "checkpointing": lambda f: parity(f, "llama", gradient_checkpointing=True, gradient_accumulation_steps=2),
    "reentrant": lambda f: parity(
        f, "gpt2", 6, gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": True}
    ),
    "bf16": lambda f: parity(f, "llama", bf16=True, gradient_accumulation_steps=2),
    "bf16-gpt2": lambda f: parity(f, "gpt2", 8, bf16=True, gradient_checkpointing=True),
    "resume": lambda f: resumed(f, "gpt2"),
    "resume-bf16": lambda f: resumed(f, "llama", "bfloat16"),
    "best": best,
    "generate": generate,
    "lora": lora,
    "from-plain": from_plain,
    "worlds": worlds,
    "mistakes": mistakes,
    "sft": lambda f: trl_parity(f, "SFT"),
    "dpo": lambda f: trl_parity(f, "DPO"),
    "grpo": lambda f: trl_parity(f, "GRPO"),
}

if __name__ == "__main__":
    main(CASES)
