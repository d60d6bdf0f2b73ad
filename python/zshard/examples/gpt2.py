"""Trains a small GPT on generated text, in under a minute on two cores.

    python -m zshard.examples.gpt2
    torchrun --nproc-per-node 2 -m zshard.examples.gpt2

The model is plain PyTorch, and so is the loop; the lines marked "zshard" are all that sharding takes. Its parameters,
gradients and optimizer state live in a daemon that is started for this user, or, without one, in this process.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
import time

import torch
from torch import Tensor, nn
from torch.nn import functional

import zshard.torch as zt  # zshard

TEXT = " abcdefghijklmnopqrstuvwxyz0123456789+=.\n"
NAMES = "the cat|the dog|a bird|the old man|my sister|nobody".split("|")
VERBS = "sees|likes|follows|forgets|waits for".split("|")


class Attention(nn.Module):
    """Causal self-attention: [batch, tokens, width] to the same."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, w = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(x).split(w, dim=2))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        made: Tensor = self.out(y.transpose(1, 2).reshape(b, t, w))
        return made


class Block(nn.Module):
    """One layer: [batch, tokens, width] to the same."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        made: Tensor = x + self.mlp(self.norm2(x))
        return made


class GPT(nn.Module):
    """GPT-2 in small: [batch, tokens] of indices to logits [batch, tokens, len(TEXT)]. The head is the embedding."""

    def __init__(self, layers: int, width: int, heads: int, tokens: int) -> None:
        super().__init__()
        self.tokens = tokens
        self.embedding, self.positions = nn.Embedding(len(TEXT), width), nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(TEXT), bias=False)
        self.head.weight = self.embedding.weight
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        y = self.embedding(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            y = block(y)
        made: Tensor = self.head(self.norm(y))
        return made


def sentence(rng: random.Random) -> str:
    """A line of text: who sees whom, or a sum."""
    if rng.random() < 0.5:
        a, b = rng.randrange(10), rng.randrange(10)
        return f"{a} + {b} = {a + b}.\n"
    return f"{rng.choice(NAMES)} {rng.choice(VERBS)} {rng.choice(NAMES)}.\n"


def batch(rng: random.Random, rows: int, tokens: int) -> tuple[Tensor, Tensor]:
    """Indices and the next ones, both [rows, tokens]."""
    made = []
    for _ in range(rows):
        text = ""
        while len(text) <= tokens:
            text += sentence(rng)
        made.append([TEXT.index(c) for c in text[: tokens + 1]])
    data = torch.tensor(made)
    return data[:, :-1].contiguous(), data[:, 1:].contiguous()


@torch.no_grad()
def generate(model: GPT, prompt: str, count: int) -> str:
    """The prompt and `count` characters that the model finds likely."""
    text = [TEXT.index(c) for c in prompt]
    for _ in range(count):
        logits = model(torch.tensor([text[-model.tokens :]]))[0, -1]
        text.append(int(logits.argmax()))
    return "".join(TEXT[i] for i in text)


def curve(losses: list[float], columns: int = 64, rows: int = 12) -> str:
    """The losses as a plot of characters."""
    columns = min(columns, len(losses))
    points = [sum(part) / len(part) for part in (
        losses[len(losses) * c // columns : max(len(losses) * (c + 1) // columns, len(losses) * c // columns + 1)]
        for c in range(columns))]  # fmt: skip
    low, high = min(points), max(points)
    span = high - low or 1.0
    heights = [round((p - low) / span * (rows - 1)) for p in points]
    lines = []
    for row in range(rows - 1, -1, -1):
        label = f"{low + span * row / (rows - 1):7.3f}" if row % 4 == 3 or row == 0 else " " * 7
        lines.append(f"{label} |" + "".join("*" if h == row else " " for h in heights))
    lines.append(" " * 8 + "+" + "-" * columns)
    lines.append(" " * 9 + f"step 1{f'step {len(losses)}':>{max(columns - 6, 1)}}")
    return "\n".join(lines)


def picture(losses: list[float], path: str) -> bool:
    """Writes the curve as PNG; False: there is no matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots()
    axes.plot(range(1, len(losses) + 1), losses)
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    figure.savefig(path)
    return True


def arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m zshard.examples.gpt2", description=__doc__.partition("\n")[0])
    for name, default, what in (("steps", 300, "optimizer steps, at most"), ("layers", 4, "blocks"),
                                ("width", 128, "of the model"), ("heads", 4, "of attention"),
                                ("tokens", 64, "of a sequence"), ("batch", 16, "sequences of each rank"),
                                ("seed", 1, "of weights and text"),
                                ("seconds", 45, "of training, at most")):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{what} (default: {default})")
    parser.add_argument("--lr", type=float, default=3e-3, help="learning rate (default: 0.003)")
    parser.add_argument("--offload", default="auto", choices=["auto", "none", "host", "nvme"],
                        help="where the state lives (default: auto)")  # fmt: skip
    parser.add_argument("--png", default="gpt2-loss.png", help="picture of the losses, where matplotlib is")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> list[float]:
    """Trains; returns the losses of the steps."""
    args = arguments(words)
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if "OMP_NUM_THREADS" not in os.environ:  # half of the processors are the daemon's
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // (2 * here)))
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed * 1000 + rank)
    model = GPT(args.layers, args.width, args.heads, args.tokens)
    count = sum(p.numel() for p in model.parameters())

    optimizer = zt.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)  # zshard
    engine = zt.shard(model, optimizer, offload=args.offload)  # zshard

    warm = max(1, args.steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda s: min(1.0, (s + 1) / warm) * (0.55 + 0.45 * math.cos(math.pi * min(1.0, s / args.steps))),
    )
    if rank == 0:
        print(f"GPT of {count:,} parameters, {world} rank{'s' if world > 1 else ''}, {args.steps} steps", flush=True)
    losses: list[float] = []
    begin = time.monotonic()
    for step in range(1, args.steps + 1):
        x, y = batch(rng, args.batch, args.tokens)
        loss = functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        mean, spent = (v / world for v in engine.engine.sum([loss.item(), time.monotonic() - begin]))
        losses.append(mean)
        late = spent > args.seconds  # the same on all ranks
        if rank == 0 and (step % 10 == 0 or step in (1, args.steps) or late):
            speed = step * args.batch * args.tokens * world / (time.monotonic() - begin)
            end = "\n" if step == args.steps or late or not sys.stdout.isatty() else "\r"
            print(f"step {step:4d}  loss {losses[-1]:.4f}  {speed:8,.0f} tokens/s", end=end, flush=True)
        if late:
            break

    model.eval()
    said = generate(model, "4 + 5 = ", 40)
    if rank == 0:
        print(f"\n{curve(losses)}\n\nit says: {said!r}")
        if picture(losses, args.png):
            print(f"written: {args.png}")
    engine.close()
    return losses


if __name__ == "__main__":
    main()
