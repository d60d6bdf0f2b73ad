"""The model zoo of the Python tests: tiny random models of many architectures, their batches and their losses.

`ZOO[name]` makes a model, and batches for it; nothing is downloaded. Dropout is off, so that two runs compute the
same. `train_plain` is the reference: plain torch, one process, which averages the gradients of as many ranks as are
asked for, one after the other.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.utils.checkpoint
from torch import nn

VOCAB, WIDTH, LAYERS, HEADS, SEQ, BATCH = 96, 32, 2, 4, 12, 2
DEEP = "deep"
Batch = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Entry:
    """One architecture. `make()` draws its weights from torch's generator. `batch(generator)` makes the keywords of a
    forward call. `kinds`: "decoder" can generate, "tied" shares parameters, "moe" has experts, "blocks" has a
    ModuleList of blocks under `blocks`, which checkpoints and compile are for."""

    make: Callable[[], nn.Module]
    batch: Callable[[torch.Generator], Batch]
    kinds: tuple[str, ...] = ()
    blocks: str = ""
    checkpoints: bool = True  # transformers' gradient_checkpointing_enable() works on it
    needs: str = "transformers"
    bound: float = 1e-6  # relative, for losses in fp32 compared with plain torch's
    notes: dict[str, str] = field(default_factory=dict)  # features that it does not have, with the reason


def tokens(generator: torch.Generator, rows: int = BATCH, seq: int = SEQ) -> torch.Tensor:
    """int64 [rows, seq]."""
    return torch.randint(3, VOCAB, (rows, seq), generator=generator)


def causal_batch(generator: torch.Generator) -> Batch:
    ids = tokens(generator)
    return {"input_ids": ids, "labels": ids}


def shifted_batch(generator: torch.Generator) -> Batch:
    ids = tokens(generator)
    return {"input_ids": ids, "labels": ids.roll(-1, dims=1)}


def masked_batch(generator: torch.Generator) -> Batch:
    ids = tokens(generator)
    return {"input_ids": ids, "labels": ids.flip(0), "attention_mask": torch.ones_like(ids)}


def seq2seq_batch(generator: torch.Generator) -> Batch:
    return {"input_ids": tokens(generator), "labels": tokens(generator, seq=SEQ // 2)}


def image_batch(generator: torch.Generator) -> Batch:
    return {
        "pixel_values": torch.randn(BATCH, 3, 16, 16, generator=generator),
        "labels": torch.randint(0, 5, (BATCH,), generator=generator),
    }


def audio_batch(generator: torch.Generator) -> Batch:
    return {
        "input_features": torch.randn(BATCH, 8, 32, generator=generator),
        "labels": tokens(generator, seq=SEQ // 2),
    }


def _transformer(config: str, model: str, **how: Any) -> Callable[[], nn.Module]:
    """A model of transformers by the names of its classes; no dropout, attention written out."""

    def make() -> nn.Module:
        import transformers

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = getattr(transformers, model)(getattr(transformers, config)(**how))
        made.config.use_cache = False
        for module in made.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        return made

    return make


def _llama_like(**more: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCAB,
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "attention_dropout": 0.0,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **more,
    }


class Block(nn.Module):
    """A block of `Plain`: [rows, seq, WIDTH] to the same."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 3 * WIDTH)
        self.down = nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def run_block(block: nn.Module, x: torch.Tensor, reentrant: bool | None) -> torch.Tensor:
    """A block, whose activations are kept (None) or recomputed."""
    if reentrant is None or not x.requires_grad:
        return block(x)  # type: ignore[no-any-return]
    return torch.utils.checkpoint.checkpoint(block, x, use_reentrant=reentrant)  # type: ignore[no-any-return]


class Plain(nn.Module):
    """A model of our own, without transformers: blocks, a tied head that reads the embedding outside of its forward."""

    def __init__(self, tied: bool = True, layers: int = LAYERS) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = None if tied else nn.Linear(WIDTH, VOCAB, bias=False)
        self.checkpoint: bool | None = None  # use_reentrant, if blocks are recomputed

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> Any:
        x = self.embed(input_ids)
        for block in self.blocks:
            x = run_block(block, x, self.checkpoint)
        x = self.norm(x)
        logits = torch.nn.functional.linear(x, self.embed.weight) if self.head is None else self.head(x)
        return Output(torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()))


class Output(NamedTuple):
    """As transformers' outputs."""

    loss: torch.Tensor


@dataclass
class Opaque:
    """An output in which nobody finds the tensors: no tuple, no registered container."""

    loss: torch.Tensor


class PlainOpaque(Plain):
    """`Plain` with an output of a class of its own."""

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> Any:
        return Opaque(super().forward(input_ids, labels).loss)


