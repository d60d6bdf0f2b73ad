#!/usr/bin/env python3
"""test_top.py - zctl top as people and programs see it: a screen that comes and goes, lines, JSON.

    ZSHARD_BUILD=build tests/integ/test_top.py [NAME...]
"""
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time

from harness import Daemon, check, main, program
from test_zctl import SMALL, holding, refused, zctl

ENTER, LEAVE = b"\x1b[?1049h\x1b[?25l", b"\x1b[?25h\x1b[?1049l"


class Screen:
    """zctl top on a terminal of its own."""

    def __init__(self, daemon, *words, rows=24, columns=80):
        self.main, self.terminal = pty.openpty()
        self.resize(rows, columns)
        self.before = termios.tcgetattr(self.terminal)
        self.seen = b""
        self.process = subprocess.Popen(
            [program("zctl"), "top", "--interval", "0.1", *words],
            env=os.environ | {"ZSHARD_SOCKET": daemon.socket}, stdin=self.terminal,
            stdout=self.terminal, stderr=subprocess.PIPE, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))

    def resize(self, rows, columns):
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self):
        if select.select([self.main], [], [], 0.02)[0]:
            self.seen += os.read(self.main, 65536)

    def wait(self, what, condition, seconds=20):
        begin = time.monotonic()
        while not condition():
            check(time.monotonic() - begin < seconds, f"{what}: {self.seen[-2000:]!r}")
            self.read()

    def wait_for(self, part):
        """Until it is drawn from now on."""
        self.seen = b""
        self.wait(f"'{part}' is not drawn", lambda: part in self.seen)

    def changed(self):
        return termios.tcgetattr(self.terminal) != self.before

    def end(self, status, why=b""):
        """It has ended, and the terminal is as it was."""
        self.wait("it does not end", lambda: self.process.poll() is not None)
        for _ in range(5):
            self.read()
        said = self.process.stderr.read()
        self.process.stderr.close()
        check(self.process.returncode == status, f"exit {self.process.returncode}, {said!r}")
        check(why in said if why else said == b"", f"it said {said!r}")
        check(not self.changed(), "the terminal's mode is another one than before")
        check(self.seen.endswith(LEAVE), f"it left with {self.seen[-200:]!r}")
        os.close(self.main)
        os.close(self.terminal)


def a_screen_and_each_way_out():
    with Daemon(*SMALL) as d, holding(d, "demo", "3"):
        for how in ("q", "^C", "TERM", "HUP"):
            s = Screen(d)
            s.wait("no screen", lambda s=s: ENTER in s.seen and b"idle: none of 1 job" in s.seen)
            check(s.changed(), "the terminal still echoes")
            if how in ("q", "^C"):
                os.write(s.main, b"q" if how == "q" else b"\x03")
            else:
                s.process.send_signal(getattr(signal, "SIG" + how))
            s.end(0)


def it_follows_the_size():
    with Daemon(*SMALL) as d, holding(d, "demo", "3"):
        s = Screen(d, rows=5, columns=20)
        s.wait_for(b"oldest request: none")
        s.wait_for(b"idle: none of 1 job \x1b[m\r\n\x1b[K")  # cut to 20 columns
        frame = s.seen.split(b"\x1b[H")[-1]
        check(frame.count(b"\r\n") <= 4, f"more than 5 lines: {frame!r}")
        check(b"demo" not in s.seen, "line 12 is drawn on a terminal of 5")
        s.resize(40, 200)
        s.wait_for(b"demo")
        os.write(s.main, b"q")
        s.end(0)


def stopped_and_continued():
    with Daemon(*SMALL) as d:
        s = Screen(d)
        s.wait_for(b"idle: no job is in memory")
        s.process.send_signal(signal.SIGTSTP)
        s.wait("it does not stop", lambda: os.waitid(
            os.P_PID, s.process.pid, os.WSTOPPED | os.WNOHANG) is not None)
        s.wait("the screen stays", lambda: s.seen.endswith(LEAVE))
        check(not s.changed(), "a stopped one keeps the terminal")
        s.process.send_signal(signal.SIGCONT)
        s.wait_for(ENTER)
        s.wait_for(b"idle")
        check(s.changed(), "it did not take the terminal again")
        os.write(s.main, b"q")
        s.end(0)


def the_daemon_dies_under_it():
    with Daemon(*SMALL) as d:
        s = Screen(d)
        s.wait_for(b"idle")
        d.stop()
        s.end(3, b"zctl: ")


def more_jobs_than_a_reply_has_room_for():
    with Daemon("--host-bytes", "64M", "--nvme-bytes", "8M", "--page-elems", "4096",
                "--ring-bytes", "64K") as d, holding(d, "many", "1", "40"):
        done = zctl(d.socket, "top", "--json", "--once", "--interval", "0.1")
        names = [job["name"] for job in json.loads(done.stdout)["jobs"]]
        check(names == [f"many-{i}" for i in range(40)], f"{names}")


def lines_and_json():
    with Daemon(*SMALL) as d, holding(d, "demo", "3"):
        for _ in range(20):  # until the daemon has nothing left to do
            done = zctl(d.socket, "top", "--count", "2", "--interval", "0.1")
            check(done.returncode == 0 and "\033" not in done.stdout, f"{done}")
            check(done.stdout.count("oldest request") == 2, done.stdout)
            if done.stdout.count("idle: none of 1 job has a request\n") == 2:
                break
        else:
            check(False, f"never idle: {done.stdout}")
        once = zctl(d.socket, "top", "--once", "--interval", "0.1", "demo").stdout
        check(once.count("oldest request") == 1 and "demo" in once, once)
        done = zctl(d.socket, "top", "--json", "--count", "3", "--interval", "0.2")
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        check(len(lines) == 3, f"{lines}")
        for line in lines:
            check(0.1 < line["interval_s"] < 10, f"{line['interval_s']} s")
            check([job["name"] for job in line["jobs"]] == ["demo"], f"{line['jobs']}")
            check(line["paths"][0]["measured_read_bytes_s"] > 0, f"{line['paths']}")
        check(zctl(d.socket, "-o", "json", "top", "--once", "--interval", "0.1").stdout[0] == "{",
              "-o json is not --json")
        refused(zctl(d.socket, "top", "nobody", "--once"), 4, "there is no job 'nobody' in memory")


if __name__ == "__main__":
    sys.exit(main({f.__name__: f for f in (
        a_screen_and_each_way_out, it_follows_the_size, stopped_and_continued,
        the_daemon_dies_under_it, more_jobs_than_a_reply_has_room_for, lines_and_json)}))
