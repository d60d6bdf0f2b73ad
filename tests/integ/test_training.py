#!/usr/bin/env python3
"""test_training.py - zgpt through a real daemon: where bytes live never changes a run; who dies is noticed.

    ZSHARD_BUILD=build tests/integ/test_training.py [NAME...]
    ZSHARD_BUILD=build tests/integ/test_training.py runs|deaths
"""

import functools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from harness import (DEADLINE, LONG, Daemon, check, main, mpi_env, program, ranks_command, skip, wait_until)

STEPS = 20
FEW = STEPS if LONG else 5  # for comparisons bit for bit: a difference shows early
# More blocks than the ring has places, units of three shapes, each with a partial page at its end.
MODEL = ("--seed 5 --batch 6 --micro-batch 3 --seq 32 --layers 5 --heads 2 --width 64 --lr 1e-3 "
         "--clip 1 --data LICENSE").split()
PAGES = ["--page-elems", "8192", "--ring-bytes", "4K"]  # small pages, and one buffer for them


class Run:
    """One training run in a folder of its own: its losses and its weights."""

    def __init__(self, flags, ranks=1, env=None, steps=STEPS, model=None):
        self.folder = tempfile.mkdtemp(prefix="zshard-run-")
        self.wanted = steps
        try:
            jsonl, export = (os.path.join(self.folder, name) for name in ("jsonl", "weights"))
            command = [program("zgpt"), *(model or MODEL), "--steps", str(steps), "--jsonl", jsonl, "--export",
                       export, *flags]
            self.done = subprocess.run(ranks_command(ranks, command), text=True, timeout=DEADLINE,
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                                       env=(env or dict(os.environ)) | mpi_env())
            self.steps, self.weights = [], b""
            if self.done.returncode == 0:
                with open(jsonl, encoding="utf-8") as f:
                    self.steps = [json.loads(line) for line in f]
                with open(export, "rb") as f:
                    self.weights = f.read()
        finally:
            shutil.rmtree(self.folder)

    def losses(self):
        return [step["loss"] for step in self.steps]


def good(run, what):
    check(run.done.returncode == 0, f"{what} ended with {run.done.returncode}:\n{run.done.stdout}")
    check(len(run.steps) == run.wanted, f"{what} logged {len(run.steps)} steps")
    return run


def least_host_bytes(flags, ranks):
    """What the daemon says is the smallest that would work: it must be exact."""
    return least_of(tuple(flags), ranks)


@functools.cache
def least_of(flags, ranks):
    budget = 1 << 20 # grows until the staging fits into it, and the job does not
    while True:
        with Daemon("--host-bytes", str(budget), "--nvme-bytes", "64M", *PAGES) as d:
            run = Run(list(flags), ranks, d.env(), steps=0)
        found = re.search(r"smallest host_bytes that would work is (\d+)", run.done.stdout)
        if found:
            return int(found.group(1))
        check(run.done.returncode != 0, f"{budget} bytes of host memory did already")
        budget += budget // 8
        check(budget < 1 << 30, f"no budget is named:\n{run.done.stdout}")


def same_everywhere(dtype, ranks):
    base = ["--dtype", dtype]
    here = good(Run(base + ["--offload", "none"], ranks, steps=FEW), "the run without a daemon")
    offload = base + ["--offload", "nvme"]
    least = least_host_bytes(offload, ranks)
    grads = least_host_bytes(offload + ["--offload-grad", "host"], ranks)
    check(least < grads, f"gradients take {grads - least} bytes")
    rng = random.Random(f"{dtype} {ranks}")
    budgets = [("all in host memory", 256 << 20), ("the least there is", least),
               ("the least that holds the gradients", grads)]
    budgets += [("a random budget", least + rng.randrange(1, 800 << 10)) for _ in range(2)]
    for what, host in budgets:
        for io in ("uring", "threads"):
            with Daemon("--host-bytes", str(host), "--nvme-bytes", "64M", "--io", io, *PAGES) as d:
                name = f"{dtype}, {ranks} ranks, {what} ({host}), {io}"
                idle = d.used()
                run = good(Run(offload, ranks, d.env(), steps=FEW), name)
                check(run.losses() == here.losses(), f"{name}: other losses than without a daemon")
                check(run.weights == here.weights, f"{name}: other weights than without a daemon")
                moved = sum(s["nvme_read_bytes"] + s["nvme_written_bytes"] for s in run.steps)
                check((moved > 0) == (host < 128 << 20), f"{name}: {moved} bytes moved on NVMe")
                said = "of the gradients are on NVMe" in run.done.stdout
                check(said == ("grads-on-nvme" in d.log()), f"{name}: zgpt and the daemon differ")
                check(said or host != least, f"{name}: gradients are in memory")
                check(not said or host < grads, f"{name}: gradients are on NVMe")
                wait_until("the budgets after the run", lambda d=d, idle=idle: d.used() == idle, 1)
    check(len(here.weights) > 0, "no weights")


