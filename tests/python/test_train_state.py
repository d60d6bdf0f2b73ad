# ctest: LABELS full COST 15
"""A training state in files, as Accelerator and Trainer write it: exact with every optimizer, and refused by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch_models import Net, batch, loss_of

import zshard.torch as zt
from zshard._engine import Engine
from zshard.torch import _save
from zshard.torch import _train_state as state


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    torch.manual_seed(0)
    yield


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "Adam": lambda p: zt.Adam(p, lr=1e-2, weight_decay=0.1),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2, lr_decay=0.1),
    "Lion": lambda p: zt.Lion(p, lr=1e-3),
    "RAdam": lambda p: zt.HostOptimizer(torch.optim.RAdam, p, lr=1e-2),
}


def sharded(name: str, dtype: torch.dtype = torch.float32, seed: int = 0, **more: Any) -> tuple[Any, Any, Any]:
    torch.manual_seed(seed)
    model = Net().to(dtype)
    optimizer = OPTIMIZERS[name](model.parameters())
    return model, optimizer, zt.shard(model, optimizer, offload="none", **more)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> list[float]:
    losses = []
    for i in steps:
        model.requires_grad_(True)
        model.blocks[1].requires_grad_(i % 2 == 0)  # type: ignore[index]
        loss = loss_of(model, batch(i))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_exact(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """A state goes into a new model, and into one that has trained already; tensors have step counts of their own."""
    model, optimizer, handle = sharded(name, dtype)
    train(model, optimizer, range(3))
    optimizer.param_groups[0]["lr"] = 3e-3
    state.save_weights(model, tmp_path)
    state.save_model(model, tmp_path)
    state.save_optimizer(optimizer, tmp_path)
    want = train(model, optimizer, range(3, 6))
    end = model.state_dict()
    handle.close()
    for before in (0, 2):
        model, optimizer, handle = sharded(name, dtype, seed=1)
        train(model, optimizer, range(7, 7 + before))
        assert state.load_weights(model, tmp_path) == ([], [])
        state.load_model(model, tmp_path)
        state.load_optimizer(optimizer, tmp_path)
        assert optimizer.param_groups[0]["lr"] == 3e-3
        assert train(model, optimizer, range(3, 6)) == want
        assert all(torch.equal(v, end[n]) for n, v in model.state_dict().items())
        handle.close()


def test_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than a piece is read at a time, however long a parameter is; the unit's own slice when it is loaded."""
    asked = []
    read = Engine.read_on

    def read_on(self: Engine, root: int, unit: int, what: Any, first: int, count: int, *more: Any) -> None:
        asked.append(count)
        read(self, root, unit, what, first, count, *more)

    model, optimizer, handle = sharded("AdamW", torch.bfloat16)
    train(model, optimizer, range(2))
    want = {n: (zt.state_of(p, "exp_avg"), zt.state_of(p, "master")) for n, p in model.named_parameters()}
    monkeypatch.setattr(_save, "PIECE", 100)
    monkeypatch.setattr(Engine, "read_on", read_on)
    state.save_model(model, tmp_path)
    assert max(asked) == 100
    train(model, optimizer, range(2, 4))
    state.load_model(model, tmp_path)
    for n, p in model.named_parameters():
        assert torch.equal(zt.state_of(p, "exp_avg"), want[n][0]) and torch.equal(zt.state_of(p, "master"), want[n][1])
    handle.close()


def test_before_the_first_step(tmp_path: Path) -> None:
    """Moments that are there go where the state has none."""
    model, optimizer, handle = sharded("AdamW")
    state.save_weights(model, tmp_path)
    state.save_model(model, tmp_path)
    want = train(model, optimizer, range(3))
    state.load_weights(model, tmp_path)
    state.load_model(model, tmp_path)
    assert train(model, optimizer, range(3)) == want
    handle.close()


def test_frozen_weights_are_loaded(tmp_path: Path) -> None:
    """By a state, and by load_state_dict(): also where a unit is frozen in bf16, and has no master."""
    for dtype in (torch.float32, torch.bfloat16):
        model, other = Net().to(dtype), Net().to(dtype)
        want = other.state_dict()
        for m in (model, other):
            m.blocks.requires_grad_(False)
        handles = [zt.shard(m, offload="none") for m in (model, other)]
        zt.load_state_dict(model, want)
        assert all(torch.equal(v, want[n]) for n, v in model.state_dict().items())
        zt.load_state_dict(model, Net().to(dtype).state_dict())
        state.save_weights(other, tmp_path / str(dtype))
        state.load_weights(model, tmp_path / str(dtype))
        assert all(torch.equal(v, want[n]) for n, v in model.state_dict().items())
        for handle in handles:
            handle.close()


