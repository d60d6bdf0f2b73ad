#!/usr/bin/env python3
"""test_config.py - zgpt with DeepSpeed's files, through a real daemon where they offload: each trains, at every
stage to the same losses, on one rank and on two; a broken one is refused with the path of its key.

    ZSHARD_BUILD=build tests/integ/test_config.py [NAME...]
"""

import glob
import math
import os
import shutil
import subprocess
import sys

from harness import DEADLINE, Daemon, check, main, program, skip
from test_training import PAGES, STEPS, Run

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CONFIGS = os.path.join(ROOT, "tests", "configs")
SHAPE = "--seed 5 --seq 32 --layers 5 --heads 2 --width 64 --data LICENSE".split()
BROKEN = {"aio": "aio.blocksize: no such key", "batch": "train_batch_size: 13", "dtypes": "fp16.enabled: bf16",
          "hysteresis": "fp16.hysteresis: is 0", "offload": "zero_optimization.offload_param.device: parameters",
          "optimizer": "optimizer.type: is 'OneBitAdam'",
          "pin": "zero_optimization.offload_optimizer.pin_memory: is \"yes\"",
          "scheduler": "scheduler.params.total_num_steps: is missing",
          "stage": "zero_optimization.stage: is \"three\"", "unknown": "zero_optimization.stgae: no such key"}


def path(name):
    return os.path.join(CONFIGS, name + ".json")


def trained(name, ranks, env, flags=()):
    run = Run(["--config", path(name), *flags], ranks, env, model=SHAPE)
    what = f"{name}, {ranks} ranks"
    check(run.done.returncode == 0, f"{what} ended with {run.done.returncode}:\n{run.done.stdout}")
    check(len(run.steps) == STEPS, f"{what} logged {len(run.steps)} steps")
    check(run.losses()[-1] < 0.9 * run.losses()[0], f"{what} learned nothing: {run.losses()}")
    return run


def study():
    """The six of a study of ZeRO, and one with NVMe: one optimizer, one batch, so one curve for each dtype, whatever
    the stage, the offload and what overlaps. (No rounding differs: the sums of ranks are in rank order.)"""
    for ranks in (1, 2):
        with Daemon("--host-bytes", "64M", "--nvme-bytes", "64M", *PAGES) as d:
            runs = {name: trained(name, ranks, d.env())
                    for name in ("stage1", "stage2", "stage2_offload", "stage3", "stage3_offload", "stage3_fp16",
                                 "stage3_nvme")}
        for name in ("stage2", "stage2_offload", "stage3", "stage3_offload", "stage3_nvme"):
            check(runs[name].losses() == runs["stage1"].losses(), f"{name}, {ranks} ranks: other losses than stage 1")
            check(runs[name].weights == runs["stage1"].weights, f"{name}, {ranks} ranks: other weights than stage 1")
        fp16 = runs["stage3_fp16"]
        skipped = [s["step"] for s in fp16.steps if s["skipped"]] + [STEPS]
        off = [abs(a - b) / a for a, b in zip(runs["stage1"].losses()[:skipped[0]], fp16.losses())]
        check(0 < max(off) <= 2**-8 + 2**-11, f"fp16 is off by {max(off)} before it skips a step")
        check(fp16.steps[0]["loss_scale"] == 65536 and len(skipped) <= 3, f"skipped: {skipped}")
        said = runs["stage3_nvme"].done.stdout
        for key in ("aio.queue_depth", "zero_optimization.offload_param.nvme_path", "zero_optimization.sub_group_size"):
            check(f"zgpt: {key}: ignored, because " in said, f"nothing is said of {key}:\n{said}")
        check(said.count("aio.queue_depth") == 1, "more than one rank says it")


def scheduler():
    """Warm-up and decay, with clipping; on --resume it goes on where it was."""
    want = [0, 0] + [2e-3 * i / 4 for i in range(1, 4)] + [2e-3 * max(0, 12 - i) / 8 for i in range(4, 20)]
    whole = trained("scheduler", 1, None)
    check(all(math.isclose(s["lr"], w, rel_tol=1e-8, abs_tol=1e-18) for s, w in zip(whole.steps, want)),
          f"{[s['lr'] for s in whole.steps]}")
    with Daemon("--host-bytes", "64M", "--nvme-bytes", "64M", *PAGES) as d:
        lives = []
        for until in (7, STEPS):
            flags = ["--config", path("scheduler"), "--offload", "host", "--job", "kept",
                     "--keep" if until == 7 else "--resume"]
            run = Run(flags, 1, d.env(), steps=until, model=SHAPE)
            check(run.done.returncode == 0, run.done.stdout)
            lives += [(s["lr"], s["loss"]) for s in run.steps]
    check(lives == [(s["lr"], s["loss"]) for s in whole.steps], "another run in two lives")


def left_to_flags():
    """What Hugging Face's file leaves open, the flags say."""
    run = trained("huggingface", 1, None, ["--batch", "12", "--micro-batch", "3", "--dtype", "bf16", "--lr", "2e-3"])
    check("(bf16)" in run.done.stdout and max(s["lr"] for s in run.steps) == 2e-3, run.done.stdout)


def stages_win():
    """--stage and --offload over a file: what it says of stage 3 goes with its stage."""
    with Daemon("--host-bytes", "64M", "--nvme-bytes", "64M", *PAGES) as d:
        runs = [trained(name, 2, d.env(), flags)
                for name, flags in (("stage1", ()), ("stage3_nvme", ("--stage", "2")), ("stage3", ("--stage", "0")),
                                    ("stage2", ("--offload", "host")), ("stage3", ("--stage", "1")))]
    for run in runs[1:]:
        check(run.losses() == runs[0].losses() and run.weights == runs[0].weights, "another stage, another run")


def broken():
    check(sorted(BROKEN) == sorted(os.path.basename(p)[:-5] for p in glob.glob(path("broken/*"))), "other files")
    for name, says in BROKEN.items():
        done = subprocess.run([program("zgpt"), *SHAPE, "--steps", "1", "--config", path("broken/" + name)], text=True,
                              timeout=DEADLINE, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        check(done.returncode == 2 and done.stderr.count("\n") == 1 and says in done.stderr,
              f"{name} ended with {done.returncode}: {done.stderr}")


TESTS = {f.__name__: f for f in (study, scheduler, left_to_flags, stages_win, broken)}

if __name__ == "__main__":
    if not shutil.which("mpirun"):
        skip("there is no mpirun")
    sys.exit(main(TESTS))
