# ctest: LABELS full COST 20
"""The documents' FSDP program with one import changed gives plain torch's losses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import zoo
import zygote
from pool import SECONDS
from ports import free_port

zt = pytest.importorskip("zshard.torch")
HERE = os.path.dirname(os.path.abspath(__file__))
STEPS = 20


@pytest.mark.parametrize("world", [1, 2])
def test_one_import_changed(world: int, tmp_path: Path) -> None:
    port, out = free_port(), str(tmp_path / "losses")
    ranks = []
    for rank in range(world):
        env = os.environ | {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo",
        }  # fmt: skip
        words = [sys.executable, "-B", os.path.join(HERE, "fsdp_program.py"), "zshard.torch", out]
        ranks.append(zygote.Popen(words, env=env, stderr=subprocess.PIPE, text=True))
    try:
        for process in ranks:
            _, err = process.communicate(timeout=SECONDS)
            assert process.returncode == 0, err[-3000:]
    finally:
        for process in ranks:
            process.kill()
    model = zoo.build("plain")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    plain = zoo.train_plain(model, [zoo.batches("plain", r) for r in range(world)], optimizer, STEPS)
    for rank in range(world):
        losses = json.loads(Path(f"{out}.{rank}").read_text(encoding="utf-8"))
        assert len(losses) == STEPS
        for step, loss in enumerate(losses):
            assert loss == pytest.approx(plain.losses[step][rank], rel=1e-6), f"rank {rank}, step {step}"