def placement_fp32():
    same_everywhere("fp32", 1)


def placement_bf16():
    same_everywhere("bf16", 1)


def placement_two_ranks():
    same_everywhere("bf16", 2)


def dtypes():
    """16-bit weights and gradients: the losses of fp32 to one unit of the dtype, at each of 20 steps."""
    for ranks in (1, 2):
        exact = good(Run(["--dtype", "fp32"], ranks), f"fp32, {ranks} ranks")
        for dtype, unit in (("bf16", 2**-8), ("fp16", 2**-11)):
            run = good(Run(["--dtype", dtype], ranks), f"{dtype}, {ranks} ranks")
            worst = max(abs(a - b) / a for a, b in zip(exact.losses(), run.losses()))
            print(f"{dtype}, {ranks} ranks: off by {worst:.2g} at most, {unit:.2g} are allowed")
            check(0 < worst <= unit, f"{dtype}, {ranks} ranks: losses are off by {worst}")
            check(not any(s["skipped"] for s in run.steps), f"{dtype}: a step was skipped")
            check(all(s["loss_scale"] == (65536 if dtype == "fp16" else 1) for s in run.steps), f"{dtype}: scales")


def fp16_goes_on():
    """From a scale that is too high, down until nothing overflows, and up again: the same where bytes live on NVMe,
    and in two lives."""
    flags = ["--dtype", "fp16", "--initial-scale-power", "24", "--loss-scale-window", "3"]
    what = lambda steps: [(s["step"], s["loss"], s["grad_norm"], s["loss_scale"], s["skipped"]) for s in steps]
    here = good(Run(flags), "the run without a daemon")
    skips = sum(s["skipped"] for s in here.steps)
    check(3 <= skips <= 12 and max(s["loss_scale"] for s in here.steps[-3:]) > min(s["loss_scale"] for s in here.steps),
          f"{skips} skips: {[s['loss_scale'] for s in here.steps]}")
    check(all((s["grad_norm"] is None) == s["skipped"] for s in here.steps), "a norm of a step that was skipped")
    with Daemon("--host-bytes", "3M", "--nvme-bytes", "64M", *PAGES) as d:
        run = good(Run(flags + ["--offload", "nvme"], 1, d.env()), "the run on NVMe")
        check(what(run.steps) == what(here.steps) and run.weights == here.weights, "another run on NVMe")
    with Daemon("--host-bytes", "8M", "--nvme-bytes", "64M", *PAGES) as d:
        for until in (4, 13, STEPS):
            kept = flags + ["--offload", "nvme", "--job", "kept", "--keep" if until == 4 else "--resume"]
            run = Run(kept, 1, d.env(), steps=until)
            check(run.done.returncode == 0, run.done.stdout)
            first = run.steps[0]["step"] - 1
            check(what(run.steps) == what(here.steps)[first:until], f"another life up to step {until}")
        check(run.weights == here.weights, "other weights in three lives")
    low = Run(["--dtype", "fp16", "--initial-scale-power", "30", "--min-loss-scale", str(2**29), "--hysteresis", "1"])
    check(low.done.returncode == 1 and "loss scale is 5.36871e+08, its minimum" in low.done.stdout, low.done.stdout)


def placement_fixed_rate():
    """On the device of a fixed rate too, where pages are lent and not copied; nothing is durable there."""
    flags = ["--dtype", "bf16", "--offload", "nvme"]
    here = good(Run(["--dtype", "bf16", "--offload", "none"], steps=FEW), "the run without a daemon")
    least = least_host_bytes(flags, 1)
    with Daemon("--host-bytes", str(least), "--nvme-bytes", "64M", "--io", "fixed", "--fixed-rate",
                "200M", "--fixed-latency-us", "300", *PAGES) as d:
        check("io=fixed" in d.ready and "io-fixed" in d.log(), f"{d.ready}\n{d.log()}")
        run = good(Run(flags, 1, d.env(), steps=FEW), "the run on a fixed rate")
        check(run.losses() == here.losses(), "other losses than without a daemon")
        check(run.weights == here.weights, "other weights than without a daemon")
        check(sum(s["nvme_written_bytes"] for s in run.steps) > 0, "no bytes moved")
        kept = Run(flags + ["--keep", "--job", "kept"], 1, d.env(), steps=0)
        check(kept.done.returncode != 0 and "io fixed" in kept.done.stdout, kept.done.stdout)


