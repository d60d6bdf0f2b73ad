"""What a set of processes takes: the peak of their anonymous and shared memory, and the bytes that they write."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
import time

EVERY = 0.05  # seconds between two looks
MIB = 1 << 20
LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


def own_cgroups() -> list[str]:
    """Directories in which a memory cgroup may be made, first choice first; of version 2, then of version 1."""
    found = []
    with open("/proc/self/cgroup", encoding="utf-8") as f:
        for line in f:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            if controllers == "" and os.path.exists("/sys/fs/cgroup/cgroup.controllers"):
                at = "/sys/fs/cgroup" + path.rstrip("/")
                found += [at, os.path.dirname(at)] if path != "/" else [at]
            elif "memory" in controllers.split(","):
                root = "/sys/fs/cgroup/memory"
                found += [root + path.rstrip("/"), root]
    return [place for place in found if os.path.isdir(place)]


class Memory:
    """A memory cgroup of its own, with a thread that looks at it: `with Memory() as memory:`; processes put themselves
    into it by `memory.enter()` between fork and exec. Where no cgroup can be made, the peak is of what each process
    has for itself and its part of what is shared (PSS without files), and `kind` says so. Page cache never counts;
    pages of hugetlbfs, which no memory cgroup counts, do. `limit` in bytes, where a cgroup can hold it."""

    def __init__(self, limit: int = 0) -> None:
        self.path = ""
        self.kind = "PSS"
        self.peak = 0
        self.limited = False
        self.pids: set[int] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        for place in own_cgroups():
            path = os.path.join(place, f"zshard-{os.getpid()}-{time.monotonic_ns()}")
            try:
                os.mkdir(path)
            except OSError:
                continue
            if os.path.exists(os.path.join(path, "memory.stat")):
                self.path, self.kind = path, "cgroup"
                break
            os.rmdir(path)
        if self.path and limit:
            self.limited = self._set(limit)
        self._huge = huge_bytes()

    def _set(self, limit: int) -> bool:
        for name in ("memory.max", "memory.limit_in_bytes"):
            try:
                with open(os.path.join(self.path, name), "w", encoding="utf-8") as f:
                    f.write(str(limit))
                return True
            except OSError:
                continue
        return False

    def enter(self) -> None:
        """In the child, before exec: it is counted, and ends with who started it."""
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if self.path:
            with open(os.path.join(self.path, "cgroup.procs"), "w", encoding="utf-8") as f:
                f.write("0")

    def now(self) -> int:
        """Bytes at this moment."""
        total = max(0, huge_bytes() - self._huge)
        if not self.path:
            return total + sum(pss_bytes(pid) for pid in list(self.pids))
        with open(os.path.join(self.path, "memory.stat"), encoding="utf-8") as f:
            stat = dict(line.split() for line in f)
        anon = stat.get("anon") or stat.get("total_rss") or stat.get("rss") or "0"
        return total + int(anon) + int(stat.get("total_shmem") or stat.get("shmem") or 0)

    def _look(self) -> None:
        while not self._stop.wait(EVERY):
            with contextlib.suppress(OSError):
                self.peak = max(self.peak, self.now())

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for _try in range(50):
            if not self.path:
                break
            try:
                os.rmdir(self.path)
                break
            except OSError:  # a process of it has not quite ended
                time.sleep(0.1)


def huge_bytes() -> int:
    """Pages of hugetlbfs in use on this machine."""
    with open("/proc/meminfo", encoding="utf-8") as f:
        info = {name: int(value.split()[0]) for name, value in (line.split(":") for line in f)}
    return (info.get("HugePages_Total", 0) - info.get("HugePages_Free", 0)) * info.get("Hugepagesize", 0) << 10


def pss_bytes(pid: int) -> int:
    """Anonymous and shared memory of a process, what is shared divided by those who share it."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="utf-8") as f:
            rows = dict(line.split(":") for line in f.readlines()[1:])
    except OSError:
        return 0
    return sum(int(rows.get(name, "0").split()[0]) for name in ("Pss_Anon", "Pss_Shmem")) << 10


def written_bytes(pids: set[int]) -> int:
    """Bytes that these processes have caused to be written so far."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/io", encoding="utf-8") as f:
            rows = dict(line.split(":") for line in f)
            total += int(rows["write_bytes"])
    return total
