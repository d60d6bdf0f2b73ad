# ctest: LABELS full COST 12
"""Muon's matrices orthogonalized on the daemon's GPU, the emulated one: the bits of the processor, what is booked, what
is refused, kills, and a GPU that fails."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from test_muon import BIN, daemon, rows

import zshard
from zshard._engine import Comm, Engine

SIDE, ELEMS = 192, 192 * 384  # a matrix and its transpose: wide and tall
GPU = ["--gpu-bytes", "128M", "--gpu", "emulated:128M"]


def engine(comm: Any, socket: str, how: str = "cpu", **more: Any) -> Any:
    e = Engine(
        comm,
        **{
            "socket": socket,
            "job": "one",
            "optimizer": "muon",
            "momentum": 0.9,
            "offload_param": "host",
            "offload_optimizer": "host",
            "muon_engine": how,
        }
        | more,
    )
    e.add_unit(
        "u", 2 * ELEMS, [("a", 0, (SIDE, 2 * SIDE), 0, True), ("b", ELEMS, (2 * SIDE, SIDE), 0, True)], dtype="f32"
    )
    return e


def begin(e: Any) -> int:
    """Starts, and returns the steps asked for so far."""
    e.start(lambda _unit, _first, count, out: ctypes.memset(out, 0, 4 * count))
    return int(e.progress()[0])


def step(e: Any, number: int) -> None:
    grad = (ctypes.c_float * (2 * ELEMS)).from_address(e.grad(0))
    grad[:] = [float((i * 7919 * number) % 1009 - 504) for i in range(2 * ELEMS)]
    e.reduce(0)
    e.step(1e-3)


def masters(e: Any) -> bytes:
    return bytes(e.read(0, "master", 0, 2 * ELEMS))


def trained(socket: str, how: str, steps: int = 2, say: Callable[[], object] = lambda: None, **more: Any) -> bytes:
    with Comm("self") as comm, engine(comm, socket, how, **more) as e:
        begin(e)
        for number in range(1, steps + 1):
            step(e, number)
        say()
        return masters(e)


def gpu_used(socket: str) -> int:
    return int(next(row for row in rows(socket, "tiers") if row["name"] == "gpu")["used"])


def returned(socket: str, own: int) -> None:
    end = time.monotonic() + 60
    while gpu_used(socket) > own or rows(socket, "jobs"):
        assert time.monotonic() < end, "the memory of the job is not free"
        time.sleep(0.05)


def test_bits(tmp_path: Path) -> None:
    """The emulated GPU has the processor's bits in fp32, wherever the pages are, and bits of its own in bf16."""
    with daemon(tmp_path, 64 << 20, *GPU) as socket:
        own = gpu_used(socket)
        said: dict[str, Any] = {}

        def say() -> None:
            (said["job"],) = rows(socket, "jobs")
            said["used"] = gpu_used(socket) - own

        want = trained(socket, "cpu", say=say)
        assert (said["job"]["muon_engine"], said["job"]["muon_gpu_bytes"], said["used"]) == ("cpu", 0, 0)
        host = said["job"]["muon_bytes"]
        assert trained(socket, "gpu", say=say) == want
        assert said["job"]["muon_engine"] == "gpu" and said["job"]["muon_bytes"] < host
        assert said["job"]["muon_gpu_bytes"] == said["job"]["gpu_bytes"] == said["used"] > 32 << 20
        returned(socket, own)
        assert trained(socket, "gpu", offload_optimizer="nvme") == want
        rounded = trained(socket, "gpu-bf16")
        assert rounded != want and rounded == trained(socket, "gpu-bf16")


def test_identity(tmp_path: Path) -> None:
    """A job keeps its engine: in memory, and after a kill of the daemon."""
    data = ["--data", str(tmp_path / "data"), *GPU]
    kept: dict[str, Any] = {"keep": True, "durable": True, "commit_every": 1}
    (tmp_path / "data").mkdir()

    def resumed(socket: str, how: str, to: int) -> bytes:
        with Comm("self") as comm, engine(comm, socket, how, resume=True, **kept) as e:
            for number in range(begin(e) + 1, to + 1):
                step(e, number)
            return masters(e)

    def others_refused(socket: str) -> None:
        for how in ("cpu", "gpu-bf16"):
            with pytest.raises(zshard.ZshardError, match=f"muon_engine {how}, but its matrices are .* by gpu: "):
                resumed(socket, how, 2)

    with daemon(tmp_path, 64 << 20, *GPU) as socket:
        want = trained(socket, "gpu", 4)
    with killed_daemon(tmp_path, data) as socket:
        trained(socket, "gpu", 2, **kept)
        others_refused(socket)
        assert resumed(socket, "gpu", 3) != want
    with killed_daemon(tmp_path, data) as socket:
        (job,) = rows(socket, "jobs")
        assert (job["state"], job["muon_engine"]) == ("saved", "gpu")
        others_refused(socket)
        assert resumed(socket, "gpu", 4) == want


