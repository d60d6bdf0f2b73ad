#!/usr/bin/env python3
"""kills.py - SIGKILL of the daemon or of trainers at random moments of a real run, again and again.

    ZSHARD_BUILD=build tests/integ/kills.py [KILLS [SEED]]

After each the run is resumed. State is streamed, and nothing is clipped, so steps begin early in about half of
the lives. Every loss that was ever logged and the weights at the end must be those
of an uninterrupted run, bit for bit. The short form (20 kills) is the test `kills`; the long one is

    ZSHARD_BUILD=build tests/integ/kills.py 500
"""

import os
import random
import shutil
import sys
import time

from harness import Daemon, Failure, check, skip, wait_until
from resume import PAGES, KeptRun, Reference

TIGHT = ["--host-bytes", "1200K"] # room for everything except a part of the state
CLIP = ["--clip", "0"] # otherwise no step begins early
STEPS_PER_KILL = 9 # about the number of steps between two kills


class Campaign:
    def __init__(self, kills, seed):
        self.kills, self.rng = kills, random.Random(seed)
        self.counts = {"a rank": 0, "all ranks": 0, "the daemon": 0, "the daemon, then all ranks": 0}
        self.anew = 0

    def again(self, kept, daemon, process):
        """The next life. A job that died before it had anything to resume from begins anew."""
        if process is None:
            return self.start(kept, daemon, resume=False)
        process = self.start(kept, daemon, resume=True)
        before = len(kept.lines())
        wait_until("a life", lambda: process.poll() is not None or len(kept.lines()) > before or
                   "goes on" in kept.said(), 60)
        if process.poll() in (None, 0):
            return process
        said = kept.said()
        check("there is no job" in said or "no step to resume from" in said,
              f"life {kept.life} ended with {process.returncode}:\n{said}")
        if "no step to resume from" in said:
            daemon.zctl("destroy", "--force", "kept")
        self.anew += 1
        return self.start(kept, daemon, resume=False)

    def start(self, kept, daemon, resume):
        return kept.start(daemon, resume, more=["--overlap", self.rng.choice(["all", "serve"])])

    def kill(self, kept, daemon, process):
        what = self.rng.choice(list(self.counts))
        if self.rng.random() < 0.25: # during the start
            time.sleep(self.rng.random() * 0.5)
        else:
            kept.wait_for_lines(len(kept.lines()) + self.rng.randrange(1, 12), process)
            time.sleep(self.rng.random() * 0.03)
        if process.poll() is not None:
            check(process.returncode == 0, f"life {kept.life} ended with {process.returncode}:\n"
                  f"{kept.said()}")
            return False
        pids = kept.pids(process.life)
        if "daemon" in what:
            daemon.kill()
            time.sleep(self.rng.random() * 0.05)
        if what == "a rank" and pids:
            kept.kill_ranks(process.life, [self.rng.choice(pids)])
        elif "all" in what:
            kept.kill_ranks(process.life)
        if "daemon" in what:
            daemon.again()
        wait_until("the end of a life", lambda: self.ended(kept, process), 30)
        self.counts[what] += 1
        return True

    def ended(self, kept, process):
        """Ranks that start late, or hang on in MPI, are not what this is about."""
        if process.poll() is not None:
            return True
        time.sleep(0.05)
        kept.kill_ranks(process.life)
        return False

    def run(self):
        begin = time.monotonic()
        with KeptRun(self.kills * STEPS_PER_KILL + 20, flags=CLIP) as kept:
            whole = Reference(kept)
            with Daemon(*PAGES, *TIGHT) as daemon:
                process, done = None, 0
                while done < self.kills:
                    process = self.again(kept, daemon, process)
                    killed = self.kill(kept, daemon, process)
                    whole.check_losses(kept)
                    if not killed: # it has ended by itself: the next run is another one
                        whole.check(kept, done)
                        daemon.zctl("destroy", "--force", "kept")
                        kept.forget()
                        process = None
                        continue
                    done += 1
                    if done % 50 == 0:
                        print(f"{done} kills, step {kept.last_step()}, "
                              f"{time.monotonic() - begin:.0f} s", flush=True)
                self.again(kept, daemon, process).wait(120)
                whole.check(kept, done)
        print(f"{done} kills ({', '.join(f'{k} {n}' for k, n in self.counts.items())}), "
              f"{self.anew} too early for anything to resume from; {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    if not shutil.which("mpirun"):
        skip("there is no mpirun")
    SEED = int(sys.argv[2]) if len(sys.argv) > 2 else int(os.environ.get("ZSHARD_SEED", "1"))
    try:
        Campaign(int(sys.argv[1]) if len(sys.argv) > 1 else 20, SEED).run()
    except Failure as error:
        print(f"FAIL (seed {SEED}): {error}")
        sys.exit(1)
