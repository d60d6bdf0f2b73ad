#!/usr/bin/env python3
"""test_drives.py - data files on several drives: one is missing, lost or retired.

    ZSHARD_BUILD=build tests/integ/test_drives.py [NAME...]
"""
import contextlib
import ctypes
import hashlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile

from harness import LONG, check, main, program, skip, wait_until
from test_files import model, read, write

FLAGS = ("--host-bytes", "16M", "--nvme-bytes", "32M", "--page-elems", "8192", "--ring-bytes", "1M",
         "--io", "threads")


class Drives:
    """Directories 1, 2, 3 stand for drives; the first one has the catalog."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="zshard-drives-")
        self.process = None

    def dir(self, n):
        return os.path.join(self.folder, str(n))

    def words(self, paths, *more, flags=FLAGS):
        return [program("zshardd"), "--socket", os.path.join(self.folder, "s"), "--data", self.dir(1),
                *(("--paths", ":".join(self.dir(n) for n in paths)) if paths else ()), *flags, *more]

    def run(self, paths, *more, status=0, flags=FLAGS):
        """A command that ends by itself; what it printed."""
        done = subprocess.run(self.words(paths, *more, flags=flags), text=True, capture_output=True, timeout=120,
                              check=False)
        check(done.returncode == status, f"status {done.returncode}, not {status}: {done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def start(self, paths, *more, flags=FLAGS):
        log = open(os.path.join(self.folder, "log"), "ab")
        self.process = subprocess.Popen(self.words(paths, *more, flags=flags), stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        log.close()
        wait_until("the daemon", lambda: self.process.poll() is not None or self.ask("ping").returncode == 0, 30)
        check(self.process.poll() is None, "it did not start: " + self.log())

    def log(self):
        with open(os.path.join(self.folder, "log"), encoding="utf-8", errors="replace") as f:
            return f.read()

    def stop(self):
        self.process.terminate()
        check(self.process.wait(60) == 0, "the end: " + self.log())
        self.process = None

    def ask(self, *words):
        return subprocess.run([program("zctl"), *words], env=os.environ | {"ZSHARD_SOCKET": self.folder + "/s"},
                              text=True, capture_output=True, timeout=120, stdin=subprocess.DEVNULL, check=False)

    def zctl(self, *words, status=0):
        done = self.ask(*words)
        check(status is None or done.returncode == status, f"zctl {words} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def save(self, *names):
        """Imports a job for each name."""
        for seed, name in enumerate(names):
            source = os.path.join(self.folder, name + ".in")
            write(source, *model(seed))
            self.zctl("import", name, source)

    def save_as(self, name, seed):
        source = os.path.join(self.folder, name + ".in")
        write(source, *model(seed))
        self.zctl("import", name, source)

    def has_pages(self, n):
        """Whether pages were written to that drive: they are not zero. The measurement writes what it has read."""
        with open(self.dir(n) + "/pages.zsd", "rb") as f:
            f.seek(64 << 10)
            return any(part.strip(b"\0") for part in iter(lambda: f.read(1 << 20), b""))

    def save_on(self, n):
        """Saves jobs until one has pages on that drive, which depends on its measured speed; that one's name."""
        for i in range(16):
            self.save_as(f"on{n}-{i}", 5)
            if self.has_pages(n):
                return f"on{n}-{i}"
        check(False, f"no page on drive {n}")

    def sums(self):
        """A checksum of each file on the drives."""
        files = [os.path.join(where, name) for n in (1, 2, 3) for where, _, names in os.walk(self.dir(n)) for name in names]
        return {path: hashlib.sha256(open(path, "rb").read()).hexdigest() for path in files}

    def same(self, *names):
        """Each of these jobs is what save() made, in every byte."""
        for seed, name in enumerate(names):
            out = os.path.join(self.folder, name + ".out")
            shutil.rmtree(out, ignore_errors=True)
            self.zctl("export", name, out, "--optimizer")
            got, _ = read(os.path.join(out, "model.safetensors"))
            tensors, _ = model(seed)
            check(got == tensors, f"'{name}' came back as another")

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait(30)
        if kind is not None and os.path.exists(os.path.join(self.folder, "log")):
            print(self.log(), file=sys.stderr)
        shutil.rmtree(self.folder, ignore_errors=True)
        return False


