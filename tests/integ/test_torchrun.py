#!/usr/bin/env python3
"""test_torchrun.py - ranks that find each other as torchrun's do train what ranks under mpirun train, bit for bit.

    ZSHARD_BUILD=build tests/integ/test_torchrun.py [NAME...]
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile

from harness import DEADLINE, Daemon, check, main, mpi_env, program, ranks_command, skip

STEPS = 6
MODEL = ("--seed 5 --batch 4 --micro-batch 2 --seq 32 --layers 3 --heads 2 --width 48 --lr 1e-3 "
         "--clip 1 --data LICENSE --dtype bf16").split()
RANKS = 2
IN_USE = "Address already in use"


class Trained:
    """What a run leaves in a folder of its own: a row for each step, losses, and weights."""

    def __init__(self, flags, start, steps=STEPS):
        folder = tempfile.mkdtemp(prefix="zshard-run-")
        try:
            jsonl, export = (os.path.join(folder, name) for name in ("jsonl", "weights"))
            self.ended = start([program("zgpt"), *MODEL, "--steps", str(steps), "--jsonl", jsonl,
                                "--export", export, *flags])
            self.want, self.steps, self.losses, self.weights = steps, [], [], b""
            if all(code == 0 for code, _ in self.ended):
                with open(jsonl, encoding="utf-8") as f:
                    self.steps = [json.loads(line) for line in f]
                self.losses = [step["loss"] for step in self.steps]
                with open(export, "rb") as f:
                    self.weights = f.read()
        finally:
            shutil.rmtree(folder)

    def good(self, what):
        for rank, (code, out) in enumerate(self.ended):
            check(code == 0, f"{what}, rank {rank} ended with {code}:\n{out}")
        check(len(self.losses) == self.want and self.weights, f"{what}: {len(self.losses)} steps")
        return self


def under_mpirun(env, ranks=RANKS, launch=ranks_command):
    def start(command):
        done = subprocess.run(launch(ranks, command), env=env | mpi_env(), text=True, timeout=DEADLINE,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              check=False)
        return [(done.returncode, done.stdout)]
    return start


def as_torchrun(env, size=RANKS, under=lambda rank: [], **more):
    """Each rank with torchrun's environment, behind the words `under`. The port is drawn below those that
    the kernel gives out."""
    def start(command):
        for attempt in range(100):
            port = 10000 + (os.getpid() * 7 + attempt * 13) % 20000
            ranks = []
            for rank in range(size):
                mine = env | {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "localhost",
                              "MASTER_PORT": str(port), "LOCAL_RANK": str(rank),
                              "TORCHELASTIC_RUN_ID": "none"} | more
                ranks.append(subprocess.Popen([*under(rank), *command], env=mine, text=True,
                                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                              stderr=subprocess.STDOUT))
            try:
                ended = [(r.wait(DEADLINE), r.stdout.read()) for r in ranks]
            finally:
                for r in ranks:
                    r.kill()
                    r.stdout.close()
                    r.wait()
            if IN_USE not in ended[0][1]:
                break
        return ended
    return start


def same_as_mpi():
    """Without a daemon and with one; the daemon's ranks are told apart by it, not by who launched them."""
    if not shutil.which("mpirun"):
        skip("there is no mpirun")
    for offload in ("none", "nvme"):
        with Daemon("--host-bytes", "256M", "--nvme-bytes", "64M") as d:
            mpi = Trained(["--offload", offload], under_mpirun(d.env())).good("mpirun")
            tcp = Trained(["--offload", offload], as_torchrun(d.env())).good("tcp")
        check(mpi.losses == tcp.losses, f"{offload}: {mpi.losses} under mpirun, {tcp.losses} over tcp")
        check(mpi.weights == tcp.weights, f"{offload}: other weights than under mpirun")


def two_daemons():
    """Four ranks on two daemons, and in groups that have ranks of both: slices are read in the daemons, and
    cross between them in groups of connections (--node-gather)."""
    for order, group in ((0, 0, 1, 1), "0"), ((0, 1, 0, 1), "2"):
        runs = []
        for way in ("comm", "host", "auto"):
            with Daemon("--host-bytes", "64M") as a, Daemon("--host-bytes", "64M") as b:
                sockets = ",".join((a, b)[i].socket for i in order)
                runs.append(Trained(["--offload", "host", "--micro-batch", "1", "--socket", sockets, "--group", group,
                                     "--node-gather", way], as_torchrun(dict(os.environ), 4), 3).good(way))
            check(runs[-1].losses == runs[0].losses and runs[-1].weights == runs[0].weights,
                  f"{order}, {way}: {runs[-1].losses} instead of {runs[0].losses}")
        check("parameters are gathered from the daemon's host memory" in runs[1].ended[0][1], runs[1].ended[0][1])
        check("ms from host memory" in runs[2].ended[0][1], runs[2].ended[0][1])


def a_rank_that_does_not_come():
    """A world of three, but two come: both end with an error message."""
    done = Trained(["--offload", "none"],
                   as_torchrun(dict(os.environ), WORLD_SIZE="3", ZSHARD_MEET_SECONDS="5"))
    for rank, (code, out) in enumerate(done.ended):
        check(code == 5 and "are missing: 2" in out, f"rank {rank} ended with {code}: {out}")


def ranks_that_were_told_other_values():
    """What the engine does not know of: each rank would begin with other weights, or read other batches."""
    for flags, says in ((("--seed", "6"), "--seed: not the same on all ranks"),
                        (("--steps", "7"), "--steps: not the same on all ranks"),
                        (("--data", "README.md"), "the contents of the files of --data: not the same on all ranks")):
        # If a flag is given twice, the last one counts: so a shell gives rank 1 another value.
        told = Trained(["--offload", "none"], as_torchrun(
            dict(os.environ), under=lambda rank, flags=flags: ["sh", "-c", 'exec "$@" ' + " ".join(flags if rank else ()), "sh"]))
        for rank, (code, out) in enumerate(told.ended):
            check(code == 2 and says in out, f"rank {rank} ended with {code}: {out}")


TESTS = {f.__name__: f for f in (same_as_mpi, two_daemons, a_rank_that_does_not_come, ranks_that_were_told_other_values)}

if __name__ == "__main__":
    sys.exit(main(TESTS))
