"""Tiny models and data of Transformers for trainer_program.py and accelerate_program.py, and how their cases run.

python PROGRAM OUT FOLDER CASE ...     one rank; writes what each case returns to OUT.RANK (JSON)
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

import torch
import transformers

VOCAB = 61
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def config(kind: str, **more: Any) -> Any:
    """A configuration of a few thousand parameters."""
    if kind == "gpt2":
        return transformers.GPT2Config(vocab_size=VOCAB, n_positions=32, n_embd=32, n_layer=2, n_head=2, **more)
    if kind == "llama":
        sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
        return transformers.LlamaConfig(
            vocab_size=VOCAB, num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, **sizes, **more
        )
    assert kind == "t5"
    return transformers.T5Config(
        vocab_size=VOCAB, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0, **more
    )


def build(kind: str, seed: int = 0, dtype: torch.dtype = torch.float32, **more: Any) -> Any:
    """The same model on each rank."""
    torch.manual_seed(seed)
    made = config(kind, **more)
    cls = transformers.AutoModelForSeq2SeqLM if kind == "t5" else transformers.AutoModelForCausalLM
    return cls.from_config(made, dtype=dtype)


class Data(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """`n` rows of tokens of `length`."""

    def __init__(self, n: int, length: int = 12, seed: int = 5) -> None:
        g = torch.Generator().manual_seed(seed)
        self.rows = torch.randint(3, VOCAB, (n, length), generator=g)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[i], "labels": self.rows[i].clone()}


def apart(ours: dict[str, torch.Tensor], plain: dict[str, torch.Tensor]) -> float:
    """How far tensors are apart at most, relative to each tensor's largest element."""
    assert ours.keys() == plain.keys(), ours.keys() ^ plain.keys()
    return max(
        float((ours[n].float() - p.float()).abs().max() / (p.float().abs().max() + 1e-9)) for n, p in plain.items()
    )


def main(cases: dict[str, Callable[[str], Any]]) -> None:
    """Runs the named cases; each gets a folder of its own, the same on all ranks."""
    torch.set_num_threads(1)
    out, folder, *names = sys.argv[1:]
    made: dict[str, Any] = {}
    for name in names:
        mine = os.path.join(folder, f"{name}-{WORLD}")
        os.makedirs(mine, exist_ok=True)
        try:
            made[name] = cases[name](mine)
        except BaseException:  # the other ranks would wait
            made[name] = {"error": traceback.format_exc(limit=-12)}
            break
    with open(f"{out}.{RANK}", "w", encoding="utf-8") as f:
        json.dump(made, f)
    if torch.distributed.is_initialized() and not any("error" in m for m in made.values()):
        torch.distributed.destroy_process_group()
