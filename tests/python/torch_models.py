"""Small modules and training loops that the tests of zshard.torch share."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import zshard.torch as zt

VOCABULARY = 29


class Mixture(nn.Module):
    """Experts, of which each token goes through one; a rank goes through those of its `turn` alone."""

    turn = 0

    def __init__(self, width: int, experts: int = 3) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(Block(width) for _ in range(experts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = torch.softmax(self.router(x), -1)
        chosen = (Mixture.turn, (Mixture.turn + 1) % len(self.experts)) if Mixture.turn else (0,)
        return sum((weights[..., i, None] * self.experts[i](x) for i in chosen), start=torch.zeros_like(x))


class Block(nn.Module):
    """A pre-norm MLP block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Net(nn.Module):
    """Embedding, blocks, head; `recompute` is None, "reentrant" or "non-reentrant"."""

    def __init__(self, width: int = 16, depth: int = 3, tied: bool = False, recompute: str | None = None) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=not tied)
        if tied:
            self.head.weight = self.embed.weight
        self.recompute = recompute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x)
        for block in self.blocks:
            if self.recompute and self.training:
                h = checkpoint(block, h, use_reentrant=self.recompute == "reentrant")
            else:
                h = block(h)
        return self.head(self.norm(h))


def batch(step: int, rank: int = 0) -> torch.Tensor:
    """[4, 7] tokens."""
    made = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randint(0, VOCABULARY, (4, 7), generator=made)


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Cross entropy of the next token."""
    return nn.functional.cross_entropy(model(x[:, :-1]).float().flatten(0, 1), x[:, 1:].flatten())


Step = Callable[[nn.Module, torch.optim.Optimizer, int], float]


def plain_step(model: nn.Module, opt: torch.optim.Optimizer, step: int) -> float:
    """One step of the usual loop."""
    loss = loss_of(model, batch(step))
    loss.backward()
    opt.step()
    opt.zero_grad()
    return float(loss.detach())


def adamw(params: Any, **more: Any) -> torch.optim.Optimizer:
    """torch's, with an eps at which torch agrees with itself."""
    return torch.optim.AdamW(params, **{"lr": 1e-2, "eps": 1e-4, "weight_decay": 0.1, **more})


def values(model: nn.Module) -> dict[str, torch.Tensor]:
    """Every parameter of a sharded model, fp32."""
    runtime = model.__dict__["_zshard"].runtime
    found = {}
    for unit in runtime.plan.units:
        for p in unit.pieces:
            found[p.name] = runtime.read(unit.index, "param", p.first, p.numel).view(p.shape)
    return found


def assert_close(want: list[float], got: list[float], plain: nn.Module, model: nn.Module, loss: float = 1e-6,
                 param: float = 1e-5) -> None:  # fmt: skip
    """Losses within `loss` relative, parameters within `param` of their tensor's largest."""
    for i, (a, b) in enumerate(zip(want, got, strict=True)):
        assert abs(a - b) <= loss * abs(a), f"loss of step {i}: {b}, not {a}"
    real = dict(plain.named_parameters())
    for name, value in values(model).items():
        difference = (value - real[name].detach().float()).abs().max()
        assert difference <= param * real[name].detach().abs().max(), f"{name} differs by {difference}"


def compare(model: nn.Module, make: Callable[[nn.Module], torch.optim.Optimizer] | None = None,
            step: Step = plain_step, steps: int = 20, within: dict[str, float] | None = None,
            **shard: Any) -> zt.Handle:  # fmt: skip
    """Trains a copy with plain torch and the model sharded, and compares. Returns the handle, still open."""
    make = make or (lambda m: adamw(m.parameters()))
    plain = copy.deepcopy(model)
    opt = make(plain)
    want = [step(plain, opt, i) for i in range(steps)]
    opt = make(model)
    handle = zt.shard(model, opt, **{"offload": "none", **shard})
    got = [step(model, opt, i) for i in range(steps)]
    assert_close(want, got, plain, model, **(within or {}))
    assert all(u.holds == 0 for u in handle.runtime.units)
    return handle


def mixture() -> Net:
    """A Net whose blocks are mixtures."""
    model = Net()
    model.blocks = nn.ModuleList(Mixture(16) for _ in range(2))
    return model


def fail(model: nn.Module, handle: zt.Handle, rank: int, in_forward: bool) -> None:
    """Rank 1 fails in its forward or its backward pass, and the other one does not."""

    def boom(*_: object) -> None:
        raise ArithmeticError("on rank 1 alone")

    hook = model.blocks[1].register_forward_hook(boom) if rank == 1 and in_forward else None  # type: ignore[index, operator, union-attr]
    try:
        loss = loss_of(model, batch(99, rank))
        if rank == 1:
            assert loss.grad_fn is not None
            loss.grad_fn.next_functions[0][0].register_prehook(boom)  # type: ignore[union-attr]
        loss.backward()
    except ArithmeticError:
        assert rank == 1
    else:
        assert rank == 0
    if hook is not None:
        hook.remove()
    handle.reset(passes=1)


def assert_same(want: dict[str, torch.Tensor], got: dict[str, torch.Tensor]) -> None:
    """Bit for bit."""
    assert want.keys() == got.keys()
    assert [name for name in want if not torch.equal(want[name], got[name])] == []
