"""Starts the ranks of trainer_program.py and accelerate_program.py, and reads what they found."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import zygote
from pool import SECONDS
from ports import free_port

HERE = os.path.dirname(os.path.abspath(__file__))


def run(program: str, world: int, folder: Path, cases: list[str]) -> list[dict[str, Any]]:
    """[rank] what each case returned."""
    port, out = free_port(), str(folder / f"out{world}")
    ranks = []
    for rank in range(world):
        env = os.environ | {
            "OMP_NUM_THREADS": "1", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1",
            "GLOO_SOCKET_IFNAME": "lo", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": "",
            "HF_HOME": str(folder / "home"), "ACCELERATE_USE_CPU": "true",
        }  # fmt: skip
        if world > 1:
            env |= {
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            }  # fmt: skip
        words = [sys.executable, "-B", os.path.join(HERE, program), out, str(folder), *cases]
        ranks.append(
            zygote.Popen(
                words, preload=zygote.TRAINER, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        )
    said = []
    try:
        for process in ranks:
            text, _ = process.communicate(timeout=3 * SECONDS)
            said.append(text[-3000:])
            assert process.returncode == 0, text[-6000:]
    finally:
        for process in ranks:
            process.kill()
    made = [json.loads(Path(f"{out}.{rank}").read_text(encoding="utf-8")) for rank in range(world)]
    for one, text in zip(made, said, strict=True):
        for case in cases:
            if case not in one:
                one[case] = {"error": f"did not run\n{text}"}
    return made


def document(test: str, folder: Path) -> None:
    """Runs the blocks of the how-to page that say that this test runs them."""
    page = (Path(HERE).parents[1] / "docs" / "pytorch" / "HOWTO.md").read_text()
    blocks = re.findall(rf"<!-- not run: [^\n]*{test}.py runs it -->\n```python\n(.*?)```", page, re.DOTALL)
    assert blocks, f"no block of the page names {test}.py"
    env = os.environ | {"PYTHONPATH": str(Path(HERE).parents[1] / "python"), "HF_HUB_OFFLINE": "1"}
    for block in blocks:
        done = zygote.run(
            [sys.executable, "-c", block],
            preload=zygote.TRAINER, cwd=folder, env=env, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
