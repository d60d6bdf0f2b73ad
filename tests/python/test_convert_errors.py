# ctest: LABELS full COST 15 TIMEOUT 900
"""zshard.convert: files that are missing, truncated or of several runs, and models that they do not fit."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from convert_checks import like, state, train  # noqa: E402
from convert_program import adamw, make  # noqa: E402
from torch_models import Net, batch, loss_of, values  # noqa: E402

import zshard.convert as zc  # noqa: E402
import zshard.torch as zt  # noqa: E402
from zshard.convert import _content, _pickle  # noqa: E402
from zshard.convert._folder import open_  # noqa: E402


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def other_version(path: Path) -> None:
    whole = torch.load(path, weights_only=False, pickle_module=_pickle._MODULE)
    whole["ds_version"] = "0.9.0"
    whole["optimizer_state_dict"].pop("loss_scaler")
    whole["optimizer_state_dict"]["zero_stage"] = 2
    torch.save(whole, path, pickle_module=pickle)


def rank_of(step: str, rank: int) -> str:
    return f"global_step{step}/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"


WRONG: dict[str, tuple[Callable[[Path], None], list[str]]] = {
    "missing ranks": (
        lambda p: [os.unlink(p / rank_of("5", r)) for r in (0, 2)],  # type: ignore[func-returns-value,return-value]
        ["3 ranks saved it", r"ranks \[0, 2\] are missing"],
    ),
    "no model states": (
        lambda p: os.unlink(p / "global_step5" / "mp_rank_00_model_states.pt"),
        ["states.pt is missing"],
    ),
    "truncated": (lambda p: cut(p / rank_of("5", 1)), [r"rank_1_mp_rank_00_optim_states.pt' is truncated"]),
    "a rank more": (
        lambda p: shutil.copy(p / rank_of("5", 0), p / rank_of("5", 3)),  # type: ignore[return-value]
        [r"files of ranks \[3\]: of an older checkpoint"],
    ),
    "no such tag": (
        lambda p: (p / "latest").write_text("global_step9"),
        ["global_step9' is no", "there are global_step5"],
    ),  # type: ignore[return-value]
    "several tags": (
        lambda p: [os.unlink(p / "latest"), shutil.copytree(p / "global_step5", p / "global_step6")],  # type: ignore[func-returns-value,return-value]
        ["several checkpoints", "give tag=, one of global_step5, global_step6"],
    ),
    "versions": (
        lambda p: other_version(p / rank_of("5", 1)),
        ["different versions of DeepSpeed: 0.19.8, 0.9.0"],
    ),
    "nothing": (lambda p: shutil.rmtree(p / "global_step5"), ["is no checkpoint of a known form"]),
}


def refused(folder: Path, texts: list[str], **more: Any) -> str:
    """load() refuses, with all of these texts, and changes nothing."""
    model = make()
    optimizer = adamw(model)
    with zt.shard(model, optimizer, offload="none"):
        train(model, optimizer, 0, 1)
        before = state(model, optimizer)
        with pytest.raises(zc.ConvertError) as error:
            zc.load(model, optimizer, folder, **more)
        after = state(model, optimizer)
        assert all(torch.equal(before[k], after[k]) for k in before)
        assert optimizer.param_groups[0]["lr"] == 1e-2
        for text in texts:
            assert error.match(text)
        return str(error.value)


@pytest.mark.parametrize("case", WRONG)
def test_wrong_files(tmp_path: Path, case: str) -> None:
    like(make()).write(tmp_path / "c")
    harm, texts = WRONG[case]
    harm(tmp_path / "c")
    refused(tmp_path / "c", texts)


def test_all_that_is_wrong_in_one_message(tmp_path: Path) -> None:
    """Names, shapes, groups and state."""
    files = like(make())
    files.trained[0]["embed.weight"] = {p: torch.rand(3, 4) for p in ("fp32", "exp_avg", "exp_avg_sq")}
    files.trained[1]["more.bias"] = files.trained[1].pop("norm.bias")
    files.write(tmp_path)
    text = refused(tmp_path, [])
    assert "'embed.weight': [3, 4] in the checkpoint, [29, 16] in the model" in text
    assert "the checkpoint lacks 'norm.bias'" in text and "the model lacks 'more.bias'" in text
    assert "hold other parameters" in text
    model = make()
    optimizer = torch.optim.SGD(adamw(model).param_groups, lr=1.0, momentum=0.9)
    with zt.shard(model, optimizer, offload="none"), pytest.raises(zc.ConvertError) as error:
        zc.load(model, optimizer, tmp_path)
    assert error.match("has state exp_avg, exp_avg_sq, which SGD .sgd. does not keep")
    assert error.match("has no state momentum_buffer in the checkpoint")


def test_not_strict(tmp_path: Path) -> None:
    """What is missing stays, with its state; what has no state begins with zeros; names are told."""
    files = like(make())
    files.trained[1]["more.bias"] = files.trained[1].pop("norm.bias")
    files.frozen["blocks.1.norm.bias"] = files.trained[1].pop("blocks.1.norm.bias")["fp32"]
    files.write(tmp_path)
    model = make()
    optimizer = adamw(model)
    with zt.shard(model, optimizer, offload="none"):
        train(model, optimizer, 0, 2)
        before = state(model, optimizer)
        loaded = zc.load(model, optimizer, tmp_path, strict=False, hyperparameters=False)
        assert loaded.missing == ["norm.bias"] and loaded.unexpected == ["more.bias"]
        after = state(model, optimizer)
        for word in ("master", "exp_avg", "exp_avg_sq", "step"):
            assert torch.equal(after[f"norm.bias.{word}"], before[f"norm.bias.{word}"])
        assert torch.equal(after["blocks.1.norm.bias.master"], files.frozen["blocks.1.norm.bias"])
        assert all(after[f"blocks.1.norm.bias.{w}"].abs().sum() == 0 for w in ("exp_avg", "exp_avg_sq", "step"))
        assert int(after["norm.weight.step"]) == 5
        assert torch.equal(values(model)["norm.weight"], files.trained[1]["norm.weight"]["fp32"])
        train(model, optimizer, 0, 1)


def test_dcp_files(tmp_path: Path) -> None:
    model = make()
    optimizer = adamw(model)
    with zt.shard(model, optimizer, offload="none"):
        train(model, optimizer, 0, 1)
        path = Path(zc.save(model, optimizer, tmp_path / "c", "dcp"))
    cut(path / "__0_0.distcp")
    refused(path, ["__0_0.distcp is truncated"])
    os.unlink(path / "__0_0.distcp")
    refused(path, ["__0_0.distcp is missing"])
    (path / ".metadata").write_bytes(b"no pickle")
    refused(path, [".metadata' cannot be read"])


def test_what_is_there_stays(tmp_path: Path) -> None:
    """A save that fails leaves the old checkpoint; a folder of something else is not replaced."""
    model = make()
    optimizer = adamw(model)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "precious").write_text("x")
    with zt.shard(model, optimizer, offload="none") as handle:
        path = zc.save(handle, optimizer, tmp_path / "c")
        train(model, optimizer, 0, 1)
        with pytest.raises(zc.ConvertError, match="names that DeepSpeed's files have themselves: module"):
            zc.save(handle, optimizer, tmp_path / "c", "universal", tag="x", client_state={"module": 1})
        with pytest.raises(zc.ConvertError, match="is no checkpoint: it is not replaced"):
            zc.save(handle, optimizer, tmp_path / "other")
        with pytest.raises(pickle.PicklingError):
            zc.save(handle, optimizer, path, client_state={"f": lambda: 0})
        assert open_(path).step == 0 and sorted(os.listdir(tmp_path)) == ["c", "other"]
        loss_of(model, batch(0)).backward()
        for call in (lambda: zc.save(handle, optimizer, path), lambda: zc.load(handle, optimizer, path)):
            with pytest.raises(RuntimeError, match="in the middle of a step"):
                call()
        optimizer.step()
        optimizer.zero_grad()
        assert zc.save(handle, optimizer, path, step=7) == path and open_(path).step == 7
    with pytest.raises(ValueError, match="the model is not sharded"):
        zc.load(Net(), None, path)


def test_a_file_that_ends_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values are written already: the model cannot be used any more."""
    like(make()).write(tmp_path)
    model = make()
    optimizer = adamw(model)
    handle = zt.shard(model, optimizer, offload="none")
    read, calls = _content.Joined.read, []

    def fails(self: Any, first: int, out: Any) -> None:
        calls.append(first)
        if len(calls) == 9:
            raise OSError("unplugged")
        read(self, first, out)

    monkeypatch.setattr(_content.Joined, "read", fails)
    with pytest.raises(zc.ConvertError, match="could not be read to its end.*unplugged"):
        zc.load(model, optimizer, tmp_path)
    with pytest.raises(RuntimeError, match="closed"):
        model(batch(0))
    handle.close(clean=False)