def test_only_frozen(tmp_path: Path) -> None:
    """A model that is not trained at all, such as a reference model."""
    model = Net().requires_grad_(False)
    want, out = model.state_dict(), loss_of(model, batch(0))
    handle = zt.shard(model, offload="none")
    assert torch.equal(loss_of(model, batch(0)), out)
    state.save_weights(model, tmp_path)
    state.save_model(model, tmp_path)
    state.load_weights(model, tmp_path)
    state.load_model(model, tmp_path)
    assert all(torch.equal(v, want[n]) for n, v in model.state_dict().items())
    handle.close()


def test_missing_and_unexpected(tmp_path: Path) -> None:
    model, _, handle = sharded("AdamW")
    before = model.state_dict()
    kept = {n: v for n, v in Net().state_dict().items() if n != "norm.weight"} | {"more": torch.ones(2)}
    from safetensors.torch import save_file

    save_file(kept, str(tmp_path / "model.safetensors"))
    assert state.load_weights(model, tmp_path) == (["norm.weight"], ["more"])
    now = model.state_dict()
    assert all(torch.equal(now[n], v) for n, v in kept.items() if n != "more")
    assert torch.equal(now["norm.weight"], before["norm.weight"])
    handle.close()


def test_mistakes(tmp_path: Path) -> None:
    model, optimizer, handle = sharded("AdamW")
    train(model, optimizer, range(1))
    state.save_model(model, tmp_path)
    state.save_optimizer(optimizer, tmp_path)
    before = model.state_dict()
    with pytest.raises(ValueError, match="is of adamw, and the optimizer is sgd"):
        state.load_model(sharded("SGD")[0], tmp_path)
    with pytest.raises(ValueError, match=r"other trained parameters: the model lacks blocks.2.down.bias"):
        other = Net(depth=2)
        zt.shard(other, torch.optim.AdamW(other.parameters()), offload="none")
        state.load_model(other, tmp_path)
    with pytest.raises(ValueError, match=r"exp_avg/embed.weight': shape \[29, 16\]; the model's has shape \[29, 8\]"):
        other = Net(width=8)
        zt.shard(other, torch.optim.AdamW(other.parameters()), offload="none")
        state.load_model(other, tmp_path)
    with pytest.raises(ValueError, match="groups of"):
        state.load_optimizer(torch.optim.AdamW([model.norm.weight]), tmp_path)
    with pytest.raises(FileNotFoundError):
        state.load_weights(model, tmp_path / "nothing")
    os.truncate(tmp_path / "zshard" / "model_0.safetensors", 5000)
    with pytest.raises(zt_errors(), match="model_0.safetensors"):
        state.load_model(model, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        state.save_model(model, tmp_path / "file")
    assert all(torch.equal(v, before[n]) for n, v in model.state_dict().items())
    handle.close()


def zt_errors() -> Any:
    from zshard import ZshardError

    return ZshardError


def test_what_others_keep_in_the_folder(tmp_path: Path) -> None:
    """save_pretrained() into a folder in use: files are not copied, and who writes to one goes on."""
    model, _, handle = sharded("AdamW")
    folder = tmp_path / "run"
    (folder / "checkpoint-1").mkdir(parents=True)
    (folder / "checkpoint-1" / "big").write_text("big")
    (folder / "link").symlink_to("checkpoint-1")
    number = (folder / "checkpoint-1" / "big").stat().st_ino
    with open(folder / "log", "w", encoding="utf-8") as log:
        log.write("one ")
        log.flush()
        zt.save_pretrained(model, folder, background=False)
        log.write("two")
    assert (folder / "log").read_text() == "one two"
    assert (folder / "checkpoint-1" / "big").stat().st_ino == number and (folder / "link").is_symlink()
    assert (folder / "model.safetensors").exists() and sorted(os.listdir(tmp_path)) == ["run"]
    handle.close()
