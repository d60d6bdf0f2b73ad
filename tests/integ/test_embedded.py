#!/usr/bin/env python3
"""test_embedded.py - zshardd --embedded: what it says when it is ready or refuses to start, its lock, and when it ends
by itself.

    ZSHARD_BUILD=build tests/integ/test_embedded.py [NAME...]
"""
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from harness import BUILD, check, main, program, wait_until

FAILED, USAGE, IN_USE, NO_GPU = 1, 2, 3, 4


@contextlib.contextmanager
def folder():
    path = tempfile.mkdtemp(prefix="zshard-embedded-")
    try:
        yield path
    finally:
        shutil.rmtree(path)


class Embedded:
    """A daemon as a trainer starts it: a session of its own, a log, a pipe for its line."""

    def __init__(self, path, *flags, data=None, sock=None):
        self.socket = sock or os.path.join(path, "s")
        self.data = data or os.path.join(path, "data")
        self.log_path = os.path.join(path, f"log{len(os.listdir(path))}")
        ours, its = os.pipe()
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [program("zshardd"), "--embedded", "--ready-fd", str(its), "--socket", self.socket, "--data", self.data,
                 "--host-bytes", "16M", "--nvme-bytes", "16M", *flags],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[its], start_new_session=True)
        os.close(its)
        with open(ours, encoding="utf-8") as pipe:
            line = pipe.read()  # to the end: the daemon closes it
        check(line.endswith("\n") and line.count("\n") == 1, f"it said {line!r}: {self.log()}")
        self.said = json.loads(line)

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as f:
            return f.read()

    def refused(self, status, *parts):
        self.process.wait(60)
        check(self.process.returncode == status, f"wanted {status}: {self.process.returncode}, {self.said} {self.log()}")
        check(self.said["ready"] is False and self.said["status"] == status, f"{self.said}")
        for part in parts:
            check(part in self.said["error"], f"'{part}' is not in {self.said}")
        # The log has the same text, unless it is shortened.
        check(self.said["error"][:40].replace('"', "") in self.log().replace("\\", "").replace('"', ""),
              f"{self.said} is not in the log: {self.log()}")

    def zctl(self, *words):
        return subprocess.run([program("zctl"), "-o", "json", *words], env=os.environ | {"ZSHARD_SOCKET": self.socket},
                              text=True, capture_output=True, timeout=150, check=False)

    def ended(self, seconds=60):
        wait_until("the end", lambda: self.process.poll() is not None, seconds)
        check(self.process.returncode == 0, f"it ended with {self.process.returncode}: {self.log()}")
        check(not os.path.exists(self.socket) and not os.path.exists(self.socket + ".lock"), "its socket is still there")
        return self.log()


def ready():
    with folder() as f:
        d = Embedded(f, "--linger", "0")
        try:
            check(d.said == {"ready": True, "socket": d.socket, "data": os.path.realpath(d.data), "pid": d.process.pid,
                             "host_bytes": 16 << 20, "nvme_bytes": 16 << 20}, f"{d.said}")
            check(d.zctl("ping").returncode == 0, "it serves")
            check("unused" in d.ended(), d.log())  # zctl was its last client
            check("ready " not in d.log(), "it speaks on its standard output")
        finally:
            d.process.kill()
            d.process.wait(30)


