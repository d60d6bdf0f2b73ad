#!/usr/bin/env python3
"""test_stages.py - every stage of ZeRO over MPI: the same losses, in the bytes that the formulas say.

    ZSHARD_BUILD=build tests/integ/test_stages.py [NAME...]
"""

import shutil
import sys

from harness import LONG, Daemon, check, main, skip
from test_training import FEW, MODEL, PAGES, Run, good

BLOCK = 4096  # elements: slices are whole blocks
# p, g, k: bytes of a parameter in the three planes
LAYOUTS = {"fp32": (4, 4, 8), "bf16": (2, 4, 10)}
DAEMON = ["--host-bytes", "64M", "--nvme-bytes", "64M", "--page-elems", "8192"]

# Stage and placement. All except groups have the losses of the first, bit for bit.
MODES = [
    "--stage 3",
    "--stage 0",
    "--stage 1",
    "--stage 2",
    "--stage 3 --keep-gathered",
    "--stage 1 --offload host",
    "--stage 1 --offload nvme",
    "--stage 2 --offload host",
    "--stage 2 --offload nvme",
    "--stage 3 --offload-optimizer host",
    "--stage 3 --offload host",
    "--stage 3 --offload nvme",
]

# Each rank reads all slices in the daemon: no bytes between ranks.
ALONE_MODES = [
    "--stage 3 --offload host --gather-alone",
    "--stage 3 --offload nvme --gather-alone",
    "--stage 3 --offload host --node-gather host",
    "--stage 3 --offload nvme --node-gather auto",
    "--stage 2 --offload host --node-gather host",
]

# The first 2 blocks are frozen: they have only parameters. All have the losses of the first.
FROZEN_MODES = [mode + " --freeze 2" for mode in (
    "--stage 3",
    "--stage 0",
    "--stage 1",
    "--stage 2 --offload nvme",
    "--stage 3 --offload nvme",
)]


def flag(name):
    return int(MODEL[MODEL.index(name) + 1])


def units(embedded, c, layers):
    """Elements of the units of a model of width c; `embedded`: tokens and positions."""
    return [embedded * c] + [12 * c * c + 13 * c] * layers + [2 * c]


