"""harness.py - a real daemon and real trainers for integration tests. Standard library only.

Everything is bounded in time, everything started is ended (by its own process id), and what a daemon
printed is shown when a test fails. ZSHARD_BUILD names the build folder.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

BUILD = os.path.abspath(os.environ.get("ZSHARD_BUILD", "build"))
SANITIZED = bool(os.environ.get("ZSHARD_SANITIZE"))
DEADLINE = 1200 if SANITIZED else 600  # the limit for any one program, in seconds
LONG = bool(os.environ.get("ZSHARD_LONG"))  # the nightly run: campaigns are longer
# How many times as long as on an idle machine things may take: tests/run.sh runs more tests at a time than there are
# processors.
PATIENCE = float(os.environ.get("ZSHARD_PATIENCE", "1"))


class Failure(Exception):
    """A test failed, and this is why."""


def program(name):
    return os.path.join(BUILD, "bin", name)


def check(condition, why):
    if not condition:
        raise Failure(why)


def wait_until(what, condition, seconds):
    """Polls until condition() is true; returns how long it took. `seconds` are those of an idle machine."""
    begin = time.monotonic()
    while not condition():
        check(time.monotonic() - begin < seconds * PATIENCE, f"{what}: not within {seconds * PATIENCE:g} s")
        time.sleep(0.01)
    return time.monotonic() - begin


class Daemon:
    """A zshardd of its own: `with Daemon("--host-bytes", "64M") as d:`. At the end it must exit with 0.
    `under`: words before the command; they must become the daemon, not start it."""

    def __init__(self, *flags, expect_exit=0, under=()):
        self.flags = flags
        self.under = under
        self.program = program("zshardd")
        self.expect_exit = expect_exit
        self.folder = tempfile.mkdtemp(prefix="zshard-test-")
        self.socket = os.path.join(self.folder, "s")
        self.data = os.path.join(self.folder, "data")
        self.log_path = os.path.join(self.folder, "log")
        self.process = None
        self.ready = ""

    def start(self):
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [*self.under, self.program, "--socket", self.socket, "--data", self.data, *self.flags],
                stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL)
        os.set_blocking(self.process.stdout.fileno(), False)
        line = b""

        def has_line():
            nonlocal line
            line += self.process.stdout.read() or b""
            return b"\n" in line or self.process.poll() is not None

        wait_until("the daemon's ready line", has_line, 30)
        check(line.startswith(b"ready "), f"the daemon did not start: {line!r}\n{self.log()}")
        self.ready = line.decode().strip()
        return self

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as f:
            return f.read()

    def stop(self):
        """SIGTERM; the exit status."""
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def kill(self):
        self.process.kill()
        self.process.wait(30)
        self.expect_exit = -signal.SIGKILL

    def again(self):
        """The daemon that was killed, on what it left."""
        self.expect_exit = 0
        return self.start()

    def env(self, **more):
        return os.environ | {"ZSHARD_SOCKET": self.socket} | more

    def zctl(self, *words):
        """The rows of a zctl command."""
        done = subprocess.run([program("zctl"), "-o", "json", *words], env=self.env(), text=True,
                              capture_output=True, timeout=150, stdin=subprocess.DEVNULL, check=False)
        check(done.returncode == 0, f"zctl {words} ended with {done.returncode}: {done.stderr}")
        return json.loads(done.stdout)["rows"]

    def used(self):
        """Bytes in use by tier."""
        return {row["name"]: row["used"] for row in self.zctl("tiers")}

    def __enter__(self):
        try:
            return self.start()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise

    def __exit__(self, kind, value, trace):
        status = None
        if self.process:
            status = self.stop() if self.process.poll() is None else self.process.returncode
        log = self.log() if os.path.exists(self.log_path) else ""
        shutil.rmtree(self.folder, ignore_errors=True)
        if kind is not None:
            print(f"the daemon's log ({' '.join(self.flags)}):\n{log}", file=sys.stderr)
        elif "Sanitizer" in log or status != self.expect_exit:
            raise Failure(f"the daemon ended with {status}, not {self.expect_exit}:\n{log}")
        return False


MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
if os.environ.get("ZSHARD_SANITIZE") == "address":  # Open MPI leaks, and its plugins are unloaded by then
    MPIRUN += ["-x", "ASAN_OPTIONS=detect_leaks=0"]


def mpi_env():
    # ranks share the processors: a waiting rank must yield
    return {"OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_btl_base_warn_component_unused": "0"}


def ranks_command(ranks, command):
    return MPIRUN + ["-n", str(ranks)] + command if ranks > 1 else command


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def processor_seconds():
    """What this process and the processes that it waited for have used."""
    return sum(os.times()[:4])


def main(tests):
    """Runs the functions whose names are given on the command line, or all; the exit status."""
    names = sys.argv[1:] or list(tests)
    failed = 0
    for name in names:
        begin, used = time.monotonic(), processor_seconds()
        try:
            tests[name]()
            print(f"ok    {name} ({time.monotonic() - begin:.1f} s, of processors {processor_seconds() - used:.1f} s)",
                  flush=True)
        except (Failure, subprocess.SubprocessError, OSError) as error:
            failed += 1
            print(f"FAIL  {name}: {error}", flush=True)
    print(f"{len(names) - failed} passed, {failed} failed")
    return 1 if failed else 0
