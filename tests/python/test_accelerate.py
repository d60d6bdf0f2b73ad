# ctest: LABELS full COST 40
"""zshard.torch.Accelerator gives the losses of Accelerate's, on 1 and 2 ranks, and resumes exactly."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import zygote

pytest.importorskip("torch")

FOUND: dict[int, list[dict[str, Any]]] = {}
CASES = ["gpt2", "short", "local", "bf16", "resume", "several", "hooks", "apart", "late", "saved", "full", "mistakes"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("accelerate")


def results(world: int, case: str, folder: Path) -> list[dict[str, Any]]:
    """[rank] what a case came to; all cases of a world are run by the first one that asks."""
    pytest.importorskip("accelerate")
    pytest.importorskip("transformers")
    from hf_run import run

    if world not in FOUND:
        (folder / str(world)).mkdir()
        cases = [c for c in CASES if world == 1 or c != "mistakes"]
        FOUND[world] = run("accelerate_program.py", world, folder / str(world), cases)
    made = [one[case] for one in FOUND[world]]
    for rank, one in enumerate(made):
        assert "error" not in one, f"rank {rank}: {one['error']}"
    return made


WORLDS = pytest.mark.parametrize("world", [1, 2])


@WORLDS
@pytest.mark.parametrize(("case", "tolerance"), [("gpt2", 2e-6), ("short", 2e-6), ("local", 2e-6), ("bf16", 2e-3)])
def test_parity(world: int, case: str, tolerance: float, folder: Path) -> None:
    """Losses and norms of a loop with accumulation, also where the last step has fewer passes."""
    for made in results(world, case, folder):
        plain, ours = made["plain"], made["ours"]
        assert len(ours["loss"]) == 10 and ours["loss"][-1] < ours["loss"][0]
        assert ours["loss"] == pytest.approx(plain["loss"], rel=tolerance)
        assert ours["norm"] == pytest.approx(plain["norm"], rel=10 * tolerance)
        assert ours["lr"] == plain["lr"]
        assert made["apart"] < (1e-5 if tolerance < 1e-3 else 0.05)


@WORLDS
def test_resume(world: int, folder: Path) -> None:
    """A state that is loaded into another model continues bit for bit."""
    for made in results(world, "resume", folder):
        whole, again = made["whole"], made["again"]
        assert again["loss"] == whole["loss"][4:] and again["norm"] == whole["norm"][2:]
        assert made["equal"] and again["lr"] == whole["lr"] and (whole["counter"], again["counter"]) == (3, 8)
        assert {"model.safetensors", "config.json", "zshard", "scheduler.bin"} <= set(made["files"])
        assert "optimizer.bin" not in made["files"]


@WORLDS
def test_several_models(world: int, folder: Path) -> None:
    for made in results(world, "several", folder):
        assert made["first"] == made["second"]
        assert made["whole"] > 0 and made["sharded"] == [True, True, False]
        assert {"model.safetensors", "model_1", "model_2.safetensors", "zshard"} <= set(made["files"])


@WORLDS
def test_hooks_of_users(world: int, folder: Path) -> None:
    for made in results(world, "hooks", folder):
        assert made["first"] == made["second"] and made["values"]
        assert "mine" in made["files"] and "model.safetensors" not in made["files"]


@WORLDS
def test_in_any_order(world: int, folder: Path) -> None:
    for made in results(world, "apart", folder):
        for name in ("model first", "optimizer first"):
            assert made[name] == pytest.approx(made["plain"], rel=2e-6), name


@WORLDS
def test_loaded_before_the_first_step(world: int, folder: Path) -> None:
    for made in results(world, "late", folder):
        assert len(made["second"]) == 2 and made["second"] == made["first"][1:]


@WORLDS
def test_saved(world: int, folder: Path) -> None:
    for made in results(world, "saved", folder):
        assert made["apart"] == 0.0


@WORLDS
def test_a_full_disk(world: int, folder: Path) -> None:
    for rank, made in enumerate(results(world, "full", folder)):
        for offload in ("auto", "none"):
            for what in ("save_model", "save_weights"):
                said = made.get(f"{offload} {what}", "nothing was raised")
                assert said.startswith("RuntimeError: " if rank else "OSError: [Errno 28] no space"), said
                assert not rank or "could not be saved" in said, said


def test_mistakes(folder: Path) -> None:
    (said,) = results(1, "mistakes", folder)
    for name, words in (
        ("hook", "NotImplementedError: DistributedDataParallelKwargs(comm_hook="),
        ("plugin", "NotImplementedError: zshard.torch.Accelerator(fsdp_plugin=)"),
        ("kind", "TypeError: RMSprop has no counterpart"),
        ("late kind", "TypeError: RMSprop has no counterpart"),
        ("value", "NotImplementedError: clip_grad_value_()"),
        ("pickle", "ValueError: save_state(safe_serialization=False)"),
    ):
        assert words in said.get(name, "nothing was raised"), name


def test_nothing_is_imported() -> None:
    """zshard.torch imports neither library; without them its names say what to install."""
    program = """if True:
        import sys
        import zshard.torch as zt
        assert not {"accelerate", "transformers", "peft", "trl"} & set(sys.modules)
        sys.modules["accelerate"] = None
        from zshard.torch import *
        assert shard is zt.shard and "Accelerator" in dir(zt)
        for name in ("Accelerator", "TrainerMixin"):
            try:
                getattr(zt, name)
            except ImportError as e:
                assert f"zshard.torch.{name} needs other packages: pip install" in str(e), e
            else:
                raise AssertionError(name)
        assert not hasattr(zt, "something")
    """
    done = zygote.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.long
def test_the_documents(tmp_path: Path) -> None:
    """The example of docs/pytorch/HOWTO.md runs."""
    pytest.importorskip("accelerate")
    pytest.importorskip("transformers")
    from hf_run import document

    document("test_accelerate", tmp_path)
