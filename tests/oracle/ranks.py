#!/usr/bin/env python3
"""ranks.py - 1, 2 and 3 ranks at the same global batch train alike.

    ZSHARD_BUILD=build tests/oracle/ranks.py

Ranks add the same gradients in another order, so losses differ by rounding: 2e-6 relative over 20
steps in fp32. The initial weights do not differ at all. Exits 77 where mpirun is not installed.
"""

import json
import os
import shutil
import sys
import tempfile

from launch import run

TOLERANCE = 2e-6
STEPS = 20


def train(zgpt, ranks, *flags):
    run([zgpt, "--seed", "3", "--batch", "12", "--micro-batch", "2", "--seq", "40", "--layers", "3", "--heads", "2",
         "--width", "48", "--data", "LICENSE", *flags], ranks, timeout=120,
        env=os.environ | {"OMPI_MCA_mpi_yield_when_idle": "1"})


def main():
    zgpt = os.path.join(os.environ.get("ZSHARD_BUILD", "build"), "bin", "zgpt")
    if not shutil.which("mpirun"):
        print("skipped: there is no mpirun")
        return 77
    folder = tempfile.mkdtemp(prefix="zshard-ranks-")
    try:
        losses, weights = {}, {}
        for ranks in (1, 2, 3):
            log, begin = os.path.join(folder, "log"), os.path.join(folder, "begin")
            train(zgpt, ranks, "--steps", "0", "--export", begin)
            train(zgpt, ranks, "--steps", str(STEPS), "--jsonl", log)
            with open(log, encoding="utf-8") as f:
                losses[ranks] = [json.loads(line)["loss"] for line in f]
            with open(begin, "rb") as f:
                weights[ranks] = f.read()
    finally:
        shutil.rmtree(folder)
    good = True
    for ranks in (2, 3):
        error = max(abs(a - b) / a for a, b in zip(losses[1], losses[ranks], strict=True))
        same = weights[1] == weights[ranks]
        print(f"{ranks} ranks: losses to {error:.1e} (allowed {TOLERANCE:.0e}), initial weights "
              f"{'the same' if same else 'DIFFERENT'}")
        good = good and same and error <= TOLERANCE and len(losses[1]) == STEPS
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
