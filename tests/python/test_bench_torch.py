# ctest: LABELS full COST 3
"""bench/torch/bench.py, the rounds of `zbench torch`, on ranks that only say what they are told to: no PyTorch."""

from __future__ import annotations

import argparse
import math
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench" / "torch"
sys.path.insert(0, str(BENCH))

import measure  # type: ignore[import-not-found]  # noqa: E402

import bench  # type: ignore[import-not-found]  # noqa: E402

RANK = """
    import json, os, sys, time
    spec, rank = json.loads(sys.argv[1]), int(os.environ["RANK"])
    def say(event, **more):
        if rank == 0:
            print(json.dumps({"event": event, **more}), flush=True)
    if spec["resume"]:
        say("resumed", step=STEP)
    else:
        say("first_step")
        say("begin")
        say("end", steps=2, seconds=4.0, losses=[2.0, 1.0], python=1.0, nvme=float("nan"))
        say("saved", seconds=0.5, step=3)
        AFTER
"""


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Slices of ranks that resume at `step`, and do `after` at their end."""
    options = argparse.Namespace(build="", python=sys.executable, who="ddp", ranks=2, warm=1, steps=2, seconds=1.0)

    def launch(step: int = 4, after: str = "pass", resumes: Any = None) -> Any:
        source = textwrap.dedent(RANK).replace("STEP", str(step)).replace("AFTER", after)
        (tmp_path / "rank.py").write_text(source)
        monkeypatch.setattr(bench, "HERE", str(tmp_path))
        made = bench.Launch(
            bench.Bench(options),
            "ddp",
            bench.Case("few", "1M", "fp32", False),
            str(tmp_path),
            resumes is not None,
            resumes is None,
        )
        try:
            return made.run(resumes)
        finally:
            assert not made.memory.path or not os.path.exists(made.memory.path), "its cgroup stays"
            assert all(p.poll() is not None for p in made.ranks)

    return launch


def test_a_slice(ranks: Any) -> None:
    """Figures of a launch, and of the one that resumes it."""
    made = ranks()
    assert made.figures["rate"] == 2 * 64 * 2 * 2 / 4.0 and made.figures["save"] == 0.5 and made.python == 0.25
    assert ranks(resumes=made).figures["resume"] > 0


def test_one_that_did_not_resume(ranks: Any) -> None:
    """Who begins again is fast: that is no resume."""
    with pytest.raises(bench.Broken, match="made step 1 instead of resuming"):
        ranks(step=1, resumes=ranks())


def test_a_rank_that_fails(ranks: Any) -> None:
    """The other one waits for it, and is ended."""
    with pytest.raises(bench.Broken, match="ranks ended with"):
        ranks(after="time.sleep(600) if rank == 0 else sys.exit(1)")


def test_losses() -> None:
    assert bench.furthest([1.0, 1.5], [1.0, 1.0]) == 0.5
    assert bench.furthest([1.0, math.nan], [1.0, 1.0]) == math.inf
    assert bench.furthest([], [1.0]) == math.inf


def test_ranks_end_with_the_bench() -> None:
    """Also where it is killed."""
    code = """
        import os, subprocess, sys
        import measure
        child = subprocess.Popen(["sleep", "600"], preexec_fn=measure.Memory().enter, stdout=subprocess.DEVNULL)
        print(child.pid, flush=True)
        sys.stdin.read()
    """
    program = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=os.environ | {"PYTHONPATH": str(BENCH)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert program.stdout is not None
    child = int(program.stdout.readline())
    os.kill(program.pid, signal.SIGKILL)
    program.wait()
    end = time.monotonic() + 60
    while alive(child):
        assert time.monotonic() < end, "it lives on"
        time.sleep(0.01)
    for place in measure.own_cgroups():
        for path in Path(place).glob(f"zshard-{program.pid}-*"):
            path.rmdir()


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
