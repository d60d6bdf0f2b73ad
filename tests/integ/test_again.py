#!/usr/bin/env python3
"""test_again.py - runs that outlive their daemon: it restarts in good order, or dies, and they continue.

    ZSHARD_BUILD=build tests/integ/test_again.py [NAME...]

Every loss that was logged and the weights at the end must be those of an uninterrupted run, bit for bit. With
ZSHARD_LONG, 100 restarts and 100 deaths instead of 2.
"""
import os
import random
import signal
import subprocess
import sys
import time

from harness import DEADLINE, LONG, Daemon, check, main, program, wait_until
from resume import PAGES, KeptRun, Reference

TIMES = 100 if LONG else 2
TIGHT = ["--host-bytes", "1200K"]  # room for everything except a part of the state
STEPS_BETWEEN = 6


class Again:
    """A run with its reference and a daemon that is ended again and again."""

    def __init__(self, daemon, ranks, commit_every=4, more=()):
        self.daemon = daemon
        steps = 2 * STEPS_BETWEEN * (max(TIMES, 4) + 2)
        self.kept = KeptRun(steps, ranks=ranks, commit_every=commit_every, reconnect=120)
        self.reference = Reference(self.kept)
        self.process = self.kept.start(daemon, resume=False, more=more)

    def __enter__(self):
        return self

    def __exit__(self, *what):
        return self.kept.__exit__(*what)

    def after_some_steps(self, rng):
        """Waits for some more steps, and for a moment in the middle of one."""
        least = self.kept.commit_every + 1 if self.kept.commit_every < 1000 else 1  # something is committed
        lines = max(len(self.kept.lines()) + rng.randrange(1, STEPS_BETWEEN), least)
        self.kept.wait_for_lines(lines, self.process)
        time.sleep(rng.random() * 0.03)
        check(self.process.poll() is None, f"the run ended with {self.process.returncode}:\n{self.kept.said()}")

    def end(self):
        status = self.process.wait(DEADLINE)
        check(status == 0, f"the run ended with {status}:\n{self.kept.said()}\n{self.daemon.log()}")
        self.reference.check(self.kept, deaths=0)


def restarts():
    """In good order: nobody notices. Each step is logged once."""
    rng = random.Random(5)
    for ranks, offload in ((1, ()), (2, TIGHT)):
        with Daemon(*PAGES, *offload) as d, Again(d, ranks, commit_every=1000) as run:
            for _ in range(TIMES):
                run.after_some_steps(rng)
                status = d.stop()
                check(status == 0, f"the daemon ended with {status}:\n{d.log()}")
                d.again()
            run.end()
            steps = [row["step"] for row in run.kept.lines()]
            check(steps == list(range(1, run.kept.steps + 1)), f"logged: {steps}")
            check("was lost" not in run.kept.said(), run.kept.said())


def asked():
    """zctl restart: it says which jobs continue, the daemon ends with 75, and zctl waits for the next one."""
    rng = random.Random(8)
    with Daemon(*PAGES) as d, Again(d, 2, commit_every=1000) as run:
        run.after_some_steps(rng)
        done = restart(d).communicate(timeout=DEADLINE)
        check("no service manager would start this daemon again" in done[1], f"it said {done}")
        check(d.stop() == 0, d.log())
        d.under = ("env", f"NOTIFY_SOCKET={d.folder}/notify")  # none listens there, which is only logged
        d.again()
        for _ in range(TIMES):
            run.after_some_steps(rng)
            with KeptRun(100000, ranks=1, commit_every=0, job="gone") as gone:
                lost = gone.start(d, resume=None)
                gone.wait_for_lines(2, lost)
                rows = {tuple(row[key] for key in ("job", "attached", "fate", "why"))
                        for row in d.zctl("restart", "--dry-run")}
                check(rows == {("kept", 2, "continues", ""), ("gone", 1, "ends", "it is not durable, and its ranks do not wait")}, f"{rows}")
                named = d.log().count('run-ends job="gone"')
                asks = restart(d, "--wait", str(DEADLINE))
                status = d.process.wait(DEADLINE)
                check(status == 75, f"the daemon ended with {status}:\n{d.log()}")
                check(d.log().count('run-ends job="gone"') == named + 1, d.log())
                check('run-ends job="kept"' not in d.log(), d.log())
                check(lost.wait(DEADLINE) == 3, gone.said())
                check(asks.poll() is None, "zctl did not wait for the next daemon")
                d.again()
                said = asks.communicate(timeout=DEADLINE)
                check(asks.returncode == 0 and "continues" in said[0], f"zctl ended with {asks.returncode}: {said}")
        run.end()
        steps = [row["step"] for row in run.kept.lines()]
        check(steps == list(range(1, run.kept.steps + 1)), f"logged: {steps}")


