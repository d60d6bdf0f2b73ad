#!/usr/bin/env python3
"""test_drives.py - data files on several drives: one is missing, lost or retired.

    ZSHARD_BUILD=build tests/integ/test_drives.py [NAME...]
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

from harness import LONG, check, main, program, wait_until
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
            check(n > 1 or not os.path.exists(d.dir(1) + "/pages.zsd"), "a new first data file")
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


if __name__ == "__main__":
    sys.exit(main({f.__name__: f for f in (order, missing, catalog, lost, retire, no_room)}))
