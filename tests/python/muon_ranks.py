"""One rank of test_torch_muon.py. Arguments: a folder, and cases as JSON: of each its name, the steps to make,
micro-steps, options of shard(), a checkpoint to load, and the form of one to save. Rank 0 writes weights to
FOLDER/NAME.pt."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
from muon_models import SEQUENCES, Gqa, loss_of

import zshard.convert as zc
import zshard.torch as zt


def run(folder: str, case: dict[str, Any]) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    model = Gqa()
    opt = zt.Muon(model, weight_decay=0.1)
    handle = zt.shard(model, opt, **case["shard"])
    micros = case.get("micros", 1)
    mine = range(rank * SEQUENCES // world, (rank + 1) * SEQUENCES // world)
    each = len(mine) // micros
    first = zc.load(model, opt, os.path.join(folder, case["load"])).step if "load" in case else 0
    for step in range(first, case["steps"]):
        for i in range(micros):
            (loss_of(model, step, mine[i * each : (i + 1) * each]) / micros).backward()
        opt.step()
        opt.zero_grad()
    weights = zt.full_state_dict(model)
    if rank == 0:
        torch.save(weights, os.path.join(folder, case["name"] + ".pt"))
    if "form" in case:
        zc.save(model, opt, os.path.join(folder, case["name"]), form=case["form"], step=case["steps"])
    handle.close()


torch.set_num_threads(1)
for row in json.loads(sys.argv[2]):
    run(sys.argv[1], row)
