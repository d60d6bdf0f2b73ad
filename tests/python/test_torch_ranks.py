# ctest: LABELS full COST 40 TIMEOUT 900
"""zshard.torch on two ranks against plain torch on the same batches, in process and with a daemon."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch
import zygote
from ports import free_port
from torch import nn
from torch_models import Block, Mixture, Net, adamw, batch, loss_of, mixture

from zshard.torch._units import plan

HERE = Path(__file__).parent


def run(tmp: Path, case: str, offload: str) -> dict[str, object]:
    """What two ranks say."""
    port = free_port()
    out = tmp / f"{case}-{offload}.json"
    path = os.pathsep.join([str(HERE.parents[1] / "python"), os.environ.get("PYTHONPATH", "")])
    ranks = []
    for rank in range(2):
        env = os.environ | {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
            "ZSHARD_PORT": str(port), "MASTER_PORT": str(port), "ZSHARD_COMM": "tcp", "OMP_NUM_THREADS": "1",
            "ZSHARD_DATA": str(tmp / "data"), "XDG_RUNTIME_DIR": str(tmp), "ZSHARD_HOST_BYTES": "64M",
            "ZSHARD_NVME_BYTES": "256M",
            "PYTHONPATH": path}  # fmt: skip
        ranks.append(zygote.Popen([sys.executable, HERE / "torch_ranks.py", out, case, offload], env=env))
    assert [r.wait(300) for r in ranks] == [0, 0]
    return json.loads(out.read_text())  # type: ignore[no-any-return]


def plain(case: str) -> list[float]:
    """The mean of both ranks' losses, by gradients that are averaged."""
    torch.manual_seed(0)
    model = mixture() if case == "leaf" else Net()
    opt = torch.optim.RAdam(model.parameters()) if case == "host" else adamw(model.parameters())
    losses = []
    for i in range(4):
        if case == "freeze":
            model.blocks[1].requires_grad_(i not in (1, 2))
        total = 0.0
        for rank in range(2):
            Mixture.turn = rank
            loss = loss_of(model, batch(i, rank)) / 2
            loss.backward()
            total += float(loss.detach())
        if case == "clip":
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        opt.step()
        opt.zero_grad()
        losses.append(total)
    return losses


@pytest.mark.parametrize("case", ["plain", "clip", "seeded", "freeze", "host"])
def test_two_ranks(tmp_path: Path, case: str) -> None:
    assert run(tmp_path, case, "none")["losses"] == pytest.approx(plain(case), rel=1e-6)


def test_a_parameter_that_is_not_sharded(tmp_path: Path) -> None:
    """Added to the optimizer later: ranks step it by different gradients, which is reported once."""
    done = run(tmp_path, "added", "none")
    assert done["losses"] == pytest.approx(plain("plain"), rel=1e-6)
    assert (
        [w for w in done["warnings"] if "1 parameters of the optimizer are not sharded" in w] == done["warnings"] != []
    )  # type: ignore[attr-defined]


def test_leaf(tmp_path: Path) -> None:
    """Gathers are collective, and experts differ between ranks: a mixture is gathered whole."""
    assert run(tmp_path, "leaf", "none")["losses"] == pytest.approx(plain("leaf"), rel=1e-6)


def test_leaf_is_one_unit() -> None:
    model = mixture()
    names = [u.name for u in plan(model, [Block], leaf=[Mixture]).units]
    assert names == [u.name for u in plan(model, [Mixture]).units] != [u.name for u in plan(model, [Block]).units]
    assert len(plan(model, "auto", leaf=["Mixture"], max_unit=10).units) == len(names)
    assert len(plan(model, [Block], leaf=[model.blocks[0]]).units) == 5
    with pytest.raises(ValueError, match="leaf: the model has no module 'Experts'"):
        plan(model, leaf=["Experts"])
    with pytest.raises(ValueError, match="a ModuleList is never called"):
        plan(model, leaf=[model.blocks])


def test_with_a_daemon(tmp_path: Path) -> None:
    """Another forward call on one rank, another block on each: gathers are alone. host = nvme = none, bit for bit."""
    want = run(tmp_path, "plain", "none")
    for offload in ("host", "nvme"):
        assert run(tmp_path, "uneven", offload) == want
    written = run(tmp_path, "written", "none")
    assert written != want
    assert run(tmp_path, "written", "host") == written  # rank 1 writes slices of both
    for case in ("fails", "sleeps"):
        assert run(tmp_path, case, "host") == want, case
    assert run(tmp_path, "sleeps", "none") == want
    assert run(tmp_path, "host", "nvme")["losses"] == pytest.approx(plain("host"), rel=1e-6)
    assert len(run(tmp_path, "experts", "host")["losses"]) == 4  # type: ignore[arg-type]
