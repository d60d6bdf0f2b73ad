# ctest: LABELS full COST 25 TIMEOUT 900
"""zshard.convert: a run of FSDP2 that zshard continues on two ranks, and the way back."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch")

from convert_launch import AFTER, BEFORE, near, run  # noqa: E402


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
