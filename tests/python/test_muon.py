# ctest: LABELS full COST 8
"""Muon through the engine: what it moves, what it refuses."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import zshard
from zshard._engine import Comm, Engine

HERE = Path(__file__).resolve().parent
BIN = Path(os.environ.get("ZSHARD_BUILD") or HERE.parents[1] / "build") / "bin"
PAGE, SIDE, UNITS, STEPS = 65536, 256, 3, 3
ELEMS = 2 * SIDE * SIDE  # of a unit: 2 pages


@contextmanager
def daemon(folder: Path, host_bytes: int, *more: str) -> Iterator[str]:
    folder.mkdir(exist_ok=True)
    socket = str(folder / f"{host_bytes}.sock")
    words = [BIN / "zshardd", "--socket", socket, "--host-bytes", str(host_bytes), "--nvme-bytes", "64M"]
    process = subprocess.Popen(
        [*words, "--page-elems", str(PAGE), "--ring-bytes", "4K", *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None and process.stdout.readline().startswith(b"ready")
        yield socket
    finally:
        process.terminate()
        assert process.wait(60) == 0


def rows(socket: str, what: str) -> list[dict[str, Any]]:
    """What zctl says."""
    words, env = [BIN / "zctl", "-o", "json", what], os.environ | {"ZSHARD_SOCKET": socket}
    said = subprocess.run(words, env=env, capture_output=True, check=True)
    return json.loads(said.stdout)["rows"]  # type: ignore[no-any-return]


def used(socket: str) -> int:
    """Jobs of the daemon, and bytes of host memory beyond its page buffers."""
    host = next(row for row in rows(socket, "tiers") if row["name"] == "host")
    return len(rows(socket, "jobs")) + int(host["used"]) - PAGE * 18


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
        (job,) = rows(socket, "jobs")
        assert (job["muon"], job["muon_params"]) == ("rms, momentum 0.95, lr 0.001", UNITS * ELEMS // (1 + vector))
        assert job["muon_bytes"] > 0
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


def ahead(socket: str) -> int:
    """Pages that began before the matrices before them were orthogonalized."""
    return next(int(row["value"]) for row in rows(socket, "stat") if row["name"] == "muon_pages_ahead")


def stepped(socket: str, job: str, steps: int, say: Any = lambda: None) -> list[bytes]:
    """The masters of units of a matrix of 4 pages and one of 2, streamed."""
    rows_of, elems = (2 * SIDE, SIDE), 6 * SIDE * SIDE
    places = {"offload_param": "host", "offload_optimizer": "nvme", "offload_grad": "host"}
    with (
        Comm("self") as comm,
        Engine(comm, socket=socket, job=job, optimizer="muon", momentum=0.9, **places) as e,
    ):
        for u in range(UNITS):
            both = [("a", 0, (2 * SIDE, 2 * SIDE), 0, True), ("b", 4 * SIDE * SIDE, rows_of, 0, True)]
            e.add_unit(f"u{u}", elems, both, dtype="bf16")
        e.start(lambda _unit, _first, count, out: ctypes.memset(out, 0, 4 * count))
        for step in range(steps):
            for unit in reversed(range(UNITS)):
                grad = (ctypes.c_float * elems).from_address(e.grad(unit))
                for i in range(0, elems, 29):
                    grad[i] = float((i * 7919 + unit + step) % 1009 - 504)
                e.reduce(unit)
            say()
            e.step(1e-3)
        return [bytes(e.read(unit, "master", 0, elems)) for unit in range(UNITS)]


def test_ahead(tmp_path: Path) -> None:
    """While a unit is orthogonalized, pages of the next ones begin. With the least memory each matrix waits for the one
    before it. The bits are the same, and `zctl jobs` shows both amounts of memory."""
    got, room, seen = [], [], []
    for host in (64 << 20, smallest(tmp_path)):
        with daemon(tmp_path, host) as socket:
            got.append(stepped(socket, "one", 2, lambda s=socket: room.append(rows(s, "jobs")[0])))  # type: ignore[misc]
            seen.append(ahead(socket))
    assert got[0] == got[1] and all(any(unit) for unit in got[0])
    assert room[0]["muon_bytes"] == room[0]["muon_most_bytes"] == room[-1]["muon_most_bytes"]
    assert room[-1]["muon_bytes"] < room[-1]["muon_most_bytes"] // 2
    pages, first = UNITS * 6, 4
    assert seen == [2 * (pages - first), 0]  # all that is not of the first matrix; nothing


def test_two_jobs(tmp_path: Path) -> None:
    """Two jobs with the least room, and one page buffer for both, step at the same time: neither waits for the other.
    The second one is placed when the host tier has grown by what it needs."""
    with daemon(tmp_path, 64 << 20) as socket:
        alone = stepped(socket, "one", 3)
    least = smallest(tmp_path)
    words = f"import sys; sys.path.append({str(HERE)!r}); import test_muon as t\n"
    words += "print(t.hashed(t.stepped(sys.argv[1], sys.argv[2], 3, t.told)))"
    with daemon(tmp_path, least) as socket:
        children = []
        for name, host in (("a", least), ("b", 2 * least - PAGE * 18)):
            env = os.environ | {"ZSHARD_SOCKET": socket}
            subprocess.run([BIN / "zctl", "tier", "set", "host", str(host)], env=env, check=True)
            run = [sys.executable, "-c", words, socket, name]
            children.append(subprocess.Popen(run, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            assert children[-1].stdout.readline() == b"placed\n"  # type: ignore[union-attr]
        for job in rows(socket, "jobs"):
            assert job["muon_bytes"] < job["muon_most_bytes"] // 2
        for child in children:
            assert child.stdin is not None
            child.stdin.write(b"\n")
            child.stdin.flush()
        said = [child.communicate(timeout=120)[0].strip().decode() for child in children]
    assert said == [hashed(alone)] * 2


def told(once: list[bool] = []) -> None:  # noqa: B006
    """Before the first step: waits until it may begin."""
    if not once:
        once.append(True)
        print("placed", flush=True)
        sys.stdin.readline()


def smallest(folder: Path) -> int:
    """The smallest host_bytes for the job of stepped()."""
    with daemon(folder, 8 << 20) as socket, pytest.raises(zshard.ZshardError) as why:
        stepped(socket, "one", 1)
    found = re.search(r"smallest host_bytes that would work is (\d+)", str(why.value))
    assert found
    return int(found.group(1))


def hashed(units: list[bytes]) -> str:
    return hashlib.sha256(b"".join(units)).hexdigest()


def early(folder: Path, host: int, **more: Any) -> tuple[bytes, int, str]:
    """Three steps of micro-steps, announced: the masters, pages that were stepped early, and what zctl says of it."""
    places = {"offload_param": "host", "offload_optimizer": "nvme", "offload_grad": "host"}
    elems, micros = 6 * SIDE * SIDE, more["micro_steps"]
    with (
        daemon(folder, host, "--threads", "2", "--gpu", "emulated", "--gpu-bytes", "128M") as socket,
        Comm("self") as comm,
        Engine(comm, socket=socket, job="one", optimizer="muon", momentum=0.9, **places, **more) as e,
    ):
        for u in range(UNITS):
            vector = [] if u > 0 else [("v", 5 * SIDE * SIDE, (SIDE * SIDE,), 0, False)]
            matrices = [("a", 0, (2 * SIDE, 2 * SIDE), 0, True), ("b", 4 * SIDE * SIDE, (SIDE, SIDE), 0, True)]
            e.add_unit(f"u{u}", elems, matrices + vector, dtype="bf16")
        e.start(lambda _unit, _first, count, out: ctypes.memset(out, 0, 4 * count))
        for step in range(3):
            e.announce(1e-3)
            for micro in range(micros):
                for unit in reversed(range(UNITS)):
                    grad = (ctypes.c_float * elems).from_address(e.grad(unit))
                    for i in range(0, elems, 31):
                        grad[i] = float((i * 7919 + unit + step + micro) % 1009 - 504)
                    e.reduce(unit)
            e.step(1e-3)
        said = rows(socket, "jobs")[0]["early"]
        pages = next(int(row["value"]) for row in rows(socket, "stat") if row["name"] == "pages_early")
        return b"".join(bytes(e.read(unit, "master", 0, elems)) for unit in range(UNITS)), pages, said


@pytest.mark.parametrize(
    ("moments", "micros", "clip", "engine"),
    [("f32", 1, "none", "gpu"), ("bf16", 4, "tensor", "cpu"), ("q8", 1, "tensor", "cpu"), ("f32", 4, "none", "cpu")],
)
def test_early(tmp_path: Path, moments: str, micros: int, clip: str, engine: str) -> None:
    """Steps that begin during the backward pass have the same bits, and zctl says so."""
    how = {"moments": moments, "micro_steps": micros, "clip_mode": clip, "clip_tensor_warmup": 1, "muon_engine": engine}
    plain = early(tmp_path, 64 << 20, overlap=0, **how)
    assert plain[1:] == (0, "off: it is not asked for") and any(plain[0])
    begun = early(tmp_path, 21 << 20, overlap=3, **how)
    assert begun[0] == plain[0] and begun[1] > 0 and begun[2] == "yes"
    scaled = {**how, "clip_mode": "global", "clip": 1.0}
    assert early(tmp_path, 21 << 20, overlap=3, **scaled)[1:] == (
        0,
        "off: the global norm is known with the last gradient",
    )


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


def trained(socket: str, side: int, steps: int, say: Any = lambda: None) -> bytes:
    """The masters of a unit of one matrix, side by 1.5 sides."""
    elems = side * side * 3 // 2
    with (
        Comm("self") as comm,
        Engine(
            comm,
            socket=socket,
            job="one",
            optimizer="muon",
            momentum=0.9,
            offload_param="host",
            offload_optimizer="host",
        ) as e,
    ):
        e.add_unit("u", elems, [("a", 0, (side, side * 3 // 2), 0, True)])
        e.start(lambda _unit, _first, count, out: ctypes.memset(out, 0, 4 * count))
        for _ in range(steps):
            grad = (ctypes.c_float * elems).from_address(e.grad(0))
            grad[:] = [float((i * 7919) % 1009 - 504) for i in range(elems)]
            e.reduce(0)
            say()
            e.step(1e-3)
        return bytes(e.read(0, "master", 0, elems))


def test_threads(tmp_path: Path) -> None:
    """The bits of a matrix of several tiles do not depend on the number of threads."""
    got = []
    for threads in (1, 3):
        with daemon(tmp_path / str(threads), 16 << 20, "--threads", str(threads)) as socket:
            got.append(trained(socket, 300, 2))
    assert got[0] == got[1] and any(got[0])


def test_killed(tmp_path: Path) -> None:
    """A trainer that dies while the daemon orthogonalizes: its job ends, the memory is free, and others go on."""
    with daemon(tmp_path, 64 << 20) as socket:
        words = f"import sys; sys.path.append({str(HERE)!r}); import test_muon as t\n"
        words += f"t.trained({socket!r}, 1100, 1, lambda: print('steps', flush=True))"
        with subprocess.Popen([sys.executable, "-c", words], stdout=subprocess.PIPE) as child:
            assert child.stdout is not None and child.stdout.readline() == b"steps\n"
            time.sleep(0.2)  # the step takes longer; if it does not, nothing is tested, and nothing fails
            child.kill()
        end = time.monotonic() + 60
        while used(socket) > 0:
            assert time.monotonic() < end, "the memory of the job is not free"
            time.sleep(0.05)
        assert any(trained(socket, 100, 1))
