# ctest: LABELS full COST 30 TIMEOUT 900
"""zshard.convert: forms that are read and written, into and out of models, and between files."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zygote

torch = pytest.importorskip("torch")

from convert_checks import like, same, state, synthetic, train  # noqa: E402
from convert_program import adamw, make  # noqa: E402
from torch_models import Net, values  # noqa: E402

import zshard.convert as zc  # noqa: E402
import zshard.torch as zt  # noqa: E402
from zshard.convert import _content, _dcp_write, _live, _pickle, _zero_write  # noqa: E402
from zshard.convert._folder import open_  # noqa: E402

HOW: list[dict[str, Any]] = [
    {"form": "portable"},
    {"form": "universal"},
    {"form": "dcp"},
    {"form": "dcp", "model_key": "app.model", "optim_key": "app.optim"},
    {"form": "zero", "stage": 1, "ranks": 2},
    {"form": "zero", "stage": 2, "ranks": 3},
    {"form": "zero", "stage": 3, "ranks": 1},
    {"form": "zero", "stage": 3, "ranks": 3, "sub_group": 300},
]


def name_of(how: dict[str, Any]) -> str:
    return "-".join(str(v) for v in how.values())


@pytest.fixture(params=["whole", "pieces"])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors as a whole, and in pieces that fit no row."""
    if request.param == "pieces":
        for module in (_content, _live):
            monkeypatch.setattr(module, "PIECE", 37)
        monkeypatch.setattr(_dcp_write, "CHUNK", 100)


# ---- into a model, and out of it


@pytest.mark.parametrize("how", HOW, ids=name_of)
@pytest.mark.usefixtures("pieces")
def test_there_and_back(tmp_path: Path, how: dict[str, Any]) -> None:
    """Another model continues as the first one does, bit for bit; a hyperparameter that was changed comes along."""
    model = make()
    optimizer = adamw(model)
    with zt.shard(model, optimizer, offload="none"):
        train(model, optimizer, 0, 3)
        optimizer.param_groups[1]["lr"] = 0.25
        path = zc.save(model, optimizer, tmp_path / "out", client_state={"epoch": 3, "keep": [1, "x"]}, **how)
        want = state(model, optimizer)
        losses = train(model, optimizer, 3, 2)
    other = make(seed=1)
    optimizer = adamw(other)
    with zt.shard(other, optimizer, offload="none"):
        train(other, optimizer, 9, 1)  # moments that must go
        loaded = zc.load(other, optimizer, path)
        assert (loaded.form, loaded.step) == (how["form"], 3)
        assert loaded.client_state == {"epoch": 3, "keep": [1, "x"]} and loaded.lr_scheduler is None
        got = state(other, optimizer)
        assert want.keys() == got.keys()
        assert all(torch.equal(want[k], got[k]) for k in want), [k for k in want if not torch.equal(want[k], got[k])]
        assert optimizer.param_groups[1]["lr"] == 0.25 and optimizer.param_groups[0]["lr"] == 1e-2
        assert other.seen.tolist() == [3, 1 << 40]
        assert train(other, optimizer, 3, 2) == losses
    assert os.listdir(tmp_path) == ["out"]


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "adam": lambda p: zt.Adam(p, lr=1e-2, eps=1e-4),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2),
    "momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
    "lion": lambda p: zt.Lion(p, lr=1e-3),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
}


