#!/usr/bin/env python3
"""test_gpu_ranks.py - ranks of a node that compute on several GPUs, all owned by one daemon: the bits of a run without
a GPU tier, and state on each of the GPUs; and runs that outlive their daemon, and are resumed by fewer ranks.

    ZSHARD_BUILD=build tests/integ/test_gpu_ranks.py [NAME...]

With --gpu, on the GPUs that ZSHARD_GPU names: two ranks on each of all of them, so also on one; and, on several, NCCL
and parameters in GPU memory. Where it names none, that is skipped.
"""

import os
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


def all_up(d, flags, ranks=RANKS, **env):
    """The tiers, when each GPU has state. Threads allocate its memory, so the last steps of a run may come too
    early for some: then the run is resumed for further steps."""
    for more in range(1, 11):
        rows = tiers(d)
        if all(row["state"] > 0 for name, row in rows.items() if name.startswith("gpu")):
            return rows
        again = Trained([*flags, "--resume"], as_torchrun(d.env(**env), size=ranks), STEPS + 4 * more)
        check(all(code == 0 for code, _ in again.ended), f"resumed: {again.ended}")
    check(False, f"a GPU has no state: { {name: row['state'] for name, row in rows.items()} }")


def each_on_its_own():
    """Rank r computes on device r, by LOCAL_RANK, and has its state there."""
    size = ("--host-bytes", "384M", "--nvme-bytes", "128M", "--page-elems", "65536")
    with Daemon(*size) as d:
        host = trained(d, "emulated")
    with Daemon(*size, "--gpu-bytes", "32M", "--gpu", "emulated*8:64M:::4K") as d:
        node = trained(d, "emulated*8:64M")
        rows = all_up(d, [*SHAPE, "--device", "emulated*8:64M"])
        check(sum(name.startswith("gpu") for name in rows) == RANKS, f"the tiers: {list(rows)}")
        check("gpu8" not in rows and "gpu" not in rows, f"the names of the tiers: {list(rows)}")
    check(node.losses == host.losses, f"{node.losses} on eight GPUs, {host.losses} without")
    check(node.weights == host.weights, "other weights than without GPUs")


NODE = ("--page-elems", "16384", "--host-bytes", "256M", "--nvme-bytes", "256M", "--gpu-bytes", "24M",
        "--gpus", "emulated*8:64M:::4K")
KEPT = "--width 72 --batch 16 --micro-batch 2 --device emulated*8:64M".split()


def params_there_over_tcp():
    """Four ranks with parameters on their own GPUs, which gather over TCP: of one daemon, and of two that have two GPUs
    each. Their slices pass through host memory, and the bits are those of a run without GPUs."""
    size = ("--host-bytes", "128M", "--nvme-bytes", "128M", "--page-elems", "65536", "--gpu-bytes", "16M", "--gpus")
    flags = [*SHAPE, "--batch", "8", "--device", "emulated*4:64M:::4K"]

    def run(what, sockets, *more):
        words = [*flags, *more, "--socket", ",".join(sockets)]
        return Trained(words, as_torchrun(dict(os.environ), size=4)).good(what)

    with Daemon(*size, "emulated*4:64M:::4K") as d:
        host = run("host memory", [d.socket], "--offload-param", "host")
    with Daemon(*size, "emulated*4:64M:::4K") as d:
        one = run("one daemon", [d.socket], "--offload-param", "gpu")
    with Daemon(*size, "emulated:64M:::4K,emulated@1:64M:::4K") as a, \
            Daemon(*size, "emulated@2:64M:::4K,emulated@3:64M:::4K") as b:
        two = run("two daemons", [a.socket, a.socket, b.socket, b.socket], "--offload-param", "gpu")
    for what, there in (("one daemon", one), ("two daemons", two)):
        check("are in the daemon's GPU memory" in there.ended[0][1], there.ended[0][1])
        check(there.steps[-1]["gather_down_bytes"] > 0, f"{what}: {there.steps[-1]}")
        check(there.losses == host.losses and there.weights == host.weights, f"{what}: {there.losses}, {host.losses}")


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


def on_gpus():
    """Two processes compute on each GPU, besides the daemon: the bits are those of a run without a tier. With one rank on
    each of several GPUs, NCCL gathers parameters that lie in GPU memory of the daemon."""
    daemon, device = ("all", "cuda") if GPU == "cuda" else ("emulated*2:256M:::4K", "emulated*2:256M")
    size = ("--host-bytes", "384M", "--nvme-bytes", "256M", "--page-elems", "65536")
    tier = ("--gpus", daemon, "--gpu-bytes", "128M")

    def run(d, ranks, what, *more, **env):
        flags = [*SHAPE, "--batch", str(2 * ranks), "--device", device, *more]
        return flags, Trained(flags, as_torchrun(d.env(**env), size=ranks)).good(what)

    with Daemon(*size, *tier) as d:
        gpus = sum(name.startswith("gpu") for name in tiers(d))
        flags, there = run(d, 2 * gpus, "two ranks on each", ZSHARD_COMM="tcp")
        rows = all_up(d, flags, 2 * gpus, ZSHARD_COMM="tcp")
    print(f"{gpus} GPUs, {2 * gpus} ranks: {({name: row['state'] for name, row in rows.items()})}")
    with Daemon(*size) as d:
        _, host = run(d, 2 * gpus, "without a tier", ZSHARD_COMM="tcp")
        check(there.losses == host.losses and there.weights == host.weights, f"{there.losses}, without {host.losses}")
    if gpus > 1 and GPU == "cuda":
        with Daemon(*size) as d:
            _, host = run(d, gpus, "without a tier", ZSHARD_COMM="tcp")
        with Daemon(*size, *tier) as d:
            _, there = run(d, gpus, "parameters there", "--offload-param", "gpu")
            check("are in the daemon's GPU memory" in there.ended[0][1], there.ended[0][1])
            check(all(row["params"] > 0 for name, row in tiers(d).items() if name.startswith("gpu")), f"{tiers(d)}")
        check(there.losses == host.losses and there.weights == host.weights, f"{there.losses}, without {host.losses}")


GPU = os.environ.get("ZSHARD_GPU", "")
TESTS = {f.__name__: f for f in (each_on_its_own, params_there_over_tcp, restarted)}

if __name__ == "__main__":
    if "--gpu" in sys.argv:
        if not GPU:
            skip("ZSHARD_GPU names no device")
        sys.argv.remove("--gpu")
        sys.exit(main({"on_gpus": on_gpus}))
    if not shutil.which("mpirun"):
        skip("there is no mpirun")
    sys.exit(main(TESTS))