class Experts(nn.Module):
    """Experts that are used or not: `which` says whose they are in this call. Each has parameters of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.experts = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.checkpoint: bool | None = None

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor, which: torch.Tensor) -> Any:
        x = self.embed(input_ids)
        for i in which.tolist():
            x = run_block(self.experts[i], x, self.checkpoint)
        logits = self.head(x)
        return Output(torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()))


def experts_batch(generator: torch.Generator) -> Batch:
    first = int(torch.randint(0, 4, (1,), generator=generator))
    return shifted_batch(generator) | {"which": torch.tensor([first, (first + 1) % 4])}


_SEQ2SEQ = {"vocab_size": VOCAB, "d_model": WIDTH, "pad_token_id": 0, "decoder_start_token_id": 0}

ZOO: dict[str, Entry] = {
    "plain": Entry(Plain, shifted_batch, ("tied", "blocks"), "blocks", needs=""),
    # States of 3 MB, more than a small daemon has host memory: also with several ranks, and with kept jobs, where
    # filler.py does not know how much is free.
    DEEP: Entry(lambda: Plain(layers=24), shifted_batch, ("tied", "blocks"), "blocks", needs=""),
    "opaque": Entry(PlainOpaque, shifted_batch, ("tied", "blocks"), "blocks", needs=""),
    "experts": Entry(Experts, experts_batch, ("moe", "blocks"), "experts", needs=""),
    "gpt2": Entry(
        _transformer(
            "GPT2Config", "GPT2LMHeadModel", vocab_size=VOCAB, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS,
            n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=2,
        ),
        causal_batch, ("decoder", "tied", "blocks"), "transformer.h",
    ),
    "llama": Entry(
        _transformer("LlamaConfig", "LlamaForCausalLM", **_llama_like()),
        causal_batch, ("decoder", "blocks"), "model.layers",
    ),
    "qwen2": Entry(
        _transformer("Qwen2Config", "Qwen2ForCausalLM", **_llama_like(tie_word_embeddings=True)),
        causal_batch, ("decoder", "tied", "blocks"), "model.layers",
    ),
    "mistral": Entry(
        _transformer("MistralConfig", "MistralForCausalLM", **_llama_like(sliding_window=8)),
        causal_batch, ("decoder", "blocks"), "model.layers",
    ),
    "mixtral": Entry(
        _transformer(
            "MixtralConfig", "MixtralForCausalLM",
            **_llama_like(num_local_experts=4, num_experts_per_tok=2, router_jitter_noise=0.0),
        ),
        causal_batch, ("decoder", "moe", "blocks"), "model.layers",
    ),
    "qwen3moe": Entry(
        _transformer(
            "Qwen3MoeConfig", "Qwen3MoeForCausalLM",
            **_llama_like(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=WIDTH, head_dim=8),
        ),
        causal_batch, ("decoder", "moe", "blocks"), "model.layers",
    ),
    "t5": Entry(
        _transformer(
            "T5Config", "T5ForConditionalGeneration", **_SEQ2SEQ, d_kv=8, d_ff=2 * WIDTH, num_layers=LAYERS,
            num_decoder_layers=LAYERS, num_heads=HEADS, dropout_rate=0.0, eos_token_id=2,
        ),
        seq2seq_batch, ("tied", "decoder", "blocks"), "encoder.block",
    ),
    "bert": Entry(
        _transformer(
            "BertConfig", "BertForMaskedLM", vocab_size=VOCAB, hidden_size=WIDTH, num_hidden_layers=LAYERS,
            num_attention_heads=HEADS, intermediate_size=2 * WIDTH, max_position_embeddings=64,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        ),
        masked_batch, ("tied", "blocks"), "bert.encoder.layer",
    ),
    "vit": Entry(
        _transformer(
            "ViTConfig", "ViTForImageClassification", hidden_size=WIDTH, num_hidden_layers=LAYERS,
            num_attention_heads=HEADS, intermediate_size=2 * WIDTH, image_size=16, patch_size=4, num_labels=5,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        ),
        image_batch, ("blocks",), "vit.layers",
    ),
    "mamba": Entry(
        _transformer(
            "MambaConfig", "MambaForCausalLM", vocab_size=VOCAB, hidden_size=WIDTH, num_hidden_layers=LAYERS,
            state_size=8, time_step_rank=4, use_mambapy=False, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        ),
        causal_batch, ("tied", "blocks"), "backbone.layers",
    ),
    "whisper": Entry(
        _transformer(
            "WhisperConfig", "WhisperForConditionalGeneration", **_SEQ2SEQ, encoder_layers=LAYERS,
            decoder_layers=LAYERS, encoder_attention_heads=HEADS, decoder_attention_heads=HEADS,
            encoder_ffn_dim=2 * WIDTH, decoder_ffn_dim=2 * WIDTH, num_mel_bins=8, max_source_positions=16,
            max_target_positions=32, dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, bos_token_id=1,
            eos_token_id=2,
        ),
        audio_batch, ("tied", "blocks"), "model.encoder.layers",
    ),
    "gemma": Entry(
        _transformer("GemmaConfig", "GemmaForCausalLM", **_llama_like(head_dim=8, tie_word_embeddings=True)),
        causal_batch, ("decoder", "tied", "blocks"), "model.layers",
    ),
}  # fmt: skip


class Lora(nn.Module):
    """A Linear that stays, and a trained low-rank product beside it, in a dtype of its own."""

    def __init__(self, base: nn.Linear, rank: int = 4, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(0.1 * torch.randn(rank, base.in_features, dtype=dtype))
        self.b = nn.Parameter(0.1 * torch.randn(base.out_features, rank, dtype=dtype))

    @property
    def weight(self) -> torch.Tensor:
        """The base's, as in peft: models look at its dtype."""
        return self.base.weight

    @property
    def bias(self) -> torch.Tensor | None:
        """The base's."""
        return self.base.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + (x.to(self.a.dtype) @ self.a.T @ self.b.T).to(x.dtype)


