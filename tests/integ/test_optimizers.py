#!/usr/bin/env python3
"""test_optimizers.py - kept runs of zgpt with every optimizer and form of moments: streamed in the least
memory there is, killed, resumed, refused to others, exported and imported.

    ZSHARD_BUILD=build tests/integ/test_optimizers.py [NAME...]
"""

import filecmp
import json
import os
import re
import struct
import subprocess
import sys

from harness import Daemon, check, main, program
from resume import KeptRun, Reference

STEPS = 12
MODEL = ("--layers", "5", "--width", "64", "--micro-batch", "6") # more than the least budget holds
PAGES = ["--page-elems", "8192", "--ring-bytes", "4K", "--nvme-bytes", "64M"]
MOMENTS = {"adamw": ("exp_avg", "exp_avg_sq"), "adam": ("exp_avg", "exp_avg_sq"), "lion": ("exp_avg",),
           "sgd": ("momentum_buffer",), "adagrad": ("sum",), "muon": ("exp_avg", "exp_avg_sq")} # that of embeddings


def least_host_bytes(kept):
    """What the daemon says is the smallest that would work; it cannot say so where not even staging fits."""
    budget = 1 << 20
    while True:
        with Daemon("--host-bytes", str(budget), *PAGES) as d:
            status = kept.run(d, resume=False, more=("--steps", "0"))
        found = re.search(r"smallest host_bytes that would work is (\d+)", kept.said())
        if found:
            return int(found.group(1))
        check(status != 0 and budget < 1 << 28, f"{budget} bytes: {status}\n{kept.said()}")
        budget += budget // 4


def tensor_names(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    return set(header) - {"__metadata__"}, header["__metadata__"]


def zctl(d, *words):
    done = subprocess.run([program("zctl"), *words], env=d.env(), text=True, capture_output=True,
                          timeout=150, check=False)
    check(done.returncode == 0, f"zctl {words} ended with {done.returncode}: {done.stderr}")


def exported(d, kept, optimizer, moments):
    """Export, import under another name, export: the same bytes, and PyTorch's names in them."""
    one, two = (os.path.join(kept.folder, name + ".safetensors") for name in ("one", "two"))
    zctl(d, "export", "kept", one, "--optimizer")
    names, metadata = tensor_names(one)
    check((metadata["zshard.optimizer"], metadata["zshard.moments"]) == (optimizer, moments), metadata)
    for name in (n for n in names if n.endswith("wte.weight")):
        with_it = {name + "." + moment for moment in MOMENTS[optimizer]}
        check(with_it <= names, f"{with_it - names} are missing")
    ours = set(MOMENTS[optimizer]) | ({"momentum_buffer"} if optimizer == "muon" else set())
    others = {m for row in MOMENTS.values() for m in row} - ours
    check(not [n for n in names if n.rsplit(".", 1)[1] in others], f"{others} are there")
    if optimizer == "muon":
        matrix = "transformer.h.0.mlp.c_fc.weight."
        check({n[len(matrix):] for n in names if n.startswith(matrix)} <= {"momentum_buffer", "master"}, names)
    zctl(d, "import", "copy", one)
    row = {row["name"]: row for row in d.zctl("jobs")}["copy"]
    matrices = 5 * 12 * 64**2 if optimizer == "muon" else 0
    check((row["optimizer"], row["moments"], row["muon_params"]) == (optimizer, moments, matrices), f"{row}")
    zctl(d, "export", "copy", two, "--optimizer")
    check(filecmp.cmp(one, two, shallow=False), "what was imported is not what was exported")


def lives(optimizer, moments, dtype, resident=False):
    flags = ("--optimizer", optimizer, "--moments", moments, *MODEL)
    with KeptRun(STEPS, ranks=1, commit_every=3, dtype=dtype, flags=flags) as kept:
        whole = Reference(kept)
        least = least_host_bytes(kept)
        with Daemon("--host-bytes", str(least + (16 << 20 if resident else 0)), *PAGES) as d:
            kept.good(d, resume=False, steps=7)
            d.kill()
            d.again()
            for more in (("--optimizer", "sgd" if optimizer != "sgd" else "lion"),
                         ("--moments", "bf16" if moments != "bf16" else "8bit")):
                status = kept.run(d, resume=True, more=more)
                check(status == 4 and f"uses {optimizer} with {moments} moments" in kept.said(),
                      f"{more}: {status}\n{kept.said()}")
            kept.good(d, resume=True)
            whole.check(kept)
            moved = sum(row["nvme_read_bytes"] for row in kept.lines())
            check((moved > 0) != resident, f"{moved} bytes were read")
        if resident:
            return
        with Daemon("--host-bytes", "64M", *PAGES) as d: # room for a copy
            kept.forget()
            kept.good(d, resume=False)
            whole.check(kept)
            exported(d, kept, optimizer, moments)


def adamw():
    lives("adamw", "8bit", "bf16")
    lives("adamw", "8bit-lo", "bf16")
    lives("adamw", "bf16", "fp32", resident=True)


def adam():
    lives("adam", "fp32", "bf16")
    lives("adam", "8bit", "fp32", resident=True)


def lion():
    lives("lion", "bf16", "bf16")
    lives("lion", "fp32", "fp32")


def sgd():
    lives("sgd", "fp32", "fp32")
    lives("sgd", "8bit", "bf16", resident=True)


def adagrad():
    lives("adagrad", "8bit", "fp32")
    lives("adagrad", "bf16", "bf16", resident=True)


def muon():
    lives("muon", "fp32", "bf16")
    lives("muon", "8bit", "fp32")
    lives("muon", "8bit-lo", "bf16")


TESTS = {f.__name__: f for f in (adamw, adam, lion, sgd, adagrad, muon)}

if __name__ == "__main__":
    sys.exit(main(TESTS))
