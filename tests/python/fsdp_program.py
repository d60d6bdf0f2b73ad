"""The program of PyTorch's documents about FSDP: a wrapped model, torch.optim.AdamW, a plain loop.

    fsdp_program.py MODULE OUT      MODULE: torch.distributed.fsdp or zshard.torch, which is all that differs

Writes the losses of each rank to OUT.RANK (JSON).
"""

from __future__ import annotations

import importlib
import json
import sys

import torch
import torch.distributed as dist
import zoo

FSDP = importlib.import_module(sys.argv[1]).FullyShardedDataParallel
STEPS = 20


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = FSDP(zoo.build("plain"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = zoo.batches("plain", rank)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(**next(data)).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with open(f"{sys.argv[2]}.{rank}", "w", encoding="utf-8") as f:
        json.dump(losses, f)
    dist.barrier()


main()
