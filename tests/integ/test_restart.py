#!/usr/bin/env python3
"""test_restart.py - a restart ends no run: two jobs of two users, one of them not kept. Users are made-up uids, so it
needs root.

    ZSHARD_BUILD=build tests/integ/test_restart.py [NAME...]

Weights and every logged loss must be those of an uninterrupted run, bit for bit. With ZSHARD_LONG, 100 stops, 100
requests for a restart, 100 upgrades and 100 deaths instead of 2.
"""
import os
import random
import re
import signal
import subprocess
import sys
import time

from harness import DEADLINE, LONG, Daemon, check, main, program, skip, wait_until
from resume import PAGES, KeptRun, Reference

ALICE, BOB = 61001, 61002
TIMES = 100 if LONG else 2
FOREVER = 1000000  # steps
STEPS_BETWEEN = 5


class Node(Daemon):
    """A daemon that all users may connect to, and that believes a service manager would start it again."""

    def __init__(self, *flags):
        super().__init__(*PAGES, "--socket-group", "users", *flags)
        os.chmod(self.folder, 0o755)
        self.under = ("env", f"NOTIFY_SOCKET={self.folder}/notify")  # none listens there, which is only logged
        self.fresh = None

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def state(self):
        """What it has in use: memory, places, descriptors."""
        return self.used() | {"descriptors": self.descriptors()}

    def settled(self):
        """state(), when nothing changes any more: connections of zctl may still be closing."""
        seen = []
        while len(seen) < 5 or seen[-5:] != [seen[-1]] * 5:
            check(len(seen) < 500, f"in use: {seen[-5:]}")
            time.sleep(0.02)
            seen.append(self.state())
        return seen[-1]

    def left_nothing(self):
        """No job is left: what it has in use is what a daemon has that had none."""
        check(self.zctl("jobs") == [], f"jobs: {self.zctl('jobs')}")
        check(self.zctl("fsck")[0]["problems"] == 0, "fsck")
        before = self.settled()
        check(self.stop() == 0, self.log())
        self.again()
        after = self.settled()
        check(before == after, f"in use: {before}, by a daemon that had no job: {after}")
        check(before["nvme"] == 0, f"in use: {before}")


class Run(KeptRun):
    """A run without an end: finish() stops it after a step."""

    def __init__(self, daemon, uid, name, kept, ranks=1, commit_every=1000, flags=()):
        super().__init__(FOREVER, ranks=ranks, commit_every=commit_every if kept else 0, flags=flags, reconnect=120,
                         job=name, uid=uid)
        self.daemon = daemon
        self.process = self.start(daemon, resume=False if kept else None)

    def goes_on(self, steps):
        """Waits until it has made some more steps."""
        self.wait_for_lines(len(self.lines()) + steps, self.process)
        self.lives()

    def lives(self):
        status = self.process.poll()
        check(status is None, f"{self.job} ended with {status}: {self.said()}\n{self.daemon.log()}")

    def finish(self, deaths=0):
        """Ends it in good order: the weights must be those of an uninterrupted run of as many steps. Losses of all
        lines are checked, too, so steps that a death took back are repeated first."""
        furthest = max(row["step"] for row in self.lines())
        wait_until(f"step {furthest}", lambda: self.last_step() >= furthest or self.process.poll() is not None, DEADLINE)
        self.lives()
        self.signal_ranks(self.life, signal.SIGTERM)
        status = self.process.wait(DEADLINE)
        check(status == 1 and "stopped by a signal" in self.said(), f"{self.job} ended with {status}: {self.said()}")
        self.steps = self.last_step()
        Reference(self).check(self, deaths=deaths)
        check(deaths > 0 or "was lost" not in self.said(), self.said())


def settle(rng, *runs):
        """All runs make some steps; then it is a moment in the middle of one."""
        for run in runs:
            run.goes_on(rng.randrange(1, STEPS_BETWEEN))
        time.sleep(rng.random() * 0.03)


