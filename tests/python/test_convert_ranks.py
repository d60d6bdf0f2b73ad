# ctest: LABELS full COST 40 TIMEOUT 900
"""zshard.convert on two ranks: runs of DeepSpeed and FSDP2 that zshard continues, and the way back."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BEFORE, AFTER = 3, 4


def deepspeed_python() -> str:
    """An interpreter with DeepSpeed: of ZSHARD_DEEPSPEED_PYTHON, or the environment of zbench torch."""
    named = os.environ.get("ZSHARD_DEEPSPEED_PYTHON")
    if named:
        return named
    env = {k: v for k, v in os.environ.items() if k != "ZSHARD_TEST_PYTHON"}
    env["ZSHARD_REQUIREMENTS"] = "bench/torch/requirements.txt"
    done = subprocess.run(
        ["bash", str(ROOT / "tests" / "venv.sh"), "path"], env=env, capture_output=True, text=True, check=False
    )
    found = Path(done.stdout.strip() or "/nowhere")
    if not (found / "made").exists():
        pytest.skip(
            "no environment with DeepSpeed (ZSHARD_REQUIREMENTS=bench/torch/requirements.txt tests/venv.sh make)"
        )
    return str(found / "bin" / "python")


def run(tmp: Path, role: str, cases: list[dict[str, Any]], python: str = sys.executable) -> list[list[float]]:
    """The losses of each case, on two ranks."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
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
        ranks.append(subprocess.Popen(words, env=env, stdout=logs[rank], stderr=subprocess.STDOUT))
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


STAGES: list[dict[str, Any]] = [
    {"stage": 1},
    {"stage": 2, "zero": {"round_robin_gradients": True}},
    {"stage": 3, "zero": {"sub_group_size": 600}},
]


def test_deepspeed(tmp_path: Path) -> None:
    """Each stage goes on in zshard; and from there again in each stage of DeepSpeed, from both of its forms. bf16
    parameters with fp32 masters go on nearly as there: BF16_Optimizer, and stages 2 and 3."""
    python = deepspeed_python()
    ours, theirs, back = [], [], []
    for s in STAGES:
        n = s["stage"]
        sub_group = s.get("zero", {}).get("sub_group_size", 10**9)
        theirs.append({**s, "before": BEFORE, "after": 2 * AFTER, "save": str(tmp_path / f"d{n}")})
        saves = {
            str(tmp_path / f"u{n}"): {"form": "universal"},
            str(tmp_path / f"z{n}"): {"form": "zero", "stage": n, "ranks": 2, "sub_group": sub_group},
        }
        case: dict[str, Any] = {"load": str(tmp_path / f"d{n}"), "first": BEFORE, "before": AFTER, "after": AFTER}
        ours.append({**case, "saves": saves, "offload": "host" if n == 3 else "none"})
        common = {**s, "seed": 9, "first": BEFORE + AFTER, "before": 0, "after": AFTER}
        if n == 2:  # it would ask for another order of parameters
            common["zero"] = {"round_robin_gradients": False}
        back.append({**common, "load": str(tmp_path / f"z{n}")})
        back.append({**common, "load": str(tmp_path / f"u{n}"), "universal": True})
    for s in ({"stage": 1, "grad_accum": "fp32"}, {"stage": 2}, {"stage": 3}):
        path = str(tmp_path / f"b{s['stage']}")
        theirs.append({**s, "bf16": True, "before": BEFORE, "after": AFTER, "save": path})
        ours.append({"load": path, "bf16": True, "first": BEFORE, "before": 0, "after": AFTER})
    want, got = run(tmp_path, "deepspeed", theirs, python), run(tmp_path, "zshard", ours)
    for i, (a, b) in enumerate(zip(want, got, strict=True)):
        near(b, a[BEFORE:], rel=2e-6 if i < len(STAGES) else 2e-3)
    for i, losses in enumerate(run(tmp_path, "deepspeed", back, python)):
        near(losses, want[i // 2][BEFORE + AFTER :])


def test_fsdp2(tmp_path: Path) -> None:
    """get_state_dict() of sharded parameters, by torch.distributed.checkpoint, both ways; what is wrong is told on all
    ranks."""
    theirs = run(tmp_path, "fsdp2", [{"before": BEFORE, "after": 2 * AFTER, "save": str(tmp_path / "dcp")}])[0]
    case = {
        "load": str(tmp_path / "dcp"), "tied": False, "first": BEFORE, "before": AFTER, "after": AFTER,
        "saves": {str(tmp_path / "back"): {"form": "dcp"}},
    }  # fmt: skip
    shutil.copytree(tmp_path / "dcp", tmp_path / "cut")
    os.truncate(tmp_path / "cut" / "__1_0.distcp", 1000)
    cut = {"load": str(tmp_path / "cut"), "tied": False, "refused": "__1_0.distcp is truncated"}
    near(run(tmp_path, "zshard", [cut, case])[1], theirs[BEFORE:])
    back = {"load": str(tmp_path / "back"), "seed": 9, "first": BEFORE + AFTER, "before": 0, "after": AFTER}
    near(run(tmp_path, "fsdp2", [back])[0], theirs[BEFORE + AFTER :])
