# ctest: LABELS full COST 30 TIMEOUT 900
"""zshard.torch against plain torch: what else a training loop does with gradients, groups and graphs."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_models import VOCABULARY, Block, Net, Step, adamw, batch, compare, loss_of, plain_step

import zshard.torch as zt


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    gc.collect()


# ---- models


class Dropped(Net):
    """Dropout after each block, within checkpoints."""

    def __init__(self, recompute: str, keep: bool = True) -> None:
        super().__init__(recompute=recompute)
        self.keep = keep
        self.blocks = nn.ModuleList(nn.Sequential(Block(16), nn.Dropout(0.2)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=self.recompute == "reentrant", preserve_rng_state=self.keep)
        return self.head(self.norm(h))


class Shared(Net):
    """One block that is called `calls` times, directly or by checkpoints."""

    calls = 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x)
        for _ in range(self.calls):
            for block in self.blocks:
                if self.recompute:
                    h = checkpoint(block, h, use_reentrant=self.recompute == "reentrant")
                else:
                    h = block(h)
        return self.head(self.norm(h))


class Detached(nn.Module):
    """A block whose weight is used first with its gradient, and then without."""

    def __init__(self, swapped: bool = False) -> None:
        super().__init__()
        self.inner, self.other, self.swapped = nn.Linear(16, 16), nn.Linear(16, 16), swapped

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.swapped:
            x = torch.tanh(x @ self.inner.weight.detach().T)
            return x + torch.tanh(self.other(x)) + self.inner(x)
        return x + torch.tanh(self.other(torch.tanh(x @ self.inner.weight.detach().T)))


class Recurrent(nn.Module):
    """LSTM, attention and a normed weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 16)
        self.lstm = nn.LSTM(16, 16, num_layers=2, batch_first=True)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True), 2)
        self.head = nn.utils.parametrizations.weight_norm(nn.Linear(16, VOCABULARY))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, _ = self.lstm(self.embed(x))
        h = h + self.attention(h, h, h, need_weights=False)[0]
        return self.head(self.layers(h))