def standard_output():
    """Without --ready-fd the line goes there, and nobody who reads to the end has to wait."""
    with folder() as f:
        with subprocess.Popen([program("zshardd"), "--embedded", "--socket", os.path.join(f, 's"\\\u00e4'), "--data",
                               os.path.join(f, "data"), "--host-bytes", "16M", "--nvme-bytes", "0"],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            try:
                said = json.loads(process.stdout.read())
                check(said["ready"] and said["socket"] == os.path.join(f, 's"\\\u00e4'), f"{said}")
                process.send_signal(signal.SIGHUP)
                check(process.wait(30) == 0, "SIGHUP ends it")
            finally:
                process.kill()


def refused():
    with folder() as f:
        Embedded(f, "--host-bytes", "1K").refused(USAGE, "--host-bytes", "1M to 1P")
        Embedded(f, "--nothing").refused(USAGE, "--nothing")
        Embedded(f, sock="/" + "x" * 120).refused(USAGE, "107")
        Embedded(f, sock=os.path.join(f, "none", "s")).refused(FAILED, "its directory does not exist")
        Embedded(f, data=os.path.join(f, "none", "data")).refused(FAILED, "there is no directory to make it in")
        Embedded(f, "--nvme-bytes", "1P").refused(FAILED, "1.00 PiB")
        Embedded(f, "--gpu-bytes", "1G", "--gpu", "cuda:99").refused(NO_GPU, "no GPU: ")
        plain = os.path.join(f, "plain \u00e4\n\udcff")  # bytes that are not text are shown as text
        with open(plain, "w", encoding="utf-8") as file:
            file.write("mine")
        Embedded(f, data=plain).refused(FAILED, "Not a directory", "\u00e4")
    for flags, part in ((("--linger", "3"), "--linger is an option of --embedded"),
                        (("--ready-fd", "1"), "--ready-fd is an option of --embedded"),
                        (("--embedded",), "--embedded needs --socket"),
                        (("--embedded", "--socket", "/tmp/none", "--ready-fd", "77"), "--ready-fd 77: Bad file")):
        done = subprocess.run([program("zshardd"), *flags], text=True, capture_output=True, timeout=60, check=False)
        check(done.returncode == USAGE and part in done.stderr, f"{flags}: {done}")


def a_full_file_system():
    if os.geteuid() != 0:
        print("skipped: a_full_file_system needs root, to mount one")
        return
    with folder() as f:
        m = os.path.join(f, "m")
        os.mkdir(m)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m,mode=700", "none", m], check=False, capture_output=True)
        if done.returncode != 0:
            print("skipped: a_full_file_system may not mount here")
            return
        try:
            Embedded(f, data=m).refused(FAILED, "no room for 16.0 MiB")
        finally:
            subprocess.run(["umount", m], check=True)


def two_of_them():
    """Started together: one serves, the other says so, however often."""
    with folder() as f:
        first = Embedded(f)
        try:
            check(first.said["ready"], f"{first.said}")
            Embedded(f).refused(IN_USE, "in use by another daemon")
            Embedded(f, data=os.path.join(f, "data2")).refused(IN_USE, "in use by another daemon", first.socket)
            Embedded(f, sock=os.path.join(f, "s2")).refused(IN_USE, "in use by another daemon", first.data)
            check(json.loads(first.zctl("ping").stdout)["rows"][0]["pid"] == first.process.pid, "the first one serves on")
        finally:
            first.process.kill()
            first.process.wait(30)
        again = Embedded(f, "--linger", "0")  # after a crash
        try:
            check(again.said["ready"], f"{again.said}")
            check(again.zctl("ping").returncode == 0, "it serves")
            again.ended()
        finally:
            again.process.kill()
            again.process.wait(30)


def hold(d, *words):
    """tests/integ/hold.c, until its standard input ends."""
    return subprocess.Popen([os.path.join(BUILD, "tests", "hold"), d.socket, *words], stdin=subprocess.PIPE, text=True,
                            stdout=subprocess.PIPE)


def a_client_stays():
    """It does not end while a client is there."""
    with folder() as f:
        d = Embedded(f, "--linger", "0")
        try:
            with hold(d, "job", "1") as client:
                check(client.stdout.readline() == "held\n", "the client is there")
                time.sleep(1)
                check(d.process.poll() is None, f"it ended under a client: {d.log()}")
            check("kept_jobs=0" in d.ended(), d.log())
            check(not os.listdir(d.data), f"no job is saved, and it left {os.listdir(d.data)}")
        finally:
            d.process.kill()
            d.process.wait(30)


def a_kept_job_stays():
    """With one in memory it waits longer; who comes in time finds it."""
    with folder() as f:
        d = Embedded(f, "--linger", "0", "--linger-kept", "3")
        try:
            with hold(d, "job", "1", "1") as client:
                check(client.wait(60) == 0, "a job is kept")
            for _ in range(2):
                time.sleep(1)
                rows = json.loads(d.zctl("jobs").stdout)["rows"]
                check([row["name"] for row in rows] == ["job-0"], f"{rows}")
            begin = time.monotonic()
            check("kept_jobs=1" in d.ended(), d.log())
            check(time.monotonic() - begin >= 2.5, "a kept job was given up at once")
        finally:
            d.process.kill()
            d.process.wait(30)


def saved_jobs_stay():
    """The data file goes with the daemon, unless a job is saved in it."""
    with folder() as f:
        for again in (False, True):
            d = Embedded(f, "--linger", "0", "--linger-kept", "0")
            try:
                if not again:
                    with hold(d, "job", "1", "1", "durable") as client:
                        check(client.wait(60) == 0, "a job is kept")
                else:
                    rows = json.loads(d.zctl("jobs").stdout)["rows"]
                    check([row["name"] for row in rows] == ["job-0"], f"{rows}")
                d.ended()
                check("pages.zsd" in os.listdir(d.data), f"a job was saved, and it left {os.listdir(d.data)}")
            finally:
                d.process.kill()
                d.process.wait(30)


if __name__ == "__main__":
    sys.exit(main({f.__name__: f for f in (ready, standard_output, refused, a_full_file_system, two_of_them,
                                            a_client_stays, a_kept_job_stays, saved_jobs_stay)}))
