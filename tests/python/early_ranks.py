"""One rank of test_torch_early.py: the same steps, announced and not. Arguments: a file, which rank 0 writes, and
whether ranks have a daemon each ("apart") or one ("together")."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from typing import Any

import torch
from early_daemon import Half, pages_early
from torch_models import adamw, batch, fail, loss_of, values

import zshard.torch as zt
from zshard.errors import Refused

RANK = int(os.environ["RANK"])
MODES: dict[str, dict[str, Any]] = {
    "none": {"clip_mode": "none"},
    "tensor": {"clip_mode": "tensor", "clip": 0.5, "clip_tensor_warmup": 1},
}


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
            fail(model, handle, RANK, in_forward=i == 1)
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


# On several nodes gathers are collective, and a ring does not clip by tensor.
TOGETHER = ((1, "none", "fails"), (1, "tensor", "unused"), (3, "tensor", "local"), (3, "none", "reduce"))
APART = ((1, "tensor", "reduce"), (2, "tensor", "reduce"), (2, "none", "local"))


def main(out: str, where: str) -> None:
    torch.set_num_threads(1)
    made = {}
    for n, mode, case in TOGETHER if where == "together" else APART:
        local: dict[str, Any] = {"accumulate": "local"} if case == "local" else {}
        if where == "apart":
            local["gather_alone"] = False
        ways = [{}, {"gradient_accumulation_steps": n}]
        if case != "reduce" and (where, mode) != ("apart", "tensor"):
            ways.append({"gradient_accumulation_steps": n, "grad_ring": True})
        made[f"{n} {mode} {case}"] = [train(n, mode, case, **local, **way) for way in ways]
    if RANK == 0:
        with open(out, "w", encoding="utf-8") as file:
            json.dump(made, file)


main(*sys.argv[1:])
