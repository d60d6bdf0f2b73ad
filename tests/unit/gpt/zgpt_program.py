#!/usr/bin/env python3
"""zgpt_program.py - the program itself: exit codes, messages, signals.

    ZSHARD_BUILD=build tests/unit/gpt/zgpt_program.py
"""

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile

ZGPT = os.path.join(os.environ.get("ZSHARD_BUILD", "build"), "bin", "zgpt")
GOOD = ("--steps 2 --seed 1 --batch 4 --micro-batch 2 --seq 8 --layers 1 --heads 2 --width 16 "
        "--data LICENSE")


def cases(folder):
    bad = os.path.join(folder, "bad.bin")
    with open(bad, "wb") as f:
        f.write(struct.pack("<256i", 1, *[0] * 255))
    nobody = os.path.join(folder, "nobody.sock")
    return [  # flags, exit code, a part of standard output or error
        (GOOD, 0, "loss"),
        ("--help", 0, "usage: zgpt"),
        ("--version", 0, "zgpt "),
        ("", 2, "--steps N is missing"),
        (GOOD + " --frobnicate", 2, "unknown option '--frobnicate'"),
        (GOOD + " --heads 3", 2, "not a multiple"),
        (GOOD + " --batch 3", 2, "does not divide"),
        (GOOD + " --resume", 2, "--resume needs the daemon"),
        (GOOD + " --device cuda:99", 4, "no GPU: "),
        (GOOD + " --device emulated", 0, "device memory"),
        (GOOD + " --device emulated:1K", 2, "at least 2.00 MiB of memory"),
        (GOOD + " --stage 4", 2, "--stage must be 3, 2, 1 or 0, not '4'"),
        (GOOD + " --config x.json", 4, "--config"),
        (GOOD + " --data nowhere.txt", 4, "'nowhere.txt': No such file"),
        (GOOD + " --init nowhere.safetensors", 4, "'nowhere.safetensors'"),
        (GOOD + " --init LICENSE", 6, "not a valid safetensors file"),
        (GOOD.replace("LICENSE", bad), 6, "magic"),
        (GOOD + " --jsonl /dev/full", 4, "No space left on device"),
        (GOOD + " --offload host --socket " + nobody, 3, nobody),
    ]


def without_plugin(folder):
    """Whatever this build has: the plugin for CUDA's devices is not where it is looked for."""
    done = subprocess.run([ZGPT] + (GOOD + " --device cuda").split(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, timeout=60, env={**os.environ, "ZSHARD_PLUGINS": folder})
    if done.returncode != 4 or f"no GPU: '{folder}/zk_cuda.so'" not in done.stderr or done.stderr.count("\n") != 1:
        return [f"without the plugin it ended with {done.returncode}: {done.stderr}"]
    return []


def table(folder):
    bad = []
    for flags, code, says in cases(folder):
        done = subprocess.run([ZGPT] + flags.split(), stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=60)
        told = done.stderr if code else done.stdout
        if done.returncode != code or says not in told or (code and told.count("\n") != 1):
            bad.append(f"'{flags}' ended with {done.returncode}: {done.stdout}{done.stderr}")
    return bad


def stopped(folder, number):
    """A signal in the middle: the step is finished and the weights are there."""
    log, weights = os.path.join(folder, "log"), os.path.join(folder, "weights")
    flags = GOOD.replace("--steps 2", "--steps 1000000").split()
    process = subprocess.Popen([ZGPT] + flags + ["--jsonl", log, "--export", weights],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.readline()
    process.stdout.readline()
    first = process.stdout.readline()
    process.send_signal(number)
    _, told = process.communicate(timeout=60)
    with open(log, encoding="utf-8") as f:
        steps = [json.loads(line)["step"] for line in f]
    if (not first.startswith("step 1/") or process.returncode != 1 or
            f"stopped by a signal after step {len(steps)} of 1000000" not in told or
            steps != list(range(1, len(steps) + 1)) or not os.path.exists(weights)):
        return [f"signal {number}: {process.returncode}, {len(steps)} steps, '{told}'"]
    os.unlink(weights)
    return []


def main():
    folder = tempfile.mkdtemp(prefix="zshard-zgpt-")
    try:
        bad = table(folder) + without_plugin(folder) + stopped(folder, signal.SIGTERM) + stopped(folder, signal.SIGINT)
    finally:
        shutil.rmtree(folder)
    print("\n".join(bad) if bad else "every case ended as it should")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
