# ctest: LABELS full COST 30
"""TRL's trainers with zshard.torch.TrainerMixin give the losses that they give without it, on 1 and 2 ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

FOUND: dict[int, list[dict[str, Any]]] = {}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trl")


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("case", ["sft", "dpo", "grpo"])
def test_parity(world: int, case: str, folder: Path) -> None:
    """SFT with a head in a unit of its own, which is used without its forward; DPO with a frozen reference model, which
    is sharded; GRPO, which generates."""
    pytest.importorskip("trl")
    from hf_run import run

    if world not in FOUND:
        FOUND[world] = run("trainer_program.py", world, folder, ["sft", "dpo", "grpo"])
    for rank, one in enumerate(FOUND[world]):
        made = one[case]
        assert "error" not in made, f"rank {rank}: {made['error']}"
        tolerance = 2e-5 if case == "grpo" else 2e-6
        assert made["ours"]["loss"] == pytest.approx(made["plain"]["loss"], rel=tolerance, abs=1e-7)
        assert made["ours"]["grad_norm"] == pytest.approx(made["plain"]["grad_norm"], rel=10 * tolerance)
        assert len(made["ours"]["loss"]) == (2 if case == "grpo" else 5)
        assert made["sharded"] == [True, case == "dpo"]
        assert {"model.safetensors", "tokenizer.json"} <= set(made["saved"])