class Heads(Net):
    """Two heads on one trunk."""

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Linear(16, VOCABULARY)

    def both(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.embed(x)
        for block in self.blocks:
            h = block(h)
        return self.head(h), self.second(h)

    def forward(self, x: torch.Tensor, which: str = "first") -> Any:
        a, b = self.both(x)
        return (a, b) if which == "both" else a


class Conditional(Net):
    """Blocks are left out in turn."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x)
        for k, block in enumerate(self.blocks):
            if (self.calls + k) % 3:
                h = block(h)
        self.calls += 1
        return self.head(self.norm(h))


# ---- loops


def finish(opt: torch.optim.Optimizer) -> None:
    opt.step()
    opt.zero_grad()


def cross(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(out.float().flatten(0, 1), x[:, 1:].flatten())


def step_hooks(model: nn.Module, opt: torch.optim.Optimizer, i: int) -> float:
    """Hooks of the user's on parameters change gradients."""
    if i == 0:
        for p in model.parameters():
            if p.dim() == 2:
                p.register_hook(lambda g: g * 0.5)
            else:
                p.register_hook(lambda g: g.clamp(-1e-3, 1e-3))
    return plain_step(model, opt, i)


def step_some_none(model: nn.Module, opt: torch.optim.Optimizer, i: int) -> float:
    """Some parameters' .grad is dropped before the step."""
    loss = loss_of(model, batch(i))
    loss.backward()
    for k, p in enumerate(model.parameters()):
        if (k + i) % 3 == 0:
            p.grad = None
    finish(opt)
    return float(loss.detach())


def step_zero_some(model: nn.Module, opt: torch.optim.Optimizer, i: int) -> float:
    """Some parameters' .grad is zeroed before the step."""
    loss = loss_of(model, batch(i))
    loss.backward()
    for k, p in enumerate(model.parameters()):
        if (k + i) % 3 == 0:
            assert p.grad is not None
            p.grad.zero_()
    finish(opt)
    return float(loss.detach())


def step_keep_zeros(model: nn.Module, opt: torch.optim.Optimizer, i: int) -> float:
    """zero_grad(set_to_none=False): what has no gradient in a step has zeros."""
    opt.zero_grad(set_to_none=False)
    loss = loss_of(model, batch(i))
    loss.backward()
    opt.step()
    return float(loss.detach())


def step_zero_late(model: nn.Module, opt: torch.optim.Optimizer, i: int) -> float:
    """zero_grad between forward and backward."""
    loss = loss_of(model, batch(i))
    opt.zero_grad()
    loss.backward()
    opt.step()
    return float(loss.detach())


def step_eval_between(model: nn.Module, opt: torch.optim.Optimizer, i: int) -> float:
    """An evaluation between forward and backward, and between backward and step."""
    loss = loss_of(model, batch(i))
    model.eval()
    with torch.no_grad():
        loss_of(model, batch(i + 50))
    model.train()
    loss.backward()
    with torch.inference_mode():
        loss_of(model, batch(i + 51))
    finish(opt)
    return float(loss.detach())


def step_heads(model: nn.Module, opt: torch.optim.Optimizer, i: int) -> float:
    """Two backward passes through one trunk."""
    x = batch(i)
    a, b = model(x[:, :-1], "both")
    first, second = cross(a, x), cross(b, x)
    first.backward(retain_graph=True)
    second.backward()
    finish(opt)
    return float(first.detach() + second.detach())


def step_inputs(model: nn.Module, opt: torch.optim.Optimizer, i: int) -> float:
    """backward(inputs=): the others have no gradient."""
    loss = loss_of(model, batch(i))
    some = [p for k, p in enumerate(model.parameters()) if k % 2 == i % 2]
    loss.backward(inputs=some)
    finish(opt)
    return float(loss.detach())


def step_calls(model: nn.Module, opt: torch.optim.Optimizer, i: int) -> float:
    """Blocks are called another number of times in each step."""
    model.calls = 1 + i % 3  # type: ignore[assignment]
    return plain_step(model, opt, i)


def step_calls_eval(model: nn.Module, opt: torch.optim.Optimizer, i: int) -> float:
    """Trained in eval mode."""
    model.eval()
    return step_calls(model, opt, i)


def step_micros(model: nn.Module, opt: torch.optim.Optimizer, i: int) -> float:
    """Three micro-batches, clipped at the end."""
    total = 0.0
    for k in range(3):
        loss = loss_of(model, batch(10 * i + k)) / 3
        handle = model.__dict__.get("_zshard")
        if handle is not None:
            handle.set_boundary(k == 2)
        loss.backward()
        total += float(loss.detach())
    nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    finish(opt)
    return total


def step_seed(model: nn.Module, opt: torch.optim.Optimizer, i: int) -> float:
    torch.manual_seed(i)
    return plain_step(model, opt, i)


def step_autocast(model: nn.Module, opt: torch.optim.Optimizer, i: int) -> float:
    """autocast with its cache, which also holds an evaluation."""
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_of(model, batch(2 * i)) + loss_of(model, batch(2 * i + 1))
    loss.backward()
    finish(opt)
    return float(loss.detach())


def step_clip_value(model: nn.Module, opt: torch.optim.Optimizer, i: int) -> float:
    """Clipping by parts, of one norm and of the other."""
    loss = loss_of(model, batch(i))
    loss.backward()
    nn.utils.clip_grad_norm_(model.blocks.parameters(), 0.02)  # type: ignore[union-attr]
    nn.utils.clip_grad_norm_(model.head.parameters(), 0.01, norm_type=float("inf"))  # type: ignore[union-attr]
    finish(opt)
    return float(loss.detach())


def step_penalty(model: nn.Module, opt: torch.optim.Optimizer, i: int) -> float:
    """The gradient of the inputs is part of the loss."""
    x = batch(i)
    h = model.embed(x[:, :-1]).detach().requires_grad_()  # type: ignore[operator]
    out = h
    for block in model.blocks:  # type: ignore[union-attr]
        out = block(out)
    loss = cross(model.head(model.norm(out)), x)  # type: ignore[operator]
    (g,) = torch.autograd.grad(loss, h, create_graph=True)
    loss = loss + g.pow(2).sum()
    loss.backward()
    finish(opt)
    return float(loss.detach())


def step_adversarial(model: nn.Module, opt: torch.optim.Optimizer, i: int) -> float:
    """The gradient of the inputs is found first, without that of the weights."""
    x = batch(i)
    h = torch.randn(4, 6, 16, generator=torch.Generator().manual_seed(i)).requires_grad_()

    def run(h: torch.Tensor) -> torch.Tensor:
        for block in model.blocks:  # type: ignore[union-attr]
            h = block(h)
        return cross(model.head(model.norm(h)), x)  # type: ignore[operator]

    (g,) = torch.autograd.grad(run(h), h)
    loss = run(h + 0.1 * g.sign()) + loss_of(model, x)
    loss.backward()
    finish(opt)
    return float(loss.detach())


def scaled(bad: tuple[int, ...], unscale: bool) -> Callable[[], Step]:
    """A GradScaler that finds an infinity in some steps."""

    def make() -> Step:
        scalers: dict[int, Any] = {}

        def step(model: nn.Module, opt: torch.optim.Optimizer, i: int) -> float:
            scaler = scalers.setdefault(id(model), torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2))
            loss = loss_of(model, batch(i))
            scaler.scale(loss * float("inf") if i in bad else loss).backward()
            if unscale:
                scaler.unscale_(opt)
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
            return float(loss.detach()) + scaler.get_scale()

        return step

    return make


