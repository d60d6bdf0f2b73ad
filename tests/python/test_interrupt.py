# ctest: LABELS full COST 10
"""Ctrl-C while a rank waits for another one: KeyboardInterrupt at once, and what is left of the engine then."""

from __future__ import annotations

import array
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ports import free_port

import zshard
from zshard._engine import Comm, Engine

LATE = 30.0  # seconds after which rank 1 comes anyway
SOON = 10.0

# ---- ranks


def ones(_unit: int, _first: int, count: int, out: object) -> None:
    ctypes.memmove(out, array.array("f", [1.0] * count).tobytes(), 4 * count)  # type: ignore[arg-type]


def first_of(engine: Engine) -> float:
    value = ctypes.c_float.from_address(engine.gather(0)).value
    engine.release(0)
    return value


def await_file(file: Path) -> None:
    end = time.monotonic() + LATE
    while not file.exists() and time.monotonic() < end:
        time.sleep(0.01)


def reduced(engine: Engine) -> None:
    engine.grad(0)
    engine.reduce(0)


def rank_gathers(engine: Engine, go: Path) -> None:
    """Rank 0 is interrupted, and gathers again."""
    if engine.rank == 0:
        begin = time.monotonic()
        try:
            print("waits", flush=True)
            engine.gather(0)
            raise AssertionError("it was not interrupted")
        except KeyboardInterrupt:
            assert time.monotonic() - begin < SOON
        assert not engine.failed
        go.touch()
    else:
        await_file(go)
    assert first_of(engine) == 1.0
    reduced(engine)
    engine.step(0.1)
    engine.close()
    assert signal.set_wakeup_fd(-1) == -1  # it was restored


def rank_steps(engine: Engine, go: Path) -> None:
    """Rank 0 is interrupted while its step waits for rank 1's gradient, and steps again."""
    if engine.rank == 0:
        reduced(engine)
        begin = time.monotonic()
        try:
            print("waits", flush=True)
            engine.step(0.1)
            raise AssertionError("it was not interrupted")
        except KeyboardInterrupt:
            assert time.monotonic() - begin < SOON
        assert not engine.failed
        go.touch()
    else:
        await_file(go)
        reduced(engine)
    assert engine.step(0.1).applied == 1
    engine.close()


def rank_begun(engine: Engine, go: Path) -> None:
    """Rank 0 is interrupted where nothing can be taken back: that is final."""
    if engine.rank == 0:
        begin = time.monotonic()
        try:
            print("waits", flush=True)
            engine.sum([1.0])
            raise AssertionError("it was not interrupted")
        except KeyboardInterrupt:
            assert time.monotonic() - begin < SOON
        assert engine.failed
        go.touch()
    else:
        await_file(go)
    engine.close(False)


def rank_handles(engine: Engine, go: Path) -> None:
    """The program has a handler of its own: the gather is not interrupted."""
    came = []
    signal.signal(signal.SIGINT, lambda *_: came.append(1))
    if engine.rank == 0:
        print("waits", flush=True)
        assert first_of(engine) == 1.0
        assert came
    else:
        time.sleep(3)
        assert first_of(engine) == 1.0
    engine.close()


def rank_forks(engine: Engine, go: Path) -> None:
    """A child of rank 0 is sent the signal: rank 0 is not interrupted."""
    if engine.rank == 0:
        child = os.fork()
        if child == 0:
            try:
                time.sleep(LATE)
            except KeyboardInterrupt:
                os._exit(5)
            os._exit(1)
        time.sleep(0.5)
        os.kill(child, signal.SIGINT)
        assert first_of(engine) == 1.0
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    else:
        time.sleep(3)
        assert first_of(engine) == 1.0
    engine.close()


CASES = {
    "gathers": rank_gathers,
    "steps": rank_steps,
    "begun": rank_begun,
    "handles": rank_handles,
    "forks": rank_forks,
}


def rank(case: str, go: Path) -> None:
    with Comm("tcp") as comm:
        engine = Engine(comm, timeout_ms=int(2e3 * LATE))
        engine.add_unit("a", 1000, [("w", 0, (1000,), 0)])
        engine.start(ones)
        CASES[case](engine, go)


# ---- tests


@pytest.mark.parametrize("case", CASES)
def test_interrupted(tmp_path: Path, case: str) -> None:
    port = free_port()
    path = os.pathsep.join([str(Path(zshard.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    ranks = []
    for r in range(2):
        env = os.environ | {
            "RANK": str(r), "LOCAL_RANK": str(r), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
            "ZSHARD_PORT": str(port), "MASTER_PORT": str(port), "PYTHONPATH": path}  # fmt: skip
        ranks.append(
            subprocess.Popen(
                [sys.executable, __file__, case, tmp_path / "go"], env=env, stdout=subprocess.PIPE, text=True
            )
        )
    if case != "forks":
        assert ranks[0].stdout is not None and ranks[0].stdout.readline() == "waits\n"
        time.sleep(0.5)
        ranks[0].send_signal(signal.SIGINT)
    assert [r.wait(2 * LATE) for r in ranks] == [0, 0]


def test_other_thread_and_other_owner() -> None:
    """Whoever has the file descriptor keeps it."""
    read, write = os.pipe2(os.O_NONBLOCK)
    signal.set_wakeup_fd(write)
    with Comm("self") as comm:
        engine = Engine(comm)
        assert signal.set_wakeup_fd(write) == write
        engine.close(False)
        engine.interrupt()  # which does nothing
    assert signal.set_wakeup_fd(-1) == write
    os.close(read)
    os.close(write)


if __name__ == "__main__":
    rank(sys.argv[1], Path(sys.argv[2]))
