#!/usr/bin/env python3
"""test_stop.py - a stop loses nothing, however slow the drive is, unless it is forced. A restart refuses no member.

    ZSHARD_BUILD=build tests/integ/test_stop.py [NAME...]

A shim (slow_calls.c) makes each write of a page, and each chmod(), slow from a given moment on.
"""
import errno
import grp
import multiprocessing
import os
import signal
import socket
import sys
import time

from harness import BUILD, SANITIZED, Daemon, check, main, skip, wait_until
from resume import PAGES, KeptRun

SLOW_MS = 250


class SlowDaemon(Daemon):
    """`drive_gets_slow()` makes it so; `manager` receives what the service manager is told."""

    def __init__(self, *flags):
        super().__init__(*PAGES, "--io", "threads", "--threads", "1", *flags)
        self.slow_file = os.path.join(self.folder, "slow")
        self.manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.manager.bind(os.path.join(self.folder, "notify"))
        self.under = ("env", f"LD_PRELOAD={BUILD}/tests/libslow_calls.so", f"ZSHARD_SLOW_FILE={self.slow_file}",
                      f"ZSHARD_SLOW_MS={SLOW_MS}", f"NOTIFY_SOCKET={self.folder}/notify")

    def drive_gets_slow(self):
        with open(self.slow_file, "w", encoding="utf-8"):
            pass

    def told(self):
        """What the service manager was told so far."""
        said = []
        self.manager.setblocking(False)
        while True:
            try:
                said.append(self.manager.recv(4096).decode())
            except BlockingIOError:
                return said

    def ahead(self):
        """Steps of the job: in memory, and committed. A job that was never committed is gone with the daemon."""
        rows = self.zctl("jobs")
        return (rows[0]["iterations"], rows[0]["committed_iterations"]) if rows else (0, 0)


def steps_in_memory(daemon, kept):
    """A run that is killed, so that steps since its last commit are in the daemon's memory only."""
    process = kept.start(daemon, resume=False, more=["--offload", "host"])
    kept.wait_for_lines(4, process)
    kept.kill_ranks(process.life)
    process.wait(60)
    wait_until("the ranks are gone", lambda: daemon.zctl("jobs")[0]["attached"] == 0, 30)
    steps, committed = daemon.ahead()
    check(steps > committed, f"{steps} steps, {committed} committed")
    return steps


def nothing_is_lost():
    """The commit takes longer than the stop timeout that the service manager has without reports."""
    with SlowDaemon() as d, KeptRun(200, ranks=1, commit_every=1000) as kept:
        steps = steps_in_memory(d, kept)
        d.told()
        d.drive_gets_slow()
        begun = time.monotonic()
        d.process.send_signal(signal.SIGTERM)
        status = d.process.wait(120)
        took = time.monotonic() - begun
        check(status == 0, f"it ended with {status} after {took:.1f} s")
        said = d.told()
        check(said[0] == "STOPPING=1", f"{said}")
        check(took < 2 or any(s.startswith("EXTEND_TIMEOUT_USEC=") and "shards saved" in s for s in said),
              f"after {took:.1f} s the manager was told: {said}")
        check(took > 2 * SLOW_MS / 1000, f"the drive was slow, and the stop took {took:.1f} s")
        os.unlink(d.slow_file)
        d.again()
        check(d.ahead() == (steps, steps), f"before the stop {steps} steps, after the restart {d.ahead()}")


def forced():
    """A second signal ends it at once, and so does the stop timeout: with status 1, and at the last commit."""
    for flags, signals in (((), 2), (("--stop-timeout", "1"), 1)):
        with SlowDaemon(*flags) as d, KeptRun(200, ranks=1, commit_every=1000) as kept:
            steps_in_memory(d, kept)
            committed = d.ahead()[1]
            d.drive_gets_slow()
            d.process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
            begun = time.monotonic()
            if signals == 2:
                d.process.send_signal(signal.SIGTERM)
            status = d.process.wait(30)
            check(status == 1, f"it ended with {status}")
            check(time.monotonic() - begun < 2, "it took longer than 2 s")
            check(not os.path.exists(d.socket), "the socket is still there")
            os.unlink(d.slow_file)
            d.again()
            check(d.ahead() == (committed, committed), f"{committed} steps were committed: {d.ahead()}")


def member_connects(path, until, out):
    """As a member of the group, in a process of its own: connects while the file `until` exists, and writes how it went."""
    os.setgroups([grp.getgrnam("users").gr_gid])
    os.setgid(61001)
    os.setuid(61001)
    seen = set()
    while os.path.exists(until):
        with socket.socket(socket.AF_UNIX) as s:
            seen.add(errno.errorcode.get(s.connect_ex(path), "connected"))
    os.write(out, " ".join(seen).encode())


def access_of_the_group():
    """A member of the socket's group that waits for the daemon is never denied access while it starts."""
    if os.geteuid() != 0:
        skip("needs root, to be another user")
    with SlowDaemon("--socket-group", "users") as d:
        os.chmod(d.folder, 0o755)
        until = os.path.join(d.folder, "until")
        for name in (d.slow_file, until):
            with open(name, "w", encoding="utf-8"):
                pass
        said, out = os.pipe()
        member = multiprocessing.get_context("fork").Process(target=member_connects, args=(d.socket, until, out))
        member.start()
        os.close(out)
        try:
            d.stop()
            d.again()
            time.sleep(0.3)
        finally:
            os.unlink(until)
        member.join(30)
        seen = os.read(said, 4096).decode().split()
        os.close(said)
        check("connected" in seen, f"it saw {seen}")
        check("EACCES" not in seen and "EPERM" not in seen, f"it was denied access: {seen}")
        check(not os.path.exists(d.socket + ".new"), "a socket was left behind")


if __name__ == "__main__":
    if SANITIZED:
        skip("the shim is not for sanitizers, which want to be first")
    sys.exit(main({f.__name__: f for f in (nothing_is_lost, forced, access_of_the_group)}))