def padded(elems, ranks):
    slice_ = -(-elems // ranks)
    return -(-slice_ // BLOCK) * BLOCK * ranks


def expected(stage, ranks, dtype, embedded, frozen=0):
    """Bytes of the three planes on one rank that has a whole slice of everything."""
    p, g, k = LAYOUTS[dtype]
    model = [padded(u, 1 if stage == 0 else ranks)
             for u in units(embedded, flag("--width"), flag("--layers"))]
    elems, trained = sum(model), sum(model) - sum(model[1:1 + frozen])
    cut = [ranks if stage >= least else 1 for least in (3, 2, 1)]
    return [bytes_ // n for bytes_, n in zip((p * elems, g * trained, k * trained), cut)]


def run_mode(mode, ranks, dtype):
    flags = mode.split() + ["--dtype", dtype]
    if "--offload" not in mode:
        return good(Run(flags, ranks, steps=FEW), f"{mode}, {dtype}, {ranks} ranks")
    with Daemon(*DAEMON) as d:
        return good(Run(flags, ranks, d.env(), steps=FEW), f"{mode}, {dtype}, {ranks} ranks")


def check_bytes(mode, ranks, dtype, run):
    states = run.steps[-1]["state_bytes"]
    stage = int(mode.split()[1])
    own = [states[plane] for plane in ("param", "grad", "optimizer")]
    daemon = [states["daemon_" + plane] for plane in ("param", "grad", "optimizer")]
    embedded = run.vocab + flag("--seq")
    frozen = 2 if "--freeze" in mode else 0
    want = expected(stage, ranks, dtype, embedded, frozen)
    if "--offload" not in mode:
        if stage == 1 and flag("--batch") > flag("--micro-batch") * ranks:
            want[1] += expected(2, ranks, dtype, embedded, frozen)[1]  # the accumulated sum of its slice
        check(own == want, f"{mode}, {dtype}, {ranks} ranks: {own}, and the formulas say {want}")
        check(daemon == [0, 0, 0], f"{mode}: the daemon has {daemon}, and there is none")
        return
    cut = expected(3, ranks, dtype, embedded, frozen)  # the daemon holds slices
    whole = [w if stage < least else 0 for w, least in zip(want, (3, 2, 1))]
    check(daemon == cut, f"{mode}, {dtype}, {ranks} ranks: the daemon has {daemon}, not {cut}")
    check(own == whole, f"{mode}, {dtype}, {ranks} ranks: {own}, not {whole}")


def vocabulary(run):
    words = run.done.stdout.split("vocabulary ")[1]
    return int(words.split()[0])


def stages(ranks, dtypes=("fp32",), modes=MODES):
    for dtype in dtypes:
        first = None
        for mode in modes:
            run = run_mode(mode, ranks, dtype)
            run.vocab = vocabulary(run)
            first = first or run
            check(run.losses() == first.losses(), f"{mode}, {dtype}, {ranks} ranks: other losses")
            check(run.weights == first.weights, f"{mode}, {dtype}, {ranks} ranks: other weights")
            check_bytes(mode, ranks, dtype, run)
            if "--gather-alone" in mode or "--node-gather host" in mode:
                gathered = run.steps[-1]["comm_bytes"]["gather"]
                check(gathered == 0, f"{mode}, {dtype}, {ranks} ranks: {gathered} bytes were gathered between ranks")


def two_ranks():
    batch(6, 3)
    stages(2, ("fp32",), MODES + ALONE_MODES)
    stages(2, ("bf16",), (MODES + ALONE_MODES)[:: 1 if LONG else 3])


def batch(sequences, at_a_time):
    MODEL[MODEL.index("--batch") + 1] = str(sequences)
    MODEL[MODEL.index("--micro-batch") + 1] = str(at_a_time)


def half(of):
    """The first mode and every second one, beginning with number `of`; all in the nightly run."""
    return MODES if LONG else MODES[:1] + MODES[of::2]


def three_ranks():
    batch(6, 1)  # two micro-steps
    stages(3, modes=half(1))


def frozen_blocks():
    batch(6, 3)
    stages(2, ("fp32",), FROZEN_MODES)
    stages(2, ("bf16",), FROZEN_MODES[:: 1 if LONG else 2])


def four_ranks():
    batch(8, 2)
    stages(4, modes=half(2))
    # groups of two: gathers stay inside, gradients go across; sums in another order
    whole = run_mode("--stage 3", 4, "fp32")
    for mode in ("--stage 3 --group 2", "--stage 3 --group 2 --offload nvme",
                 "--stage 3 --group 2 --offload host --node-gather host"):
        run = run_mode(mode, 4, "fp32")
        for step, (a, b) in enumerate(zip(whole.losses(), run.losses())):
            check(abs(a - b) <= 1e-5 * abs(a), f"{mode}, step {step + 1}: {b}, and {a} in one group")
        comm = run.steps[-1]["comm_bytes"]
        check((0 == comm["gather"]) == ("--node-gather" in mode) and 0 < comm["across"], f"{mode}: {comm}")


def two_daemons():
    """Half of the ranks have one daemon, half another: a slice crosses between them once for each rank of the
    other one, or once. Also in groups whose two ranks have two daemons: there the bytes are the same."""
    batch(8, 2)
    for sockets, group, less in (("AB", 0, 2), ("ABAB", 2, 1)):
        runs = {}
        for way in ("comm", "host"):
            with Daemon(*DAEMON) as a, Daemon(*DAEMON) as b:
                flags = ["--stage", "3", "--offload", "host", "--group", str(group), "--node-gather", way,
                         "--socket", ",".join({"A": a.socket, "B": b.socket}[s] for s in sockets)]
                runs[way] = good(Run(flags, 4, steps=FEW), f"{sockets}, {way}")
        check(runs["host"].losses() == runs["comm"].losses(), f"{sockets}: other losses")
        check(runs["host"].weights == runs["comm"].weights, f"{sockets}: other weights")
        # what is gathered ahead at the end may have begun or not
        across = {way: sum(step["gather_nodes_bytes"] for step in run.steps) for way, run in runs.items()}
        check(abs(across["comm"] / across["host"] / less - 1) < 0.1, f"{sockets}: {across}")


def pages_early(daemon):
    return {row["name"]: row["value"] for row in daemon.zctl("stat")}["pages_early"]


def clipped_on_two_daemons():
    """Clipping by tensor, over MPI: sums of each unit cross the nodes, so that steps begin during the backward pass, and
    gradients need not be held. The bits are those of steps that do not, and of a run without daemons."""
    batch(8, 2)
    base = ["--stage", "3", "--clip", "1", "--clip-mode", "tensor", "--clip-warmup", "2"]
    # of two groups one is on one node, which has memory for all
    for sockets, group, memory in (("AB", "0", "2M"), ("AAAB", "2", "64M")):
        grouped = [*base, "--group", group]
        plain = good(Run(grouped, 4, steps=FEW), f"without daemons, groups of {group}")
        for overlap in ("early", "none", "early --grad-ring")[:: 2 if group == "2" else 1]:
            with Daemon("--host-bytes", memory, "--nvme-bytes", "64M", *PAGES) as a, \
                    Daemon("--host-bytes", "2M", "--nvme-bytes", "64M", *PAGES) as b:
                flags = ["--offload", "nvme", "--overlap", *overlap.split(),
                         "--socket", ",".join({"A": a.socket, "B": b.socket}[s] for s in sockets)]
                run = good(Run(grouped + flags, 4, steps=FEW), f"{sockets}, {overlap}")
                early = [pages_early(d) for d in (a, b)]
            check(run.losses() == plain.losses() and run.weights == plain.weights, f"{sockets}, {overlap}: other bits")
            want = [overlap != "none" and memory == "2M", overlap != "none"]
            check([n > 0 for n in early] == want, f"{sockets}, {overlap}: pages stepped early: {early}")


def a_limit():
    """What does not fit is refused with the numbers, and a higher stage fits."""
    batch(6, 3)
    ddp = good(Run(["--stage", "0"], 2, steps=FEW), "DDP")
    states = ddp.steps[-1]["state_bytes"]
    limit = states["param"] + states["grad"] + states["optimizer"]
    refused = Run(["--stage", "0", "--memory", str(limit)], 2, steps=FEW)
    check(refused.done.returncode == 4, f"DDP ended with {refused.done.returncode}")
    for words in (f"{states['param']} of parameters", f"the limit is {limit}"):
        check(words in refused.done.stdout, f"'{words}' is missing:\n{refused.done.stdout}")
    good(Run(["--stage", "3", "--memory", str(limit)], 2, steps=FEW), "stage 3 under the same limit")


TESTS = {f.__name__: f for f in (two_ranks, three_ranks, four_ranks, two_daemons, clipped_on_two_daemons, frozen_blocks, a_limit)}

if __name__ == "__main__":
    if not shutil.which("mpirun"):
        skip("there is no mpirun")
    sys.exit(main(TESTS))