@pytest.mark.parametrize("form", ["portable", "dcp", "zero"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_optimizers(tmp_path: Path, kind: str, form: str) -> None:
    model = Net()
    optimizer = OPTIMIZERS[kind](model.parameters())
    with zt.shard(model, optimizer, offload="none"):
        train(model, optimizer, 0, 2)
        path = zc.save(model, optimizer, tmp_path / "out", form)
        losses = train(model, optimizer, 2, 2)
    other = Net()
    optimizer = OPTIMIZERS[kind](other.parameters())
    with zt.shard(other, optimizer, offload="none"):
        zc.load(other, optimizer, path)
        assert train(other, optimizer, 2, 2) == losses


def test_own_step_counts(tmp_path: Path) -> None:
    """Tensors that were stepped at other times keep that; DeepSpeed's forms cannot, and say so."""
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with zt.shard(model, optimizer, offload="none") as handle:
        model.blocks[1].requires_grad_(False)
        train(model, optimizer, 0, 1)
        model.blocks[1].requires_grad_(True)
        train(model, optimizer, 1, 1)
        for form in ("universal", "zero"):
            with pytest.raises(zc.ConvertError, match="one step count for a group"):
                zc.save(handle, optimizer, tmp_path / form, form)
            assert not os.path.exists(tmp_path / form) or os.listdir(tmp_path / form) == []
        for form in ("portable", "dcp"):
            found = open_(zc.save(handle, optimizer, tmp_path / form, form))
            assert found.tensors["blocks.1.up.weight"].step == 1 and found.tensors["blocks.0.up.weight"].step == 2


def test_weights_alone(tmp_path: Path) -> None:
    """Without an optimizer: of what has state, and of what has none; bf16 parameters get fp32 masters."""
    model = make()
    optimizer = adamw(model)
    with zt.shard(model, optimizer, offload="none"):
        train(model, optimizer, 0, 2)
        full = zc.save(model, optimizer, tmp_path / "full", "dcp")
        bare = zc.save(model, None, tmp_path / "bare", "dcp")
        want = values(model)
    for path in (full, bare):
        other = make(seed=3).to(torch.bfloat16)
        optimizer = adamw(other)
        with zt.shard(other, optimizer, offload="none"):
            zc.load(other, None, path)
            assert torch.equal(zt.state_of(other.embed.weight, "master"), want["embed.weight"])
            assert torch.equal(values(other)["embed.weight"], want["embed.weight"].to(torch.bfloat16).float())
            if path == bare:
                with pytest.raises(zc.ConvertError, match="no state of an optimizer: give optimizer=None"):
                    zc.load(other, optimizer, path)


# ---- files of DeepSpeed's layout


LAYOUTS: dict[str, dict[str, Any]] = {
    **{f"stage {s}, {r} ranks": {"stage": s, "ranks": r} for s in (1, 2, 3) for r in (1, 2, 3, 8)},
    "elastic": {"stage": 2, "ranks": 3, "elastic": True},
    "skipped": {"stage": 2, "ranks": 2, "skipped": 2},
    "bf16": {"stage": 3, "ranks": 2, "prefix": "bf16_", "dtype": torch.bfloat16},
    "bf16 optimizer": {"stage": 1, "ranks": 3, "bf16_optimizer": True, "prefix": "bf16_", "dtype": torch.bfloat16},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(tmp_path: Path, layout: str) -> None:
    """Every element of every plane comes out of the ranks' vectors, and what is beside them."""
    files = synthetic(**LAYOUTS[layout], client={"epoch": 2, "own": pickle.PickleBuffer})
    files.write(tmp_path)
    found = open_(tmp_path)
    assert (found.form, found.tag, found.step) == ("zero", "global_step5", 5)
    trained = {n: p for g in files.trained for n, p in g.items()}
    assert set(found.tensors) == {*trained, *files.frozen, *files.buffers} and found.aliases == {"d": "c"}
    for name, planes in trained.items():
        t = found.tensors[name]
        assert (t.kind, t.step, t.dtype) == ("trained", 5 - files.skipped, files.dtype)
        assert {p: s.tensor().equal(planes[p]) for p, s in t.planes.items()} == dict.fromkeys(planes, True), name
    for name, value in (files.frozen | files.buffers).items():
        assert found.tensors[name].planes["fp32"].tensor().equal(value), name
        assert found.tensors[name].dtype == value.dtype
    if not files.elastic:
        assert [g["params"] for g in found.groups] == [["a.weight", "b.weight", "c"], ["a.bias"]]
        assert found.groups[1]["weight_decay"] == 0.1 and found.groups[0]["betas"] == (0.8, 0.9)
    assert found.client_state["epoch"] == 2 and issubclass(found.client_state["own"], zc.Foreign)
    assert found.lr_scheduler == {"last_batch_iteration": 4}


def universal_files(folder: Path, three: bool) -> Path:
    """A universal checkpoint as DeepSpeed converts the synthetic files: of stage 3 flat tensors."""
    files = synthetic(stage=3 if three else 2, ranks=1)
    path = Path(files.write(folder))
    for planes in files.trained:
        for name, tensors in planes.items():
            (path / "zero" / name).mkdir(parents=True)
            for plane, value in tensors.items():
                what: Any = value.reshape(-1) if three else {"param": value, "cat_dim": 0}
                torch.save(what, path / "zero" / name / f"{plane}.pt")
            if not three:
                torch.save(torch.tensor(5.0), path / "zero" / name / "step.pt")
    base = files.optimizer(0)
    common = {"optimizer_state_dict": base} if three else {"ds_version": "0.19.8"}
    torch.save({**common, "param_groups": base["param_groups"]}, path / "zero" / "optimizer_state.pt")
    for file in path.glob("*optim_states.pt"):
        file.unlink()
    return path


@pytest.mark.parametrize("three", [False, True])
def test_universal_files(tmp_path: Path, three: bool) -> None:
    path = universal_files(tmp_path / "universal", three)
    found = open_(path)
    assert found.form == "universal" and found.step == 5
    synthetic(stage=2, ranks=2).write(tmp_path / "zero")
    same(open_(tmp_path / "zero"), found)
    assert found.groups == open_(tmp_path / "zero").groups
    torch.save(4, path / "zero" / "c" / "step.pt")
    assert open_(path).tensors["c"].step == 4
    shutil.rmtree(path / "zero" / "b.weight")
    (path / "zero" / "c" / "exp_avg.pt").write_bytes(b"")
    with pytest.raises(zc.ConvertError) as error:
        open_(path)
    assert error.match("b.weight' is missing") and error.match("c/exp_avg.pt' is truncated")


def test_between_files(tmp_path: Path) -> None:
    """All forms, one after the other: the same tensors, groups and client state at the end."""
    synthetic(stage=3, ranks=3, client={"rng": torch.arange(5), "pair": (1, 2)}).write(tmp_path / "0")
    first = open_(tmp_path / "0")
    source = str(tmp_path / "0")
    for i, how in enumerate(HOW):
        more = {k: v for k, v in how.items() if k != "form"}
        source = zc.convert(source, tmp_path / str(i + 1), how["form"], **more)
        found = open_(source)
        assert found.form == how["form"]
        same(first, found)
        assert torch.equal(found.client_state["rng"], torch.arange(5)) and found.client_state["pair"] == (1, 2)
        assert [sorted(g["params"]) for g in found.groups] == [sorted(g["params"]) for g in first.groups]
        assert [g["lr"] for g in found.groups] == [0.5, 0.5] and found.lr_scheduler == {"last_batch_iteration": 4}
        assert not [n for n in os.listdir(tmp_path / str(i + 1)) if ".tmp-" in n]


def test_the_command(tmp_path: Path) -> None:
    """info, and a conversion to 16-bit weights; a failure is one message, and leaves nothing."""
    synthetic(stage=2, ranks=2).write(tmp_path / "in")
    env = os.environ | {"PYTHONPATH": str(Path(zc.__file__).parents[2]), "ZSHARD_SOCKET": "/nowhere"}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "zshard.convert", *words]
        return zygote.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)

    info = run("info", str(tmp_path / "in"))
    assert info.returncode == 0 and "form       zero, deepspeed 0.19.8, stage 2, ranks 2" in info.stdout, info.stderr
    out = tmp_path / "out"
    done = run("convert", str(tmp_path / "in"), str(out), "--to", "safetensors16")
    assert done.returncode == 0, done.stderr
    load_file = pytest.importorskip("safetensors.torch").load_file
    found, want = load_file(out / "model.safetensors"), synthetic(stage=2, ranks=2)
    assert found["a.weight"].equal(want.trained[0]["a.weight"]["fp32"].to(torch.bfloat16))
    assert found["n.count"].equal(want.buffers["n.count"]) and "d" not in found
    os.unlink(tmp_path / "in" / "global_step5" / "mp_rank_00_model_states.pt")
    failed = run("convert", str(tmp_path / "in"), str(tmp_path / "no"))
    assert failed.returncode == 1 and "mp_rank_00_model_states.pt is missing" in failed.stderr
    assert "Traceback" not in failed.stderr and sorted(os.listdir(tmp_path)) == ["in", "out"]


def test_no_code_runs(tmp_path: Path) -> None:
    """What a pickle names is not called."""

    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "evil"),)

    torch.save({"x": Evil(), "t": torch.ones(2)}, tmp_path / "a.pt")
    found = _pickle.load_pt(str(tmp_path / "a.pt"))
    assert found["t"].tolist() == [1, 1] and not (tmp_path / "evil").exists()
    assert (found["x"].name, found["x"].args) == ("mkdir", (str(tmp_path / "evil"),))
    again = pickle.loads(pickle.dumps(found["x"]))
    assert (again.module, again.args) == (found["x"].module, found["x"].args)