def order():
    """Data files keep their numbers, wherever `paths` names them."""
    with Drives() as d:
        d.start((2, 3))
        d.save("a", "b")
        d.stop()
        os.rename(d.dir(3), d.dir(4))
        d.start((4, 2))
        d.same("a", "b")
        d.stop()
        check("problems   0" in d.run((4, 2), "--fsck"), "fsck")


def missing():
    """A missing data file is named, nothing is made in its place, and nothing is lost."""
    with Drives() as d:
        d.start((2, 3))
        d.save("a", "b")
        for n in 1, 2, 3:
            if not d.has_pages(n):
                d.save_on(n)
        d.stop()
        for n in 1, 2, 3:
            os.rename(d.dir(n), d.dir("away"))
            said = d.run((2, 3), status=7)
            check(f"data file number {n} is missing" in said, said)
            left = os.listdir(d.dir(n)) if os.path.exists(d.dir(n)) else []
            check(not left, f"the start that failed left {left}")
            shutil.rmtree(d.dir(n), ignore_errors=True)
            os.rename(d.dir("away"), d.dir(n))
            d.start((2, 3))
            d.same("a", "b")
            d.stop()
        said = d.run((3,), status=7)
        check("data file number 2 is missing" in said, said)
        check("data file number 2 is missing" in d.run((3,), "--fsck", status=7), "fsck")


