"""resume.py - a kept run of zgpt that is ended in many ways and goes on, and what it must come to."""

import json
import os
import shutil
import signal
import subprocess
import tempfile

from harness import DEADLINE, check, mpi_env, program, ranks_command, wait_until

MODEL = ("--seed 5 --batch 12 --micro-batch 1 --seq 16 --layers 3 --heads 2 --width 32 --lr 1e-3 "
         "--clip 1 --data LICENSE").split()
SHARED = 100  # the group "users", which every system has
PAGES = ["--page-elems", "4096", "--host-bytes", "64M", "--nvme-bytes", "64M"]


# How a run begins; None: its job is not kept.
KEEP = {False: ["--keep"], True: ["--resume"], "if-there": ["--resume-if-there"], None: []}


class KeptRun:
    """One job and its files, whatever happens to the processes. `uid`: of the user who runs it, a made-up one."""

    def __init__(self, steps, ranks=2, commit_every=5, dtype="bf16", sockets=None, flags=(), reconnect=0, job="kept",
                 uid=None):
        self.steps, self.ranks, self.commit_every, self.reconnect = steps, ranks, commit_every, reconnect
        self.sockets = sockets
        self.job = job
        self.model = [*MODEL, "--dtype", dtype, *flags]
        self.folder = tempfile.mkdtemp(prefix="zshard-resume-")
        self.who, self.home = {}, {}
        if uid is not None:
            os.chown(self.folder, uid, uid)
            shutil.copy("LICENSE", self.folder)  # the model's data
            self.who = {"user": uid, "group": uid, "extra_groups": [SHARED], "cwd": self.folder}
            self.home = {"HOME": self.folder, "OMPI_MCA_orte_tmpdir_base": self.folder}
        self.jsonl = os.path.join(self.folder, "jsonl")
        self.weights = os.path.join(self.folder, "weights")
        self.life = 0
        self.processes = []

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        for process in self.processes:
            if process.poll() is None:
                self.kill_ranks(process.life)
                process.kill()
                process.wait(30)
        shutil.rmtree(self.folder, ignore_errors=True)
        return False

    def start(self, daemon, resume, ranks=None, steps=None, more=()):
        """The trainers: a process to wait for. Each rank leaves its process id."""
        self.life += 1
        ranks = ranks or self.ranks
        script = (f'echo $$ >{self.folder}/{self.life}.${{OMPI_COMM_WORLD_RANK:-0}}.pid; exec "$@"')
        command = [program("zgpt"), *self.model, "--steps", str(steps or self.steps), "--offload", "nvme",
                   "--job", self.job, "--jsonl", self.jsonl, "--export", self.weights, "--commit-every",
                   str(self.commit_every), "--reconnect", str(self.reconnect), *KEEP[resume], *more]
        with open(self.log_path(), "wb") as log:
            process = subprocess.Popen(
                ranks_command(ranks, ["bash", "-c", script, "rank", *command]), stdout=log,
                stderr=log, stdin=subprocess.DEVNULL, env=daemon.env() | mpi_env() | self.home, **self.who)
        process.life = self.life
        self.processes.append(process)
        return process

    def log_path(self, life=None):
        return os.path.join(self.folder, f"{life or self.life}.log")

    def said(self, life=None):
        with open(self.log_path(life), encoding="utf-8", errors="replace") as f:
            return f.read()

    def pids(self, life):
        found = []
        for name in os.listdir(self.folder):
            if name.startswith(f"{life}.") and name.endswith(".pid"):
                with open(os.path.join(self.folder, name), encoding="utf-8") as f:
                    text = f.read().strip()
                if text:
                    found.append(int(text))
        return sorted(found)

    def signal_ranks(self, life, number, which=None):
        for pid in which or self.pids(life):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def kill_ranks(self, life, which=None):
        self.signal_ranks(life, signal.SIGKILL, which)

    def run(self, daemon, resume, **how):
        """To the end; the exit status."""
        return self.start(daemon, resume, **how).wait(DEADLINE)

    def good(self, daemon, resume, **how):
        status = self.run(daemon, resume, **how)
        check(status == 0, f"life {self.life} ended with {status}:\n{self.said()}")
        return self

    def lines(self):
        """What was logged, over all lives; a line that a death has cut is none."""
        try:
            with open(self.jsonl, encoding="utf-8") as f:
                text = f.read()
        except FileNotFoundError:
            return []
        rows = []
        for line in text.split("\n"):
            for part in line.replace("}}{", "}}\n{").split("\n"):
                try:
                    rows.append(json.loads(part))
                except ValueError:
                    pass
        return rows

    def last_step(self):
        rows = self.lines()
        return rows[-1]["step"] if rows else 0

    def wait_for_lines(self, n, process):
        wait_until(f"line {n}", lambda: len(self.lines()) >= n or process.poll() is not None,
                   DEADLINE)

    def forget(self):
        """What this run left, before another one begins."""
        for path in (self.jsonl, self.weights):
            os.unlink(path)

    def exported(self):
        with open(self.weights, "rb") as f:
            return f.read()


class Reference:
    """The run that nothing happens to, without a daemon."""

    def __init__(self, kept):
        folder = tempfile.mkdtemp(prefix="zshard-whole-")
        try:
            jsonl, weights = (os.path.join(folder, name) for name in ("jsonl", "weights"))
            done = subprocess.run(
                ranks_command(kept.ranks, [program("zgpt"), *kept.model, "--steps", str(kept.steps),
                                           "--jsonl", jsonl, "--export", weights]),
                env=dict(os.environ) | mpi_env(), text=True, timeout=DEADLINE, check=False,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            check(done.returncode == 0, f"the uninterrupted run: {done.stdout}")
            with open(jsonl, encoding="utf-8") as f:
                self.losses = {row["step"]: row["loss"] for row in map(json.loads, f)}
            with open(weights, "rb") as f:
                self.weights = f.read()
        finally:
            shutil.rmtree(folder)

    def check_losses(self, kept):
        for row in kept.lines():
            check(row["loss"] == self.losses[row["step"]],
                  f"step {row['step']}: loss {row['loss']}, uninterrupted {self.losses[row['step']]}")

    def check(self, kept, deaths=3):
        """Losses of every line and the weights, bit for bit; a death may come between a step and its
        line, which is not run again then."""
        self.check_losses(kept)
        seen = {row["step"] for row in kept.lines()}
        check(len(seen) >= len(self.losses) - deaths, f"only {len(seen)} steps were logged")
        check(kept.exported() == self.weights, "other weights than those of the uninterrupted run")
