#!/usr/bin/env python3
"""test_start.py - starts of zshardd that are refused, each with its exit status, its message and no
damage; and those that must work: anybody's, without a configuration; without O_DIRECT; after a crash.

    ZSHARD_BUILD=build tests/integ/test_start.py [NAME...]
"""
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time

from harness import Daemon, check, main, program, wait_until

FAILED, USAGE, IN_USE, NO_GPU, NOT_OURS, DAMAGED = 1, 2, 3, 4, 5, 6
NOBODY = {"user": 65534, "group": 65534, "extra_groups": []}


def start(*flags, env=None, **more):
    """A start that is expected to end by itself."""
    return subprocess.run([program("zshardd"), *flags], text=True, capture_output=True, timeout=150,
                          check=False, env=env, **more)


def refused(done, status, *parts):
    check(done.returncode == status, f"wanted {status}: {done}")
    check(done.stdout == "", f"it said that it was ready: {done}")
    for part in parts:
        check(part in done.stderr, f"'{part}' is not in {done.stderr!r}")
    check("Sanitizer" not in done.stderr, done.stderr)


@contextlib.contextmanager
def folder():
    path = tempfile.mkdtemp(prefix="zshard-start-")
    try:
        yield path
    finally:
        shutil.rmtree(path)


def files(path):
    return sorted(os.path.join(where, name) for where, _, names in os.walk(path) for name in names)


def in_(path, *flags):
    """The flags of a daemon whose socket and data lie in this folder."""
    return ("--socket", os.path.join(path, "s"), "--data", os.path.join(path, "data"),
            "--host-bytes", "8M", "--nvme-bytes", "8M", *flags)


@contextlib.contextmanager
def mounted(path, options):
    """A small tmpfs; None where we may not mount."""
    os.mkdir(path)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", path], check=False,
                          capture_output=True)
    try:
        yield path if done.returncode == 0 else None
    finally:
        if done.returncode == 0:
            subprocess.run(["umount", path], check=True)


# ---- the configuration

CONFIGS = [
    # name, the file, parts of the error message
    ("an unknown key", "host_bytes = 4M\nhostbytes = 4M\n", ":2: ", "'hostbytes'"),
    ("a size without a number", "host_bytes = lots\n", ":1: host_bytes", "'lots'"),
    ("a unit that is none", "host_bytes = 4X\n", ":1: host_bytes", "'4X'"),
    ("a size that is too small", "\n\nnvme_bytes = 4K\n", ":3: nvme_bytes", "1M to 1P"),
    ("a size that is too large", "host_bytes = 9999P\n", ":1: host_bytes", "not 9999P"),
    ("a negative size", "host_bytes = -4M\n", ":1: host_bytes", "'-4M'"),
    ("a word that is none of them", "io = quick\n", ":1: io", "auto, uring, threads or fixed"),
    ("a number with a unit", "threads = 2K\n", ":1: threads", "'2K'"),
    ("pages of no whole blocks", "page_elems = 5000\n", ":1: page_elems", "4096"),
    ("a level that is none", "log_level = loud\n", ":1: log_level", "error, warn, info or debug"),
    ("a CPU list that is none", "cpus = 3-1\n", ":1: cpus", "3-1"),
    ("kernels that are none", "kernels = sse9\n", ":1: kernels", "'sse9'"),
    ("a group that is none", "socket_group = nobodyatall\n", ":1: socket_group", "nobodyatall"),
    ("a socket that is too long", f"socket = /{'x' * 200}\n", ":1: socket", "107"),
    ("a key twice", "threads = 1\nio = auto\nthreads = 2\n", ":3: threads", "line 1"),
    ("no value", "threads =\n", ":", ""),
    ("no sense at all", "}{ ?\n", ":1: ", ""),
]


