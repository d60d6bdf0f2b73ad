"""Runs convert_program.py on two ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import zygote
from ports import free_port

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BEFORE, AFTER = 3, 4  # steps


def run(tmp: Path, role: str, cases: list[dict[str, Any]], python: str = sys.executable) -> list[list[float]]:
    """The losses of each case, on two ranks."""
    port = free_port()
    spec, out = tmp / f"{role}-{port}.json", tmp / f"{role}-{port}.out"
    spec.write_text(json.dumps(cases))
    path = os.pathsep.join([str(ROOT / "python"), str(HERE), os.environ.get("PYTHONPATH", "")])
    ranks = []
    logs = [open(tmp / f"{role}-{port}.{rank}.log", "w+") for rank in range(2)]  # noqa: SIM115
    for rank in range(2):
        env = os.environ | {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ZSHARD_COMM": "tcp",
            "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "ZSHARD_DATA": str(tmp / "data"),
            "XDG_RUNTIME_DIR": str(tmp), "ZSHARD_HOST_BYTES": "64M", "ZSHARD_NVME_BYTES": "256M", "PYTHONPATH": path,
            "DS_ACCELERATOR": "cpu",
        }  # fmt: skip
        if role == "zshard":
            env["ZSHARD_PORT"] = str(port)
        words = [python, "-B", str(HERE / "convert_program.py"), role, str(spec), str(out)]
        popen = zygote.Popen if python == sys.executable else subprocess.Popen
        ranks.append(popen(words, env=env, stdout=logs[rank], stderr=subprocess.STDOUT))
    codes = [r.wait(500) for r in ranks]
    text = ""
    for log in logs:
        log.seek(0)
        text += log.read()[-3000:]
        log.close()
    assert codes == [0, 0], text
    return json.loads(out.read_text())  # type: ignore[no-any-return]


def near(got: list[float], want: list[float], rel: float = 2e-6) -> None:
    assert len(got) == len(want)
    assert got == pytest.approx(want, rel=rel)
