# ctest: TRAINER LABELS full COST 80
"""Transformers' trainers with zshard.torch.TrainerMixin give the losses that they give without it, on 1 and 2 ranks."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

FOUND: dict[int, list[dict[str, Any]]] = {}
CASES = [
    "gpt2",
    "short",
    "checkpointing",
    "reentrant",
    "bf16",
    "bf16-gpt2",
    "resume",
    "resume-bf16",
    "best",
    "generate",
]
CASES += ["from-plain", "worlds", "mistakes"]
MORE = {"lora": "peft"}  # what they need
WORLDS = pytest.mark.parametrize("world", [1, 2])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trainer")


def results(world: int, case: str, folder: Path) -> list[dict[str, Any]]:
    """[rank] what a case came to; all cases of a world are run by the first one that asks."""
    pytest.importorskip("accelerate")
    pytest.importorskip("transformers")
    pytest.importorskip(MORE.get(case, "torch"))
    from hf_run import run

    for n in range(1, world + 1):  # a run of several ranks continues one of a single rank
        if n not in FOUND:
            cases = CASES + [c for c, needs in MORE.items() if importlib.util.find_spec(needs)]
            FOUND[n] = run("trainer_program.py", n, folder, [c for c in cases if n == 1 or c != "mistakes"])
    made = [one[case] for one in FOUND[world]]
    for rank, one in enumerate(made):
        assert "error" not in one, f"rank {rank}: {one['error']}"
    return made


def same(ours: dict[str, list[float]], plain: dict[str, list[float]], tolerance: float) -> None:
    assert ours["loss"] == pytest.approx(plain["loss"], rel=tolerance, abs=1e-7)
    assert ours["grad_norm"] == pytest.approx(plain["grad_norm"], rel=10 * tolerance)


@WORLDS
@pytest.mark.parametrize(
    ("case", "tolerance", "steps"),
    [
        ("gpt2", 2e-6, 4),
        ("short", 2e-6, 4),
        ("checkpointing", 2e-6, 4),
        ("reentrant", 2e-6, 3),
        ("bf16", 2e-3, 4),
        ("bf16-gpt2", 2e-3, 4),
    ],
)
def test_parity(world: int, case: str, tolerance: float, steps: int, folder: Path) -> None:
    """Accumulation with a short last step, clipping or none, checkpointing, bf16, evaluation in between."""
    for made in results(world, case, folder):
        plain, ours = made["Trainer"], made["Ours"]
        assert len(ours["loss"]) == steps
        same(ours, plain, tolerance)
        assert ours["eval_loss"] == pytest.approx(plain["eval_loss"], rel=tolerance)
        assert len(ours["eval_loss"]) == (2 if case == "gpt2" else 0)
        assert ours["learning_rate"] == plain["learning_rate"]
        assert made["apart"] < (1e-5 if tolerance < 1e-3 else 0.05)


@WORLDS
@pytest.mark.parametrize("case", ["resume", "resume-bf16"])
def test_resume(world: int, case: str, folder: Path) -> None:
    """A run that continues from a checkpoint, with another model, is the uninterrupted one bit for bit."""
    for made in results(world, case, folder):
        assert made["equal"]
        for name in ("loss", "grad_norm", "learning_rate"):
            assert len(made["whole"][name]) == 6 and made["again"][name][-4:] == made["whole"][name][2:], name
        assert {"model.safetensors", "zshard", "scheduler.pt", "trainer_state.json"} <= set(made["files"])
        assert "optimizer.pt" not in made["files"]


@WORLDS
def test_the_best_model(world: int, folder: Path) -> None:
    for made in results(world, "best", folder):
        assert made["best"] != "4" and made["apart"] == 0.0 and made["eval"] == pytest.approx(0, abs=1e-6)
        assert "zshard" not in made["files"] and "model.safetensors" in made["files"]


@WORLDS
def test_generate(world: int, folder: Path) -> None:
    for made in results(world, "generate", folder):
        for name in ("ours", "none"):
            assert made[name]["tokens"] == made["plain"]["tokens"]
            assert made[name]["eval_loss"] == pytest.approx(made["plain"]["eval_loss"], rel=2e-6)


@WORLDS
def test_adapters(world: int, folder: Path) -> None:
    for made in results(world, "lora", folder):
        same(made["whole"], made["plain"], 2e-6)
        assert made["again"]["loss"][-4:] == made["whole"]["loss"][2:]
        assert {"adapter_model.safetensors", "zshard"} <= set(made["files"])
        assert not {"model.safetensors", "optimizer.pt"} & set(made["files"])


@WORLDS
def test_a_checkpoint_of_trainer(world: int, folder: Path) -> None:
    for made in results(world, "from-plain", folder):
        assert made["ours"]["loss"][-4:] == pytest.approx(made["plain"]["loss"][2:], rel=2e-6)


def test_another_number_of_ranks(folder: Path) -> None:
    (one,) = results(1, "worlds", folder)
    for two in results(2, "worlds", folder):
        assert len(one["loss"]) == 5
        same({k: v[-3:] for k, v in two.items()}, {k: v[-3:] for k, v in one.items()}, 1e-5)


def test_mistakes(folder: Path) -> None:
    (said,) = results(1, "mistakes", folder)
    for name, words in (
        ("mixin", "TypeError: Other is no Trainer: class Other(zshard.torch.TrainerMixin, transformers.Trainer)"),
        ("fsdp", "NotImplementedError: TrainingArguments(fsdp=)"),
        ("callback", "NotImplementedError: sync_ref_model=True"),
        ("optimizer", "TypeError: RMSprop has no counterpart"),
        ("no weights", "FileNotFoundError: no model.safetensors"),
        ("another optimizer", "is of adamw, and the optimizer is sgd"),
        ("resumed", "ValueError: the job was resumed after its step 1, and the trainer begins at step 0"),
    ):
        assert words in said.get(name, "nothing was raised"), name


@pytest.mark.long
def test_the_documents(tmp_path: Path) -> None:
    """The example of docs/pytorch/HOWTO.md runs."""
    pytest.importorskip("accelerate")
    pytest.importorskip("transformers")
    from hf_run import document

    document("test_trainer", tmp_path)
