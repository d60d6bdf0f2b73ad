#!/usr/bin/env python3
"""test_zero_table.py - bench/zero_table.sh --short: every row ran, and says what its mode must take.

    ZSHARD_BUILD=build tests/integ/test_zero_table.py [NAME...]
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from xml.etree import ElementTree

from harness import BUILD, DEADLINE, check, main, mpi_env, program, skip

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench", "zero_table.sh")
FP32 = ["DDP", "ZeRO-1", "ZeRO-2", "ZeRO-2 + offload", "ZeRO-3", "ZeRO-3 + offload", "ZeRO-3 + NVMe"]
OTHERS = ["ZeRO-3 + fp16", "ZeRO-3 + bf16", "ZeRO-3 + int8 gathers"]


def table(*args):
    return subprocess.run(["bash", SCRIPT, *args], text=True, timeout=DEADLINE, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False,
                          env=os.environ | mpi_env() | {"ZSHARD_BUILD": BUILD})


def rows():
    with tempfile.TemporaryDirectory() as d:
        done = table("--short", "--out", d)
        check(done.returncode == 0, f"ended with {done.returncode}: {done.stderr}")
        check(sorted(os.listdir(d)) == ["table.json", "table.svg", "table.txt", "zshardd.log"], f"{os.listdir(d)}")
        with open(os.path.join(d, "table.json"), encoding="utf-8") as f:
            said = json.load(f)
        with open(os.path.join(d, "table.txt"), encoding="utf-8") as f:
            check(f.read() == done.stdout, "the table in the file is another one")
        bars = len(ElementTree.parse(os.path.join(d, "table.svg")).findall("{*}rect"))
    by_mode = {row["mode"]: row for row in said["rows"]}
    check(list(by_mode) == FP32 + OTHERS, f"{list(by_mode)}")
    help_text = subprocess.run([program("zgpt"), "--help"], stdout=subprocess.PIPE, text=True, check=True).stdout
    skipped = [mode for mode, row in by_mode.items() if "skipped" in row]
    check(skipped == [] or (skipped == ["ZeRO-3 + int8 gathers"] and "--quantize-gather" not in help_text),
          f"{skipped} were skipped")
    check(bars > 3 * (len(by_mode) - len(skipped)), f"{bars} bars in the plot")
    for mode in FP32:
        check(by_mode[mode]["losses"] == by_mode["DDP"]["losses"], f"{mode}: {by_mode[mode]['losses']}")
    n, p = said["ranks"], said["params"]
    by_hand = [16 * p, (8 + 8 / n) * p, (4 + 12 / n) * p, 16 * p / n]
    for mode, want in zip(["DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3"], by_hand):
        row = by_mode[mode]
        check(row["formula"] == round(want) and sum(row["daemon"]) == 0, f"{row}")
        check(want <= sum(row["own"]) < 1.3 * want, f"{row}: small units are padded, but not so much")
        check(row["peak"] >= max(row["phases"].values()) >= sum(row["own"]), f"{row}")
    check(by_mode["ZeRO-3 + offload"]["own"] == [0, 0, 0], f"{by_mode['ZeRO-3 + offload']}")
    check(by_mode["ZeRO-3 + offload"]["daemon"] == by_mode["ZeRO-3"]["own"], f"{by_mode['ZeRO-3 + offload']}")
    check(by_mode["ZeRO-3 + offload"]["tiers"]["nvme"] == 0 < by_mode["ZeRO-3 + NVMe"]["tiers"]["nvme"],
          f"{by_mode['ZeRO-3 + NVMe']}")
    check(by_mode["DDP"]["comm"]["across"] > 0 == by_mode["ZeRO-1"]["comm"]["across"], f"{by_mode['DDP']['comm']}")


def refused():
    for args, code in ((["--what"], 2), (["--ranks", "0"], 2), (["--steps", "x"], 2)):
        done = table(*args)
        check(done.returncode == code and done.stderr, f"{args}: {done.returncode} {done.stderr}")


TESTS = {f.__name__: f for f in (rows, refused)}

if __name__ == "__main__":
    if not shutil.which("mpirun"):
        skip("there is no mpirun")
    sys.exit(main(TESTS))
