#!/usr/bin/env python3
"""test_order.py - the order of micro-batches in zgpt, and what it keeps between its passes: what is fetched, and that
losses stay what they are.

    ZSHARD_BUILD=build tests/integ/test_order.py [NAME...]
"""

import shutil
import sys

from harness import Daemon, check, main, skip
from test_training import PAGES, Run, good

MICROS = 4
BOUND = {"fp32": 1e-5, "bf16": 1e-3}  # of sums in another order; bf16 rounds them before they are exchanged


def run_of(what, flags, ranks, offload):
    """Four micro-batches a rank and step."""
    flags = ["--batch", "8", "--micro-batch", str(8 // MICROS // ranks), "--offload", offload, *flags]
    if offload == "none":
        return good(Run(flags, ranks), what)
    with Daemon("--host-bytes", "256M" if offload == "host" else "3M", "--nvme-bytes", "64M", *PAGES) as d:
        return good(Run(flags, ranks, d.env()), what)


def fetched(run):
    """Of one step, over all ranks; the first has not learned the order yet."""
    return run.steps[-1]["fetched_bytes"]


def near(a, b, bound, what):
    worst = max(abs(x - y) / x for x, y in zip(a.losses(), b.losses()))
    print(f"{what}: losses differ by {worst:.2g} at most")
    check(worst <= bound, f"{what}: losses differ by {worst}, more than {bound}")


def orders(dtype, ranks, device=None):
    base = ["--dtype", dtype] + (["--device", device] if device else [])
    vertical = {}
    for offload in ("none", "host", "nvme"):
        name = f"{dtype}, {ranks} ranks, {device or 'cpu'}, {offload}"
        reduced = run_of(name, base, ranks, offload)
        local = run_of(f"{name}, local", base + ["--accumulate", "local"], ranks, offload)
        run = run_of(f"{name}, vertical", base + ["--order", "vertical"], ranks, offload)
        check(run.losses()[0] == local.losses()[0] == reduced.losses()[0], f"{name}: another first loss")
        near(local, run, BOUND[dtype], f"{name}, vertical and local")
        near(reduced, local, BOUND[dtype], f"{name}, local and reduced")
        ratio = fetched(run) * MICROS / fetched(reduced)
        print(f"{name}: a step fetches {fetched(reduced)} bytes, vertically {fetched(run)}")
        check(0.95 <= ratio <= 1.05, f"{name}: {ratio / MICROS} of what is fetched otherwise, and not 1/{MICROS}")
        for way, made in (("local", local), ("vertical", run)):
            first = vertical.setdefault(way, made)
            check(made.losses() == first.losses() and made.weights == first.weights,
                  f"{name}, {way}: other bits than without a daemon")


def fp32():
    orders("fp32", 1)


def fp32_two_ranks():
    orders("fp32", 2)


def bf16_two_ranks():
    orders("bf16", 2)


def device():
    orders("fp32", 1, "emulated")


def device_two_ranks():
    orders("bf16", 2, "emulated")


def one_micro_batch():
    """Then there is one order, and its bits."""
    for ranks in (1, 2):
        flags = ["--batch", "6", "--micro-batch", str(6 // ranks)]
        runs = [good(Run(flags + more, ranks), f"{ranks} ranks {more}")
                for more in ([], ["--order", "vertical"], ["--accumulate", "local"])]
        for run in runs[1:]:
            check(run.losses() == runs[0].losses() and run.weights == runs[0].weights, f"{ranks} ranks: other bits")


def checkpoints():
    """Whatever is kept of a block, the bits are the same; and less is held."""
    for where in ("cpu", "emulated"):
        for order in ("horizontal", "vertical"):
            base = ["--device", where, "--order", order]
            runs = {c: run_of(f"{where}, {order}, {c}", base + ["--checkpoint", c], 1, "none")
                    for c in ("none", "block")}
            held = {c: run.steps[0]["activation_bytes"] for c, run in runs.items()}
            print(f"{where}, {order}: activations take {held}")
            for run in runs.values():
                check(run.losses() == runs["none"].losses() and run.weights == runs["none"].weights,
                      f"{where}, {order}: other bits")
            check(held["block"] < held["none"], f"{where}, {order}: {held}")


TESTS = {f.__name__: f for f in (fp32, fp32_two_ranks, bf16_two_ranks, device, device_two_ranks, one_micro_batch,
                                 checkpoints)}

if __name__ == "__main__":
    if not shutil.which("mpirun"):
        skip("there is no mpirun")
    sys.exit(main(TESTS))
