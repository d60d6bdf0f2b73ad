#!/usr/bin/env python3
"""test_device.py - zgpt on a device, through a real daemon: the losses of the CPU, the same bytes each time, and
memory that does not grow with the layers.

    ZSHARD_BUILD=build tests/integ/test_device.py [--gpu] [NAME...]

On the emulated device, or with --gpu on the one that ZSHARD_GPU names: where it names none, that is skipped.
"""

import math
import os
import re
import shutil
import subprocess
import sys

from harness import DEADLINE, LONG, Daemon, check, main, program, skip
from test_training import FEW, MODEL, PAGES, STEPS, Run, good

GPU = "--gpu" in sys.argv
DEVICE = os.environ.get("ZSHARD_GPU", "") if GPU else "emulated"
LAYERS, TOKENS = 5, 6 * 32  # of MODEL
BF16_BOUND = 2**-8 * math.sqrt((18 * LAYERS + 2) / TOKENS)  # docs/GPU.md
FP16_BOUND = 2**-11 * math.sqrt((18 * LAYERS + 2) / TOKENS)
MIB = 1 << 20


def follows(dtype, ranks, bound):
    """ZeRO-3 with everything on NVMe that does not have to be in memory. One rank takes enough steps to learn."""
    flags, steps = ["--dtype", dtype, "--offload", "nvme"], STEPS if ranks == 1 else FEW
    with Daemon("--host-bytes", "3M", "--nvme-bytes", "64M", *PAGES) as d:
        cpu = good(Run(flags, ranks, d.env(), steps), f"{dtype}, {ranks} ranks on the CPU")
    with Daemon("--host-bytes", "3M", "--nvme-bytes", "64M", *PAGES) as d:
        device = good(Run(flags + ["--device", DEVICE], ranks, d.env(), steps), f"{dtype}, {ranks} ranks on {DEVICE}")
    worst = max(abs(a - b) / a for a, b in zip(cpu.losses(), device.losses()))
    print(f"{dtype}, {ranks} ranks: the losses of {len(cpu.losses())} steps differ by {worst:.2g} at most")
    check(worst <= bound, f"{dtype}, {ranks} ranks: losses differ by {worst}, more than {bound}")
    check(steps < STEPS or cpu.losses()[-1] < 0.8 * cpu.losses()[0], "nothing was learned")
    check(all(s["device_bytes"]["backward"] > 0 for s in device.steps), "no device memory was counted")
    check("device_bytes" not in cpu.steps[0], "the CPU has device memory")


def fp32():
    follows("fp32", 1, 1e-4)


def fp32_two_ranks():
    follows("fp32", 2, 1e-4)


def bf16():
    follows("bf16", 1, BF16_BOUND)


def bf16_two_ranks():
    follows("bf16", 2, BF16_BOUND)


def fp16():
    follows("fp16", 1, FP16_BOUND)


def fp16_two_ranks():
    follows("fp16", 2, FP16_BOUND)


def same_bytes():
    """Twice, and where every work is late: nothing depends on when a device gets to it."""
    late = "emulated:256M:40" if DEVICE == "emulated" else DEVICE
    for dtype in ("fp32", "bf16", "fp16"):
        env = dict(os.environ)
        if LONG or dtype == "fp32":  # nor on the threads of a product of matrices
            env.pop("OPENBLAS_NUM_THREADS", None)
        runs = [good(Run(["--dtype", dtype, "--device", device], 1, env, FEW), f"{dtype} on {device}")
                for device in (DEVICE, DEVICE, late)]
        for run in runs[1:]:
            check(run.losses() == runs[0].losses(), f"{dtype}: other losses the second time")
            check(run.weights == runs[0].weights, f"{dtype}: other weights the second time")


def params_there():
    """Parameters in the daemon's GPU memory: the same bytes, and it is said; and where there is no such tier."""
    flags = ["--dtype", "bf16", "--offload-optimizer", "nvme", "--device", DEVICE, "--offload-param"]
    gpu = ("--gpu", DEVICE, "--gpu-bytes", "64M")
    runs = {}
    for name, param, options in (("host", "host", ()), ("gpu", "gpu", gpu), ("no tier", "gpu", ())):
        with Daemon("--host-bytes", "64M", "--nvme-bytes", "64M", *options, *PAGES) as d:
            runs[name] = good(Run(flags + [param], 1, d.env(), steps=FEW), f"--offload-param {param}, {name}")
    for name, said in (("gpu", "are in the daemon's GPU memory"), ("no tier", "the daemon has no GPU tier")):
        check(runs[name].losses() == runs["host"].losses(), f"{name}: other losses")
        check(runs[name].weights == runs["host"].weights, f"{name}: other weights")
        check(said in runs[name].done.stdout, f"{name} is not said: {runs[name].done.stdout}")
    check(runs["gpu"].steps[0]["tier_bytes"]["gpu"] > 0, "no byte of the GPU tier was counted")


