#!/usr/bin/env python3
"""test_nodes.py - two nodes, a daemon and two ranks on each: the same losses, the bytes that were planned,
and on the link between them the bytes that the formulas say.

    ZSHARD_BUILD=build tests/integ/test_nodes.py [NAME...]

nodes.py has what is needed; where that cannot be had, this is skipped, with the reason.
"""

import contextlib
import os
import shutil
import signal
import sys

from harness import Daemon, check, main, skip
from nodes import ADDRESSES, NoNodes, Nodes
from test_plan import MODELS, NVME, PAGES, Training, ddp_is, held, plan, plan_words, process_io
from test_stages import padded, units
from test_torchrun import MODEL, Trained, as_torchrun, under_mpirun

RANKS = 4
VOCABULARY = 256
nodes = Nodes()


def flag(flags, name):
    words = [*MODEL, *flags]
    return words[len(words) - words[::-1].index(name)]


@contextlib.contextmanager
def daemons(host_bytes, *flags):
    """One on each node."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Daemon("--host-bytes", str(host_bytes), "--nvme-bytes", NVME, *flags,
                                          under=nodes.enter(node))) for node in (0, 1)]


def sockets(ds):
    return ["--socket", ",".join(d.socket for d in ds)]


def least(words, *pages):
    """The host memory that holds a node's gradients and no more than it must of the rest, but what any
    daemon needs."""
    p = plan(None, *words, "--ranks", str(RANKS), "--nodes", "2", *pages, "--host-bytes", "4K", "--nvme-bytes",
             NVME, status=7)
    return max(p["tiers"]["host"]["least_grads"], 1 << 20)


# ---- losses

SMALL_PAGES = ["--page-elems", "8192"]


def over_mpi():
    return under_mpirun(dict(os.environ), RANKS, nodes.mpirun)


def over_tcp():
    return as_torchrun(dict(os.environ), RANKS, lambda rank: nodes.enter(rank * 2 // RANKS),
                       MASTER_ADDR=ADDRESSES[0])


def on_both(flags, start, name):
    """A run on both nodes. What it offloads, it streams: the daemons' memory is too small for it."""
    if "nvme" not in flags:
        return Trained(flags, start()).good(name)
    words = [w for key in ("--layers", "--width", "--seq", "--dtype") for w in (key, flag(flags, key))]
    mode = "hybrid" if "--group" in flags else "zero" + flag(flags, "--stage")
    host = least([*words, "--vocab", str(VOCABULARY), "--mode", mode], *SMALL_PAGES)
    with daemons(host, *SMALL_PAGES) as ds:
        before = [process_io(d.process.pid)[0] for d in ds]
        run = Trained(flags + sockets(ds), start()).good(name)
        read = [process_io(d.process.pid)[0] - had for d, had in zip(ds, before)]
    check(min(read) > 0, f"{name}: the daemons have read {read} bytes")
    return run


def same(modes, dtype, starts, tolerance=0.0):
    """On both nodes, what ranks on one node train without a daemon."""
    base = ["--batch", "8", "--dtype", dtype]
    alone = Trained(base, under_mpirun(dict(os.environ), RANKS)).good("one node")
    for words, start in ((words, start) for words in modes for start in starts):
        name = f"{words}, {dtype}, {start.__name__}"
        run = on_both(base + words.split(), start, name)
        check(tolerance > 0 or run.weights == alone.weights, f"{name}: other weights than on one node")
        for step, (a, b) in enumerate(zip(alone.losses, run.losses)):
            check(abs(a - b) <= tolerance * abs(a), f"{name}, step {step + 1}: {b}, and {a} on one node")


def losses_mpi():
    same(["--stage 0", *(f"--stage {stage} --offload {offload}" for stage in (1, 2, 3)
                         for offload in ("none", "nvme"))], "bf16", [over_mpi])


def losses_tcp():
    """As torchrun starts them: without MPI."""
    same(["--stage 0", "--stage 3 --offload none", "--stage 3 --offload nvme"], "bf16", [over_tcp])


def groups():
    """Sums are in another order."""
    same(["--stage 3 --group 2", "--stage 3 --group 2 --offload nvme"], "fp32", [over_mpi, over_tcp], 1e-5)


# ---- the link

LINKED = ["--batch", "8", "--width", "128", "--layers", "4"]
STEPS = (2, 8)  # of two runs, whose difference is compared
HEADERS = 0.08  # TCP headers in frames of 1,500 bytes: 4.6 %; acknowledgements; and MPI's headers


def moved(flags):
    """Bytes over the link in a step."""
    counts = []
    for steps in STEPS:
        before = nodes.link_bytes()
        Trained(flags, over_mpi(), steps).good(" ".join(flags))
        counts.append(nodes.link_bytes() - before)
    return (counts[1] - counts[0]) / (STEPS[1] - STEPS[0])


def formulas(p):
    """Bytes over the link in a step, of p bytes a parameter and a gradient.

    Of what each rank sends to each other one, 8 in 12 go over the link: half of the ranks are there. An
    all-gather of x bytes, cut into 4, so is 8 x / 4. The last unit of the way forward is the first of the
    way back, and is gathered once. In groups nothing but slices of gradients crosses, in fp32, of a
    quarter each: those to be added to the one other rank that has the same slice, and their sums back.
    """
    cut = [padded(u, RANKS) for u in units(VOCABULARY + int(flag([], "--seq")), int(flag(LINKED, "--width")),
                                           int(flag(LINKED, "--layers")))]
    once = sum(cut)
    twice = 2 * once - cut[-1]
    return {
        "--stage 0": 2 * (p + 4) * once,
        "--stage 1": 2 * (p + p) * once,
        "--stage 3": 2 * (p * twice + p * once),
        "--stage 3 --keep-gathered": 2 * (p + p) * once,
        "--stage 3 --quantize-gather": 2 * ((1 + 1 / 64) * twice + p * once),
        "--stage 3 --group 2": RANKS * 2 * 4 * once / RANKS,
    }


