#!/usr/bin/env python3
"""distributed.py - zgpt over two ranks against PyTorch's DDP and FSDP2 over gloo.

    ZSHARD_BUILD=build tests/oracle/distributed.py

The same model, weights, batches and clipping on both sides, fp32, 20 steps: losses agree to 1e-5
relative, norms to 1e-5. Exits 77 where PyTorch or mpirun is missing.
"""

import datetime
import json
import os
import shutil
import sys
import tempfile
import time

from launch import run
from oracle import BETAS, EPS, SKIPPED, STEPS, loss_of, sequence, tokens_of, weights_of, worst, zgpt_command

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

RANKS = 2
PATIENCE = 100  # seconds for PyTorch's ranks; about five are enough
HOW = (("ddp", 0), ("fsdp2", 3))  # with the stage that corresponds to it
TOLERANCE = 1e-5
CASES = [{"name": "two micro-steps", "batch": 8, "micro_batch": 2}]
COMMON = {"seed": 5, "seq": 40, "layers": 3, "heads": 4, "width": 64, "lr": 1e-3, "weight_decay": 0.1, "clip": 1.0,
          "dtype": "fp32", "device": "cpu", "data": ["LICENSE"]}


class Gpt(torch.nn.Module):
    """The oracle's function, with its weights as parameters."""

    def __init__(self, case, weights):
        super().__init__()
        self.case = case
        self.w = torch.nn.ParameterDict({name.replace(".", "/"): w.clone() for name, w in weights.items()})

    def forward(self, batch):
        weights = {name.replace("/", "."): w for name, w in self.w.items()}
        return loss_of(weights, batch, self.case["layers"], self.case["heads"])


def sync(model, on):
    if isinstance(model, DistributedDataParallel):
        model.require_backward_grad_sync = on
    else:
        model.set_requires_gradient_sync(on)


def train(rank, how, case, path):
    """Losses and norms of PyTorch."""
    model = Gpt(case, weights_of(path))
    if how == "ddp":
        model = DistributedDataParallel(model)
    else:
        fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (RANKS,)))
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    rest = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": case["weight_decay"]},
                                   {"params": rest, "weight_decay": 0.0}], lr=case["lr"], betas=BETAS, eps=EPS)
    tokens = tokens_of(case["data"])
    micros = case["batch"] // (case["micro_batch"] * RANKS)
    losses, norms = [], []
    for step in range(1, STEPS + 1):
        total = torch.zeros(1, dtype=torch.double)
        for k in range(micros):
            first = (k * RANKS + rank) * case["micro_batch"]
            batch = torch.tensor([sequence(tokens, case["seed"], step, first + j, case["seq"] + 1)
                                  for j in range(case["micro_batch"])])
            sync(model, k == micros - 1)
            loss = model(batch) / micros
            loss.backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), case["clip"])
        norms.append(float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm))
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(total)
        losses.append(total.item() / RANKS)
    return losses, norms


def train_all(rank, case, path, meeting, out):
    """One rank of PyTorch's; rank 0 writes what each way gave."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS,
                            timeout=datetime.timedelta(seconds=PATIENCE))
    found = {how: train(rank, how, case, path) for how, _ in HOW}
    if rank == 0:
        with open(out + ".new", "w", encoding="utf-8") as f:
            json.dump(found, f)
        os.rename(out + ".new", out)
    # Files, not a barrier of gloo's: in a barrier, the rank that leaves first breaks the connection of the other.
    with open(f"{meeting}.{rank}", "w", encoding="utf-8"):
        pass
    while not all(os.path.exists(f"{meeting}.{r}") for r in range(RANKS)):
        time.sleep(0.05)
    # No destructors: DDP's reducer joins gloo's threads while it holds the interpreter lock, and one of them may
    # still wait for that lock to free the tensors of the last exchange (with 2.13, one run in three or four never
    # ended).
    os._exit(0)


def theirs(case, weights, folder):
    """Once more where PyTorch's ranks hang, which they rarely do: that is theirs, and not what is tested."""
    for last in (False, True):
        meeting, out = (tempfile.mktemp(dir=folder) for _ in range(2))
        ranks = torch.multiprocessing.start_processes(train_all, (case, weights, meeting, out), RANKS, join=False,
                                                      start_method="fork")
        until = time.monotonic() + PATIENCE
        while not ranks.join(1) and time.monotonic() < until:
            pass
        for process in ranks.processes:
            process.kill()
            process.join()
        if os.path.exists(out) or last:
            with open(out, encoding="utf-8") as f:
                return json.load(f)
        print(f"PyTorch's ranks did not end within {PATIENCE} s: once more")


def ours(case, stage, folder):
    log = os.path.join(folder, "log")
    run(zgpt_command(case) + ["--stage", str(stage), "--steps", str(STEPS), "--jsonl", log], RANKS)
    with open(log, encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    os.unlink(log)
    return [row["loss"] for row in rows], [row["grad_norm"] for row in rows]


def compare(case, folder):
    weights = os.path.join(folder, "weights")
    run(zgpt_command(case) + ["--steps", "0", "--export", weights])
    good = True
    found = theirs(case, weights, folder)
    for how, stage in HOW:
        errors = [worst(a, b) for a, b in zip(ours(case, stage, folder), found[how])]
        fine = max(errors) <= TOLERANCE
        print(f"{case['name']}, stage {stage} against {how}: losses {found[how][0][0]:.6f} to {found[how][0][-1]:.6f}; "
              f"largest relative error of a loss {errors[0]:.1e}, of a norm {errors[1]:.1e} (allowed {TOLERANCE:.0e})"
              f"{'' if fine else '  <-- TOO MUCH'}")
        good = good and fine
    return good


def main():
    if not shutil.which("mpirun"):
        print("skipped: there is no mpirun")
        return SKIPPED
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    folder = tempfile.mkdtemp(prefix="zshard-distributed-")
    try:
        good = [compare(COMMON | case, folder) for case in CASES]
    finally:
        shutil.rmtree(folder)
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
