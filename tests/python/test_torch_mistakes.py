# ctest: LABELS full COST 5
"""What users get wrong on the first day is refused, in words that say what to do."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch_models import Net, batch, loss_of

import zshard.torch as zt

# arguments of shard(), and the error message
SHARD: dict[str, tuple[Callable[[Any], tuple[Any, Any]], type[Exception], str]] = {
    "no module": (lambda m: ([m], None), TypeError, "the model is a list, not a torch.nn.Module"),
    "a class": (lambda m: (m, torch.optim.AdamW), TypeError, "not an optimizer such as torch.optim.AdamW"),
    "parameters": (lambda m: (m, list(m.parameters())), TypeError, "not an optimizer such as"),
    "of another model": (
        lambda m: (m, torch.optim.AdamW(Net().parameters())),
        ValueError,
        "AdamW has none of this model's parameters",
    ),
}


@pytest.mark.parametrize("name", SHARD)
def test_shard(name: str) -> None:
    """Nothing is changed: the model can be sharded afterwards."""
    given, kind, words = SHARD[name]
    model = Net()
    with pytest.raises(kind, match=words):
        zt.shard(*given(model), offload="none")
    zt.shard(model, torch.optim.AdamW(model.parameters()), offload="none").close()


def test_values_of_a_closed_model() -> None:
    """They are not there: a file of NaN would be found out much later."""
    model = Net()
    want = {n: p.detach().clone() for n, p in model.named_parameters()}
    zt.shard(model, offload="none").close(gather=True)
    assert all(torch.equal(v, want[n]) for n, v in model.state_dict().items())
    handle = zt.shard(model, offload="none")
    handle.close()
    for read in (model.state_dict, lambda: zt.full_state_dict(model), lambda: zt.shard(model, offload="none")):
        with pytest.raises(RuntimeError, match="'embed.weight' has no values.*close\\(gather=True\\)"):
            read()
    again = Net()
    zt.shard(again, offload="none").close(gather=True)
    loss_of(again, batch(0)).backward()


class Writer(Net):
    """Writes its own weights in its forward pass, as a layer that normalizes them in place."""

    write: Callable[[torch.nn.Parameter], object] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x)
        if self.write is not None:
            with torch.no_grad():
                self.write(self.head.weight)
        return out


def halve_data(p: torch.nn.Parameter) -> None:
    p.data = p.data * 0.5


WRITES: dict[str, Callable[[torch.nn.Parameter], object]] = {
    "in place": lambda p: p.mul_(0.5),
    "operator": lambda p: p.__imul__(0.5),
    "element": lambda p: p.__setitem__(0, 0.5),
    "data": lambda p: p.data.mul_(0.5),
    "view": lambda p: p.view(-1)[:3].zero_(),
    "other data": halve_data,
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize(
    ("offload", "mode", "dtype"),
    [
        ("none", "copy", torch.float32),  # as several ranks: what is written is lost
        ("none", "", torch.bfloat16),
        ("none", "view", torch.bfloat16),
        ("host", "", torch.float32),
        ("host", "view", torch.float32),
    ],
)
def test_weights_written_in_a_pass(
    name: str, offload: str, mode: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would be lost, or end the process where the memory is the daemon's. In fp32 and this process they stay."""
    if mode:
        monkeypatch.setenv("ZSHARD_MEMORY", mode)
    model = Writer().to(dtype)
    opt = torch.optim.AdamW(model.parameters())
    with zt.shard(model, opt, offload=offload):
        model.write = WRITES[name]
        with pytest.raises(RuntimeError, match="'head.weight' was written inside of a forward or backward pass"):
            loss_of(model, batch(0))
        model.write = None
        loss_of(model, batch(0)).backward()
        opt.step()


