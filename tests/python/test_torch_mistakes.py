# ctest: LABELS full COST 5
"""What users get wrong on the first day is refused, in words that say what to do."""

from __future__ import annotations

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
