#!/usr/bin/env python3
"""test_freeze.py - zgpt --freeze and --quantize-frozen: the first blocks stay what they are, whatever else is asked for.

    ZSHARD_BUILD=build tests/integ/test_freeze.py [NAME...]

What each stage keeps of them is test_stages.py's, and the losses are held to PyTorch's by the oracle.
"""

import shutil
import sys
import tempfile

from harness import Daemon, check, main, skip
from resume import PAGES as KEPT_PAGES
from resume import KeptRun, Reference
from test_quantize import GROUP, tensors
from test_stages import padded, units
from test_training import PAGES, Run

STEPS = 4
FROZEN = 2  # of 5 blocks
FREEZE = ["--freeze", str(FROZEN)]


def good(flags, env=None, ranks=1, steps=STEPS):
    run = Run(flags, ranks, env, steps)
    check(run.done.returncode == 0, f"{flags} ended with {run.done.returncode}:\n{run.done.stdout}")
    return run


def changed(before, after):
    """The units of which a tensor is another one, of those that are blocks; and whether the rest is, all of it."""
    blocks, rest = set(), []
    for (name, a), (same_name, b) in zip(tensors(before), tensors(after), strict=True):
        check(name == same_name, f"{name} and {same_name}")
        words = name.split(".")
        if words[1] != "h":
            rest.append(a != b)
        elif a != b:
            blocks.add(int(words[2]))
    return blocks, all(rest)


def stays(flags, ranks=1, env=None, before=None):
    flags = FREEZE + flags
    before, after = before or good(flags, env, ranks, 0), good(flags, env, ranks)
    blocks, rest = changed(before.weights, after.weights)
    check(blocks == set(range(FROZEN, 5)) and rest, f"{flags}: blocks {blocks} changed; all of the rest: {rest}")
    check("the first 2 of 5 blocks are frozen" in after.done.stdout, after.done.stdout)
    return after


def weights_stay():
    """On the processor and on a device, in all dtypes; and what was trained is read again, frozen or not."""
    for flags in (["--dtype", "fp32"], ["--dtype", "bf16"], ["--dtype", "fp16", "--device", "emulated"]):
        stays(flags)
    first = good(FREEZE)
    with tempfile.NamedTemporaryFile(prefix="zshard-frozen-") as file:
        file.write(first.weights)
        file.flush()
        again = good(["--freeze", "5", "--init", file.name])
    blocks, rest = changed(first.weights, again.weights)
    check(blocks == set() and rest, f"5 frozen: blocks {blocks} changed; all of the rest: {rest}")


def same_bits():
    """Two micro-batches a rank. What is kept of a block, and where bytes live, changes no bit; another order of sums,
    and a device, round otherwise."""
    base = ["--batch", "12"]
    before = good(FREEZE + base, None, 2, 0)
    with Daemon("--host-bytes", "8M", "--nvme-bytes", "64M", *PAGES) as d:
        for order, more in (([], ["--checkpoint", "block", "--offload", "nvme"]),
                            (["--order", "vertical"], ["--checkpoint", "nvme"]),
                            (["--accumulate", "local"], ["--checkpoint", "host"])):
            first = stays(base + order, 2, d.env(), before)
            run = good(FREEZE + base + order + more, d.env(), 2)
            check(run.losses() == first.losses() and run.weights == first.weights, f"{order + more}: other bits")
            run = good(FREEZE + base + order + ["--device", "emulated", "--offload", "nvme"], d.env(), 2)
            worst = max(abs(a - b) / a for a, b in zip(first.losses(), run.losses()))
            check(worst <= 1e-4, f"{order}: losses on a device are off by {worst}")


def goes_on():
    """In two lives as in one; with other blocks frozen it is another run."""
    with KeptRun(8, flags=["--freeze", "1"]) as kept, Daemon(*KEPT_PAGES) as d:
        whole = Reference(kept)
        kept.good(d, resume=False, steps=5)
        for freeze, says in (("0", "('h.0') of job 'kept' is frozen, and rank 0 defines it as trained"),
                             ("2", "('h.1') of job 'kept' is trained, and rank 0 defines it as frozen")):
            status = kept.run(d, resume=True, more=["--freeze", freeze])
            check(status != 0 and "--resume: job 'kept' is another run: " in kept.said() and says in kept.said(),
                  f"--freeze {freeze} ended with {status}:\n{kept.said()}")
        kept.good(d, resume=True)
        whole.check(kept)


