"""One rank of test_torch_early.py: the same steps, announced and not. Arguments: a file, which rank 0 writes."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from typing import Any

import torch
from early_daemon import Half, pages_early
from torch_models import adamw, batch, loss_of, values

import zshard.torch as zt
from zshard.errors import Refused

RANK = int(os.environ["RANK"])
MODES: dict[str, dict[str, Any]] = {
    "none": {"clip_mode": "none"},
    "tensor": {"clip_mode": "tensor", "clip": 0.5, "clip_tensor_warmup": 1},
}


def fail(model: Half, handle: zt.Handle, in_forward: bool) -> None:
    """Rank 1 fails in its forward or its backward pass, and the other one does not."""

    def boom(*_: object) -> None:
        raise ArithmeticError("on rank 1 alone")

    hook = model.blocks[1].register_forward_hook(boom) if RANK == 1 and in_forward else None
    try:
        loss = loss_of(model, batch(99, RANK))
        if RANK == 1:
            assert loss.grad_fn is not None
            loss.grad_fn.next_functions[0][0].register_prehook(boom)  # type: ignore[union-attr]
        loss.backward()
    except ArithmeticError:
        assert RANK == 1
    else:
        assert RANK == 0
    if hook is not None:
        hook.remove()
    handle.reset(passes=1)


def train(n: int, mode: str, case: str, **more: Any) -> dict[str, Any]:
    """3 steps: a digest of the parameters, and pages that were stepped early."""
    before = pages_early(os.environ["ZSHARD_SOCKET"])
    torch.manual_seed(0)
    model = Half(width=128, depth=4)
    opt = adamw(model.parameters())
    handle = zt.shard(model, opt, offload="nvme", **MODES[mode], **more)
    said = "gradient_accumulation_steps" in more
    for i in range(3):
        if case == "fails" and said:
            fail(model, handle, in_forward=i == 1)
        if case == "unused" and said and i == 1:  # on both ranks: nothing of it is left
            model.out = True
            loss_of(model, batch(98, RANK)).backward()
            try:
                opt.step()
            except Refused:
                opt.zero_grad()
            else:
                raise AssertionError("a tensor without a gradient was stepped")
        model.out = case == "unused" and RANK == 1
        for k in range(n):
            (loss_of(model, batch(n * i + k, RANK)) / n).backward()
        opt.step()
        opt.zero_grad()
    handle.stats()
    digest = hashlib.sha256()
    for name, value in sorted(values(model).items()):
        digest.update(name.encode() + value.numpy().tobytes())
    handle.engine.sum([0.0])  # before rank 0 counts
    made = {"digest": digest.hexdigest(), "early": pages_early(os.environ["ZSHARD_SOCKET"]) - before}
    handle.close()
    return made


def main(out: str) -> None:
    torch.set_num_threads(1)
    made = {}
    for n, mode, case in ((1, "none", "fails"), (1, "tensor", "unused"), (3, "tensor", "local"), (3, "none", "reduce")):
        local = {"accumulate": "local"} if case == "local" else {}
        ways = [{}, {"gradient_accumulation_steps": n}]
        if case != "reduce":
            ways.append({"gradient_accumulation_steps": n, "grad_ring": True})
        made[f"{n} {mode} {case}"] = [train(n, mode, case, **local, **way) for way in ways]
    if RANK == 0:
        with open(out, "w", encoding="utf-8") as file:
            json.dump(made, file)


main(*sys.argv[1:])