def configuration():
    with folder() as f:
        path = os.path.join(f, "zshardd.conf")
        for name, text, where, part in CONFIGS:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            for more in (["--check-config"], []):
                done = start("--config", path, *more)
                check(done.returncode == USAGE and path + where in done.stderr and part in done.stderr,
                      f"{name}: {done}")
                check(done.stderr.count("\n") == 1 and done.stdout == "", f"{name}: {done}")
            check(files(f) == [path], f"{name}: {files(f)}")
        with open(path, "w", encoding="utf-8") as file:
            file.write("host_bytes = 1.5G # fine\nthreads = 2\n")
        done = start("--config", path, "--check-config")
        check(done.returncode == 0 and "fine" in done.stdout, f"{done}")
        done = start("--config", path, "--check-config", "--threads", "0x2")
        refused(done, USAGE, "--threads")
        refused(start("--config", os.path.join(f, "none")), USAGE, "No such file")
        refused(start("--config", f), USAGE, f)
    installed = os.path.join(os.path.dirname(__file__), "..", "..", "deploy", "zshardd.conf")
    done = start("--config", installed, "--check-config")
    check(done.returncode == 0, f"the installed example: {done}")


def command_line():
    for flags, part in ((["--nothing"], "--nothing"), (["word"], "word"), (["--socket"], "--socket"),
                        (["--io", "quick"], "'quick'"), (["--host-bytes", "1K"], "1M to 1P"),
                        (["--socket", "/" + "x" * 120], "107")):
        refused(start(*flags), USAGE, part)
    done = start("--help")
    check(done.returncode == 0 and "--host-bytes" in done.stdout and not done.stderr, f"{done}")
    check(start("--version").returncode == 0, "--version")


# ---- how clients find the daemon

FOUND = """
set -e
mount -t tmpfs none /run
mkdir /run/zshard
zctl="$1/zctl" zshardd="$1/zshardd"
unset ZSHARD_SOCKET
export XDG_RUNTIME_DIR="$2/session"
mkdir "$XDG_RUNTIME_DIR"
start() { "$zshardd" "$@" --host-bytes 8M --nvme-bytes 8M 2>/dev/null >&2 & }

set +e
"$zctl" ping 2>"$2/said"; echo "none $?"
cat "$2/said"
set -e
start --socket /run/zshard/zshard.sock --data "$2/service"; service=$!
"$zctl" --wait 10 ping >/dev/null; echo "service $?"
env -u XDG_RUNTIME_DIR "$zctl" ping >/dev/null; echo "without a session $?"
start --data "$2/own"; own=$!
"$zctl" --socket "$XDG_RUNTIME_DIR/zshard.sock" --wait 10 ping >/dev/null
"$zctl" --json ping | grep -o '"pid": [0-9]*' | grep -qw "$own"; echo "own first $?"
kill "$own"; wait "$own"
"$zctl" --json ping | grep -o '"pid": [0-9]*' | grep -qw "$service"; echo "service again $?"
kill "$service"; wait "$service"
"""


def found():
    """A session finds the machine's service, and its own daemon first. The error names both places."""
    if os.geteuid() != 0:
        print("skipped: only root can mount a /run of its own")
        return
    with folder() as f:
        done = subprocess.run(["unshare", "--mount", "bash", "-c", FOUND, "-", os.path.dirname(program("zctl")), f],
                              text=True, capture_output=True, timeout=60, check=False)
        if done.returncode == 1 and "unshare failed" in done.stderr:
            print("skipped: no mount namespace can be made here")
            return
        said = done.stdout.splitlines()
        check(said[:1] + said[2:] == ["none 3", "service 0", "without a session 0", "own first 0", "service again 0"],
              f"{done}")
        for path in (f"'{f}/session/zshard.sock'", "'/run/zshard/zshard.sock'"):
            check(path in said[1], f"{path} is not in: {said[1]}")


def wait_for_it():
    """A client that is told to wait finds a daemon that starts after it, each time."""
    with folder() as f:
        path = os.path.join(f, "s")
        begun = time.monotonic()
        done = subprocess.run([program("zctl"), "--socket", path, "--wait", "0.3", "ping"], text=True,
                              capture_output=True, timeout=60, check=False)
        check(done.returncode == 3 and path in done.stderr, f"{done}")
        check(0.3 <= time.monotonic() - begun < 10, "it waited as long as it was told")
        for i in range(20):
            client = subprocess.Popen([program("zctl"), "--socket", path, "--wait", "30", "ping"],
                                      stdout=subprocess.DEVNULL)
            with subprocess.Popen([program("zshardd"), *in_(f)], stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL) as daemon:
                status = client.wait(60)
                daemon.terminate()
            check(status == 0, f"start {i}: zctl --wait 30 ping ended with {status}")