def catalog():
    """Whatever happens to the catalog, the newest copy of it replaces it."""
    def cut(path):
        with open(path, "r+b") as f:
            f.truncate(os.path.getsize(path) // 2)

    def change(path):
        with open(path, "r+b") as f:
            f.seek(16384)
            f.write(b"\xff" * (os.path.getsize(path) - 16384))

    with Drives() as d:
        d.start((2, 3))
        d.save("a", "b")
        old = os.path.join(d.folder, "old")
        shutil.copy(d.dir(1) + "/catalog.zsd", old)
        d.zctl("snapshot", "a", "s")
        d.stop()
        for n, damage in enumerate((os.unlink, cut, change, lambda path: shutil.copy(old, path))):
            damage(d.dir(1) + "/catalog.zsd")
            if n == 0:  # one of the copies is lost, too
                os.unlink(d.dir(2) + "/catalog-copy.zsd")
            d.start((2, 3))
            check(d.log().count("catalog-restored") == n + 1, "not restored")
            check("s" in d.zctl("snapshots", "a"), "the snapshot")
            d.same("a", "b")
            d.stop()
        check(os.path.exists(d.dir(1) + "/catalog.zsd.damaged"), "the damaged one is kept")
        check("problems   0" in d.run((2, 3), "--fsck"), "fsck")

        # a copy that cannot be written is given up, and made again
        shutil.rmtree(d.dir(2) + "/catalog-copy.zsd", ignore_errors=True)
        os.unlink(d.dir(2) + "/catalog-copy.zsd")
        os.mkdir(d.dir(2) + "/catalog-copy.zsd")
        d.start((2, 3))
        check("catalog-copy-failed number=2" in d.log(), "the failure")
        d.zctl("snapshot", "b", "t")
        d.stop()
        os.rmdir(d.dir(2) + "/catalog-copy.zsd")
        d.start((2, 3))
        d.stop()
        with open(d.dir(1) + "/catalog.zsd", "rb") as f, open(d.dir(2) + "/catalog-copy.zsd", "rb") as g:
            check(len(f.read()) > 0 and len(g.read()) > 0, "a copy")
        os.unlink(d.dir(3) + "/catalog-copy.zsd")
        os.unlink(d.dir(1) + "/catalog.zsd")
        d.start((2, 3))
        check("t" in d.zctl("snapshots", "b"), "the second snapshot")
        d.same("a", "b")
        d.stop()


def lost():
    """Without a lost drive: what was there is named and refused, the rest opens, also later."""
    for n in 3, 1:
        with Drives() as d:
            d.start((2,) if n == 3 else (2, 3))
            d.save("a")
            if n == 3:
                d.stop()
                d.start((2, 3))
            name = d.save_on(n) if n == 3 or not d.has_pages(1) else "a"
            d.stop()
            os.rename(d.dir(n), d.dir("away"))
            paths = (2,) if n == 3 else (3, 2)
            check(f"--without {n}" in d.run(paths, status=7), "the advice")
            shutil.rmtree(d.dir(n), ignore_errors=True)
            d.start(paths, "--without", str(n))
            gone = re.findall('job-lost job="([^"]*)" uid=\\d+ what=commit', d.log())
            check(name in gone and (n == 1 or "a" not in gone), f"{name}, and named are {gone}")
            check("drive-left-out" in d.zctl("status"), "zctl status does not say that a drive was left out")
            states = {job["name"]: job["state"] for job in json.loads(d.zctl("jobs", "--json"))["rows"]}
            check(all((state == "lost") == (job in gone) for job, state in states.items()), f"{states}, {gone} are lost")
            said = d.zctl("export", name, d.folder + "/none", status=None)
            check(f"data file number {n}, which" in said, said)
            if n == 3:
                d.same("a")
            d.zctl("fsck")
            for name in gone:
                d.zctl("destroy", name, "--force")
            d.zctl("fsck")
            d.save_as("c", 2)
            d.stop()
            d.start(paths)
            d.zctl("fsck")
            if n == 3:
                d.same("a")
            d.stop()
            check("problems   0" in d.run(paths, "--fsck"), "fsck")


def drain():
    """A drained drive stays drained over restarts, with its reason, until it is used again."""
    def drives():
        return {row["number"]: row for row in json.loads(d.zctl("drive", "--json"))["rows"]}

    with Drives() as d:
        d.start((2, 3))
        d.save("a", "b")
        if not d.has_pages(3):
            d.save_on(3)
        d.zctl("drive", "drain", "3")
        d.process.kill()
        d.process.wait(30)
        d.start((3, 2))
        wait_until("an empty drive", lambda: drives()[3]["state"] == "drained on request, and empty", 30)
        check(drives()[3]["held_bytes"] == 0, f"{drives()[3]}")
        check("drive-drained" in d.zctl("status"), "zctl status")
        d.same("a", "b")
        d.zctl("fsck")
        d.stop()
        check("problems   0" in d.run((2, 3), "--fsck"), "fsck")
        d.run((2, 3), "--retire", "3")
        d.start((2, 3))  # a new data file has the number
        check(all(row["state"] == "in use" for row in drives().values()), f"{drives()}")
        d.zctl("drive", "drain", "2")
        d.stop()
        d.start((2, 3))
        check(drives()[2]["state"].startswith("drained on request"), drives()[2]["state"])
        d.zctl("drive", "use", "2")
        d.stop()
        d.start((2, 3))
        check(all(row["state"] == "in use" for row in drives().values()), f"{drives()}")
        d.same("a", "b")
        d.stop()


def retire():
    """All pages leave a data file, whatever happens meanwhile; then the daemon starts without it."""
    with Drives() as d:
        d.start((2, 3))
        d.save("a", "b")
        d.zctl("snapshot", "a", "s")
        for n in 2, 3:
            if not d.has_pages(n):
                d.save_on(n)
        check("in use" in d.run((2, 3), "--retire", "2", status=3), "a daemon runs")
        d.stop()
        check("cannot be retired" in d.run((2, 3), "--retire", "1", status=9), "the first one")
        check("no data file number 5" in d.run((2, 3), "--retire", "5", status=2), "number 5")
        for after_ms in range(0, 60, 2 if LONG else 10):  # kill -9 at any moment: the next run goes on
            process = subprocess.Popen(d.words((2, 3), "--retire", "2"), stdout=subprocess.DEVNULL)
            try:
                process.wait(after_ms / 1000)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(30)
            if os.path.exists(d.dir(2) + "/pages.zsd"):
                check("problems   0" in d.run((2, 3), "--fsck"), "fsck")
        check("is retired" in d.run((2, 3), "--retire", "2"), "retired")
        check(os.listdir(d.dir(2)) == [], f"left: {os.listdir(d.dir(2))}")
        check("problems   0" in d.run((3,), "--fsck"), "fsck")
        d.start((3,))
        d.same("a", "b")
        check("s" in d.zctl("snapshots", "a"), "the snapshot")
        d.zctl("fsck")
        d.save_as("c", 2)
        d.stop()
        d.start((3, 4))  # a new drive gets the number
        d.same("a", "b")
        d.stop()


def shrink():
    """A data file becomes shorter, whatever happens meanwhile; nothing is lost."""
    auto = [w if w != "32M" else "auto" for w in FLAGS]

    def size(n):
        return os.path.getsize(d.dir(n) + "/pages.zsd")

    with Drives() as d:
        d.start((2,))
        d.save(*"abcdef")
        d.zctl("snapshot", "a", "s")
        check("in use" in d.run((2,), "--shrink", "2:4M", status=3), "a daemon runs")
        d.stop()
        for text, says in ("2", "N:SIZE"), ("0:8M", "N:SIZE"), ("9:8M", "N:SIZE"), ("2:1K", "1M to 1P"), ("2:x", "size"):
            check(says in d.run((2,), "--shrink", text, status=2), f"--shrink {text}")
        check("no data file number 3" in d.run((2,), "--shrink", "3:4M", status=2), "number 3")
        check("less than the 64.0 MiB" in d.run((2,), "--shrink", "2:64M", status=2), "it grows")
        before = d.sums()
        d.run((2,), "--shrink", "1:5M")  # the others have room
        check(size(1) == 5 << 20 and size(2) == 32 << 20, "the first one")
        said = d.run((2,), "--shrink", "2:1M", status=8)
        check("beyond its new size" in said and "free" in said, said)
        check(size(2) == 32 << 20, "nothing is cut")
        check(before != d.sums() and "problems   0" in d.run((2,), "--fsck"), "fsck")
        for after_ms in range(0, 60, 2 if LONG else 10):  # kill -9 at any moment: the next run goes on
            process = subprocess.Popen(d.words((2,), "--shrink", "2:12M"), stdout=subprocess.DEVNULL)
            try:
                process.wait(after_ms / 1000)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(30)
            check("problems   0" in d.run((2,), "--fsck"), "fsck")
        said = d.run((2,), "--shrink", "2:12M")
        check("nvme_bytes = auto" in said and size(2) == 12 << 20, said)
        d.run((2,), "--shrink", "2:12M")  # again: nothing to do
        check("problems   0" in d.run((2,), "--fsck"), "fsck")
        d.start((2,), flags=auto)
        check((size(1), size(2)) == (5 << 20, 12 << 20), "the sizes stay")
        d.same(*"abcdef")
        check("s" in d.zctl("snapshots", "a"), "the snapshot")
        d.zctl("fsck")
        d.zctl("destroy", "b", "--force")
        d.save_as("b", 1)
        d.stop()
        said = d.run((2,), "--nvme-bytes", "8M", status=1)
        check("never cut" in said and "--shrink" in said, said)


def no_room():
    """Pages that fit nowhere else stay where they are."""
    with Drives() as d:
        small = [w if w != "32M" else "4M" for w in FLAGS]
        d.start((), flags=small)
        d.stop()
        os.mkdir(d.dir(2))
        with open(d.dir(2) + "/pages.zsd", "wb") as f:
            f.truncate(64 << 20)
        auto = [w if w != "32M" else "auto" for w in FLAGS]
        d.start((2,), flags=auto)
        d.save(*"abcdefgh")
        d.stop()
        said = d.run((2,), "--retire", "2", status=8)
        check("data file number 2 has" in said and "free" in said, said)
        check("problems   0" in d.run((2,), "--fsck"), "fsck")
        d.start((2,), flags=auto)
        d.same(*"abcdefgh")
        d.stop()


# A job whose description needs several pages of the catalog.
WIDE = (("wide", 16000, "fp32", "fp32", False,
         tuple((f"a_tensor_with_a_long_name.of_the_unit.{i}", 16 * i, [16], 0) for i in range(1000))),)


def holes(path):
    """Bytes of the file that were not written since they were allocated, or that no block holds."""
    with open(path, "rb") as f:
        size, at, data = os.fstat(f.fileno()).st_size, 0, 0
        while at < size:
            try:
                at = os.lseek(f.fileno(), at, os.SEEK_DATA)
            except OSError:
                break
            end = os.lseek(f.fileno(), at, os.SEEK_HOLE)
            data, at = data + end - at, end
        return size - data


def discards():
    """What is destroyed becomes a hole that has its space again; what is saved stays."""
    with Drives() as d:
        path = d.dir(1) + "/pages.zsd"

        def row():
            return json.loads(d.zctl("drive", "--json"))["rows"][0]

        d.start([])
        d.save("a", "b")
        check(row()["discard"] == "off" and row()["discarded_bytes"] == 0, f"off: {row()}")
        check(re.fullmatch(r"\d+:\d+", row()["device"]), f"the device: {row()}")
        d.zctl("destroy", "b", "--force")
        d.stop()
        before = holes(path)
        d.start([], "--discard", "on")
        if "discard-unsupported" in d.log():
            skip("the file system does not discard")
        wait_until("all that is free is discarded", lambda: row()["discarded_bytes"] + row()["held_bytes"] >= row()["size_bytes"] * 9 // 10, 30)
        after = holes(path)
        check(after > before, f"{before} bytes were blank before, {after} now")
        check(os.stat(path).st_blocks * 512 >= row()["size_bytes"], "the file has lost space")
        check(row()["holed_bytes"] == 0, f"{row()}")
        d.same("a")
        d.zctl("fsck")
        check("path_discarded_bytes" in d.zctl("metrics"), "the metrics")
        d.save_as("b", 1)
        d.save_as("c", 2)
        d.same("a", "b", "c")
        d.stop()


@contextlib.contextmanager
def mounted(*folders, size):
    """A tmpfs of that size in each folder, in a mount namespace of our own; False: we may not mount."""
    libc, CLONE_NEWNS = ctypes.CDLL(None, use_errno=True), 0x20000
    may = libc.unshare(CLONE_NEWNS) == 0 and subprocess.run(["mount", "--make-rprivate", "/"], check=False).returncode == 0
    done = []
    try:
        for folder in folders:
            os.mkdir(folder)
            if may and subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "none", folder],
                                      check=False).returncode == 0:
                done.append(folder)
        yield len(done) == len(folders)
    finally:
        for folder in done:
            subprocess.run(["umount", "-l", folder], check=False)


