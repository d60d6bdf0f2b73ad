# ctest: LABELS full quick COST 3
"""Muon through the engine: what it moves, what it refuses."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import zshard
from zshard._engine import Comm, Engine

ROOT = Path(__file__).resolve().parents[2]
PAGE, SIDE, UNITS, STEPS = 65536, 256, 3, 3
ELEMS = 2 * SIDE * SIDE  # of a unit: 2 pages


@contextmanager
def daemon(folder: Path, host_bytes: int) -> Iterator[str]:
    program = Path(os.environ.get("ZSHARD_BUILD") or ROOT / "build") / "bin" / "zshardd"
    socket = str(folder / f"{host_bytes}.sock")
    words = [program, "--socket", socket, "--host-bytes", str(host_bytes), "--nvme-bytes", "64M"]
    process = subprocess.Popen(
        [*words, "--page-elems", str(PAGE), "--ring-bytes", "4K"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None and process.stdout.readline().startswith(b"ready")
        yield socket
    finally:
        process.terminate()
        assert process.wait(60) == 0


def engine(comm: Any, socket: str, moments: str, vector: bool = False, **more: Any) -> Any:
    """Units of two matrices; or of one, and of a vector as large."""
    places = {"offload_param": "host", "offload_optimizer": "nvme", "offload_grad": "host"}
    e = Engine(comm, socket=socket, job="muon", optimizer="muon", moments=moments, momentum=0.95, **(places | more))
    for u in range(UNITS):
        second = ("b", SIDE * SIDE, (SIDE * SIDE,), 0, False) if vector else ("b", SIDE * SIDE, (SIDE, SIDE), 0, True)
        e.add_unit(f"u{u}", ELEMS, [("a", 0, (SIDE, SIDE), 0, True), second], dtype="bf16")
    return e


def moved(socket: str, moments: str, vector: bool = False) -> tuple[float, int]:
    """Bytes read and written for each element in a step, and the smallest host_bytes that a refusal names, or 0."""
    with Comm("self") as comm:
        e = engine(comm, socket, moments, vector)
        try:
            e.start(
                lambda _unit, first, count, out: out.__setitem__(slice(None), [0.01 * (i % 7) for i in range(count)])
            )
        except zshard.ZshardError as why:
            e.close(False)
            found = re.search(r"Muon's matrices .* smallest host_bytes that would work is (\d+)", str(why))
            assert found, why
            return 0, int(found.group(1))
        for step in range(STEPS):
            if step == 1:  # the first one also writes initial values
                before = e.stats()
            for unit in reversed(range(UNITS)):
                grad = (ctypes.c_float * ELEMS).from_address(e.grad(unit))
                for i in range(0, ELEMS, 37):
                    grad[i] = float(i % 11 - 5)
                e.reduce(unit)
            e.step(1e-3)
        after = e.stats()
        e.close()
    both = sum(after[f"nvme_{what}_bytes"] - before[f"nvme_{what}_bytes"] for what in ("read", "written"))
    return both / (STEPS - 1) / (UNITS * ELEMS), 0


@pytest.mark.parametrize(
    ("moments", "vector", "bytes_moved"),
    [("f32", False, 12), ("bf16", False, 8), ("q8", False, 2 * 200704 / PAGE), ("f32", True, 20)],
)
def test_bytes(tmp_path: Path, moments: str, vector: bool, bytes_moved: float) -> None:
    """In the least memory, where all state is streamed: each page is read and written once, although it waits for its
    matrices in between. A unit with a vector has AdamW's two moments. A page of 8 bits is 3.02 bytes for each element,
    and ends at 4,096 bytes."""
    with daemon(tmp_path, 4 << 20) as socket:
        least = moved(socket, moments, vector)[1]
    assert least > 4 << 20
    with daemon(tmp_path, least) as socket:
        assert moved(socket, moments, vector)[0] == pytest.approx(bytes_moved, rel=0.01)


def test_refused() -> None:
    none = {"offload_param": "none", "offload_optimizer": "none"}
    with Comm("self") as comm:
        with Engine(comm, optimizer="muon", momentum=0.9, muon_scale="shape") as e:
            with pytest.raises(zshard.Invalid, match="'v' of unit 'a' is marked for Muon: .* a matrix"):
                e.add_unit("a", 8, [("v", 0, (8,), 0, True)])
        with Engine(comm, optimizer="adamw") as e:
            with pytest.raises(zshard.Invalid, match="needs the optimizer Muon"):
                e.add_unit("a", 8, [("w", 0, (2, 4), 0, True)])
        with pytest.raises(zshard.Invalid, match="muon with momentum 1: from 0 to below 1"):
            Engine(comm, optimizer="muon", momentum=1)
        with pytest.raises(zshard.ZshardError, match="chosen when a job is opened"):
            Engine(comm, optimizer="muon", optimizer_late=True, **none)
        with pytest.raises(ValueError, match="'huge'"):
            Engine(comm, optimizer="muon", muon_scale="huge")
