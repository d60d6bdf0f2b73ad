#!/usr/bin/env python3
"""test_examples.py - the examples and the Python binding against a real daemon.

    ZSHARD_BUILD=build tests/integ/test_examples.py [NAME...]
"""

import ctypes
import errno
import os
import re
import signal
import subprocess
import sys
import time

from harness import BUILD, SANITIZED, Daemon, check, main

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))
import zshard  # noqa: E402  found by the line above

FLAGS = ("--host-bytes", "64M", "--nvme-bytes", "64M")


def example(name, env):
    return subprocess.run([os.path.join(BUILD, "examples", name)], env=env, text=True, timeout=60,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)


def versions(text):
    """[(version, value)] of the lines that say one."""
    return [(int(v), float(x)) for v, x in re.findall(r"^version (\d+): .* is ([\d.]+)$", text, re.M)]


def learns(name, steps):
    """Each step of 0.01 takes 0.01 from a weight of 1; afterwards nothing is left of the job."""
    with Daemon(*FLAGS) as d:
        idle = d.used()
        for _ in range(2):  # the name is free again
            done = example(name, d.env())
            check(done.returncode == 0, f"{name} ended with {done.returncode}: {done.stderr}")
            seen = versions(done.stdout)
            check([v for v, _ in seen] == list(range(steps + 1)), done.stdout)
            check(all(abs(x - (1 - 0.01 * v)) < 2e-6 for v, x in seen), done.stdout)
            check(d.zctl("jobs") == [], "the job is still there")
            check(d.used() == idle, f"{d.used()} are used, not {idle}")


def hello():
    learns("hello", 3)


def loop():
    learns("loop", 5)


def no_daemon():
    for name in ("hello", "loop"):
        done = example(name, os.environ | {"ZSHARD_SOCKET": "/tmp/zshard-no-such-socket"})
        check(done.returncode == 3, f"{name} ended with {done.returncode}")
        check("no daemon answers at '/tmp/zshard-no-such-socket'" in done.stderr, done.stderr)


def binding():
    """Through the Python package: a job is opened, which keeps an example out, seen, and closed."""
    if SANITIZED:
        print("skipped: python does not load a library with sanitizers")
        return
    lib = zshard.load(os.path.join(BUILD, "lib", "libzclient.so"))
    with Daemon(*FLAGS) as d, zshard.Client(d.socket, "binding", lib) as c:
        c.ping()
        check(c.server()["pid"] == d.process.pid, "another daemon answers")
        check([row["name"] for row in c.tiers()] == ["host", "nvme"], f"{c.tiers()}")
        check(c.stat()["clients"] == 1, f"{c.stat()}")
        health, reasons = c.health()
        check(health["errors"] == 0 and len(health["tiers"]) == 2, f"{health} {reasons}")
        check(c.metrics().endswith("# EOF\n") and "# EOF" not in c.metrics(prometheus=True), "metrics")
        check(c.jobs() == [] and c.shards() == [], "there are jobs already")
        options = zshard.zc_job_options(name=b"hello", world=2, groups=1, staging_bytes=5000)
        job = zshard.zc_job()
        c.check(lib.zc_job_open_wait(c.handle, options, job))
        check(job.staging_bytes == 8192 and job.staging, f"staging of {job.staging_bytes} bytes")
        ctypes.memset(job.staging, 1, job.staging_bytes)
        row, = c.jobs("hello")
        check(row["state"] == "defining" and row["world"] == 2 and row["attached"] == 1, f"{row}")
        done = example("hello", d.env())
        check(done.returncode != 0 and "hello" in done.stderr, done.stderr)
        called = []
        fn = zshard.DONE(lambda arg, rc: called.append(rc))
        c.check(lib.zc_job_close(c.handle, job.id, fn, None))
        while not called:
            c.check(lib.zc_poll(c.handle, 1000))
        check(called == [0] and c.jobs() == [], f"{called}, {c.jobs()}")
        try:
            c.check(lib.zc_job_destroy_wait(c.handle, b"hello"))
            check(False, "a job that is gone was destroyed")
        except zshard.Error as e:
            check(e.rc == -2 and "hello" in str(e), f"{e.rc} {e}")


def stopped():
    """A daemon that is stopped is noticed, and a handle of its own survives others that gave up."""
    if SANITIZED:
        print("python does not load a library with sanitizers")
        return
    lib = zshard.load(os.path.join(BUILD, "lib", "libzclient.so"))
    with Daemon(*FLAGS) as d, zshard.Client(d.socket, "patient", lib) as patient:
        handle = ctypes.c_void_p()
        options = zshard.zc_options(socket=d.socket.encode(), quiet_timeout_ms=300)
        patient.check(lib.zc_open(handle, options))
        d.process.send_signal(signal.SIGSTOP)
        try:
            begin = time.monotonic()
            rc = lib.zc_ping_wait(handle)
            took = time.monotonic() - begin
        finally:
            d.process.send_signal(signal.SIGCONT)
        check(rc == -errno.ETIMEDOUT and 0.3 <= took < 5, f"{rc} after {took:.2f} s")
        check(lib.zc_ping_wait(handle) == -errno.ENOTCONN, "the handle goes on")
        lib.zc_close(handle)
        patient.ping()


TESTS = {f.__name__: f for f in (hello, loop, no_daemon, binding, stopped)}

if __name__ == "__main__":
    sys.exit(main(TESTS))
