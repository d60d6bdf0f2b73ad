"""One rank of test_torch_ranks.py: trains, and writes what came out. Arguments: a file, a case, an offload."""

from __future__ import annotations

import json
import os
import sys
import warnings

import torch
from torch import nn
from torch_models import Block, Mixture, Net, adamw, batch, fail, loss_of, mixture, values

import zshard.torch as zt


class Experts(Net):
    """Each rank uses another block: what DeepSpeed's gathers hang in."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x)
        h = self.blocks[int(os.environ["RANK"])](h)
        return self.head(self.norm(h))


def write_in_pass(model: Net) -> None:
    """What is gathered from several ranks is a copy: a write to it is lost."""

    def halve(module: nn.Module, args: object) -> None:
        with torch.no_grad():
            module.weight.mul_(0.5)  # type: ignore[operator, union-attr]

    with torch.no_grad():
        loss_of(model, batch(0))  # the first pass is watched, and would raise before the write
        hook = model.norm.register_forward_pre_hook(halve)
        try:
            loss_of(model, batch(0))
        except RuntimeError as e:
            assert "parameter 'norm.weight' was written inside of a forward or backward pass" in str(e)
        else:
            raise AssertionError("the write was lost")
    hook.remove()


def main(out: str, case: str, offload: str) -> None:
    """Trains 4 steps; rank 0 writes losses and sums of parameters."""
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    torch.manual_seed(rank)  # nevertheless ranks begin with rank 0's values, if the library can write them
    if case != "seeded":
        torch.manual_seed(0)
    Mixture.turn = rank
    how = {"leaf": {"units": [Block], "leaf": [Mixture]}}.get(case, {})
    model = mixture() if case == "leaf" else (Experts if case == "experts" else Net)()
    codes = nn.Parameter(torch.randint(0, 99, (5,)), requires_grad=False)
    if case == "seeded":
        model.codes = codes
    opt = zt.HostOptimizer(torch.optim.RAdam, model.parameters()) if case == "host" else adamw(model.parameters())
    handle = zt.shard(model, opt, offload=offload, **how)
    if case == "seeded":
        assert len(set(handle.engine.comm.all_gather(str(codes.tolist()).encode()))) == 1
        write_in_pass(model)
    losses, told = [], []
    alone = nn.Parameter(torch.ones(3))
    if case == "added":
        opt.add_param_group({"params": [alone]})
        warnings.showwarning = lambda message, *_: told.append(str(message))  # type: ignore[assignment]
    for i in range(4):
        if case == "freeze":
            model.blocks[1].requires_grad_(i not in (1, 2))
        if case == "written" and i == 2:
            with zt.gathered(model, write_rank=1):
                for p in model.parameters() if rank == 1 else ():
                    p.data.mul_(0.5)
        if case == "uneven" and rank == 1:
            with torch.no_grad():
                loss_of(model, batch(i))
        if case == "fails" and i in (1, 2):
            fail(model, handle, rank, in_forward=i == 1)
        loss = loss_of(model, batch(i, rank))
        loss.backward()
        if case == "sleeps":
            try:
                handle.sleep()
            except RuntimeError:
                pass
            else:
                raise AssertionError("it slept in the middle of a step")
        alone.grad = torch.full((3,), float(rank))
        if case == "clip":
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        opt.step()
        opt.zero_grad()
        if case == "sleeps":
            handle.sleep()
        losses.append(handle.engine.sum([float(loss.detach())])[0] / handle.engine.world)
    made = {n: v.double().sum().item() for n, v in values(model).items()}
    if rank == 0:
        with open(out, "w", encoding="utf-8") as file:
            json.dump({"losses": losses, "sums": made, "warnings": told}, file)

    handle.close()


main(*sys.argv[1:])
