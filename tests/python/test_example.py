# ctest: LABELS full COST 30
"""python -m zshard.examples.gpt2 learns and draws a curve, with and without a daemon alike."""

import os
import sys

import pytest
import zygote

pytest.importorskip("torch")

SMALL = "--steps 30 --layers 2 --width 32 --tokens 32 --batch 4 --seconds 100000".split()


def example(folder: str, *more: str) -> tuple[list[str], str]:
    """Its lines, and what it says besides."""
    done = zygote.run([sys.executable, "-m", "zshard.examples.gpt2", *SMALL, *more], cwd=folder, text=True,
                      capture_output=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


def losses(lines: list[str]) -> list[float]:
    return [float(line.split("loss ")[1].split()[0]) for line in lines if line.startswith("step ")]


def test_gpt2(tmp_path: object) -> None:
    lines, said = example(str(tmp_path))
    assert "zshard: started a daemon" in said or "zshard: using the daemon" in said, said
    seen = losses(lines)
    assert len(seen) == 4 and seen[-1] < seen[0] - 0.3, seen
    assert any(line.startswith("it says: '4 + 5 = ") for line in lines)
    assert sum("|" in line and "*" in line for line in lines) >= 5
    alone, said = example(str(tmp_path), "--offload", "none")
    assert losses(alone) == seen and "daemon" not in said
    assert os.listdir(str(tmp_path)) in ([], ["gpt2-loss.png"])