@pytest.mark.parametrize("name", ["in place", "other data"])
def test_weights_written_in_a_later_pass(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes after the first ones are not watched: a write is found when the parameter is released."""
    monkeypatch.setenv("ZSHARD_MEMORY", "copy")
    model = Writer()
    with zt.shard(model, torch.optim.AdamW(model.parameters()), offload="none") as handle:
        for mode in (True, False):
            loss_of(model.train(mode), batch(0))
        assert handle.runtime.on_pass is None
        model.write = WRITES[name]
        with pytest.raises(RuntimeError, match="'head.weight' was written inside of a"):
            loss_of(model, batch(0))


def test_weights_of_one_process_that_are_written_in_a_pass() -> None:
    model = Writer()
    with zt.shard(model, torch.optim.AdamW(model.parameters()), offload="none"):
        before = zt.full_state_dict(model)["head.weight"]
        model.write = WRITES["in place"]
        loss_of(model, batch(0))
        model.write = None
        assert torch.equal(zt.full_state_dict(model)["head.weight"], before * 0.5)


@pytest.mark.parametrize("mode", ["", "view", "copy"])
@pytest.mark.parametrize("when", ["before", "after", "between"])
def test_other_data_of_a_hidden_parameter(when: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside of a pass, where the unit's own module is not called: before it, after it, and between two calls of it."""
    if mode:
        monkeypatch.setenv("ZSHARD_MEMORY", mode)

    class Outer(torch.nn.Module):
        on = False

        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if when == "before":
                self.write()
            x = self.inner(x)
            if when != "before":
                self.write()
            return self.inner(x) if when == "between" else x

        def write(self) -> None:
            if self.on:
                self.inner.weight.data = torch.zeros(8, 8)

    model = Outer()
    with zt.shard(model, torch.optim.AdamW(model.parameters()), offload="none", units=[torch.nn.Linear]):
        for train in (True, False):
            model.train(train)(torch.ones(2, 8))
        want = model(torch.ones(2, 8))
        model.on = True
        with pytest.raises(RuntimeError, match="'inner.weight' was written"):
            for _ in range(2):
                model(torch.ones(2, 8))
        model.on = False
        assert torch.equal(model(torch.ones(2, 8)), want)


@pytest.mark.parametrize("offload", ["none", "host"])
def test_a_write_to_a_hidden_parameter(offload: str) -> None:
    """Its memory is read-only, and the process would end."""

    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.inner(x)
            self.inner.weight.data.mul_(0.5)
            return x

    model = Outer()
    with zt.shard(model, torch.optim.AdamW(model.parameters()), offload=offload, units=[torch.nn.Linear]):
        with pytest.raises(RuntimeError, match="'inner.weight' was written inside of a"):
            model(torch.ones(2, 8))


@pytest.mark.parametrize("offload", ["none", "host"])
def test_a_write_between_backward_pass_and_step(offload: str) -> None:
    """The step changes versions of parameters, too."""
    model = Net()
    model.scale = torch.nn.Parameter(torch.tensor(2.0))
    model.register_forward_hook(lambda m, args, out: out * m.scale)
    opt = torch.optim.AdamW(model.parameters())
    with zt.shard(model, opt, offload=offload):
        loss_of(model, batch(0)).backward()
        with torch.no_grad():
            model.scale.clamp_(0, 1)
        opt.step()
        opt.zero_grad()
        with pytest.raises(RuntimeError, match="'scale' was written while released"):
            loss_of(model, batch(0))
        loss_of(model, batch(0)).backward()
        opt.step()
        loss_of(model, batch(0))


def test_other_data_of_a_released_parameter() -> None:
    """p.data = ... between passes would be overlooked."""
    model = Net()
    with zt.shard(model, torch.optim.AdamW(model.parameters()), offload="none"):
        model.head.weight.data = torch.ones_like(model.head.weight)
        with pytest.raises(RuntimeError, match="'head.weight' was written while released.*write_rank"):
            loss_of(model, batch(0))
        assert loss_of(model, batch(0)) > 0


def test_gradients_of_autograd_grad() -> None:
    """The engine has no gradient then, and would step nothing."""
    model = Net()
    opt = torch.optim.SGD(model.parameters())
    with zt.shard(model, opt, offload="none"):
        params = list(model.parameters())
        for p, g in zip(params, torch.autograd.grad(loss_of(model, batch(0)), params), strict=True):
            p.grad = g
        with pytest.raises(RuntimeError, match="the .grad of parameter 'embed.weight' is not zshard's"):
            opt.step()
        opt.zero_grad()
        with pytest.warns(UserWarning, match="without a backward pass"):
            opt.step()


def test_a_parameter_without_an_optimizer() -> None:
    model = Net()
    opt = torch.optim.AdamW(model.head.parameters())
    with zt.shard(model, opt, offload="none"):
        with pytest.warns(UserWarning, match="are in no optimizer"):
            loss_of(model, batch(0)).backward()
            opt.step()
        opt.zero_grad()
        with pytest.raises(RuntimeError, match="no optimizer has it.*freeze it.*model.zero_grad"):
            loss_of(model, batch(1)).backward()
        model.zero_grad()
        loss_of(model, batch(1)).backward()


@pytest.mark.parametrize("make", [torch.optim.AdamW, zt.AdamW])
def test_a_step_that_is_skipped(make: Callable[..., torch.optim.Optimizer]) -> None:
    """Once: torch's weights would be NaN from here on."""
    model = Net()
    opt = make(model.parameters())
    with zt.shard(model, opt, offload="none") as handle:
        for step in range(3):
            (loss_of(model, batch(step)) * (float("inf") if step else 1)).backward()
            if step == 1:
                with pytest.warns(UserWarning, match="step 2 was skipped, because a gradient is not finite"):
                    opt.step()
            else:
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    opt.step()
            opt.zero_grad()
        assert handle.step_number == 3


def test_a_norm_inside_of_the_backward_pass() -> None:
    model = Net()
    with zt.shard(model, torch.optim.AdamW(model.parameters()), offload="none"):
        model.head.weight.register_post_accumulate_grad_hook(lambda p: p.grad.norm())  # type: ignore[union-attr]
        with pytest.raises(RuntimeError, match="after the backward pass, not inside of it"):
            loss_of(model, batch(0)).backward()