def fill(folder):
    """Takes all of its free space; the file that has it."""
    path = os.path.join(folder, "ballast")
    with open(path, "wb", buffering=0) as f, contextlib.suppress(OSError):
        while True:
            f.write(b"1" * 4096)
    return path


def full():
    """No space for the catalog, or for a copy of it: what needs it is refused, nothing else; and the daemon goes on
    when there is space again, without a restart."""
    small = [w if w != "32M" else "8M" for w in FLAGS]
    with Drives() as d, mounted(d.dir(1), d.dir(2), size="12m") as may:
        if not may:
            print("skipped: full may not mount")
            return
        d.start((2,), flags=small)
        d.save("a")
        write(d.folder + "/wide.in", *model(7, of=WIDE))

        ballast = fill(d.dir(1))
        said = d.zctl("import", "wide", d.folder + "/wide.in", status=4)
        check("no space is left" in said and "catalog.zsd" in said, said)
        said = d.zctl("status", status=8)
        check("catalog-full" in said and "free space" in said, said)
        d.same("a")
        d.zctl("fsck")
        check("wide" not in d.zctl("jobs"), "the job is saved")
        os.unlink(ballast)
        d.zctl("import", "wide", d.folder + "/wide.in")
        check("catalog-full" not in d.zctl("status", status=None), "it is over")

        ballast = fill(d.dir(2))
        d.zctl("import", "wide2", d.folder + "/wide.in")
        said = d.zctl("status", status=8)
        check("catalog-copy-failed" in said and d.dir(2) in said, said)
        os.unlink(ballast)
        for i in range(8):  # it is tried with the next change, and ever more seldom
            d.zctl("snapshot", "a", f"s{i}")
        check("catalog-copy-failed" not in d.zctl("status", status=None), "the copy is made again")
        d.stop()
        os.unlink(d.dir(1) + "/catalog.zsd")
        d.start((2,), flags=small)
        check("s7" in d.zctl("snapshots", "a"), "the copy is the newest")
        d.same("a")
        d.stop()
        check("problems   0" in d.run((2,), "--fsck", flags=small), "fsck")


