"""Leaves a cell of the matrix less of a daemon's host memory than its model's states take, so that NVMe is used.

A daemon's least budget is 1 MiB, and the states of the smallest models of the zoo are a third of that. So a kept job
with nothing but host memory fills the rest. What a cell is left is its staging, its parameters, and a part of its
gradients and of the optimizer's state:

    budget = filler + page buffers + connections + staging + parameters + part * (gradients and state)

Of several ranks, what is padded and staged makes this an estimate: where nothing was written, a smaller part is taken.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

from zshard._engine import Comm, Engine

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integ"))
from harness import wait_until  # type: ignore[import-not-found]  # noqa: E402

BLOCK = 4096  # elements of a page; slices are padded to it
PARTS = (0.5, 0.25, 0.1, 0.0)
STATE = {"fp32": (4, 12), "bf16": (2, 14), "fp16": (2, 16)}  # bytes: of a parameter; of its gradient and state
GRAIN = 4 * BLOCK  # bytes: the least that can be filled, a block of frozen fp32
BUFFERS = 3 * 18 * BLOCK  # page buffers of a daemon with --ring-bytes 256K
CONNECTION = 64 << 10
JOB = "filler"
CELL = "cell-"  # prefix of the names of jobs that end with their ranks


def padded(elems: int) -> int:
    return -(-elems // BLOCK) * BLOCK


def room(sizes: list[tuple[int, bool]], world: int, dtype: str, part: float) -> int:
    """Bytes of host memory that a job of these units (elements, frozen) is to find."""
    slices = [(padded(-(-elems // world)), frozen) for elems, frozen in sizes]
    param, rest = STATE[dtype]
    staging = world * 4 * 4 * max(n for n, _ in slices)
    params = world * param * sum(n for n, _ in slices)
    others = world * rest * sum(n for n, frozen in slices if not frozen)
    return staging + params + int(part * others)


def zeros(_unit: int, _first: int, count: int, out: Any) -> None:
    ctypes.memset(out, 0, 4 * count)


class Filler:
    """The kept job that fills a daemon of `budget` bytes of host memory."""

    def __init__(self, daemon: Any, budget: int) -> None:
        self.daemon, self.budget, self.there = daemon, budget, False

    def leave(self, free: int, world: int) -> None:
        """Fills all but `free` bytes, which a job of so many ranks finds."""
        self.remove()
        wait_until("cells before this one to be gone", self._alone, 30)
        used = max(self.daemon.used()["host"], BUFFERS)
        grains = (self.budget - used - CONNECTION * world - free) // GRAIN
        assert grains > 4, f"{free} bytes for a cell, of {self.budget}, of which {used} are used"
        words: dict[str, Any] = {"socket": self.daemon.socket, "job": JOB, "keep": True, "offload_grad": "host"}
        with Comm("self") as comm, Engine(comm, offload_param="host", offload_optimizer="host", **words) as engine:
            for i in range(grains - 3):  # the first one is trained, and takes four
                engine.add_unit(f"u{i}", BLOCK, [("w", 0, (BLOCK,), 0)], frozen=i > 0)
            engine.start(zeros)
        self.there = True

    def _alone(self) -> bool:
        return not any(job["name"].startswith(CELL) for job in self.daemon.zctl("jobs"))

    def remove(self) -> None:
        if self.there:
            self.daemon.zctl("destroy", JOB)
            self.there = False