# ---- a data directory that others can write to, and damaged ones

def replaced(path, make):
    os.remove(path)
    make(path)


def written(path, at, data):
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


DAMAGE = [
    # the change of the directory, what --fsck says
    ("the data file is gone", lambda d: os.remove(d + "/pages.zsd"), "pages.zsd is missing"),
    ("the catalog is gone", lambda d: os.remove(d + "/catalog.zsd"), "catalog.zsd is missing"),
    ("another file", lambda d: written(d + "/pages.zsd", 0, b"text"), "is not a zshard data file"),
    ("cut short", lambda d: os.truncate(d + "/pages.zsd", 8192), "was truncated"),
    ("empty", lambda d: os.truncate(d + "/pages.zsd", 0), "is blank"),
    ("a directory", lambda d: replaced(d + "/pages.zsd", os.mkdir), "is neither a regular file"),
    ("a FIFO", lambda d: replaced(d + "/pages.zsd", os.mkfifo), "neither a regular file nor"),
    ("a catalog that is a directory", lambda d: replaced(d + "/catalog.zsd", os.mkdir), "is not a regular file"),
    ("a catalog that is a FIFO", lambda d: replaced(d + "/catalog.zsd", os.mkfifo), "is not a regular file"),
    ("a catalog that is none", lambda d: written(d + "/catalog.zsd", 0, b"x" * 4096), "it is damaged"),
]


def damage():
    with folder() as f:
        with Daemon("--host-bytes", "8M", "--nvme-bytes", "8M") as d:
            d.stop()
            good = os.path.join(f, "good")
            shutil.copytree(d.data, good)
        done = start("--fsck", "--data", good)
        check(done.returncode == 0, f"{done}")
        for name, break_it, says in DAMAGE:
            bad = os.path.join(f, name.replace(" ", "-"))
            shutil.copytree(good, bad)
            break_it(bad)
            done = start("--fsck", "--data", bad)
            check(done.returncode == DAMAGED and says in done.stderr, f"{name}: {done}")
            shutil.rmtree(bad)
        os.mkdir(os.path.join(f, "empty"))
        refused(start("--fsck", "--data", os.path.join(f, "empty")), FAILED, "no daemon has saved anything there")
        for name in ("pages.zsd", "catalog.zsd"):
            bad = os.path.join(f, "link")
            shutil.copytree(good, bad)
            replaced(os.path.join(bad, name), lambda path, name=name: os.symlink(os.path.join(good, name), path))
            refused(start("--fsck", "--data", bad), NOT_OURS, "is a symbolic link, which is not followed")
            refused(start(*in_(f, "--data", bad)), NOT_OURS, "is a symbolic link, which is not followed")
            shutil.rmtree(bad)


def not_ours():
    with folder() as f:
        data = os.path.join(f, "data")
        os.mkdir(data)
        os.chmod(data, 0o777)
        refused(start(*in_(f)), NOT_OURS, "has mode 0777", f"chmod go-w '{data}'")
        check(files(f) == [os.path.join(f, "s.lock")] or not files(f), f"{files(f)}")
        if os.geteuid() == 0:
            os.chmod(data, 0o700)
            os.chown(data, NOBODY["user"], NOBODY["group"])
            refused(start(*in_(f)), NOT_OURS, "belongs to user 65534", f"chown 0 '{data}'")
            done = start("--fsck", "--data", data)  # it only reads, so it may
            refused(done, FAILED, "no daemon has saved anything there")


# ---- the socket