def overlaps():
    """Whatever runs under the passes, the bits are the same; and it does run there."""
    rng = random.Random(11)
    tensor = ["--clip", "1", "--clip-mode", "tensor", "--clip-warmup", "1"]
    for dtype, ranks, clip in (("bf16", 1, ["--clip", "0"]), ("fp32", 2, ["--clip", "0"]), ("bf16", 2, tensor)):
        base = ["--dtype", dtype, *clip]
        here = good(Run(base + ["--offload", "none"], ranks, steps=FEW), "the run without a daemon")
        least = least_host_bytes(base + ["--offload", "nvme"], ranks)
        for overlap in ("all", "none", "early" if ranks == 1 else "serve"):
            host = least + rng.randrange(0, 600 << 10)
            with Daemon("--host-bytes", str(host), "--nvme-bytes", "64M", *PAGES) as d:
                name = f"{dtype}, {ranks} ranks, {' '.join(clip)}, overlap {overlap}, {host} bytes"
                flags = ["--offload", "nvme", "--overlap", overlap]
                flags += rng.choice(([], ["--keep", "--commit-every", "3"]))
                run = good(Run(base + flags, ranks, d.env(), steps=FEW), name)
                early = {row["name"]: row["value"] for row in d.zctl("stat")}["pages_early"]
                check(run.losses() == here.losses(), f"{name}: other losses than without a daemon")
                check(run.weights == here.weights, f"{name}: other weights than without a daemon")
                check((early > 0) == (overlap in ("all", "early")), f"{name}: {early} pages early")


def clipping_is_said():
    """zctl jobs says how a job clips, and whether its steps begin early, or why not; the log says why once."""
    tensor = ["--clip", "1", "--clip-mode", "tensor"]
    cases = (
        (["--clip", "1"], "global, 1", 0, "off: the global norm is known with the last gradient"),
        (["--clip", "0", "--overlap", "serve"], "none", 0, "off: it is not asked for"),
        ([*tensor, "--clip-warmup", "2"], "tensor, 1.05 of averages", 0, "yes"),
        ([*tensor, "--clip-warmup", "7"], "tensor, 1.05 of averages", 4,
         "after 4 more steps, which are clipped globally"),
        ([*tensor, "--dtype", "fp16"], "tensor, 1.05 of averages", None,
         "off: with a dynamic loss scale an overflow is known too late"))
    for flags, clip, left, early in cases:
        with Daemon("--host-bytes", "64M", "--nvme-bytes", "64M", *PAGES) as d:
            run = Run([*flags, "--offload", "nvme", "--keep", "--job", "said"], 1, d.env(), steps=3)
            check(run.done.returncode == 0, run.done.stdout)
            row, = d.zctl("jobs")
            check(row["clip"] == clip and row["early"] == early, f"{flags}: {row}")
            check(left in (None, row["clip_warm_left"]), f"{flags}: {row}")
            check(d.log().count(" early-off ") == early.startswith("off"), f"{flags}: {d.log()}")
            check(row["frozen_tensors"] == row["frozen_bytes"] == 0, f"{flags}: {row}")
            below = subprocess.run([program("zctl"), "jobs", "said"], env=d.env(), text=True, check=True,
                                   stdout=subprocess.PIPE).stdout
            check(f"clips: {clip}; steps begin during the backward pass: {early}" in below, below)