# ---- DCP as torch writes it


def test_dcp_of_torch(tmp_path: Path) -> None:
    """A plain model's, also with a flattened state."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    model = make(tied=False)
    optimizer = adamw(model)
    train(model, optimizer, 0, 2)
    for flat in (False, True):
        path = tmp_path / f"flat-{flat}"
        options = StateDictOptions(flatten_optimizer_state_dict=flat)
        own, state_ = get_state_dict(model, optimizer, options=options)
        dcp.save({"m": own, "o": state_, "epoch": 4}, checkpoint_id=path, no_dist=True)
        other = make(seed=1, tied=False)
        mine = adamw(other, lr=0.5)
        with zt.shard(other, mine, offload="none"):
            loaded = zc.load(other, mine, path)
            assert loaded.step == 2 and loaded.client_state == {"epoch": 4}
            for name, p in model.named_parameters():
                assert torch.equal(values(other)[name], p.detach())
            p = dict(model.named_parameters())["head.weight"]
            assert torch.equal(zt.state_of(other.head.weight, "exp_avg"), optimizer.state[p]["exp_avg"])
            assert mine.param_groups[0]["lr"] == 1e-2


def test_dcp_of_accelerate(tmp_path: Path) -> None:
    """The model and the optimizer in folders of their own, beside other files."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model = make(tied=False)
    optimizer = adamw(model)
    train(model, optimizer, 0, 2)
    own, state_ = get_state_dict(model, optimizer)
    folder = tmp_path / "checkpoint-2"
    dcp.save({"model": own}, checkpoint_id=folder / "pytorch_model_fsdp_0", no_dist=True)
    bare = open_(folder)
    assert not bare.of_kind("trained") and "head.weight" in bare.tensors
    dcp.save({"optimizer": state_}, checkpoint_id=folder / "optimizer_0", no_dist=True)
    (folder / "scheduler.pt").write_bytes(b"")
    losses = train(model, optimizer, 2, 2)
    other = make(seed=1, tied=False)
    mine = adamw(other, lr=0.5)
    with zt.shard(other, mine, offload="none"):
        assert zc.load(other, mine, tmp_path).step == 2
        assert train(other, mine, 2, 2) == pytest.approx(losses, rel=1e-6)
    os.unlink(folder / "optimizer_0" / "__0_0.distcp")
    with pytest.raises(zc.ConvertError, match="optimizer_0/__0_0.distcp is missing"):
        open_(folder)