def stop(daemon):
    check(daemon.stop() == 0, daemon.log())
    daemon.again()


def restart(daemon):
    """zctl restart: every run continues, and zctl waits for the next daemon."""
    asks = subprocess.Popen([program("zctl"), "restart", "--wait", str(DEADLINE)], env=daemon.env(), text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    status = daemon.process.wait(DEADLINE)
    check(status == 75, f"the daemon ended with {status}:\n{daemon.log()}")
    daemon.again()
    out, err = asks.communicate(timeout=DEADLINE)
    check(asks.returncode == 0 and out.count("continues") == 2 and "ends" not in out,
          f"zctl: {asks.returncode} {out} {err}")


def version(daemon):
    return re.search(r"\d+\.\d+\.\d+", daemon.zctl("ping")[0]["server"]).group()


def upgrade(daemon):
    """Another version of the program: the same one, with another version in all of its texts."""
    old = version(daemon)
    new = os.path.join(daemon.folder, "zshardd")
    later = old[:-1] + str((int(old[-1]) + 1) % 10)
    with open(daemon.program, "rb") as f:
        code = f.read()
    check(daemon.stop() == 0, daemon.log())
    with open(new + ".new", "wb") as f:
        f.write(code.replace(old.encode(), later.encode()))
    os.chmod(new + ".new", 0o755)
    os.replace(new + ".new", new)
    daemon.program = new
    daemon.again()
    check(version(daemon) == later, f"the version is {version(daemon)}, not {later}")


def planned():
    """A stop, a request for a restart, an upgrade: nobody notices, and nothing is left."""
    rng = random.Random(5)
    with Node("--host-bytes", "2M") as d:  # a part of the state is on NVMe
        with Run(d, ALICE, "run", kept=True) as kept, Run(d, BOB, "run", kept=False, ranks=2) as other:
            for how in (stop, restart, upgrade) * TIMES:
                settle(rng, kept, other)
                rows = {(row["uid"], row["fate"], row["why"]) for row in d.zctl("restart", "--dry-run")}
                check(rows == {(ALICE, "continues", ""), (BOB, "continues", "")}, f"{rows}")
                how(d)
                kept.lives()
                other.lives()
            settle(rng, kept, other)
            jobs = {row["uid"]: (row["durable"], row["state"]) for row in d.zctl("jobs")}
            check(set(jobs) == {ALICE, BOB} and jobs[ALICE][0] and not jobs[BOB][0], f"jobs: {jobs}")
            check("run-ends" not in d.log(), d.log())
            for run in (kept, other):
                run.finish()
                steps = [row["step"] for row in run.lines()]
                check(steps == list(range(1, run.steps + 1)), f"{run.job} logged {steps}")
        d.zctl("destroy", "--force", "run")
        d.left_nothing()


def deaths():
    """SIGKILL: the kept run continues from its last commit, by itself; the other one ends with 3, leaving nothing."""
    rng = random.Random(6)
    with Node() as d:
        with Run(d, ALICE, "run", kept=True, commit_every=4) as kept:
            kept.goes_on(5)
            for _ in range(TIMES):
                with Run(d, BOB, "run", kept=False) as other:
                    settle(rng, kept, other)
                    stop(d)  # so that it has had an image
                    settle(rng, kept, other)
                    d.kill()
                    d.again()
                    status = other.process.wait(DEADLINE)
                    check(status == 3, f"it ended with {status}: {other.said()}")
                    kept.goes_on(1)
                    check([row["uid"] for row in d.zctl("jobs")] == [ALICE], f"jobs: {d.zctl('jobs')}")
            kept.finish(deaths=TIMES)
        d.zctl("destroy", "--force", "run")
        d.left_nothing()


def before_they_are_back():
    """The next daemon dies, or is stopped, before the ranks are back: the one after it continues the run. Nobody else
    gets the job, and nobody sees it."""
    with Node() as d, Run(d, BOB, "run", kept=False) as run:
        run.goes_on(3)
        with KeptRun(2, ranks=1, job="other", uid=BOB) as other:
            other.good(d, False)
        d.zctl("snapshot", "other", "one")
        check(d.stop() == 0, d.log())
        for end in (d.kill, d.stop):
            run.signal_ranks(run.life, signal.SIGSTOP)
            d.again()
            check("image-waits" in d.log(), d.log())
            seen = {row["name"] for row in d.zctl("jobs")} | {row["job"] for row in d.zctl("ls")}
            check(seen == {"other"}, f"seen: {seen}")
            clone = subprocess.run([program("zctl"), "clone", "other@one", "run"], env=d.env(), text=True,
                                   capture_output=True, timeout=DEADLINE, check=False, **run.who)
            check(clone.returncode == 4 and "job 'run' exists already" in clone.stderr, f"a clone: {clone}")
            check(d.used()["nvme"] > 0 and d.zctl("fsck")[0]["problems"] == 0, "the image is there")
            for resume, why in ((None, "waits for its ranks"), (True, "there is no job 'run'")):
                with KeptRun(2, ranks=1, job="run", uid=BOB) as thief:
                    status = thief.run(d, resume)
                    check(status == 4 and why in thief.said(), f"another run ended with {status}: {thief.said()}")
            with KeptRun(2, ranks=1, job="run", commit_every=0, uid=ALICE) as hers:
                hers.good(d, None)
            end()
            run.signal_ranks(run.life, signal.SIGCONT)
        d.again()
        run.goes_on(3)
        run.finish()
        d.zctl("destroy", "--force", "other")
        d.left_nothing()


def nobody_comes():
    """The ranks die while no daemon runs: the image is dropped after a while, and its name is free again."""
    with Node("--restart-wait", "1") as d:
        with Run(d, BOB, "run", kept=False) as run:
            run.goes_on(3)
            check(d.stop() == 0, d.log())
            run.kill_ranks(run.life)
            run.process.wait(DEADLINE)
            d.again()
            wait_until("the end of the image", lambda: "no rank came back for it" in d.log(), 30)
            wait_until("the places of the image", lambda: d.used()["nvme"] == 0, 30)
        with Run(d, BOB, "run", kept=False) as run:
            run.goes_on(2)
            run.finish()
        d.left_nothing()


def no_daemon():
    """No daemon comes back: the run ends with 3 when it has waited long enough."""
    with Node() as d, KeptRun(FOREVER, ranks=1, commit_every=0, reconnect=1, job="run", uid=BOB) as run:
        process = run.start(d, resume=None)
        run.wait_for_lines(3, process)
        check(d.stop() == 0, d.log())
        status = process.wait(DEADLINE)
        said = run.said()
        check(status == 3 and "no daemon has answered for 1000 ms" in said, f"it ended with {status}: {said}")


def no_room():
    """Without room for its image, or for a daemon without NVMe, the run is named beforehand, and ends with 3."""
    for flags, why in ((["--user-nvme-bytes", "1M"], "its user's limit"), (["--nvme-bytes", "2M"], "it needs"),
                       (["--nvme-bytes", "0"], "no permanent data")):
        with Node(*flags) as d, Run(d, BOB, "run", kept=False, flags=["--width", "64"]) as run:
            run.goes_on(2)
            (row,) = d.zctl("restart", "--dry-run")
            check(row["fate"] == "ends" and row["why"].startswith("it is not durable"), f"{row}")
            check(why in row["why"], f"{row}")
            check(d.stop() == 0, d.log())
            check(f'run-ends job="run" uid={BOB} fate=ends why="it is not durable' in d.log(), d.log())
            status = run.process.wait(DEADLINE)
            check(status == 3, f"it ended with {status}: {run.said()}")
            d.again()
            check(d.zctl("jobs") == [] and "image-waits" not in d.log(), d.log())


if __name__ == "__main__":
    if os.geteuid() != 0:
        skip("needs root, to be several users")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main({f.__name__: f for f in (planned, deaths, before_they_are_back, nobody_comes, no_daemon, no_room)}))
