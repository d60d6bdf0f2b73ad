# ctest: LABELS full gpu-torch
"""The environment of the Python tests is the one that requirements.txt asks for."""

from __future__ import annotations

import importlib.metadata
import os
import re

HERE = os.path.dirname(os.path.abspath(__file__))


def test_versions() -> None:
    """Each pinned package is there in its version; on a GPU machine PyTorch may be another one."""
    with open(os.path.join(HERE, "requirements.txt"), encoding="utf-8") as f:
        pinned = re.findall(r"^(\w+)==([\w.]+)$", f.read(), flags=re.M)
    assert [name for name, _ in pinned][:1] == ["torch"]
    for name, version in pinned:
        if os.environ.get("ZSHARD_TEST_DEVICE", "cpu") == "cpu":
            assert importlib.metadata.version(name).split("+")[0] == version, name