def test_chunks_that_are_no_rows(tmp_path: Path) -> None:
    """Cut in columns and blocks; transposed; empty ones."""
    whole = torch.randn(6, 5)
    cuts: dict[str, list[tuple[tuple[int, int], Any]]] = {
        "columns": [((0, 2), whole[:, 2:].clone()), ((0, 0), whole[:, :2].clone())],
        "blocks": [((r, c), whole[r : r + 3, c : c + 3].clone()) for r in (0, 3) for c in (0, 3)],
        "transposed": [((0, 0), whole[:4].t().contiguous().t()), ((4, 0), whole[4:].clone())],
        "empty": [((0, 0), whole.clone()), ((6, 0), whole[6:].clone())],
    }
    out = _dcp_write._Out(str(tmp_path))
    for name, chunks in cuts.items():
        for offsets, value in chunks:
            out.chunk(("model", name), (6, 5), torch.float32, offsets, value)
    out.finish()
    found = open_(tmp_path)
    for name in cuts:
        source = found.tensors[name].planes["fp32"]
        assert torch.equal(source.tensor(), whole), name
        part = torch.empty(11)
        source.read(9, part)
        assert torch.equal(part, whole.view(-1)[9:20]), name


def test_dcp_is_loaded_by_torch(tmp_path: Path) -> None:
    """torch reads every tensor of what is written, in chunks, by a state dict of its own."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    _dcp_write.CHUNK, before = 40, _dcp_write.CHUNK
    try:
        model = make(tied=True)
        optimizer = adamw(model)
        with zt.shard(model, optimizer, offload="none"):
            train(model, optimizer, 0, 2)
            path = zc.save(model, optimizer, tmp_path / "out", "dcp", client_state={"inner": {"epoch": 4}})
            losses = train(model, optimizer, 2, 2)
    finally:
        _dcp_write.CHUNK = before
    other = make(seed=1, tied=True)
    mine = adamw(other, lr=0.5)
    own, state_ = get_state_dict(other, mine)
    words = {"model": own, "optim": state_, "inner": {"epoch": 0}}
    dcp.load(words, checkpoint_id=path, no_dist=True)
    set_state_dict(other, mine, model_state_dict=own, optim_state_dict=state_)
    assert words["inner"] == {"epoch": 4} and mine.param_groups[0]["lr"] == 1e-2
    assert train(other, mine, 2, 2) == pytest.approx(losses, rel=1e-6)


@pytest.mark.parametrize("stage", [2, 3])
def test_deepspeeds_own_optimizers_find_what_they_read(tmp_path: Path, stage: int) -> None:
    """FusedAdam and DeepSpeedCPUAdam: bias_correction in the groups, and counts that are numbers."""
    synthetic(stage=2, ranks=1).write(tmp_path / "in")
    out = zc.convert(tmp_path / "in", tmp_path / "out", "zero", stage=stage, ranks=1)
    (file,) = Path(out).glob("*_optim_states.pt")
    whole = _pickle.load_pt(str(file))["optimizer_state_dict"]
    inner = whole["optimizer_state_dict" if stage == 3 else "base_optimizer_state"]
    assert all(group["bias_correction"] is True for group in inner["param_groups"])
    assert all(type(state["step"]) is int and state["step"] > 0 for state in inner["state"].values())


def test_fp16(tmp_path: Path) -> None:
    """A checkpoint of fp16 parameters has DeepSpeed's dynamic loss scaler, with its scale."""
    files = synthetic(stage=2, ranks=1, dtype=torch.float16)
    files.write(tmp_path / "in")
    found = open_(tmp_path / "in")
    found.loss_scale = 512.0
    for stage in (2, 3):
        path = tmp_path / str(stage)
        path.mkdir()
        for _ in _zero_write.write(found, None, _zero_write.Zero(stage, 2)):
            pass
        _live.drive(None, *(_zero_write.write(found, f, _zero_write.Zero(stage, 2)) for f in (None, str(path))))
        again = open_(path)
        assert again.loss_scale == 512.0 and again.tensors["c"].dtype == torch.float16
        same(found, again)