@pytest.mark.parametrize("form", ["universal", "zero"])
def test_a_full_disk(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that are written through a mapping have their space before: a write could only end the process (SIGBUS)."""
    model = make()
    optimizer = adamw(model)
    more = {"stage": 2, "ranks": 2} if form == "zero" else {}
    with zt.shard(model, optimizer, offload="none") as handle:
        train(model, optimizer, 0, 1)
        with monkeypatch.context() as patch:
            patch.setattr(_content, "PIECE", 4)  # so that even small tensors are written in pieces
            patch.setattr(os, "posix_fallocate", _no_space)
            with pytest.raises(OSError, match="No space left") as error:
                zc.save(handle, optimizer, tmp_path / "c", form, **more)
            assert error.value.errno == errno.ENOSPC and error.value.filename
        assert not os.listdir(tmp_path / "c")  # and training continues
        train(model, optimizer, 1, 2)
        zc.save(handle, optimizer, tmp_path / "c", form, **more)


def _no_space(fd: int, offset: int, n: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_space_of_a_reserved_file(tmp_path: Path) -> None:
    _pickle.reserve_pt({"a": _pickle.hollow((1 << 20,))}, str(tmp_path / "a.pt"))
    seen = os.stat(tmp_path / "a.pt")
    assert seen.st_blocks * 512 >= seen.st_size >= 4 << 20


def test_a_file_that_torch_cannot_write() -> None:
    """torch's writer gives no reason: the message says at least how much is free."""
    with pytest.raises(OSError, match="bytes are free") as error:
        _pickle.save_pt({"a": torch.zeros(1 << 20)}, "/dev/full")
    assert error.value.filename == "/dev/full"