def sockets():
    with folder() as f:
        refused(start(*in_(f, "--socket", os.path.join(f, "none", "s"))), FAILED,
                "its directory does not exist")
        plain = os.path.join(f, "plain")
        with open(plain, "w", encoding="utf-8") as file:
            file.write("mine")
        refused(start(*in_(f, "--socket", plain)), FAILED, "is not a socket: remove it")
        with open(plain, encoding="utf-8") as file:
            check(file.read() == "mine", "a file that is not a socket was changed")
        with socket.socket(socket.AF_UNIX) as other: # of another program
            path = os.path.join(f, "other")
            other.bind(path)
            other.listen()
            refused(start(*in_(f, "--socket", path)), IN_USE, "in use by another program")
            check(os.path.exists(path), "another program's socket was removed")


def two_daemons():
    with Daemon("--host-bytes", "8M", "--nvme-bytes", "8M") as d, folder() as f:
        refused(start(*in_(f, "--socket", d.socket)), IN_USE, "in use by another daemon", d.socket)
        refused(start(*in_(f, "--data", d.data)), IN_USE, "in use by another daemon", d.data)
        check(d.zctl("ping")[0]["pid"] == d.process.pid, "the first one serves on")


def after_a_crash():
    flags = ("--host-bytes", "8M", "--nvme-bytes", "8M")
    d = Daemon(*flags)
    try:
        for _ in range(3):
            d.start()
            check(os.path.exists(d.socket), "no socket")
            d.kill()
        check(os.path.exists(d.socket), "kill -9 leaves the socket's file")
        d.start()
        d.expect_exit = 0
        check(len(d.zctl("ping")) == 1, "it serves")
    finally:
        d.__exit__(*sys.exc_info())


# ---- the data directory

def data_directory():
    with folder() as f:
        plain = os.path.join(f, "plain")
        with open(plain, "w", encoding="utf-8") as file:
            file.write("mine")
        refused(start(*in_(f, "--data", plain)), FAILED, plain, "Not a directory")
        refused(start(*in_(f, "--data", os.path.join(f, "none", "data"))), FAILED,
                "there is no directory to make it in")
        if os.geteuid() == 0: # permissions do not apply to root
            os.chmod(f, 0o755)
            private = os.path.join(f, "private")
            os.mkdir(private, 0o755)
            with folder() as run:
                os.chmod(run, 0o777)
                refused(start(*in_(run, "--data", private), **NOBODY), FAILED, private,
                        "may not write there; is its drive mounted?")
                refused(start(*in_(run, "--data", os.path.join(private, "data")), **NOBODY), FAILED, private,
                        "does not exist, and user 65534 may not make it: is its drive mounted?")
        check(files(f) == [plain], f"{files(f)}")


def a_file_that_is_not_ours():
    with folder() as f:
        data = os.path.join(f, "data")
        os.mkdir(data)
        path = os.path.join(data, "pages.zsd")
        for what in (os.urandom(1 << 20), b"short", b"\0" * 4096 + b"something"):
            with open(path, "wb") as file:
                file.write(what)
            refused(start(*in_(f)), FAILED, path)
            with open(path, "rb") as file:
                check(file.read() == what, "a file that is not ours was changed")
        os.remove(path)
        os.mkdir(path)
        refused(start(*in_(f)), FAILED, path)


def a_file_of_another_size():
    d = Daemon("--host-bytes", "8M", "--nvme-bytes", "8M")
    with d:
        path = os.path.join(d.data, "pages.zsd")
        check(os.path.getsize(path) == 8 << 20, "the data file has the size that was asked for")
        d.stop()
        with folder() as f:
            smaller = in_(f, "--data", d.data, "--nvme-bytes", "4M")
            refused(start(*smaller), FAILED, "8.00 MiB", "never cut")
            check(os.path.getsize(path) == 8 << 20, "a data file was cut")
        d.flags = ("--host-bytes", "8M", "--nvme-bytes", "16M") # it grows
        d.start()
        check(os.path.getsize(path) == 16 << 20, "the data file did not grow")