def a_limit():
    """The least there is counts no gradient of a frozen block, though it is larger than all units that have one."""
    flags = ["--freeze", "5"]
    states = good(flags, steps=1).steps[-1]["state_bytes"]
    least = sum(states.values()) + 4 * padded(units(256 + 32, 64, 5)[0], 1)
    good(flags + ["--memory", str(least)], steps=1)
    refused = Run(flags + ["--memory", str(least - 1)], steps=1)
    check(refused.done.returncode == 4 and f"needs {least} bytes" in refused.done.stdout, refused.done.stdout)


def units_of(weights):
    """The elements of each block, one tensor behind the other, as its unit has them."""
    found = {}
    for name, values in tensors(weights):
        if name.split(".")[1] == "h":
            found.setdefault(int(name.split(".")[2]), []).extend(values)
    return found


def decoded(exact, quantized):
    """Frozen blocks are their codes times their scales; all others are what they were."""
    exact, quantized = units_of(exact), units_of(quantized)
    for block, values in exact.items():
        off = 0
        for at in range(0, len(values), GROUP):
            group = values[at:at + GROUP]
            most = max(map(abs, group)) / 127 / 2 * (1 + 1e-5)
            apart = max(abs(a - b) for a, b in zip(group, quantized[block][at:at + GROUP]))
            check(apart <= most, f"block {block}, element {at} and those behind it: off by {apart}, not by {most}")
            off = max(off, apart)
        check((off > 0) == (block < FROZEN), f"block {block} is off by {off}")


def quantized():
    """Frozen blocks as int8: a byte and 1/64 of an element, and half a scale off at most; wherever they live, alike."""
    int8 = ["--quantize-frozen"]
    decoded(good(FREEZE, steps=0).weights, good(FREEZE + int8, steps=0).weights)
    exact, first = good(FREEZE), stays(int8)
    check("are frozen, and kept as int8" in first.done.stdout, first.done.stdout)
    worst = max(abs(a - b) / a for a, b in zip(exact.losses(), first.losses()))
    check(0 < worst <= 1e-3, f"losses are off by {worst}")
    block = padded(units(1, 64, 1)[1], 1)
    saved = [run.steps[-1]["state_bytes"]["param"] for run in (exact, first)]
    check(saved[0] - saved[1] == FROZEN * block * (4 - 1 - 1 / 64), f"parameters take {saved}, blocks have {block}")
    with Daemon("--host-bytes", "8M", "--nvme-bytes", "64M", *PAGES) as d:
        for ranks, cpu in ((1, first), (2, good(FREEZE + int8, None, 2))):
            run = good(FREEZE + int8 + ["--offload", "nvme"], d.env(), ranks)
            check(run.losses() == cpu.losses() and run.weights == cpu.weights, f"{ranks} ranks on NVMe: other bits")
            run = good(FREEZE + int8 + ["--device", "emulated", "--offload", "nvme"], d.env(), ranks)
            worst = max(abs(a - b) / a for a, b in zip(cpu.losses(), run.losses()))
            check(worst <= 1e-4, f"{ranks} ranks: losses on a device are off by {worst}")


def quantized_goes_on():
    with KeptRun(6, flags=["--freeze", "1"]) as kept, Daemon(*KEPT_PAGES) as d:
        kept.model.append("--quantize-frozen")
        whole = Reference(kept)
        kept.good(d, resume=False, steps=3)
        kept.good(d, resume=True)
        whole.check(kept)
        kept.model.pop()
        status = kept.run(d, resume=True, steps=8)
        check(status != 0 and "--resume: job 'kept' is another run: " in kept.said(), kept.said())


TESTS = {f.__name__: f for f in (weights_stay, same_bits, goes_on, a_limit, quantized, quantized_goes_on)}

if __name__ == "__main__":
    if not shutil.which("mpirun"):
        skip("there is no mpirun")
    sys.exit(main(TESTS))
