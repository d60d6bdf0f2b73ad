# ctest: LABELS full COST 25
"""zt.init and its context: how ranks meet, the job's name, and which store an engine gets."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import zygote

import zshard
from zshard import _daemon
from zshard._engine import Engine

torch = pytest.importorskip("torch")
_init = pytest.importorskip("zshard.torch._init")

HERE = os.path.dirname(os.path.abspath(__file__))


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """No daemon in sight, and a context of its own."""
    folder = tempfile.mkdtemp(prefix="zi-")
    for name in ("ZSHARD_SOCKET", "ZSHARD_DATA", "ZSHARD_HOST_BYTES", "ZSHARD_NVME_BYTES", "WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    monkeypatch.setenv("XDG_CACHE_HOME", os.path.join(folder, "cache"))
    monkeypatch.setattr(_daemon, "_SYSTEM_SOCKET", os.path.join(folder, "none.sock"))
    monkeypatch.setattr(_init, "_context", None)
    monkeypatch.setattr(_init, "_wishes", _init.Wishes())
    yield folder
    daemon = _init.context().daemon
    if daemon is not None:
        os.kill(daemon.client.server()["pid"], 15)
        daemon.client.close()
    shutil.rmtree(folder, ignore_errors=True)


def test_alone(place: str) -> None:
    options = _init.context().store("none")
    comm = _init.context().comm()
    assert (comm.rank, comm.world) == (0, 1)
    assert re.fullmatch(r"[\w.-]+-\d+\.1", options["job"]) and options["timeout_ms"] == 60000
    assert _init.context().store("none")["job"].endswith(".2")
    assert _init.context().comm() is comm
    with Engine(comm, **options) as e:
        e.add_unit("a", 10, [("w", 0, (10,), 0)])
        e.start(lambda *_: None)
        e.close()


def test_the_name_of_a_resumed_job(place: str) -> None:
    """A cell of a notebook that is run again resumes its job. Before, it began another one, from step 0."""
    model = torch.nn.Linear(2, 2)

    _init.init("cell", keep=False)
    import zshard.torch as zt

    names = (
        (False, False, "cell"),
        (False, False, "cell.2"),
        ("auto", True, "cell.4"),
        ("auto", False, "cell"),
        (True, False, "cell"),
    )
    for resume, open_, want in names:
        handle = zt.shard(model, offload="none") if open_ else None
        _init.context().replace(_init.Wishes("cell", resume=resume), _init.Wishes("cell"))
        _init.context().wishes = _init.Wishes("cell")  # offload="none" cannot resume
        assert _init.context().store("none")["job"] == want
        if handle is not None:
            handle.close(gather=True)


def test_names_and_wishes(place: str) -> None:
    _init.init("job.7", timeout=5)
    assert [_init.context().store("none")["job"] for _ in range(2)] == ["job.7", "job.7.2"]
    assert _init.context().store("none")["timeout_ms"] == 5000
    for wrong in ({"job": "a b"}, {"resume": True}, {"job": "a", "resume": "perhaps"}, {"timeout": 0},
                  {"host_bytes": "lots"}):  # fmt: skip
        with pytest.raises(ValueError):
            _init.init(**wrong)
    with pytest.raises(ValueError, match="gpu"):
        _init.context().store("gpu")
    _init.init("a", keep=True)
    with pytest.raises(ValueError, match="keep=True"):
        _init.context().store("none")


def test_daemon_is_started_and_used(place: str, capfd: pytest.CaptureFixture[str]) -> None:
    _init.init("run", host_bytes="128M", nvme_bytes="128M", durable=True)
    options = _init.context().store("auto", state_bytes=1 << 20)
    said = capfd.readouterr().err
    assert said.count("zshard: started a daemon") == 1 and "host 128.0 MiB" in said, said
    assert (options["offload_param"], options["offload_optimizer"]) == ("nvme", "nvme")
    assert options["keep"] and options["durable"]
    with Engine(_init.context().comm(), **options) as e:
        e.add_unit("a", 4096, [("w", 0, (4096,), 0)])
        e.start(lambda *_: None)
        daemon = _init.context().daemon
        assert [row["name"] for row in daemon.client.jobs()] == ["run"]
    with pytest.raises(zshard.NoSpace, match="takes about 100.0 GiB .* 75.0 GiB of NVMe.* host memory .* NVMe free"):
        _init.context().store("auto", state_bytes=100 << 30)
    # 128 MiB each: host memory has room for the state and its saved version on NVMe only up to that.
    assert _init.context().store("host", state_bytes=110 << 20)["offload_param"] == "host"
    for offload, mib in (("host", 140), ("nvme", 180)):
        with pytest.raises(zshard.NoSpace, match=f"takes about {mib}.0 MiB"):
            _init.context().store(offload, state_bytes=mib << 20)
    assert "zshard" not in capfd.readouterr().err


def test_a_daemon_that_is_gone(place: str) -> None:
    """It may be asked again: a connection that was lost is not used any more."""
    import early_daemon

    import zshard.torch as zt

    folder = Path(place) / "own"
    process = early_daemon.start(folder)
    zt.init(socket=str(folder / "z.sock"))
    for there in (True, False, False):
        model = torch.nn.Linear(4, 4)
        opt = torch.optim.AdamW(model.parameters())
        if there:
            zt.shard(model, opt, offload="host").close()
            process.terminate()
            assert process.wait(60) == 0
            continue
        with pytest.raises(zshard.ZshardError):
            zt.shard(model, opt, offload="host")


def test_auto_without_a_daemon(place: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("ZSHARD_BIN", place)
    options = _init.context().store("auto", state_bytes=1 << 20)
    assert options["offload_optimizer"] == "none" and "socket" not in options
    assert "the state stays in this process: zshardd is not found" in capfd.readouterr().err
    with pytest.raises(zshard.NotConnected, match="zshardd is not found"):
        _init.context().store("host")
    with pytest.raises(zshard.NoSpace, match="without a daemon it takes 1024.0 TiB"):
        _init.context().store("auto", state_bytes=1 << 50)
    _init.init("a", durable=True)
    with pytest.raises(zshard.NotConnected):  # the store was requested explicitly
        _init.context().store("auto")


RANK = """
import os, sys
import torch.distributed as dist
from zshard._engine import Engine
from zshard.torch import _init
rank, world, meeting, known = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4] == "1"
if known:
    dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=world)
