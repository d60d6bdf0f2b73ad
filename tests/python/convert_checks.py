"""Helpers of test_convert.py and test_convert_errors.py."""

from __future__ import annotations

from typing import Any

import torch
import zero_files
from convert_program import adamw
from torch_models import batch, loss_of, values

import zshard.torch as zt


def same(a: Any, b: Any) -> None:
    """The same tensors, bit for bit, with the same counts."""
    assert set(a.tensors) == set(b.tensors)
    for name, t in a.tensors.items():
        u = b.tensors[name]
        assert (u.shape, u.step) == (t.shape, t.step), name
        assert set(u.planes) == set(t.planes), name
        for plane, source in t.planes.items():
            assert torch.equal(source.tensor().double(), u.planes[plane].tensor().double()), (name, plane)


def state(model: Any, optimizer: Any) -> dict[str, Any]:
    """Everything that a checkpoint is about."""
    made: dict[str, Any] = {}
    for unit in model.__dict__["_zshard"].runtime.plan.units:
        for p in unit.pieces:
            if unit.frozen:
                made[p.name] = values(model)[p.name]
                continue
            words = ["master", "step", *optimizer.state[p.param]]
            made |= {f"{p.name}.{w}": zt.state_of(p.param, w).clone() for w in words}
    return made


def train(model: Any, optimizer: Any, first: int, steps: int) -> list[float]:
    losses = []
    for i in range(first, first + steps):
        loss = loss_of(model, batch(i))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def synthetic(**more: Any) -> zero_files.Zero:
    """Groups of odd sizes, a frozen parameter, a buffer and an alias."""
    made = torch.Generator().manual_seed(5)

    def planes(*shape: int) -> dict[str, torch.Tensor]:
        return {p: torch.randn(shape, generator=made) for p in ("fp32", "exp_avg", "exp_avg_sq")}

    trained = [{"a.weight": planes(5, 3), "b.weight": planes(7), "c": planes(2, 2)}, {"a.bias": planes(3)}]
    frozen = {"f.weight": torch.randn(3, 3, generator=made).to(torch.bfloat16)}
    buffers = {"n.count": torch.tensor([1 << 40, 3]), "n.mean": torch.randn(4, generator=made)}
    return zero_files.Zero(trained=trained, frozen=frozen, buffers=buffers, aliases={"d": "c"}, **more)


def like(model: Any) -> zero_files.Zero:
    """Files that fit a model."""
    groups = []
    for group in adamw(model).param_groups:
        names = [n for n, p in model.named_parameters() if any(p is q for q in group["params"])]
        sizes = dict(model.named_parameters())
        groups.append({n: {p: torch.rand(sizes[n].shape) for p in ("fp32", "exp_avg", "exp_avg_sq")} for n in names})
    frozen = {n: torch.rand(p.shape) for n, p in model.named_parameters() if not p.requires_grad}
    return zero_files.Zero(2, 3, groups, frozen=frozen, buffers={"seen": torch.tensor([1, 2])})
