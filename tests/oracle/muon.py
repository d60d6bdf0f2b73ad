#!/usr/bin/env python3
"""muon.py - zgpt with Muon against plain fp32 PyTorch code in one process: 20 steps of the same GPT, the same
weights at the end.

    ZSHARD_BUILD=build tests/oracle/muon.py [CASE...]

The reference is written out below: momentum, Nesterov, five Newton-Schulz iterations of fp32, decoupled weight decay,
both scales; torch.optim.AdamW for embeddings, biases and layer norms. Weights agree within 1e-5 absolutely. Reduced
moments round at random, and are held to BOUNDS.

Every case runs without a daemon, in its host memory, and streamed in little of it: the same bits. Also 1, 2
and 3 ranks (stages 1 to 3), micro-steps of 1 and 4 sequences, and clipping.

DeepSpeed's Muon fails in four ways (issues 8463, 8438, 8441 and 8600 of deepspeedai/DeepSpeed). Each is a case here,
which would differ by far more than the bound:

    8463  offloaded shards are flat, and lose the matrix      every case with a daemon, several ranks
    8438  with partitioned parameters none of them is Muon's  stage 3, several ranks
    8441  at stage 0 it is SGD                                stage 0
    8600  it orthogonalizes each micro-batch                  four micro-steps

Exits 77 where PyTorch is not installed.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

from launch import MPIRUN, run
from oracle import BETAS, EPS, F, SKIPPED, loss_of, sequence, tokens_of, torch, weights_of, zgpt_command

assert F
STEPS = 20
MOMENTUM, NS, NS_EPS, ITERATIONS = 0.95, (3.4445, -4.7750, 2.0315), 1e-7, 5
BOUNDS = {"fp32": 1e-5, "bf16": 0.05, "8bit": 0.4}
HOST_BYTES = {"host": "8M", "nvme": "1M"} # enough for all; for a part of it
BIN = os.path.join(os.environ.get("ZSHARD_BUILD", "build"), "bin")


def orthogonalized(g):
    a, b, c = NS
    x = g.T if g.shape[0] > g.shape[1] else g
    x = x / x.norm().clamp(min=NS_EPS)
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if g.shape[0] > g.shape[1] else x


def muon_step(w, momentum, case):
    momentum.lerp_(w.grad, 1 - MOMENTUM)
    update = orthogonalized(w.grad.lerp(momentum, MOMENTUM))
    rows, cols = w.shape
    scale = 0.2 * max(rows, cols) ** 0.5 if case["muon_scale"] == "rms" else max(1, rows / cols) ** 0.5
    w.data.mul_(1 - case["lr"] * case["weight_decay"]).sub_(update, alpha=case["lr"] * scale)


def train(case, weights, tokens):
    """The weights that PyTorch ends with."""
    weights = {name: w.clone().requires_grad_() for name, w in weights.items()}
    matrices = {name: torch.zeros_like(w) for name, w in weights.items() if w.ndim == 2 and ".h." in name}
    others = {name: w for name, w in weights.items() if name not in matrices}
    adamw = torch.optim.AdamW([{"params": [w for w in others.values() if w.ndim >= 2], "weight_decay": case["weight_decay"]},
                               {"params": [w for w in others.values() if w.ndim < 2], "weight_decay": 0.0}],
                              lr=case["lr"], betas=BETAS, eps=EPS)
    for step in range(1, STEPS + 1):
        for w in weights.values():
            w.grad = None
        for i in range(0, case["batch"], case["micro_batch"]):
            rows = [sequence(tokens, case["seed"], step, j, case["seq"] + 1) for j in range(i, i + case["micro_batch"])]
            loss = loss_of(weights, torch.tensor(rows), case["layers"], case["heads"])
            (loss * case["micro_batch"] / case["batch"]).backward()
        if case["clip"] > 0:
            torch.nn.utils.clip_grad_norm_(list(weights.values()), case["clip"])
        adamw.step()
        for name, momentum in matrices.items():
            muon_step(weights[name], momentum, case)
    return {name: w.detach() for name, w in weights.items()}


class Daemon:
    def __init__(self, folder, name):
        self.socket = os.path.join(folder, name + ".socket")
        self.process = subprocess.Popen(
            [os.path.join(BIN, "zshardd"), "--socket", self.socket, "--data", os.path.join(folder, name + ".data"),
             "--host-bytes", HOST_BYTES[name], "--nvme-bytes", "64M", "--page-elems", "4096", "--ring-bytes", "4K"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + 60
        while not os.path.exists(self.socket):
            assert self.process.poll() is None and time.monotonic() < end, "the daemon did not start"
            time.sleep(0.02)

    def stop(self):
        self.process.terminate()
        assert self.process.wait(60) == 0


def zgpt(case, folder, name, ranks, *more):
    path = os.path.join(folder, name)
    run([*zgpt_command(case), "--optimizer", "muon", "--muon-scale", case["muon_scale"], "--moments", case["moments"],
         "--export", path, "--jsonl", path + ".log", *more], ranks,
        env=os.environ | {"ZSHARD_SOCKET": os.path.join(folder, ("nvme" if name == "nvme" else "host") + ".socket"),
                          "OMPI_MCA_mpi_yield_when_idle": "1"})
    if name == "nvme":
        with open(path + ".log", encoding="utf-8") as f:
            assert all(json.loads(line)["nvme_read_bytes"] > 0 for line in f), "nothing was streamed"
    with open(path, "rb") as f:
        return weights_of(path), f.read()


def error(ours, theirs, exact):
    """The largest absolute difference; or the rms of all of them."""
    off = torch.cat([(ours[name] - w).flatten() for name, w in theirs.items()])
    return off.abs().max().item() if exact else off.square().mean().sqrt().item()


def compare(case, folder):
    bound, steps, good = BOUNDS[case["moments"]], ("--steps", str(STEPS)), True
    begin = zgpt(case, folder, "begin", 1, "--steps", "0")[0]
    want = train(case, begin, tokens_of(case["data"]))
    exact = case["moments"] == "fp32"
    moved = error(begin, want, exact)
    bound *= 1 if exact else moved
    runs = {}
    for name, ranks, more in case["runs"]:
        if ranks > 1 and not shutil.which(MPIRUN[0]):
            continue
        weights, runs[name] = zgpt(case, folder, name, ranks, *steps, *more)
        off = error(weights, want, exact)
        fine = off <= bound < moved / 2
        print(f"{case['name']}, {name}: weights moved by {moved:.1e}, and are {off:.1e} off (allowed {bound:.0e})"
              f"{'' if fine else '  <-- TOO MUCH'}")
        good = good and fine
    for name in ("host", "nvme"):
        if "none" in runs and name in runs and runs[name] != runs["none"]:
            print(f"{case['name']}, {name}: other bits than without a daemon  <-- DIFFERENT")
            good = False
    return good


def cases():
    base = {"seed": 5, "batch": 4, "micro_batch": 4, "seq": 24, "layers": 2, "heads": 2, "width": 32, "lr": 1e-3,
            "weight_decay": 0.1, "clip": 1.0, "data": ["LICENSE"], "dtype": "fp32", "device": "cpu",
            "muon_scale": "rms", "moments": "fp32"}
    alone = [("none", 1, ("--offload", "none")), ("host", 1, ("--offload", "host")),
             ("nvme", 1, ("--offload", "nvme"))]
    ranks = [(f"stage {stage}, {n} ranks", n, ("--offload-optimizer", "nvme", "--stage", str(stage)))
             for n, stage in ((2, 1), (2, 2), (3, 3))]
    twelve = base | {"batch": 12, "micro_batch": 2}
    return [base | {"name": "rms", "runs": alone},
            base | {"name": "shape, no clipping", "muon_scale": "shape", "clip": 0, "runs": alone},
            base | {"name": "4 micro-steps", "micro_batch": 1, "runs": alone},
            base | {"name": "bf16 momentum", "moments": "bf16", "layers": 3, "runs": alone},
            base | {"name": "8bit momentum", "moments": "8bit", "layers": 3, "runs": alone},
            twelve | {"name": "ranks", "runs": alone[:1] + ranks + [("stage 0, 2 ranks", 2, ("--stage", "0"))]}]


def main():
    torch.set_num_threads(1)
    folder = tempfile.mkdtemp(prefix="zshard-muon-")
    daemons = []
    try:
        for name in HOST_BYTES:
            daemons.append(Daemon(folder, name))
        good = [compare(case, folder) for case in cases() if len(sys.argv) < 2 or case["name"] in sys.argv[1:]]
        for daemon in daemons:
            daemon.stop()
    finally:
        for daemon in daemons:
            if daemon.process.poll() is None:
                daemon.process.kill()
        shutil.rmtree(folder)
    assert SKIPPED
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