def restart(daemon, *words):
    return subprocess.Popen([program("zctl"), "restart", *words], env=daemon.env(), text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE)


def deaths():
    """SIGKILL: the run continues from its last commit, by itself."""
    rng = random.Random(6)
    for ranks, offload in ((1, TIGHT), (2, ())):
        with Daemon(*PAGES, *offload) as d, Again(d, ranks) as run:
            for _ in range(TIMES):
                run.after_some_steps(rng)
                d.kill()
                d.again()
            run.end()
            check("was lost" in run.kept.said(), run.kept.said())


def two_nodes():
    """One node's daemon restarts, or dies; the other's stays. All ranks continue from the same step."""
    rng = random.Random(7)
    with Daemon(*PAGES) as a, Daemon(*PAGES) as b:
        with Again(a, 2, more=["--socket", f"{a.socket},{b.socket}"]) as run:
            for i in range(max(TIMES // 5, 4)):
                run.after_some_steps(rng)
                d = (a, b)[i % 2]
                if i % 4 < 2:
                    check(d.stop() == 0, f"the daemon ended:\n{d.log()}")
                else:
                    d.kill()
                d.again()
            run.end()


def node_gathers():
    """Ranks that read each other's slices in the daemon do so in the next one, too: the names of slices are new."""
    rng = random.Random(9)
    for way, nodes in (("host", 1), ("auto", 1), ("host", 2)):
        with Daemon(*PAGES) as a, Daemon(*PAGES) as b:
            sockets = [a.socket, b.socket][:nodes]
            with Again(a, 2, more=["--socket", ",".join(sockets), "--node-gather", way]) as run:
                for i in range(TIMES):
                    run.after_some_steps(rng)
                    if i % 2:
                        check(a.stop() == 0, f"the daemon ended:\n{a.log()}")
                    else:
                        a.kill()
                    a.again()
                run.end()
                check("parameters are gathered" in run.kept.said(), run.kept.said())


def nothing_to_continue_from():
    """A daemon that dies before the first commit takes the job with it."""
    with Daemon(*PAGES) as d, KeptRun(400, ranks=2, commit_every=1000, reconnect=60) as kept:
        run = kept.start(d, resume=False)
        kept.wait_for_lines(2, run)
        d.kill()
        d.again()
        status = run.wait(60)
        check(status == 4 and "job 'kept' was lost with its daemon: it had no commit yet" in kept.said(),
              f"it ended with {status}:\n{kept.said()}")


def another_run_has_it():
    """Whoever comes back too late does not take the job from another run."""
    with Daemon(*PAGES) as d, KeptRun(400, ranks=1, commit_every=2, reconnect=60) as kept:
        first = kept.start(d, resume=False)
        kept.wait_for_lines(6, first)
        kept.signal_ranks(first.life, signal.SIGSTOP)
        d.kill()
        d.again()
        second = kept.start(d, resume=True, steps=400)
        lines = len(kept.lines())
        wait_until("the other run", lambda: len(kept.lines()) > lines + 3 or second.poll() is not None, 60)
        check(second.poll() is None, f"the other run: {kept.said()}")
        kept.signal_ranks(first.life, signal.SIGCONT)
        status = first.wait(60)
        check(status == 4 and "another run has taken it over" in kept.said(first.life),
              f"the first run ended with {status}:\n{kept.said(first.life)}")
        check(second.poll() is None, "the other run was disturbed")


def none_comes():
    """No daemon comes back: the run ends as without reconnecting, a little later."""
    for seconds in (0, 1):
        with Daemon(*PAGES) as d, KeptRun(400, ranks=2, commit_every=2, reconnect=seconds) as kept:
            run = kept.start(d, resume=False)
            kept.wait_for_lines(4, run)
            d.kill()
            begun = time.monotonic()
            status = run.wait(60)
            took = time.monotonic() - begun
            check(status != 0 and took >= seconds, f"it ended with {status} after {took} s")
            said = kept.said()
            check(("no daemon has answered for 1000 ms" in said) == (seconds > 0), said)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main({f.__name__: f for f in (restarts, asked, deaths, two_nodes, node_gathers, nothing_to_continue_from, another_run_has_it,
                                                  none_comes)}))