def memory_of(layers, shape, steps):
    """The most that was allocated behind each phase."""
    flags = [*shape.split(), "--layers", str(layers), "--offload", "host", "--device",
             "emulated:1G" if DEVICE == "emulated" else DEVICE]
    with Daemon("--host-bytes", "2G" if DEVICE == "emulated" else "12G", "--nvme-bytes", "64M") as d:
        run = Run(flags, 1, d.env(), steps=steps)
    check(run.done.returncode == 0, f"{layers} layers:\n{run.done.stdout}")
    check("zgpt: device memory" in run.done.stdout, run.done.stdout)
    pinned = re.search(r"host memory pinned for it: ([0-9.]+) MiB", run.done.stdout)
    if DEVICE == "emulated":  # a driver may refuse read-only memory
        params = (12 * layers + 1) * WIDTH_SMALL**2 * 4
        check(pinned and float(pinned[1]) * MIB >= params, f"the daemon's parameters are not pinned: {run.done.stdout}")
    most = {phase: max(s["device_bytes"][phase] for s in run.steps) for phase in run.steps[0]["device_bytes"]}
    print(f"{layers} layers: {({p: round(b / MIB, 1) for p, b in most.items()})} MiB")
    return most


def grows_by_the_stream(layers, shape, steps, unit_bytes, stream_bytes):
    """More layers add their residual stream and nothing else. How many buffers are on their way at a time is
    a matter of luck, and two units' worth of it."""
    few = memory_of(layers[0], shape, steps)
    for n in layers[1:]:
        many = memory_of(n, shape, steps)
        allowed = (n - layers[0]) * stream_bytes + 2 * MIB + 2 * unit_bytes
        for phase, least in few.items():
            check(many[phase] - least <= allowed,
                  f"{phase}: {many[phase] - least} bytes more with {n} layers than with {layers[0]}, "
                  f"{allowed} are allowed")


WIDTH_SMALL = 256
SMALL = f"--heads 4 --width {WIDTH_SMALL} --seq 32 --batch 8 --micro-batch 4"


def memory():
    grows_by_the_stream((2, 4, 8, 16) if LONG else (2, 16), SMALL, 5 if LONG else 3, 4 * MIB, 4 * 32 * 256 * 4)


def memory_at_size():
    """On a GPU with units of 28 MiB, as GPT-2's smallest has them."""
    if DEVICE == "emulated":
        grows_by_the_stream((12, 24, 48), SMALL, 2, 4 * MIB, 4 * 32 * 256 * 4)
    else:
        grows_by_the_stream((12, 24, 48), "--heads 12 --width 768 --seq 64 --batch 2 --micro-batch 2", 3, 28 * MIB,
                            2 * 64 * 768 * 4)


def refused():
    """No such GPU, in any build: one error message, exit code 4, and the daemon makes no job."""
    for name in ("cuda:99", "cuda"):
        done = subprocess.run([program("zgpt"), *MODEL, "--steps", "1", "--device", name], text=True,
                              timeout=DEADLINE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        if name == "cuda" and done.returncode == 0:
            continue  # the device exists
        check(done.returncode == 4 and done.stderr.count("\n") == 1 and "no GPU: " in done.stderr,
              f"{name} ended with {done.returncode}: {done.stderr}")


def too_little_memory():
    """It does not fit, wherever in the run that shows: exit code 4, what is needed, and what is free."""
    model = "--steps 1 --seed 1 --batch 4 --micro-batch 2 --seq 64 --layers 3 --heads 4 --width 256 --data LICENSE"
    with Daemon("--host-bytes", "128M", "--nvme-bytes", "8M") as d:
        offload = ["--offload", "host", "--socket", d.socket]
        for size, flags, what in (("2M", [], "activations"), ("6M", [], "optimizer state"),
                                  ("16M", [], "optimizer state"), ("6M", offload, " unit "), ("12M", offload, " unit ")):
            done = subprocess.run([program("zgpt"), *model.split(), "--device", f"emulated:{size}", *flags], text=True,
                                  timeout=DEADLINE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
            check(done.returncode == 4 and done.stderr.count("\n") == 1 and what in done.stderr and
                  re.search(r"iB of GPU memory are needed, .*B of .*iB are free", done.stderr),
                  f"{size} {flags}: {done.returncode}: {done.stderr}")


def failures():
    """Whatever the device fails at, the run ends with one error message."""
    for works in (0, 1, 2, 5, 30, 300, 1500):
        done = subprocess.run([program("zgpt"), *MODEL, "--steps", "2", "--device", f"emulated:256M:0:{works}"],
                              text=True, timeout=DEADLINE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        check(done.returncode in (1, 4) and done.stderr.count("\n") == 1 and
              ("as it was asked to" in done.stderr or "no memory" in done.stderr),
              f"{works} works: {done.returncode}: {done.stderr}")


TESTS = {f.__name__: f for f in (fp32, fp32_two_ranks, bf16, bf16_two_ranks, fp16, fp16_two_ranks, same_bytes, params_there, memory, refused,
                                 too_little_memory, failures)}

if __name__ == "__main__":
    if GPU and not DEVICE:
        skip("ZSHARD_GPU names no device")
    if GPU:
        sys.argv.remove("--gpu")
        TESTS = {f.__name__: f for f in (fp32, bf16, fp16, same_bytes, params_there, memory_at_size)}  # no MPI there
    elif not shutil.which("mpirun"):
        skip("there is no mpirun")
    sys.exit(main(TESTS))
