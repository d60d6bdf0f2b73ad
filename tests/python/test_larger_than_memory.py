# ctest: LABELS long COST 30 TIMEOUT 1800
"""A model whose states are four times the memory that all of it may use is initialised, trained, saved and resumed.

The budget is the daemon's host budget and a memory cgroup around trainer and daemon; what an interpreter with PyTorch
takes by itself is measured and added to the cgroup's limit. The peak of anonymous and shared memory is printed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("zshard.torch")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "bench", "torch"))
from measure import MIB, Memory, written_bytes  # noqa: E402
from pool import SECONDS  # noqa: E402

STATE = 16  # bytes for each fp32 parameter: itself, its gradient, two moments
TIMES = 4  # size of the model, relative to the budget
BUILD = os.environ.get("ZSHARD_BUILD", "build")


def base_bytes() -> int:
    """What an interpreter takes that has loaded PyTorch."""
    code = "import torch, zshard.torch; torch.ones(8).exp(); import sys; print(flush=True); sys.stdin.read()"
    with Memory() as memory:
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=memory.enter
        )
        memory.pids.add(process.pid)
        assert process.stdout is not None
        process.stdout.readline()
        now = memory.now()
        process.communicate()
    return now


def train(memory: Memory, spec: dict[str, Any]) -> dict[str, Any]:
    program = os.path.join(HERE, "memory_program.py")
    process = subprocess.Popen(
        [sys.executable, "-B", program, json.dumps(spec)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=memory.enter, env=os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"},
    )  # fmt: skip
    memory.pids.add(process.pid)
    try:
        out, err = process.communicate(timeout=4 * SECONDS)
    finally:
        process.kill()
    assert process.returncode == 0, err[-3000:]
    return json.loads(out.splitlines()[-1])  # type: ignore[no-any-return]


@pytest.mark.long
@pytest.mark.parametrize(("layers", "width"), [(48, 512), (48, 1024)], ids=["100M", "400M"])
def test_larger_than_memory(layers: int, width: int, tmp_path: Path) -> None:
    params = layers * (8 * width**2 + 5 * width)
    budget = params * STATE // TIMES
    base = base_bytes()
    with Memory(base + budget) as memory:
        if memory.kind != "cgroup" or not memory.limited:
            pytest.skip("no memory cgroup can be made here")
        words = [os.path.join(BUILD, "bin", "zshardd"), "--socket", str(tmp_path / "s"), "--data", str(tmp_path / "d")]
        words += ["--host-bytes", str(budget // 2), "--nvme-bytes", str(40 * params), "--page-elems", "65536"]
        daemon = subprocess.Popen(words, stdout=subprocess.PIPE, preexec_fn=memory.enter)
        memory.pids.add(daemon.pid)
        try:
            assert daemon.stdout is not None
            assert daemon.stdout.readline().startswith(b"ready ")
            before = written_bytes({daemon.pid})
            spec = {
                "layers": layers, "width": width, "steps": 3, "socket": str(tmp_path / "s"), "job": "large",
                "resume": False, "save": str(tmp_path / "saved"),
            }  # fmt: skip
            first = train(memory, spec)
            again = train(memory, spec | {"steps": 5, "resume": True, "save": ""})
            moved = written_bytes({daemon.pid}) - before
        finally:
            daemon.terminate()
            daemon.wait(60)
    assert first["params"] == params and first["first"] == 0 and again["first"] == 3
    assert len(first["losses"]) == 3 and len(again["losses"]) == 2
    assert sum(f.stat().st_size for f in (tmp_path / "saved").glob("*.safetensors")) >= 4 * params
    assert moved > params * STATE / 2, "the state did not go to NVMe"
    print(
        f"{params / 1e6:.0f} M parameters, states of {params * STATE / MIB:.0f} MiB, budget {budget / MIB:.0f} MiB: "
        f"peak {memory.peak / MIB:.0f} MiB, of which PyTorch itself {base / MIB:.0f} MiB; written {moved / MIB:.0f} MiB"
    )
    assert memory.peak <= base + budget