PLANNED = {"--stage 0": "ddp", "--stage 1": "zero1", "--stage 3": "zero3", "--stage 3 --group 2": "hybrid"}


def planned_bytes(mode, dtype):
    """The same by zctl plan, which counts one direction. Its rates do not matter here."""
    rates = [word for name in ("link", "network", "mem-bw", "gpu-mem-bw") for word in ("--" + name, "1")]
    p = plan(None, "--layers", flag(LINKED, "--layers"), "--width", flag(LINKED, "--width"), "--vocab",
             str(VOCABULARY), "--seq", flag([], "--seq"), "--dtype", dtype, "--mode", PLANNED[mode], "--ranks",
             str(RANKS), "--nodes", "2", "--comm", "host", "--offload-optimizer", "none", "--tokens", "1",
             "--flops", "1", *rates)
    return 2 * p["iteration"]["network_bytes"]


def link():
    full, group = "--stage 3", "--stage 3 --group 2"
    for dtype, p, modes in (("bf16", 2, formulas(2)), ("fp32", 4, [full, group])):
        got, want = {}, formulas(p)
        for mode in modes:
            got[mode] = moved([*LINKED, "--dtype", dtype, *mode.split()])
            off = got[mode] / want[mode] - 1
            print(f"{dtype} {mode}: {got[mode]:.0f} bytes a step over the link, {want[mode]:.0f} by the formula, "
                  f"{100 * off:+.2f} %")
            check(-0.01 <= off <= HEADERS, f"{dtype} {mode}: {got[mode]} bytes a step, not {want[mode]}")
            if mode in PLANNED:
                ours = planned_bytes(mode, dtype)
                check(ours == want[mode], f"{dtype} {mode}: planned {ours} bytes over the link, by the formula {want[mode]}")
        less, ratio = got[full] / got[group], want[full] / want[group]
        print(f"{dtype}: groups send {less:.3f} times less, by the formulas {ratio:.3f}")
        check(abs(less / ratio - 1) <= HEADERS, f"{dtype}: groups send {less} times less, not {ratio}")


# ---- the plan

# Units of an even number of blocks: of ranks that have as much each it does not matter who came first,
# whose parameters then are resident (docs/PLANNING.md).
MODELS["even"] = (4, 112)


def planned(mode, flags, offload):
    """Of the node with the first ranks to the byte; and both together have the model."""
    words = [*plan_words("even", offload), "--mode", mode]
    whole = plan(None, *words, "--host-bytes", "64G", "--nvme-bytes", "64G", *PAGES)["rank"]["kept"]
    copies = 2 if mode == "hybrid" else 1
    with daemons(least(words, *PAGES) if offload == "nvme" else 1 << 30, *PAGES) as ds:
        def begin():
            return Training(ds[0], "even", ["--dtype", "bf16", "--offload", offload, *flags, *sockets(ds)],
                            RANKS, launch=nodes.mpirun)

        def seen():
            jobs = [job["name"] for d in ds for job in d.zctl("jobs")]
            check(len(jobs) == 2, f"{mode}: the daemons have jobs {jobs}, and not one each")
            tiers = [row for d in ds for row in d.zctl("tiers")]
            for key in ("params", "grads", "state"):
                got = sum(row[key] for row in tiers)
                check(got == copies * whole[key], f"{mode}: both have {got} of {key}, the model {whole[key]}")
        held(ds[0], f"two nodes, {mode}, {offload}", [*words, "--ranks", str(RANKS), "--nodes", "2"], begin,
             flags, seen)


def plans():
    group = ["--stage", "3", "--group", "2"]
    zero3, fsdp = (plan(None, *plan_words("even", "nvme"), "--mode", mode, "--ranks", str(RANKS), "--nodes", "2",
                        *PAGES, "--host-bytes", "64M", "--nvme-bytes", NVME) for mode in ("zero3", "fsdp"))
    check(all(zero3[key] == fsdp[key] for key in ("tiers", "rank", "step")), f"one run, two plans: {zero3}, {fsdp}")
    for stage in ("1", "2", "3"):
        planned("zero" + stage, ["--stage", stage], "host")
    planned("hybrid", group, "host")
    planned("zero3", ["--stage", "3"], "nvme")
    planned("hybrid", group, "nvme")


def plan_ddp():
    with daemons(64 << 20, *PAGES) as ds:
        p = plan(ds[0], *plan_words("even", "host"), "--ranks", str(RANKS), "--nodes", "2", "--mode", "ddp")
        ddp_is(p, Training(ds[0], "even", ["--dtype", "bf16", "--stage", "0"], RANKS, launch=nodes.mpirun))


TESTS = {f.__name__: f for f in (losses_mpi, losses_tcp, groups, link, plans, plan_ddp)}

if __name__ == "__main__":
    if not shutil.which("mpirun"):
        skip("there is no mpirun")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # a process that is told to end cleans up
    try:
        with nodes:
            sys.exit(main(TESTS))
    except NoNodes as why:
        skip(f"two nodes cannot be made: {why}")
