# ctest: LABELS full COST 40 TIMEOUT 900
"""zshard.convert: runs of DeepSpeed that zshard continues on two ranks, and the way back. Skipped without DeepSpeed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from convert_launch import AFTER, BEFORE, ROOT, near, run  # noqa: E402


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
