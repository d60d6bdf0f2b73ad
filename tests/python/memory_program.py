"""Trains a model that is larger than the memory it may use; see test_larger_than_memory.py.

    memory_program.py SPEC      (JSON: layers, width, steps, socket, job, resume, save)

Prints a line of JSON: parameters, losses, the step it began at.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
from torch import nn

import zshard.torch as zt


class Block(nn.Module):
    """[rows, width] to the same."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


class Stack(nn.Module):
    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


def draw(module: nn.Module) -> None:
    """Initial values, a module at a time."""
    for param in module.parameters(recurse=False):
        nn.init.normal_(param, std=0.02) if param.dim() > 1 else nn.init.zeros_(param)


def main(spec: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    with torch.device("meta"):
        model = Stack(spec["layers"], spec["width"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    zt.init(job=spec["job"], socket=spec["socket"], durable=True, resume="auto" if spec["resume"] else False)
    handle = zt.shard(model, optimizer, offload="nvme", init_fn=draw, device="cpu")
    first, losses = int(handle.step_number), []
    for step in range(first, spec["steps"]):
        x = torch.randn(4, spec["width"], generator=torch.Generator().manual_seed(step))
        loss = model(x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    handle.commit()
    if spec["save"]:
        zt.save_pretrained(model, spec["save"], background=False)
    params = sum(p.numel() for p in model.parameters())
    print(json.dumps({"params": params, "losses": losses, "first": first}), flush=True)
    handle.close()
    sys.stdout.flush()
    os._exit(0)


main(json.loads(sys.argv[1]))