def gradients_not_held():
    """A ring of gradients: the same bits, with all ranks' micro-steps added up before, and after a resume."""
    rng = random.Random(12)
    tensor = ["--clip-mode", "tensor", "--clip", "0.5", "--clip-warmup", "2"]
    for dtype, ranks, more in (("bf16", 2, ["--clip", "0", "--accumulate", "local"]),
                               ("fp32", 1, ["--clip", "0", "--order", "vertical"]),
                               ("bf16", 2, [*tensor, "--accumulate", "local"]), ("bf16", 1, [*tensor, "--order", "vertical"])):
        base = ["--dtype", dtype, *more]
        here = good(Run(base + ["--offload", "none"], ranks, steps=FEW), "the run without a daemon")
        host = least_host_bytes(base + ["--offload", "nvme", "--grad-ring"], ranks) + rng.randrange(0, 600 << 10)
        with Daemon("--host-bytes", str(host), "--nvme-bytes", "64M", *PAGES) as d:
            name = f"{dtype}, {ranks} ranks, {' '.join(more)}, {host} bytes"
            flags = [*base, "--offload", "nvme", "--grad-ring", "--keep", "--job", "ring", "--commit-every", "2"]
            good(Run(flags, ranks, d.env(), steps=FEW - 2), name)
            run = Run([*flags, "--resume"], ranks, d.env(), steps=FEW)
            check(run.done.returncode == 0, f"{name}, resumed: {run.done.stdout}")
            early = {row["name"]: row["value"] for row in d.zctl("stat")}["pages_early"]
            check(run.weights == here.weights, f"{name}: other weights than without a daemon")
            check(early > 0, f"{name}: {early} pages early")


def least_is_least():
    """With a byte less the job is refused with the same number, exit code 4."""
    flags = ["--offload", "nvme"]
    least = least_host_bytes(flags, 1)
    with Daemon("--host-bytes", str(least - 1), "--nvme-bytes", "64M", *PAGES) as d:
        run = Run(flags, 1, d.env(), steps=0)
        check(run.done.returncode == 4, f"ended with {run.done.returncode}:\n{run.done.stdout}")
        check(str(least) in run.done.stdout, f"does not name {least}:\n{run.done.stdout}")


def nvme_too_small():
    least = least_host_bytes(["--offload", "nvme"], 1)
    with Daemon("--host-bytes", str(least), "--nvme-bytes", "1M", *PAGES) as d:
        run = Run(["--offload", "nvme"], 1, d.env(), steps=0)
        check(run.done.returncode == 4, f"ended with {run.done.returncode}:\n{run.done.stdout}")
        check("NVMe" in run.done.stdout, run.done.stdout)
        check(d.zctl("jobs") == [], "the refused job is still there")


def host_only_refused():
    """offload host means host: it does not spill to NVMe silently."""
    least = least_host_bytes(["--offload", "nvme"], 1)
    with Daemon("--host-bytes", str(least), "--nvme-bytes", "64M", *PAGES) as d:
        run = Run(["--offload", "host"], 1, d.env(), steps=0)
        check(run.done.returncode == 4, f"ended with {run.done.returncode}:\n{run.done.stdout}")


def no_daemon():
    run = Run(["--offload", "host", "--socket", "/nowhere/zshard.sock"], steps=1)
    check(run.done.returncode == 3, f"ended with {run.done.returncode}:\n{run.done.stdout}")


def name_taken():
    """A second job of the same name is refused, and does the first no harm."""
    with Trainers() as t:
        t.wait_for_steps(2)
        run = Run(["--offload", "nvme", "--job", "kills"], 1, t.daemon.env(), steps=1)
        check(run.done.returncode == 4, f"ended with {run.done.returncode}:\n{run.done.stdout}")
        check("'kills'" in run.done.stdout, run.done.stdout)
        before = t.steps()
        t.wait_for_steps(before + 2)


# ---- processes that die

