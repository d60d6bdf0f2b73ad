#!/usr/bin/env python3
"""test_order.py - the order of micro-batches in zgpt, and what it keeps between its passes: what is fetched, and that
losses stay what they are.

    ZSHARD_BUILD=build tests/integ/test_order.py [NAME...]
"""

import shutil
import sys

from harness import Daemon, check, main, skip
from test_training import FEW, PAGES, Run, good

MICROS = 4
BOUND = {"fp32": 1e-5, "bf16": 1e-3}  # for sums in another order; bf16 rounds them before they are exchanged


def run_of(what, flags, ranks, offload):
    """Four micro-batches a rank and step."""
    flags = ["--batch", "8", "--micro-batch", str(8 // MICROS // ranks), "--offload", offload, *flags]
    if offload == "none":
        return good(Run(flags, ranks, steps=FEW), what)
    with Daemon("--host-bytes", "256M" if offload == "host" else "3M", "--nvme-bytes", "64M", *PAGES) as d:
        return good(Run(flags, ranks, d.env(), steps=FEW), what)


def fetched(run):
    """Of one step, over all ranks; the first has not learned the order yet."""
    return run.steps[-1]["fetched_bytes"]


def near(a, b, bound, what):
    worst = max(abs(x - y) / x for x, y in zip(a.losses(), b.losses()))
    print(f"{what}: losses differ by {worst:.2g} at most")
    check(worst <= bound, f"{what}: losses differ by {worst}, more than {bound}")


def orders(dtype, ranks, offloads=("none", "nvme"), device=None):
    base = ["--dtype", dtype] + (["--device", device] if device else [])
    vertical = {}
    for offload in offloads:
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
    orders("fp32", 1, ("none", "host"))


def fp32_two_ranks():
    orders("fp32", 2)


def bf16_two_ranks():
    orders("bf16", 2, ("none", "host", "nvme"))


def device():
    orders("fp32", 1, device="emulated")


def device_two_ranks():
    orders("bf16", 2, device="emulated")


def one_micro_batch():
    """Then there is one order, and its bits."""
    for ranks in (1, 2):
        flags = ["--batch", "6", "--micro-batch", str(6 // ranks)]
        runs = [good(Run(flags + more, ranks, steps=FEW), f"{ranks} ranks {more}")
                for more in ([], ["--order", "vertical"], ["--accumulate", "local"])]
        for run in runs[1:]:
            check(run.losses() == runs[0].losses() and run.weights == runs[0].weights, f"{ranks} ranks: other bits")


ROWS, WIDTH, HEADS, SEQ, LAYERS, SLOTS = 2 * 32, 64, 2, 32, 5, 4  # of MODEL, with micro-batches of 2


def whole(elems, elem_bytes, unit):
    """An array, as the passes round it up."""
    return -(-elems * elem_bytes // unit) * unit


def stream(where):
    return whole(ROWS * WIDTH, 4, 64 if where == "cpu" else 256)


def inside(where):
    """docs/ACTIVATIONS.md: B, for fp32."""
    unit = 64 if where == "cpu" else 256
    arrays = 15 * [ROWS * WIDTH] + 4 * [ROWS] + ([ROWS * HEADS * SEQ] if where == "cpu" else [])
    return sum(whole(n, 4, unit) for n in arrays)


def written(daemon):
    return {row["name"]: row["value"] for row in daemon.zctl("stat")}["nvme_written_bytes"]


def checkpoints_of(where, order, ranks, host):
    """Whatever is kept of a block, and wherever, the bits are the same; and what is held falls as the arithmetic says."""
    base = ["--device", where, "--order", order, "--batch", "8", "--micro-batch", str(2 // ranks)]
    micros = MICROS if order == "vertical" else 1
    held, first = {}, None
    for kept in ("none", "block", "host", "nvme"):
        name = f"{where}, {order}, {ranks} ranks, {kept}"
        with Daemon("--host-bytes", host, "--nvme-bytes", "64M", *PAGES) as d:
            before = written(d)  # while it measured its data file
            run = good(Run(base + ["--checkpoint", kept], ranks, d.env(), steps=FEW), name)
            moved = written(d) - before
            check((moved > 0) == (kept == "nvme"), f"{name}: {moved} bytes were written to NVMe")
            check(d.zctl("jobs") == [], f"{name}: a job is left")
        first = first or run
        held[kept] = run.steps[0]["activation_bytes"]
        check(run.losses() == first.losses() and run.weights == first.weights, f"{name}: other bits")
    print(f"{where}, {order}, {ranks} ranks: activations take {held}")
    if ranks > 1:
        return
    head = 0 if where == "cpu" else whole(ROWS * WIDTH, 4, 256) + 2 * whole(ROWS, 4, 256)
    streams = micros * (LAYERS + 1) * stream(where)
    kept = SLOTS * ROWS * WIDTH * 4 + (0 if where == "cpu" else 3 * stream(where))
    check(held["none"] - held["block"] == (micros * LAYERS - 1) * inside(where) + head, f"none and block: {held}")
    check(held["block"] - held["host"] == streams - kept and held["host"] == held["nvme"], f"block and host: {held}")


def checkpoints():
    for order in ("horizontal", "vertical"):
        checkpoints_of("cpu", order, 1, "3M")


def checkpoints_two_ranks():
    checkpoints_of("cpu", "vertical", 2, "6M")


def checkpoints_device():
    for order in ("horizontal", "vertical"):
        checkpoints_of("emulated", order, 1, "3M")


def checkpoints_refused():
    """No daemon, or no room: one error message."""
    run = Run(["--checkpoint", "host", "--socket", "/nowhere/zshard.sock"], steps=1)
    check(run.done.returncode == 3 and "checkpoints of activations: " in run.done.stdout, run.done.stdout)
    with Daemon("--host-bytes", "1M", "--nvme-bytes", "64M", *PAGES) as d:
        run = Run(["--checkpoint", "host", "--seq", "512"], 1, d.env(), steps=1)
        check(run.done.returncode == 4 and "checkpoints of activations: " in run.done.stdout, run.done.stdout)


TESTS = {f.__name__: f for f in (fp32, fp32_two_ranks, bf16_two_ranks, device, device_two_ranks, one_micro_batch,
                                 checkpoints, checkpoints_two_ranks, checkpoints_device, checkpoints_refused)}

if __name__ == "__main__":
    if not shutil.which("mpirun"):
        skip("there is no mpirun")
    sys.exit(main(TESTS))
