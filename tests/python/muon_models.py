"""A small model with grouped-query attention, and Muon in plain fp32 PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH, HEADS, KV_HEADS, STEPS, SEQUENCES = 23, 16, 4, 2, 20, 6
LR, WEIGHT_DECAY, MOMENTUM, BETAS, EPS = 1e-3, 0.1, 0.95, (0.9, 0.999), 1e-8


class Attention(nn.Module):
    """Of HEADS heads, whose keys and values are shared by groups of them."""

    def __init__(self) -> None:
        super().__init__()
        size = WIDTH // HEADS
        self.q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k = nn.Linear(WIDTH, KV_HEADS * size, bias=False)
        self.v = nn.Linear(WIDTH, KV_HEADS * size, bias=True)
        self.o = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        q, k, v = (f(x).view(b, t, -1, WIDTH // HEADS).transpose(1, 2) for f in (self.q, self.k, self.v))
        k, v = (y.repeat_interleave(HEADS // KV_HEADS, dim=1) for y in (k, v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(b, t, WIDTH))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """Attention and a gated MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention = Attention()
        self.gate, self.up = (nn.Linear(WIDTH, 3 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        h = self.norm2(x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))  # type: ignore[no-any-return]


class Gqa(nn.Module):
    """Embedding, layers, head. The same values each time."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h)
        return self.head(self.norm(h))  # type: ignore[no-any-return]


def loss_of(model: nn.Module, step: int, rows: Sequence[int] = range(SEQUENCES)) -> torch.Tensor:
    """Of some of the sequences of a step."""
    x = torch.randint(0, VOCABULARY, (SEQUENCES, 9), generator=torch.Generator().manual_seed(step))[list(rows)]
    return functional.cross_entropy(model(x[:, :-1]).float().flatten(0, 1), x[:, 1:].flatten())


def is_matrix(name: str, p: torch.Tensor) -> bool:
    """What Muon steps by default."""
    return p.ndim == 2 and name.startswith("layers.")


def orthogonalized(g: torch.Tensor) -> torch.Tensor:
    """Five Newton-Schulz iterations in fp32."""
    x = g.T if g.shape[0] > g.shape[1] else g
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.T if g.shape[0] > g.shape[1] else x


class PlainMuon(torch.optim.Optimizer):
    """As torch.optim.Muon, but for the orthogonalization, which is in fp32."""

    def __init__(self, params: Any, scale: str = "rms") -> None:
        super().__init__(params, {})
        self.scale = scale

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for p in self.param_groups[0]["params"]:
            m = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
            m.lerp_(p.grad, 1 - MOMENTUM)
            update = orthogonalized(p.grad.lerp(m, MOMENTUM))
            rows, cols = p.shape
            factor = 0.2 * max(rows, cols) ** 0.5 if self.scale == "rms" else max(1, rows / cols) ** 0.5
            p.mul_(1 - LR * WEIGHT_DECAY).sub_(update, alpha=LR * factor)
        return closure


def plain(steps: int = STEPS, scale: str = "rms", **more: float) -> dict[str, torch.Tensor]:
    """The weights that plain PyTorch ends with, in one process."""
    model = Gqa()
    matrices = [p for n, p in model.named_parameters() if is_matrix(n, p)]
    rest = [p for n, p in model.named_parameters() if not is_matrix(n, p)]
    pair = (
        PlainMuon(matrices, scale),
        torch.optim.AdamW(rest, **{"lr": LR, "betas": BETAS, "eps": EPS, "weight_decay": WEIGHT_DECAY, **more}),  # type: ignore[arg-type]
    )
    for step in range(steps):
        loss_of(model, step).backward()
        for opt in pair:
            opt.step()
            opt.zero_grad()
    return {n: p.detach() for n, p in model.named_parameters()}