class Trainers:
    """A daemon and two ranks that train until something happens to them."""

    def __init__(self, *options):
        least = least_host_bytes(["--offload", "nvme"], 2)
        self.options = options
        self.daemon = Daemon("--nvme-bytes", "64M", "--host-bytes", str(least + 50000), *PAGES)
        self.folder = tempfile.mkdtemp(prefix="zshard-kill-")

    def __enter__(self):
        try:
            self.daemon.start()
            self.idle = self.daemon.used()
            # each rank's own process id, output and exit code; mpirun gives only its own
            rank = os.path.join(self.folder, "rank")
            script = (f'"$@" >{rank}$OMPI_COMM_WORLD_RANK.out 2>&1 & '
                      f'echo $! >{rank}$OMPI_COMM_WORLD_RANK.pid; '
                      'trap "kill -TERM $!" TERM; wait $!; rc=$?; '
                      '[ $rc -gt 128 ] && kill -0 $! 2>/dev/null && { wait $!; rc=$?; }; '
                      f'echo $rc >{rank}$OMPI_COMM_WORLD_RANK.rc')
            self.jsonl = os.path.join(self.folder, "jsonl")
            command = [program("zgpt"), *MODEL, "--steps", "100000", "--offload", "nvme", "--job",
                       "kills", "--jsonl", self.jsonl, *self.options]
            self.mpirun = subprocess.Popen(
                ranks_command(2, ["bash", "-c", script, "rank", *command]),
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
                env=self.daemon.env() | mpi_env())
            return self
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise

    def __exit__(self, kind, value, trace):
        for rank in (0, 1):
            if self.read(rank, "pid") and not self.read(rank, "rc"):
                try:
                    os.kill(int(self.read(rank, "pid")), signal.SIGKILL)
                except ProcessLookupError:
                    pass
        if hasattr(self, "mpirun"):
            self.mpirun.wait(30)
        shutil.rmtree(self.folder, ignore_errors=True)
        return self.daemon.__exit__(kind, value, trace)

    def read(self, rank, what):
        try:
            with open(os.path.join(self.folder, f"rank{rank}.{what}"), encoding="utf-8") as f:
                return f.read().strip()
        except FileNotFoundError:
            return ""

    def steps(self):
        try:
            with open(self.jsonl, encoding="utf-8") as f:
                return sum(1 for _ in f)
        except FileNotFoundError:
            return 0

    def wait_for_steps(self, n):
        wait_until(f"step {n}", lambda: self.steps() >= n or self.mpirun.poll() is not None, DEADLINE)
        check(self.mpirun.poll() is None, f"the ranks ended: {self.read(0, 'out')}")

    def pid(self, rank):
        return int(self.read(rank, "pid"))

    def wait_for_end(self, rank, seconds, code, message):
        wait_until(f"the end of rank {rank}", lambda: self.read(rank, "rc") != "", seconds)
        check(self.read(rank, "rc") == str(code),
              f"rank {rank} ended with {self.read(rank, 'rc')}, not {code}:\n{self.read(rank, 'out')}")
        check(message in self.read(rank, "out"), f"rank {rank} says:\n{self.read(rank, 'out')}")


def rank_killed():
    """kill -9 of either rank, at different moments: the other ends with 5 within 2 seconds, the job is gone
    and its bytes are back within a second, and another job starts."""
    rng = random.Random(7)
    for victim in (1, 0, 1):
        with Trainers() as t:
            t.wait_for_steps(2)
            time.sleep(rng.random() * 0.2)
            os.kill(t.pid(victim), signal.SIGKILL)
            t.wait_for_end(1 - victim, 2, 5, f"rank {victim}")
            wait_until("the job's end", lambda t=t: t.daemon.zctl("jobs") == [], 1)
            wait_until("the budgets", lambda t=t: t.daemon.used() == t.idle, 1)
            good(Run(["--offload", "nvme", "--job", "kills"], 1, t.daemon.env()), "the next job")


def daemon_killed():
    """kill -9 of the daemon: every rank ends with 3 within 2 seconds and says so."""
    with Trainers() as t:
        t.wait_for_steps(2)
        t.daemon.kill()
        for rank in (0, 1):
            t.wait_for_end(rank, 2, 3, "daemon")


def daemon_ended():
    """SIGTERM in the middle of training: the daemon ends with 0; ranks that wait for no other daemon are told."""
    with Trainers("--reconnect", "0") as t:
        t.wait_for_steps(2)
        check(t.daemon.stop() == 0, f"the daemon ended with {t.daemon.process.returncode}")
        for rank in (0, 1):
            t.wait_for_end(rank, 3, 3, "daemon")


GROUPS = {
    "runs": (placement_fp32, placement_bf16, placement_two_ranks, dtypes, fp16_goes_on, placement_fixed_rate, overlaps,
             clipping_is_said, gradients_not_held,
             least_is_least, nvme_too_small, host_only_refused, no_daemon, name_taken),
    "deaths": (rank_killed, daemon_killed, daemon_ended)}  # these measure seconds: they run alone
TESTS = {f.__name__: f for group in GROUPS.values() for f in group}

if __name__ == "__main__":
    sys.argv[1:] = [f.__name__ for name in sys.argv[1:] for f in GROUPS.get(name, ())] or sys.argv[1:]
    if not shutil.which("mpirun"):
        skip("there is no mpirun")
    sys.exit(main(TESTS))
