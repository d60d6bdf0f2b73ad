#!/usr/bin/env python3
"""test_resume.py - kept runs of zgpt that are ended and go on, through real daemons.

    ZSHARD_BUILD=build tests/integ/test_resume.py [NAME...]
"""

import os
import shutil
import signal
import sys

from harness import Daemon, check, main, skip, wait_until
from resume import PAGES, KeptRun, Reference

STEPS = 24


def trainers_killed():
    """SIGKILL of one rank, or of both, in the middle: at most the step in progress is lost."""
    with KeptRun(STEPS) as kept, Daemon(*PAGES) as d:
        whole = Reference(kept)
        for lines, both in ((7, True), (16, False)):
            process = kept.start(d, resume=lines > 7)
            kept.wait_for_lines(lines, process)
            before = kept.last_step()
            pids = kept.pids(process.life)
            kept.kill_ranks(process.life, pids if both else pids[1:])
            process.wait(30)
            check(process.returncode != 0, "it ended well")
        kept.good(d, resume=True)
        whole.check(kept)
        behind = int(kept.said().split("resumes after step ")[1].split()[0])
        check(behind >= before, f"behind step {behind}, and {before} was made")
        check(d.zctl("jobs")[0]["iterations"] == STEPS, "the job is elsewhere")


def where_it_is_there():
    """One command line for every life: the first begins the job, the others go on."""
    with KeptRun(STEPS) as kept, Daemon(*PAGES) as d:
        whole = Reference(kept)
        process = kept.start(d, resume="if-there")
        kept.wait_for_lines(7, process)
        check("resumes after" not in kept.said(), f"there was no job:\n{kept.said()}")
        kept.kill_ranks(process.life, kept.pids(process.life))
        process.wait(30)
        kept.good(d, resume="if-there")
        check("resumes after step " in kept.said(), f"it began anew:\n{kept.said()}")
        whole.check(kept)


def daemon_killed():
    """From the last commit: here at most 5 steps are lost."""
    with KeptRun(STEPS) as kept, Daemon(*PAGES) as d:
        whole = Reference(kept)
        process = kept.start(d, resume=False)
        kept.wait_for_lines(13, process)
        d.kill()
        process.wait(30)
        made = kept.last_step()
        d.again()
        kept.good(d, resume=True)
        behind = int(kept.said().split("resumes after step ")[1].split()[0])
        check(behind % 5 == 0 and made - behind <= 6, f"{made} steps were made; behind {behind}")
        whole.check(kept)
        d.kill() # the commit at the end is there, and nothing more is needed
        d.again()
        os.remove(kept.weights)
        kept.good(d, resume=True)
        whole.check(kept)
        check("step " + str(STEPS) + "/" not in kept.said(), f"it trained:\n{kept.said()}")


def other_worlds():
    """Saved by 2 ranks, resumed by 1, 3 and 4: the next 10 losses agree to 1e-5."""
    with KeptRun(20, dtype="fp32") as kept:
        whole = Reference(kept)
        for ranks in (1, 3, 4):
            for crash in (False, True):
                with Daemon(*PAGES) as d:
                    kept.good(d, resume=False, steps=10)
                    if crash:
                        d.kill()
                        d.again()
                    kept.good(d, resume=True, ranks=ranks)
                    rows = kept.lines()
                    check([r["step"] for r in rows] == list(range(1, 21)), f"steps {rows}")
                    for row in rows:
                        want = whole.losses[row["step"]]
                        check(abs(row["loss"] - want) <= 1e-5 * want,
                              f"{ranks} ranks, step {row['step']}: {row['loss']}, not {want}")


def half_dead():
    """Ranks that are stopped, and wake up behind a takeover: cut off, and they change nothing."""
    with KeptRun(60) as kept, Daemon(*PAGES) as d:
        whole = Reference(kept)
        old = kept.start(d, resume=False, more=("--jsonl", os.path.join(kept.folder, "old")))
        wait_until("steps", lambda: d.zctl("jobs") and d.zctl("jobs")[0]["iterations"] > 5, 30)
        pids = kept.pids(old.life)
        kept.signal_ranks(old.life, signal.SIGSTOP, pids)
        kept.good(d, resume=True)
        kept.signal_ranks(old.life, signal.SIGCONT, pids)
        status = old.wait(30)
        check(status == 4, f"the old ranks ended with {status}:\n{kept.said(old.life)}")
        check("taken over" in kept.said(old.life), kept.said(old.life))
        row = d.zctl("jobs")[0]
        check(row["iterations"] == 60 and row["attached"] == 0, f"the job: {row}")
        check(kept.exported() == whole.weights, "other weights")
        os.remove(kept.weights)
        kept.good(d, resume=True) # nothing is left to do, and nothing has changed
        check(kept.exported() == whole.weights, "other weights behind the old ranks' end")


def stopped():
    """SIGTERM: behind the step in progress, committed, exit code 1; a new daemon resumes from there."""
    with KeptRun(200, ranks=1, commit_every=0) as kept, Daemon(*PAGES) as d:
        whole = Reference(kept)
        process = kept.start(d, resume=False)
        kept.wait_for_lines(3, process)
        kept.signal_ranks(process.life, signal.SIGTERM)
        check(process.wait(30) == 1, f"ended with {process.returncode}:\n{kept.said()}")
        check("continue with --resume" in kept.said(), kept.said())
        made = kept.last_step()
        d.kill()
        d.again()
        kept.good(d, resume=True)
        check(f"resumes after step {made}\n" in kept.said(), f"{made} were made:\n{kept.said()}")
        whole.check(kept)


def other_runs():
    """Whoever says another shape, seed or data is refused, and does the job no harm."""
    with KeptRun(8, ranks=1) as kept, Daemon(*PAGES) as d:
        whole = Reference(kept)
        kept.good(d, resume=False, steps=4)
        for more, says in ((("--seed", "6"), "seed"), (("--layers", "2"), "another run"),
                           (("--width", "16"), "another run"), (("--batch", "6"), "batch"),
                           (("--dtype", "fp32"), "another run"),
                           (("--data", "README.md"), "data")):
            status = kept.run(d, resume=True, more=more)
            check(status == 4 and says in kept.said(), f"{more}: {status}\n{kept.said()}")
        kept.good(d, resume=True)
        whole.check(kept)
        check(kept.run(d, resume=False) == 4, "a kept job was begun again")


def two_daemons():
    """One node each: the same run, committed on both, and again from both."""
    with KeptRun(STEPS) as kept, Daemon(*PAGES) as a, Daemon(*PAGES) as b:
        whole = Reference(kept)
        both = ("--socket", f"{a.socket},{b.socket}")
        process = kept.start(a, resume=False, more=both)
        kept.wait_for_lines(12, process)
        b.kill()
        wait_until("the end", lambda: process.poll() is not None, 30)
        b.again()
        kept.good(a, resume=True, more=both)
        whole.check(kept)
        for d in (a, b):
            row = d.zctl("jobs")[0]
            check(row["committed_iterations"] == STEPS, f"committed: {row}")


TESTS = {f.__name__: f for f in (trainers_killed, where_it_is_there, daemon_killed, other_worlds, half_dead, stopped,
                                 other_runs, two_daemons)}

if __name__ == "__main__":
    if not shutil.which("mpirun"):
        skip("there is no mpirun")
    sys.exit(main(TESTS))