def read_only():
    """What is saved can be read, whatever happened to the store, and not a byte of it changes."""
    with Drives() as d:
        d.start((2, 3))
        d.save("a", "b")
        d.zctl("snapshot", "a", "s")
        at, most = d.process.pid, resource.prlimit(d.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(at, resource.RLIMIT_FSIZE, (4096, most[1]))  # the catalog cannot be written
        d.zctl("snapshot", "a", "t", status=None)
        check("store-poisoned" in d.zctl("status", status=8), "poisoned")
        resource.prlimit(at, resource.RLIMIT_FSIZE, most)
        d.same("a", "b")  # also now
        d.process.kill()
        d.process.wait(30)
        check("one of --fsck" in d.run((2, 3), "--read-only", "--fsck", status=2), "--fsck")
        d.run((2, 3), "--read-only", "--data", d.dir("none"), status=1)
        check(not os.path.exists(d.dir("none")), "it made a directory")

        for catalog in "whole", "lost":
            before = d.sums()
            d.start((2, 3), "--read-only")
            d.same("a", "b")
            d.zctl("export", "a@s", d.folder + "/s-" + catalog)
            check("s" in d.zctl("snapshots", "a"), "the snapshot")
            d.zctl("df")
            d.zctl("fsck")
            d.zctl("scrub", "start")
            wait_until("the scrub", lambda: "done" in d.zctl("scrub", status=None), 30)
            said = d.zctl("status", status=8)
            check("read-only" in said and "store-poisoned" not in said, said)
            for words in (("import", "c", d.folder + "/a.in"), ("snapshot", "a", "u"), ("rollback", "a", "s"),
                          ("clone", "a@s", "c"), ("destroy", "a@s"), ("destroy", "a", "--force")):
                said = d.zctl(*words, status=4)
                check("--read-only" in said, f"{words}: {said}")
            d.stop()
            check(d.sums() == before, f"{catalog}: changed: {set(d.sums().items()) ^ set(before.items())}")
            if catalog == "whole":
                os.unlink(d.dir(1) + "/catalog.zsd")
        check(d.log().count("catalog-copy-read") == 1, "the copy is read")
        d.start((2, 3))
        d.same("a", "b")
        d.zctl("snapshot", "a", "u")
        d.stop()


def read_only_mounts():
    """Drives that the kernel has mounted read-only."""
    small = [w if w != "32M" else "8M" for w in FLAGS]
    with Drives() as d, mounted(d.dir(1), d.dir(2), size="12m") as may:
        if not may:
            print("skipped: read_only_mounts may not mount")
            return
        d.start((2,), flags=small)
        d.save("a")
        d.stop()
        for n in 1, 2:
            subprocess.run(["mount", "-o", "remount,ro", d.dir(n)], check=True)
        said = d.run((2,), status=1, flags=small)
        check("read-only" in said, said)
        d.start((2,), "--read-only", flags=small)
        d.same("a")
        d.stop()


if __name__ == "__main__":
    sys.exit(main({f.__name__: f for f in (order, missing, catalog, lost, drain, retire, shrink, no_room, full, read_only, read_only_mounts, discards)}))