def a_full_file_system():
    if os.geteuid() != 0:
        print("skipped: a_full_file_system needs root, to mount one")
        return
    with folder() as f, mounted(os.path.join(f, "m"), "size=6m,mode=700") as m:
        if not m:
            print("skipped: a_full_file_system may not mount here")
            return
        refused(start(*in_(f, "--data", m)), FAILED, "no room for 8.00 MiB", "6.00 MiB free")
        with open(os.path.join(m, "fill"), "wb") as file:
            file.write(bytes(5 << 20))
        refused(start(*in_(f, "--data", m, "--nvme-bytes", "auto")), FAILED, "is full")
        path = os.path.join(m, "pages.zsd") # nothing that takes up room is left
        check(not os.path.exists(path) or os.path.getsize(path) == 0, "a data file was left behind")
        with Daemon("--host-bytes", "8M", "--nvme-bytes", "0") as d: # without that tier
            check(d.zctl("tiers")[1]["budget"] == 0, "there is no NVMe tier")


def a_read_only_file_system():
    if os.geteuid() != 0:
        print("skipped: a_read_only_file_system needs root, to mount one")
        return
    with folder() as f, mounted(os.path.join(f, "m"), "size=16m,mode=700") as m:
        if not m:
            print("skipped: a_read_only_file_system may not mount here")
            return
        subprocess.run(["mount", "-o", "remount,ro", m], check=True)
        refused(start(*in_(f, "--data", m)), FAILED, "mounted read-only")
        refused(start(*in_(f, "--data", os.path.join(m, "new"))), FAILED, "mounted read-only")


def without_o_direct():
    """Buffered, and everybody is told."""
    if not os.path.isdir("/dev/shm"):
        print("skipped: without_o_direct has no /dev/shm")
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as data:
        for io in ("uring", "threads"):
            with Daemon("--host-bytes", "8M", "--nvme-bytes", "8M", "--io", io, "--data", data) as d:
                check(f"io={io}" in d.ready, d.ready)
                check("io-buffered" in d.log(), "the log does not say so")
                check("buffered" in d.zctl("tiers")[1]["detail"], f"{d.zctl('tiers')}")


# ---- what must work

def anybody_without_a_configuration():
    """As any user, a daemon without options serves a socket in $XDG_RUNTIME_DIR, and leaves nothing. It takes half of
    the free space of the file system: a small one, not that of the tests beside this one."""
    who = NOBODY if os.geteuid() == 0 else {}
    with folder() as f, mounted(os.path.join(f, "tmp"), "size=64m,mode=1777") as tmp:
        if not tmp:
            print("skipped: anybody_without_a_configuration may not mount a small file system here")
            return
        run = os.path.join(f, "run")
        os.mkdir(run)
        os.chmod(run, 0o777)
        os.chmod(f, 0o755)
        env = {"XDG_RUNTIME_DIR": run, "TMPDIR": tmp, "PATH": os.environ["PATH"]}
        with subprocess.Popen([program("zshardd")], env=env, stdout=subprocess.PIPE, text=True,
                              stderr=subprocess.PIPE, **who) as daemon:
            line = daemon.stdout.readline()
            path = os.path.join(run, "zshard.sock")
            done = None
            if line.startswith("ready "):
                done = subprocess.run([program("zctl"), "-o", "json", "tiers"], env=env, check=False, **who, text=True,
                                      capture_output=True, timeout=150)
            daemon.terminate()
            _, log = daemon.communicate(timeout=150)
        check(line.startswith(f"ready socket={path} "), f"{line!r} {log}")
        check(done.returncode == 0, f"{done}")
        tiers = {row["name"]: row["budget"] for row in json.loads(done.stdout)["rows"]}
        check(16 << 20 <= tiers["nvme"] < 64 << 20, f"of 64 MiB: {tiers}")
        check(daemon.returncode == 0, f"it ended with {daemon.returncode}: {log}")
        check(files(f) == [] and os.listdir(tmp) == [], f"left behind: {files(f)} {os.listdir(tmp)}")


def either_engine():
    for io in ("uring", "threads", "auto"):
        with Daemon("--host-bytes", "8M", "--nvme-bytes", "8M", "--io", io) as d:
            if io != "auto":
                check(f"io={io}" in d.ready, d.ready)
            check(f"io {io}" in d.zctl("tiers")[1]["detail"] or io == "auto", f"{d.zctl('tiers')}")