@contextmanager
def killed_daemon(folder: Path, more: list[str]) -> Iterator[str]:
    socket = str(folder / "killed.sock")
    words = [str(BIN / "zshardd"), "--socket", socket, "--host-bytes", "64M", "--nvme-bytes", "64M"]
    words += ["--page-elems", "65536", *more]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None and process.stdout.readline().startswith(b"ready")
        yield socket
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(60)


def test_refused(tmp_path: Path) -> None:
    with daemon(tmp_path / "none", 64 << 20) as socket:
        with pytest.raises(zshard.ZshardError, match=r"on a GPU \(muon_engine gpu\), and the daemon has no GPU tier"):
            trained(socket, "gpu")
        assert any(trained(socket, "cpu"))
    with daemon(tmp_path / "small", 64 << 20, "--gpu-bytes", "24M", "--gpu", "emulated:128M") as socket:
        with pytest.raises(zshard.ZshardError, match="smallest gpu_bytes that would work is") as why:
            trained(socket, "gpu")
        least = int(str(why.value).split("would work is ")[1].split()[0].rstrip(".,;:"))
        assert any(trained(socket, "cpu"))  # the refusal cost nothing
        own = gpu_used(socket)
        for budget, fits in ((least - 1, False), (least, True)):
            env = os.environ | {"ZSHARD_SOCKET": socket}
            subprocess.run([BIN / "zctl", "tier", "set", "gpu", str(budget)], env=env, check=True, capture_output=True)
            if fits:
                assert any(trained(socket, "gpu"))
                returned(socket, own)
            else:
                with pytest.raises(zshard.ZshardError, match="smallest gpu_bytes that would work"):
                    trained(socket, "gpu")
    with Comm("self") as comm:
        with pytest.raises(zshard.ZshardError, match="muon_engine gpu: the optimizer is not Muon"):
            Engine(comm, optimizer="adamw", muon_engine="gpu", offload_optimizer="host")
        with pytest.raises(zshard.ZshardError, match="muon_engine gpu is the daemon's: the optimizer is not offloaded"):
            Engine(comm, optimizer="muon", momentum=0.9, muon_engine="gpu", offload_optimizer="none")
        with pytest.raises(ValueError, match="'tpu'"):
            Engine(comm, optimizer="muon", muon_engine="tpu")


@pytest.mark.parametrize("works", [37, 61, 99])
def test_gpu_fails(tmp_path: Path, works: int) -> None:
    """The GPU fails in a step: the job ends and says why, the daemon and a job on the processor go on, and a daemon
    with another GPU resumes from the last commit."""
    data = tmp_path / "data"
    data.mkdir()
    kept: dict[str, Any] = {"keep": True, "durable": True, "commit_every": 1}
    words = ["--data", str(data), "--gpu-bytes", "128M", "--gpu"]
    with daemon(tmp_path, 64 << 20, *GPU) as socket:
        want = trained(socket, "gpu", 3)
    with killed_daemon(tmp_path, [*words, f"emulated:128M:0:{works}"]) as socket:  # too few for 3 steps
        done = 0
        with Comm("self") as comm:
            e = engine(comm, socket, "gpu", **kept)
            begin(e)
            with pytest.raises(zshard.ZshardError, match="matrices of job 'one' were .* on the GPU, which failed"):
                for number in range(1, 4):
                    step(e, number)
                    done += 1
                masters(e)
            e.close(False)
        assert any(trained(socket, "cpu", job="two"))
    with killed_daemon(tmp_path, [*words, "emulated:128M"]) as socket, Comm("self") as comm:
        with engine(comm, socket, "gpu", resume_if_there=True, **kept) as e:
            first = begin(e)
            assert first <= done  # the error of a step may come with the next one
            for number in range(first + 1, 4):
                step(e, number)
            assert masters(e) == want


def test_killed(tmp_path: Path) -> None:
    """A slow GPU, and a trainer that closes its job while it works: memory is returned, and others go on."""
    slow = ["--gpu-bytes", "128M", "--gpu", "emulated:128M:20000"]
    with daemon(tmp_path, 64 << 20, *slow) as socket:
        own = gpu_used(socket)
        pid = os.fork()
        if pid == 0:
            trained(socket, "gpu", 50)
            os._exit(0)
        time.sleep(1.5)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        returned(socket, own)
        assert any(trained(socket, "gpu", 1))