def freezing() -> Step:
    """Parts are frozen and thawed in the run."""

    def step(model: nn.Module, opt: torch.optim.Optimizer, i: int) -> float:
        model.blocks[1].requires_grad_(i % 4 < 2)  # type: ignore[index]
        model.embed.requires_grad_(i % 3 < 2)  # type: ignore[union-attr]
        return plain_step(model, opt, i)

    return step


def group_added() -> Step:
    """The blocks join the optimizer after some steps."""

    def step(model: nn.Module, opt: torch.optim.Optimizer, i: int) -> float:
        if i == 3:
            opt.add_param_group({"params": list(model.blocks.parameters()), "lr": 3e-3, "betas": (0.8, 0.99)})  # type: ignore[union-attr]
        loss = loss_of(model, batch(i))
        loss.backward()
        opt.step()
        model.zero_grad()
        return float(loss.detach())

    return step


def hyper_changed() -> Step:
    """The user writes to param_groups between steps."""

    def step(model: nn.Module, opt: torch.optim.Optimizer, i: int) -> float:
        for g in opt.param_groups:
            g["lr"] = 1e-2 / (1 + i)
            g["weight_decay"] = 0.1 * (i % 2)
            if "momentum" in g:
                g["momentum"] = 0.9 - 0.1 * (i % 3)
        return plain_step(model, opt, i)

    return step


def cosine() -> Step:
    schedules: dict[int, Any] = {}

    def step(model: nn.Module, opt: torch.optim.Optimizer, i: int) -> float:
        if id(opt) not in schedules:
            one = torch.optim.lr_scheduler.LinearLR(opt, 0.1, total_iters=3)
            two = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 5)
            schedules[id(opt)] = torch.optim.lr_scheduler.SequentialLR(opt, [one, two], [3])
        loss = plain_step(model, opt, i)
        schedules[id(opt)].step()
        return loss

    return step


def some(m: nn.Module) -> torch.optim.Optimizer:
    """All but the blocks."""
    return adamw([p for n, p in m.named_parameters() if not n.startswith("blocks")])


def groups(m: nn.Module) -> torch.optim.Optimizer:
    """Groups that differ in all hyperparameters."""
    of = [list(part.parameters()) for part in m.children()]
    return adamw(
        [
            {"params": of[0], "lr": 3e-3, "betas": (0.8, 0.9)},
            {"params": [], "lr": 1.0},
            {"params": of[1], "weight_decay": 0.0, "eps": 1e-3},
            {"params": of[2] + of[3], "lr": 2e-2, "weight_decay": 0.5},
        ]
    )


def sgd(m: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)


def sgd_groups(m: nn.Module) -> torch.optim.Optimizer:
    of = [list(part.parameters()) for part in m.children()]
    return torch.optim.SGD(
        [
            {"params": of[0], "momentum": 0.5, "dampening": 0.3},
            {"params": of[1], "nesterov": True, "momentum": 0.9},
            {"params": of[2] + of[3], "weight_decay": 0.1},
        ],
        lr=0.05,
    )


