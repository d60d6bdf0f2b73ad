#!/usr/bin/env python3
"""test_quantize.py - zgpt --quantize-gather: what int8 on the wire costs of the loss, and saves of the bytes.

    ZSHARD_BUILD=build tests/integ/test_quantize.py [NAME...]
"""

import array
import json
import math
import os
import shutil
import sys
import tempfile

from harness import LONG, Daemon, check, main, skip
from test_training import PAGES, Run

STEPS = 200 if LONG else 80
LAST = 20  # losses to average: batches are small, and one step's loss mostly depends on its batch
GROUP = 256  # elements that share a scale
FLAG = "--quantize-gather"


def good(flags, steps, env=None):
    run = Run(flags, 2, env, steps=steps)
    check(run.done.returncode == 0, f"{flags} ended with {run.done.returncode}:\n{run.done.stdout}")
    check(len(run.steps) == steps, f"{flags} logged {len(run.steps)} steps")
    return run


def tensors(weights):
    """Of a .safetensors file, in fp32 or bf16: each tensor's values."""
    length = int.from_bytes(weights[:8], "little")
    for name, about in json.loads(weights[8:8 + length]).items():
        if name == "__metadata__":
            continue
        first, end = (8 + length + at for at in about["data_offsets"])
        raw = weights[first:end]
        if about["dtype"] == "BF16":
            halves = array.array("H", raw)
            raw = array.array("I", (half << 16 for half in halves)).tobytes()
        else:
            check(about["dtype"] == "F32", f"{name} is {about['dtype']}")
        yield name, array.array("f", raw)


def error_of(weights):
    """The formula on trained weights: what gathers do to them, relative to their root mean square; and the largest
    error in halves of a scale."""
    off = whole = worst = 0
    for _, values in tensors(weights):
        for at in range(0, len(values), GROUP):
            group = values[at:at + GROUP]
            scale = max(map(abs, group)) / 127
            for x in group:
                e = abs(x - round(x / scale) * scale) if scale > 0 else 0
                worst = max(worst, 2 * e / scale if scale > 0 else 0)
                off += e * e
                whole += x * x
    check(worst <= 1.0001, f"off by {worst} halves of a scale")
    return math.sqrt(off / whole)


def loss(dtype):
    """After these steps within 1 % of the run that gathers exact weights, for 0.55 of bf16's bytes."""
    plain = good(["--dtype", dtype], STEPS)
    quantized = good(["--dtype", dtype, FLAG], STEPS)
    apart = [abs(a - b) / a for a, b in zip(plain.losses(), quantized.losses())]
    a, b = (sum(run.losses()[-LAST:]) / LAST for run in (plain, quantized))
    share = (sum(s["comm_bytes"]["gather"] for s in quantized.steps) /
             sum(s["comm_bytes"]["gather"] for s in plain.steps))
    print(f"{dtype}, 2 ranks, {STEPS} steps: loss {plain.losses()[0]:.4f}, mean of the last {LAST} {a:.4f}, quantized "
          f"{b:.4f}: apart by {abs(a - b) / a:.2%}; the last step's by {apart[-1]:.2%}, {max(apart):.2%} at most; "
          f"{share:.4f} of the bytes; weights are off by {error_of(quantized.weights):.2%}")
    check(a < 0.8 * plain.losses()[0], "it learned nothing")
    check(abs(a - b) <= 0.01 * a, f"{dtype}: losses are apart by {abs(a - b) / a:.2%}")
    check(max(apart) > 0, f"{dtype}: the losses are the same: nothing was quantized")
    check(share <= (0.55 if dtype == "bf16" else 0.275), f"{dtype}: {share} of the bytes")
    same = sum(s["comm_bytes"]["reduce"] for s in plain.steps)
    check(sum(s["comm_bytes"]["reduce"] for s in quantized.steps) == same, "gradients travel otherwise")


def loss_bf16():
    loss("bf16")


def loss_fp32():
    loss("fp32")


def where_bytes_live():
    """Through a daemon, with what does not fit on NVMe: the same bits."""
    flags = ["--dtype", "bf16", FLAG]
    here = good(flags, 10)
    with Daemon("--host-bytes", "8M", "--nvme-bytes", "64M", *PAGES) as d:
        there = good(flags + ["--offload", "nvme"], 10, d.env())
    check(here.losses() == there.losses() and here.weights == there.weights, "other bits with a daemon")


def by_file():
    """DeepSpeed's file says it with zero_quantized_weights; stage 2 does not quantize."""
    folder = tempfile.mkdtemp(prefix="zshard-quantize-")
    try:
        path = os.path.join(folder, "ds.json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump({"zero_optimization": {"stage": 3, "zero_quantized_weights": True}}, f)
        said = good(["--config", path], 5)
        check(said.losses() == good([FLAG], 5).losses(), "the file does something else than the flag")
        below = good(["--config", path, "--stage", "2"], 5)
        check(below.losses() == good([], 5).losses(), "stage 2 quantizes")
    finally:
        shutil.rmtree(folder)
    refused = Run([FLAG, "--stage", "2"], 2, steps=1)
    check(refused.done.returncode != 0 and "only stage 3 can gather them quantized" in refused.done.stdout,
          refused.done.stdout)


TESTS = {f.__name__: f for f in (loss_bf16, loss_fp32, where_bytes_live, by_file)}

if __name__ == "__main__":
    if not shutil.which("mpirun"):
        skip("there is no mpirun")
    sys.exit(main(TESTS))