def a_gpu():
    """One that is not there is said so; the emulated one serves, as far as it goes."""
    with folder() as f:
        done = start(*in_(f, "--gpu-bytes", "1G", "--gpu", "cuda:99"))
        refused(done, NO_GPU, "no GPU: ")
        done = start(*in_(f, "--gpu-bytes", "1G"), env={**os.environ, "ZSHARD_PLUGINS": f})
        refused(done, NO_GPU, f"no GPU: '{f}/zk_cuda.so' does not exist (ZSHARD_PLUGINS)")
        refused(start(*in_(f, "--gpu-bytes", "1G", "--gpu", "gpu")), FAILED, "unknown GPU 'gpu'")
        refused(start(*in_(f, "--gpu-bytes", "32M", "--gpu", "emulated:16M")), FAILED,
                "gpu_bytes 32.0 MiB: ", "has 16.0 MiB")
        refused(start(*in_(f, "--gpu-bytes", "2M", "--gpu", "emulated:16M")), FAILED, "page_elems")
        refused(start(*in_(f, "--gpu-bytes", "16M,2M,16M", "--gpus", "emulated*3:16M")), FAILED,
                "gpu_bytes 2.00 MiB leave no room")
        refused(start(*in_(f, "--gpu-bytes", "16M,8M", "--gpus", "emulated*3:16M")), USAGE,
                "gpu_bytes has 2 sizes, and there are 3 GPUs (gpus = emulated*3:16M): give one size, or one for each")
    with Daemon("--host-bytes", "16M", "--nvme-bytes", "8M", "--gpu", "emulated:64M", "--gpu-bytes",
                "32M") as d:
        gpu = d.zctl("tiers")[2]
        check(gpu["name"] == "gpu" and gpu["budget"] == gpu["target"] == 32 << 20, f"{gpu}")
        check(gpu["used"] == gpu["rings"] > 0 and gpu["stranded"] == 0 and gpu["stranded_by"] == "",
              f"{gpu}")
        check(gpu["device_free"] == (64 << 20) - gpu["used"], f"{gpu}")


def alone():
    """The program without anything else of zshard's: it serves, and says what it lacks for a GPU."""
    without = {name: value for name, value in os.environ.items() if name != "ZSHARD_PLUGINS"}
    with folder() as f:
        f = os.path.realpath(f)
        shutil.copy(program("zshardd"), f)
        for name, env in ((os.path.join(f, "zshardd"), without), ("zshardd", {**without, "PATH": f})):
            for flags, status, says in ((("--check-config",), 0, ""),
                                        (("--gpu-bytes", "1G"), NO_GPU,
                                         f"no GPU: no 'zk_cuda.so' in '{f}/zshard' or beside")):
                done = subprocess.run([name, *in_(f, *flags)], text=True, capture_output=True, timeout=150,
                                      check=False, env=env)
                check(done.returncode == status and says in done.stderr, f"{name}: {done}")


def signals_end_it():
    for name in ("SIGTERM", "SIGINT", "SIGHUP"):
        with Daemon("--host-bytes", "8M", "--nvme-bytes", "8M") as d:
            subprocess.run(["kill", f"-{name[3:]}", str(d.process.pid)], check=True)
            wait_until("the end", lambda d=d: d.process.poll() is not None, 5)
            check(d.process.returncode == 0, f"{name}: {d.process.returncode}")
            check(not os.path.exists(d.socket), f"{name}: the socket is still there")
            check(files(d.folder) == sorted([os.path.join(d.data, "catalog.zsd"),
                                             os.path.join(d.data, "catalog.zsd-wal"),
                                             os.path.join(d.data, "pages.zsd"), d.log_path]),
                  f"{name}: {files(d.folder)}")


if __name__ == "__main__":
    sys.exit(main({f.__name__: f for f in (
        configuration, command_line, found, wait_for_it, damage, not_ours, sockets, two_daemons, after_a_crash, data_directory,
        a_file_that_is_not_ours, a_file_of_another_size, a_full_file_system,
        a_read_only_file_system, without_o_direct, anybody_without_a_configuration, either_engine, a_gpu,
        alone, signals_end_it)}))