Row = tuple[Callable[[], nn.Module], Callable[[nn.Module], torch.optim.Optimizer] | None, Callable[[], Step]]
LOOPS: dict[str, Row] = {
    "hooks": (Net, None, lambda: step_hooks),
    "hooks-checkpoint": (lambda: Net(recompute="non-reentrant"), None, lambda: step_hooks),
    "hooks-micros": (Net, None, lambda: lambda m, o, i: (step_hooks if i == 0 else step_micros)(m, o, i)),
    "some-none": (Net, None, lambda: step_some_none),
    "some-zero": (Net, None, lambda: step_zero_some),
    "some-zero-sgd": (Net, sgd, lambda: step_zero_some),
    "keep-zeros": (Net, None, lambda: step_keep_zeros),
    "keep-zeros-conditional": (Conditional, None, lambda: step_keep_zeros),
    "keep-zeros-conditional-sgd": (Conditional, sgd, lambda: step_keep_zeros),
    "zero-late": (Net, None, lambda: step_zero_late),
    "eval-between": (Net, None, lambda: step_eval_between),
    "eval-between-checkpoint": (lambda: Net(recompute="non-reentrant"), None, lambda: step_eval_between),
    "heads": (Heads, None, lambda: step_heads),
    "inputs": (Net, None, lambda: step_inputs),
    "calls": (Shared, None, lambda: step_calls),
    "calls-checkpoint": (lambda: Shared(recompute="non-reentrant"), None, lambda: step_calls),
    "calls-reentrant": (lambda: Shared(recompute="reentrant"), None, lambda: step_calls),
    "calls-eval": (Shared, None, lambda: step_calls_eval),
    "calls-eval-checkpoint": (lambda: Shared(recompute="non-reentrant"), None, lambda: step_calls_eval),
    "calls-eval-reentrant": (lambda: Shared(recompute="reentrant"), None, lambda: step_calls_eval),
    "conditional-micros": (Conditional, None, lambda: step_micros),
    "conditional-micros-sgd": (Conditional, sgd, lambda: step_micros),
    "dropout": (lambda: Dropped("non-reentrant"), None, lambda: step_seed),
    "dropout-reentrant": (lambda: Dropped("reentrant"), None, lambda: step_seed),
    "dropout-no-rng": (lambda: Dropped("non-reentrant", keep=False), None, lambda: step_seed),
    "autocast": (Net, None, lambda: step_autocast),
    "autocast-tied": (lambda: Net(tied=True), None, lambda: step_autocast),
    "autocast-checkpoint": (lambda: Net(recompute="non-reentrant"), None, lambda: step_autocast),
    "clip-parts": (Net, None, lambda: step_clip_value),
    "penalty": (Net, None, lambda: step_penalty),
    "adversarial": (Net, None, lambda: step_adversarial),
    "scaler": (Net, None, scaled((2, 3, 5), False)),
    "scaler-unscale": (Net, None, scaled((0, 3), True)),
    "freezing": (Net, None, freezing),
    "freezing-sgd": (Net, sgd, freezing),
    "group-added": (Net, some, group_added),
    "changed": (Net, None, hyper_changed),
    "changed-sgd": (Net, sgd, hyper_changed),
    "cosine": (Net, groups, cosine),
    "groups": (Net, groups, lambda: plain_step),
    "groups-sgd": (Net, sgd_groups, lambda: plain_step),
    "recurrent": (Recurrent, None, lambda: plain_step),
}  # fmt: skip


# Each loop; every second one, and at night all, also with gradients that are added up locally.
CASES = [pytest.param(name, local, id=f"{name}-{'local' if local else 'reduce'}",
                      marks=[pytest.mark.long] if local and i % 2 else [])
         for i, name in enumerate(LOOPS) for local in (False, True)]  # fmt: skip


@pytest.mark.parametrize(("name", "local"), CASES)
def test_loop(name: str, local: bool) -> None:
    build, make, step = LOOPS[name]
    model = build()
    if isinstance(model, Net) and model.recompute == "reentrant":
        model.embed.register_forward_hook(lambda m, a, out: out)
    more = {"param": 1e-3} if name.startswith("autocast") else {}  # fp32 noise sometimes changes the last bit of bf16
    compare(model, make, step(), steps=8, within=more, accumulate="local" if local else "reduce").close()


@pytest.mark.parametrize("swapped", [False, True])
def test_detached_weight(swapped: bool) -> None:
    model = Net()
    model.blocks = nn.ModuleList(Detached(swapped) for _ in range(3))
    compare(model, steps=5).close()