if len(sys.argv) > 5 and rank == 1:
    os.environ["ZSHARD_BIN"] = "/nonexistent"
    os.environ["XDG_RUNTIME_DIR"] += "/other"
context = _init.context()
comm = context.comm()
assert (comm.rank, comm.world) == (rank, world)
assert "ZSHARD_PORT" not in os.environ
assert comm.all_gather(b"x" * rank) == [b"x" * r for r in range(world)]
try:
    options = context.store("host" if len(sys.argv) > 5 else "none")
except Exception as e:
    print(type(e).__name__, e, flush=True)
    os._exit(0)
with Engine(comm, **options) as e:
    e.add_unit("a", 10, [("w", 0, (10,), 0)])
    e.start(lambda *_: None)
    assert e.sum([1.0]) == [world]
comm.close()
print(options["job"])
if known:
    dist.destroy_process_group()
"""


def ranks(place: str, *, known: bool, env: dict[str, str], more: tuple[str, ...] = ()) -> list[str]:
    words = [sys.executable, "-c", RANK]
    children = [zygote.Popen([*words, str(r), "2", os.path.join(place, "meet"), str(int(known)), *more],
                                 env=os.environ | env | {"RANK": str(r)} if not known else os.environ | env,
                                 stdout=subprocess.PIPE, text=True) for r in range(2)]  # fmt: skip
    said = [c.communicate(timeout=90)[0].strip() for c in children]
    assert [c.returncode for c in children] == [0, 0], said
    return said


def test_two_ranks_by_torchs_store(place: str) -> None:
    """No environment but torch.distributed's own meeting."""
    said = ranks(place, known=True, env={})
    assert said[0] == said[1] and re.fullmatch(r"[\w.-]+-\d+\.1", said[0])


def test_two_ranks_by_the_environment(place: str) -> None:
    port = str(20000 + os.getpid() % 20000)
    said = ranks(place, known=False, env={"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})
    assert said[0] == said[1]


def test_one_rank_has_no_daemon(place: str) -> None:
    """All ranks are refused, and told why."""
    os.mkdir(os.path.join(place, "other"))
    env = {"ZSHARD_HOST_BYTES": "64M", "ZSHARD_NVME_BYTES": "64M", "XDG_RUNTIME_DIR": place}
    said = ranks(place, known=True, env=env, more=("refuse",))
    assert said[0].startswith("Refused rank 1: zshardd is not found") or "rank 1: zshardd" in said[0], said
    assert "NotConnected zshardd is not found" in said[1], said
    found = _daemon.connect()  # rank 0's, to end it
    os.kill(found.client.server()["pid"], 15)
    found.client.close()
