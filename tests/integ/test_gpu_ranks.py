#!/usr/bin/env python3
"""test_gpu_ranks.py - ranks of a node that compute on several GPUs, all owned by one daemon: the bits of a run without
a GPU tier, and state on each of the GPUs.

    ZSHARD_BUILD=build tests/integ/test_gpu_ranks.py [NAME...]
"""

import json
import subprocess
import sys

from harness import Daemon, check, main, program
from test_torchrun import STEPS, Trained, as_torchrun

RANKS = 8
SHAPE = "--width 112 --batch 16 --micro-batch 2 --offload nvme --keep".split()


def trained(d, device):
    return Trained([*SHAPE, "--device", device], as_torchrun(d.env(), size=RANKS)).good(device)


def tiers(d):
    out = subprocess.run([program("zctl"), "tiers", "--json"], env=d.env(), text=True, check=True,
                         stdout=subprocess.PIPE)
    return {row["name"]: row for row in json.loads(out.stdout)["rows"]}


def all_up(d, device):
    """The tiers, when each GPU has state. Threads allocate its memory, so the last steps of a run may come too
    early for some: then the run is resumed for further steps."""
    for more in range(1, 11):
        rows = tiers(d)
        if all(rows[f"gpu{gpu}"]["state"] > 0 for gpu in range(RANKS)):
            return rows
        again = Trained([*SHAPE, "--device", device, "--resume"], as_torchrun(d.env(), size=RANKS), STEPS + 4 * more)
        check(all(code == 0 for code, _ in again.ended), f"resumed: {again.ended}")
    check(False, f"a GPU has no state: { {name: row['state'] for name, row in rows.items()} }")


def each_on_its_own():
    """Rank r computes on device r, by LOCAL_RANK, and has its state there."""
    size = ("--host-bytes", "384M", "--nvme-bytes", "128M", "--page-elems", "65536")
    with Daemon(*size) as d:
        host = trained(d, "emulated")
    with Daemon(*size, "--gpu-bytes", "32M", "--gpu", "emulated*8:64M:::4K") as d:
        node = trained(d, "emulated*8:64M")
        rows = all_up(d, "emulated*8:64M")
        for gpu in range(RANKS):
            check(rows[f"gpu{gpu}"]["used"] <= rows[f"gpu{gpu}"]["budget"], f"gpu{gpu}: {rows}")
        check("gpu8" not in rows and "gpu" not in rows, f"the names of the tiers: {list(rows)}")
    check(node.losses == host.losses, f"{node.losses} on eight GPUs, {host.losses} without")
    check(node.weights == host.weights, "other weights than without GPUs")


TESTS = {f.__name__: f for f in (each_on_its_own,)}

if __name__ == "__main__":
    sys.exit(main(TESTS))