def test_a_graph_from_before_the_step() -> None:
    """Its backward pass would use the stepped weights: refused, as in torch."""
    for sharded in (False, True):
        model = Net()
        opt = adamw(model.parameters())
        handle = zt.shard(model, opt, offload="none") if sharded else None
        old = loss_of(model, batch(0))
        plain_step(model, opt, 1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            old.backward()
        opt.zero_grad()
        assert plain_step(model, opt, 2) > 0
        if handle is not None:
            handle.close()


def test_a_step_inside_of_the_backward_pass() -> None:
    model = Net()
    opt = adamw(model.parameters())
    handle = zt.shard(model, opt, offload="none")
    model.norm.weight.register_post_accumulate_grad_hook(lambda p: opt.step())
    with pytest.raises(RuntimeError, match="inside of a backward pass"):
        loss_of(model, batch(0)).backward()
    handle.close()


def test_thawed() -> None:
    """What was frozen at shard() has no state in the engine."""
    model = Net()
    model.embed.requires_grad_(False)
    opt = adamw(model.parameters())
    handle = zt.shard(model, opt, offload="none")
    plain_step(model, opt, 0)
    model.embed.requires_grad_(True)
    loss_of(model, batch(0)).backward()
    with pytest.raises(RuntimeError, match="embed.weight.*was frozen"):
        opt.step()
    handle.close()


def test_values_while_a_step_waits() -> None:
    """Of two optimizers one has stepped: its step is made before values are read, or the other one is missed."""
    plain, model = Net(), Net()
    model.load_state_dict(plain.state_dict())

    def optimizers(m: nn.Module) -> list[torch.optim.Optimizer]:
        trunk = list(m.blocks.parameters())  # type: ignore[union-attr]
        rest = [p for p in m.parameters() if all(p is not q for q in trunk)]
        return [adamw(trunk), adamw(rest)]

    ones = optimizers(model)
    handle = zt.shard(model, ones, offload="none")
    middle: dict[str, torch.Tensor] = {}
    for m, (one, other) in ((plain, optimizers(plain)), (model, ones)):
        loss_of(m, batch(0)).backward()
        one.step()
        if m is model:
            with pytest.raises(RuntimeError, match="has not: step it"):
                zt.full_state_dict(m)
        other.zero_grad()
        for name, value in zt.full_state_dict(m).items():
            assert torch.allclose(value, middle.setdefault(name, value), atol=1e-6), name
        m.zero_grad()
        loss_of(m, batch(1)).backward()
        one.step()
        other.zero_grad()
    handle.close(gather=True)
    for name, value in model.state_dict().items():
        assert torch.allclose(value, plain.state_dict()[name], atol=1e-6), name


def test_a_write_after_create_graph() -> None:
    """A graph of gradients keeps units gathered until its backward pass, a step or a write."""
    model = Net()
    opt = adamw(model.parameters())
    handle = zt.shard(model, opt, offload="none")
    loss_of(model, batch(0)).backward(create_graph=True)
    opt.zero_grad()
    with zt.gathered(model.head, write_rank=0), torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.zero_()
    assert model(batch(0)).abs().sum() == 0
    assert all(u.holds == 0 for u in handle.runtime.units)
    handle.close()


def test_writes_to_data_inside_of_gathered() -> None:
    """`p.data` has a version of its own: what is written to it is sent all the same, or refused."""
    model = Net()
    handle = zt.shard(model, adamw(model.parameters()), offload="none")
    weight = model.head.weight
    with zt.gathered(weight, write_rank=0):
        weight.data.fill_(0.25)
        with zt.gathered(weight, write_rank=0), zt.gathered(weight):
            weight.data[0] = 0.5
    assert bool((zt.full_state_dict(model)["head.weight"][0] == 0.5).all())
    assert bool((zt.full_state_dict(model)["head.weight"][1] == 0.25).all())
    with pytest.raises(RuntimeError, match="without write_rank"), zt.gathered(weight):
        weight.data.zero_()
    assert bool((zt.full_state_dict(model)["head.weight"][1] == 0.25).all())
    with zt.gathered(weight), zt.gathered(weight, write_rank=0):
        weight.data.fill_(0.75)
    assert bool((zt.full_state_dict(model)["head.weight"] == 0.75).all())
    with pytest.raises(ValueError, match="both name the same rank"), zt.gathered(weight, write_rank=-1):
        with zt.gathered(weight, write_rank=0):
            pass
    with zt.gathered(weight):
        handle.close()


@pytest.mark.parametrize(("stage", "offload"), [(0, "auto"), (1, "host"), (2, "host"), (2, "auto")])
def test_stages_that_offload_no_parameters(stage: int, offload: str) -> None:
    """Stages 1 and 2 offload the optimizer's state alone, stage 0 nothing."""
    compare(Net(), steps=3, stage=stage, offload=offload).close()


def test_a_dropped_model_ends_its_engine() -> None:
    """Without close(): when the model is collected."""
    model = Net()
    engine = zt.shard(model, adamw(model.parameters()), offload="none").engine
    assert not engine.closed
    del model
    gc.collect()
    assert engine.closed


def test_frozen_behind_a_trained_head() -> None:
    """The head's gradient comes first; what is frozen beside it is still needed, for the blocks' gradients."""
    model = Net()
    model.embed.requires_grad_(False)
    model.norm.requires_grad_(False)
    compare(model, lambda m: adamw([p for p in m.parameters() if p.requires_grad])).close()