def add_checkpoints(model: nn.Module, reentrant: bool) -> nn.Module:
    """Blocks recompute their activations in the backward pass."""
    if hasattr(model, "gradient_checkpointing_enable"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    else:
        model.checkpoint = reentrant  # type: ignore[assignment]
    return model


def add_lora(model: nn.Module) -> nn.Module:
    """Freezes all parameters and gives every Linear in a block an adapter."""
    model.requires_grad_(False)
    places = [
        (module, name, child)
        for path, module in model.named_modules()
        for name, child in module.named_children()
        if isinstance(child, nn.Linear) and any(part.isdigit() for part in path.split("."))
    ]
    for module, name, child in places:
        setattr(module, name, Lora(child))
    assert places, "no Linear in a block"
    return model


def freeze_half(model: nn.Module) -> nn.Module:
    """Every second parameter tensor stays as it is."""
    for i, param in enumerate(model.parameters()):
        param.requires_grad_(i % 2 == 0)
    return model


def build(name: str, seed: int = 1, dtype: torch.dtype = torch.float32) -> nn.Module:
    """The same weights for the same seed. An integer buffer keeps its dtype."""
    torch.manual_seed(seed)
    return ZOO[name].make().to(dtype).train()


def batches(name: str, rank: int, dtype: torch.dtype = torch.float32, first: int = 0) -> Iterator[Batch]:
    """Batch `first`, first + 1, ... of a rank: the same ones for everybody."""
    step = first
    while True:
        generator = torch.Generator().manual_seed(10007 * step + rank)
        made = ZOO[name].batch(generator)
        yield {k: v.to(dtype) if v.is_floating_point() else v for k, v in made.items()}
        step += 1


def loss_of(model: nn.Module, batch: Batch) -> torch.Tensor:
    """The scalar that is trained on."""
    return model(**batch).loss.float()


@dataclass
class Trained:
    """What a run leaves: losses of each step (of each rank, its micro-batches' mean), and the last parameters."""

    losses: list[list[float]]  # [step][rank]
    params: dict[str, torch.Tensor]


def train_plain(
    model: nn.Module,
    data: list[Iterator[Batch]],
    optimizer: torch.optim.Optimizer,
    steps: int,
    *,
    micros: Callable[[int], int] = lambda step: 1,
    clip: float = 0.0,
    masters: bool = False,
    scale: float = 1.0,
    noise: int = 0,
) -> Trained:
    """Plain torch on one process: gradients are the mean over ranks and micro-batches.

    Args:
        data: batches of each rank.
        optimizer: of `model.parameters()`; with `masters`, of the fp32 copies that `fp32_masters()` made.
        micros: how many micro-batches a step has, by its number.
        scale: of the loss, in backward; gradients are divided by it.
        noise: the seed of random changes of the gradients, by at most one unit in the last place; 0: none.
    """
    losses = []
    sums: dict[int, torch.Tensor] = {}
    dice = torch.Generator().manual_seed(noise)
    params = list(model.parameters())
    stepped = [p for group in optimizer.param_groups for p in group["params"]]
    for step in range(steps):
        n, row = micros(step), [0.0] * len(data)
        sums.clear()
        for rank, source in enumerate(data):
            for _ in range(n):
                loss = loss_of(model, next(source))
                (loss * (scale / n)).backward()
                row[rank] += loss.item() / n
                for i, p in enumerate(params):
                    if p.grad is not None:
                        grad = p.grad.float() / (scale * len(data))
                        sums[i] = sums[i] + grad if i in sums else grad
                        p.grad = None
        targets = stepped if masters else params
        for i, p in enumerate(targets):
            p.grad = sums[i].to(p.dtype) if i in sums else None
            if noise and p.grad is not None:
                p.grad.mul_(1 + torch.randint(-1, 2, p.grad.shape, generator=dice).to(p.grad) * 2**-23)
        if clip:
            torch.nn.utils.clip_grad_norm_(targets, clip)
        optimizer.step()
        optimizer.zero_grad()
        if masters:
            with torch.no_grad():
                for p, m in zip(params, stepped, strict=True):
                    p.copy_(m)
        losses.append(row)
    return Trained(losses, {n: p.detach().clone().cpu() for n, p in model.named_parameters()})


def fp32_masters(model: nn.Module) -> list[nn.Parameter]:
    """fp32 copies of all parameters, in order; frozen ones stay frozen."""
    return [nn.Parameter(p.detach().float(), requires_grad=p.requires_grad) for p in model.parameters()]


def trained_params(model: nn.Module) -> Iterable[nn.Parameter]:
    return (p for p in model.parameters() if p.requires_grad)
