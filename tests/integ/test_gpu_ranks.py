#!/usr/bin/env python3
"""test_gpu_ranks.py - ranks of a node that compute on several GPUs, all owned by one daemon: the bits of a run without
a GPU tier, and state on each of the GPUs; and runs that outlive their daemon, and are resumed by fewer ranks.

    ZSHARD_BUILD=build tests/integ/test_gpu_ranks.py [NAME...]
"""

import shutil
import sys

from harness import DEADLINE, LONG, Daemon, check, main, skip
from resume import KeptRun, Reference
from test_torchrun import STEPS, Trained, as_torchrun

RANKS = 8
SHAPE = "--width 72 --batch 16 --micro-batch 2 --offload nvme --keep".split()


def trained(d, device):
    return Trained([*SHAPE, "--device", device], as_torchrun(d.env(), size=RANKS)).good(device)


def tiers(d):
    """By name; none has more than its budget."""
    rows = {row["name"]: row for row in d.zctl("tiers")}
    for name, row in rows.items():
        check(row["used"] <= row["budget"], f"{name}: {row}")
    return rows


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
        check("gpu8" not in rows and "gpu" not in rows, f"the names of the tiers: {list(rows)}")
    check(node.losses == host.losses, f"{node.losses} on eight GPUs, {host.losses} without")
    check(node.weights == host.weights, "other weights than without GPUs")


NODE = ("--page-elems", "16384", "--host-bytes", "256M", "--nvme-bytes", "256M", "--gpu-bytes", "24M",
        "--gpus", "emulated*8:64M:::4K")
KEPT = "--width 72 --batch 16 --micro-batch 2 --device emulated*8:64M".split()


def with_state(d):
    """The GPUs that have state."""
    return [gpu for gpu in range(RANKS) if tiers(d)[f"gpu{gpu}"]["state"] > 0]


def restarted():
    """The daemon of eight ranks is restarted in good order, and killed; the run does not end. Then four ranks continue,
    and one: their losses differ by rounding alone."""
    last = 30 if LONG else 12
    with KeptRun(last + 6, ranks=RANKS, commit_every=2, dtype="fp32", flags=KEPT, reconnect=120) as kept:
        whole = Reference(kept)
        with Daemon(*NODE) as d:
            run = kept.start(d, resume=False, steps=last)
            for lines in range(3, last - 3, 4):
                kept.wait_for_lines(lines, run)
                if lines % 8 == 3:
                    check(d.stop() == 0, f"the daemon ended:\n{d.log()}")
                else:
                    d.kill()
                d.again()
            check(run.wait(DEADLINE) == 0, f"the run ended:\n{kept.said()}")
            whole.check_losses(kept)
            check(kept.last_step() == last and "was lost" in kept.said(), kept.said())
            check(with_state(d), "no GPU has state")
            for ranks in (4, 1):
                d.kill()
                d.again()
                start = kept.last_step()
                kept.good(d, resume=True, ranks=ranks, steps=start + 3)
                check(f"resumes after step {start}\n" in kept.said(), kept.said())
                check(set(with_state(d)) <= set(range(ranks)), f"{ranks} ranks: state on {with_state(d)}")
                for row in kept.lines()[-3:]:
                    want = whole.losses[row["step"]]
                    check(abs(row["loss"] - want) <= 1e-5 * want,
                          f"{ranks} ranks, step {row['step']}: {row['loss']}, not {want}")


TESTS = {f.__name__: f for f in (each_on_its_own, restarted)}

if __name__ == "__main__":
    if not shutil.which("mpirun"):
        skip("there is no mpirun")
    sys.exit(main(TESTS))