def test_marked_by_fully_shard(tmp_path: Path) -> None:
    """The engine starts with load()."""
    files = like(make())
    files.write(tmp_path)
    model = make()
    for block in model.blocks:
        zt.fully_shard(block)
    zt.fully_shard(model)
    optimizer = adamw(model)
    assert zc.load(model, optimizer, tmp_path).step == 5
    assert torch.equal(values(model)["norm.weight"], files.trained[1]["norm.weight"]["fp32"])
    train(model, optimizer, 0, 2)
    path = zc.save(model, optimizer, tmp_path / "out", tag="mine")
    assert (tmp_path / "out" / "latest").read_text() == "mine" and path == str(tmp_path / "out" / "mine")
    assert open_(tmp_path / "out").tensors["norm.weight"].step == 7
    zt.handle_of(model).close()


def test_state_that_is_elsewhere(tmp_path: Path) -> None:
    model = Net()
    optimizer = zt.HostOptimizer(torch.optim.RAdam, model.parameters())
    with zt.shard(model, optimizer, offload="none"):
        with pytest.raises(TypeError, match="HostOptimizer keeps its state in this process"):
            zc.save(model, optimizer, tmp_path / "c")
        with pytest.raises(TypeError, match="form 'portable' has no option stage="):
            zc.save(model, None, tmp_path / "c", stage=3)
        with pytest.raises(ValueError, match="form='tar': one of portable, universal, dcp, zero"):
            zc.save(model, None, tmp_path / "c", "tar")
        found = open_(zc.save(model, None, tmp_path / "c"))
        assert found.moments() == [] and not found.groups


def test_json_holds_it() -> None:
    from zshard.convert._portable import exact

    for value in ({"a": [1, 2.5, None, {"b": True}]}, "x", []):
        assert exact(value) and json.loads(json.dumps(value)) == value
    for value in ((1, 2), {1: 2}, float("nan"), torch.ones(1)):
        assert not exact(value)
