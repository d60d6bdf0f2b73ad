# ctest: LABELS full gpu-torch COST 60 TIMEOUT 5400
"""The matrix: models of the zoo x ways to train, ours against plain torch (cells.py says what is held to what).

    tests/venv.sh exec -m pytest tests/python/test_matrix.py -k mixtral

`full` runs each feature and each model by itself, and what is compared bit for bit; the nightly run a pairwise cover of
all dimensions, and each feature on every model.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import sys
from collections.abc import Iterator
from typing import Any

import cells
import cover
import pytest
import zoo
from cells import Cell
from filler import CELL, PARTS, Filler, room
from pool import Pool, RankFailed

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integ"))
from harness import Daemon  # type: ignore[import-not-found]  # noqa: E402

_memory = pytest.importorskip("zshard.torch._memory")

HAS_TRANSFORMERS = importlib.util.find_spec("transformers") is not None
MODELS = [name for name, entry in zoo.ZOO.items() if name != zoo.DEEP and (HAS_TRANSFORMERS or not entry.needs)]

DIMS: dict[str, list[Any]] = {
    "model": MODELS,
    "world": [1, 2],
    "store": ["none", "host", "nvme"],
    "optimizer": ["before", "after", "zt"],
    "eps": [1e-8, cells.EPS_PARAMS],
    "checkpoint": ["no", "yes", "reentrant"],
    "accumulate": ["1", "3", "uneven"],
    "local": ["reduce", "local"],
    "trained": ["all", "half", "lora"],
    "dtype": ["fp32", "bf16", "fp16"],
    "clip": ["no", "torch", "zt"],
    "between": ["nothing", "eval", "generate", "save", "exception"],
}

# Features one at a time, for the nightly run.
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "params": {"eps": cells.EPS_PARAMS},
    "checkpoint": {"checkpoint": "yes"},
    "reentrant": {"checkpoint": "reentrant"},
    "compile": {"compile": "aot_eager"},
    "accumulate": {"accumulate": "3"},
    "uneven": {"accumulate": "uneven"},
    "local": {"accumulate": "uneven", "local": "local"},
    "half": {"trained": "half"},
    "lora": {"trained": "lora"},
    "bf16": {"dtype": "bf16", "eps": cells.EPS_PARAMS},
    "fp16": {"dtype": "fp16", "eps": cells.EPS_PARAMS},
    "clip": {"clip": "torch"},
    "eval": {"between": "eval"},
    "generate": {"between": "generate"},
    "save": {"between": "save"},
    "exception": {"between": "exception"},
}

# Cells that are known not to work, with the reason: they are expected to fail.
BROKEN: dict[str, str] = {}

SAME_STEPS = 6  # where bits are compared: each step repeats what the first ones do

# The cells that `full` runs.
CORE = [
    Cell(),
    Cell(eps=cells.EPS_PARAMS),
    Cell(store="host"),
    Cell(store="nvme"),
    Cell(clip="torch"),
    Cell(clip="zt"),
    Cell(optimizer="zt"),
    Cell(optimizer="after"),
    Cell(accumulate="uneven"),
    Cell(accumulate="uneven", local="local"),
    Cell(checkpoint="yes"),
    Cell(checkpoint="reentrant"),
    Cell(trained="half"),
    Cell(trained="lora"),
    Cell(dtype="bf16", eps=cells.EPS_PARAMS),
    Cell(dtype="fp16", eps=cells.EPS_PARAMS),
    Cell(between="eval"),
    Cell(between="exception"),
    Cell(store="host", between="exception"),
    Cell(model="experts"),
    Cell(model="opaque", accumulate="3"),
    Cell(world=2, accumulate="uneven", clip="torch"),
    Cell(world=2, eps=cells.EPS_PARAMS),
    Cell(world=2, accumulate="3", local="local"),
] + [
    Cell(model=model, eps=cells.EPS_PARAMS) for model in MODELS if zoo.ZOO[model].needs
] + [
    Cell(model="llama", store="host", between=between) for between in ("generate", "save") if "llama" in MODELS
]  # fmt: skip


def cover_cells() -> list[Cell]:
    return [Cell(**c) for c in cover.pairwise(DIMS, cells.valid)]


def feature_cells() -> list[Cell]:
    """World and store take turns along models and features: each model meets all six combinations."""
    places = [{"world": world, "store": store} for store in DIMS["store"] for world in DIMS["world"]]
    made = [
        dataclasses.replace(Cell(model=model, **places[(i + j) % len(places)]), **feature)
        for i, model in enumerate(MODELS)
        for j, feature in enumerate(FEATURES.values())
    ]
    names = [f.name for f in dataclasses.fields(Cell)]
    return [cell for cell in made if cells.valid({n: getattr(cell, n) for n in names})]


class Lab:
    """Daemons and pools that all cells share. Each one is started when it is first asked for."""

    def __init__(self) -> None:
        self.daemons: dict[str, Any] = {}
        self.pools: dict[tuple[int, str], Pool] = {}
        self.jobs = 0
        self.filler: Any = None
        self.sizes: dict[tuple[str, str], list[tuple[int, bool]]] = {}
        self.parts: dict[tuple[str, str, str, int], int] = {}  # which of PARTS a cell has found room for

    def daemon(self, kind: str) -> Any:
        """host: room for everything. nvme: little memory, of which a filler leaves less than a cell's states take.
        small: less memory than zoo.DEEP's states take. Kept jobs are there: they give their memory to others."""
        if kind not in self.daemons:
            flags = ("--page-elems", "4096", "--host-bytes", "256M", "--nvme-bytes", "256M")
            if kind != "host":
                memory = {"nvme": "4M", "small": "2M"}[kind]
                flags = ("--page-elems", "4096", "--host-bytes", memory, "--nvme-bytes", "256M", "--ring-bytes", "256K")
            self.daemons[kind] = Daemon(*flags).start()
            if kind == "nvme":
                self.filler = Filler(self.daemons[kind], 4 << 20)
        return self.daemons[kind]

    def pool(self, world: int, mode: str = "") -> Pool:
        key = (world, mode)
        if key not in self.pools:
            self.pools[key] = Pool(world, **({"ZSHARD_MEMORY": mode} if mode else {}))
        return self.pools[key]

    def store(self, cell: Cell) -> dict[str, Any]:
        """shard()'s words about the store."""
        if cell.store == "none":
            return {}
        self.jobs += 1
        kind = "small" if cell.store == "nvme" and cell.model == zoo.DEEP else cell.store
        assert kind != "nvme" or not cell.keep, "what a kept job leaves free is not known"
        words: dict[str, Any] = {"socket": self.daemon(kind).socket, "job": cell.job or f"{CELL}{self.jobs}"}
        if kind == "nvme":
            self.squeeze(cell)
        if cell.keep:
            words |= {"keep": True, "durable": True, "resume": "auto" if cell.resume else False, "reconnect": 1}
        return words

    def squeeze(self, cell: Cell) -> None:
        """Leaves the job less host memory than its states take."""
        self.filler.remove()
        key = (cell.model, cell.trained)
        if key not in self.sizes:
            self.sizes[key] = self.pool(cell.world).sizes(cell)
        part = PARTS[self.parts.get(self.part_of(cell), 0)]
        self.filler.leave(room(self.sizes[key], cell.world, cell.dtype, part), cell.world)

    def part_of(self, cell: Cell) -> tuple[str, str, str, int]:
        """What the room of a cell depends on."""
        return cell.model, cell.trained, cell.dtype, cell.world

    def tighten(self, cell: Cell) -> bool:
        """Leaves such cells less memory from now on. False: there is no less, or none was left."""
        key = self.part_of(cell)
        self.parts[key] = self.parts.get(key, 0) + 1
        return cell.model != zoo.DEEP and self.parts[key] < len(PARTS)

    def run(self, cell: Cell, mode: str = "", compare: bool = True) -> Any:
        result = self.pool(cell.world, mode).run(cell, self.store(cell), compare)
        assert len(set(result.hashes)) == 1, "ranks have different parameters"
        # Two ranks' parts of a LoRA's state are smaller than the least room that a daemon accepts.
        states = cell.store == "nvme" and not (cell.trained == "lora" and cell.world == 2)
        if states and result.nvme_bytes == 0:
            assert self.tighten(cell), "its states did not go to NVMe"
            return self.run(cell, mode, compare)
        return result

    def close(self) -> None:
        for pool in self.pools.values():
            pool.close()
        for daemon in self.daemons.values():
            daemon.__exit__(None, None, None)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    made = Lab()
    yield made
    made.close()


def marked(made: list[Cell]) -> list[Any]:
    found = []
    for cell in made:
        why = next((why for part, why in BROKEN.items() if part in cell.name), "")
        marks = [pytest.mark.xfail(reason=why, raises=(RankFailed, AssertionError))] if why else []
        found.append(pytest.param(cell, id=cell.name, marks=marks))
    return found


@pytest.mark.parametrize("cell", marked(CORE))
def test_core(lab: Lab, cell: Cell) -> None:
    """Each feature by itself, each model by itself."""
    lab.run(cell)


@pytest.mark.long
@pytest.mark.parametrize("cell", marked(cover_cells()))
def test_cover(lab: Lab, cell: Cell) -> None:
    """Each pair of values of two dimensions is in one of these."""
    result = lab.run(cell)
    print(f"{cell.name}: losses within {result.off['losses']:.1e}, parameters {result.off['params']:.1e}")


@pytest.mark.long
@pytest.mark.parametrize("cell", marked(feature_cells()))
def test_all(lab: Lab, cell: Cell) -> None:
    """Each feature on every model, in one world and one store each."""
    lab.run(cell)


@pytest.mark.parametrize("model", ["plain", "llama"] if HAS_TRANSFORMERS else ["plain"])
def test_compile(lab: Lab, model: str) -> None:
    """torch.compile by block."""
    lab.run(Cell(model=model, world=1, store="host", compile="aot_eager", steps=6))


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_stores_alike(lab: Lab, world: int, dtype: str) -> None:
    """none = host = nvme, bit for bit, losses and parameters."""
    cell = Cell(model=zoo.DEEP, world=world, dtype=dtype, accumulate="uneven", clip="torch", steps=SAME_STEPS)
    made = [lab.run(dataclasses.replace(cell, store=s), compare=False) for s in ("none", "host", "nvme")]
    assert made[0].losses == made[1].losses == made[2].losses
    assert made[0].hashes == made[1].hashes == made[2].hashes


@pytest.mark.parametrize("checkpoint", ["no", "yes"])
def test_memory_alike(lab: Lab, checkpoint: str) -> None:
    """Swapped, copied and viewed parameters are the same bits."""
    cell = Cell(store="host", checkpoint=checkpoint, accumulate="3")
    modes = [mode for mode in ("swap", "copy", "view") if mode != "swap" or _memory.best_mode() == "swap"]
    made = [lab.run(cell, mode, compare=False) for mode in modes]
    assert all(m.losses == made[0].losses and m.hashes == made[0].hashes for m in made[1:])


# ---- processes that die


def resumed(lab: Lab, cell: Cell, before: list[list[float]] | None = None) -> None:
    """Resumes the job of `cell`; the end must be that of a run that nobody disturbed."""
    whole = lab.run(
        dataclasses.replace(cell, job="", keep=False, die_at=-1, die_rank=-1, die_daemon=False), compare=False
    )
    again = lab.run(dataclasses.replace(cell, die_at=-1, die_rank=-1, die_daemon=False, resume=True), compare=False)
    assert again.hashes == whole.hashes
    for rank, row in enumerate(again.losses):
        assert 0 < len(row) < cell.steps, "it did not resume"
        assert row == whole.losses[rank][-len(row) :]


@pytest.mark.parametrize("store", ["host", "nvme"])
@pytest.mark.parametrize("world", [1, 2])
def test_rank_killed(lab: Lab, world: int, store: str) -> None:
    """kill -9 of a rank in the middle of a step; the kept job resumes at the last commit."""
    cell = Cell(zoo.DEEP, world, store, keep=True, job=f"killed-{world}-{store}", steps=SAME_STEPS, die_at=3,
                die_rank=world - 1)  # fmt: skip
    with pytest.raises(RankFailed):
        lab.run(cell, compare=False)
    resumed(lab, cell)


@pytest.mark.parametrize("at_work", [False, True])
def test_daemon_killed(lab: Lab, at_work: bool) -> None:
    """kill -9 of the daemon: between two runs, after the last commit, or in the middle of a step."""
    cell = Cell(zoo.DEEP, 2, "nvme", keep=True, job=f"daemon-killed-{at_work}", steps=SAME_STEPS, die_at=3,
                die_daemon=at_work)  # fmt: skip
    with pytest.raises(RankFailed):
        lab.run(cell, compare=False)
    daemon = lab.daemon("small")
    daemon.kill()
    daemon.again()
    resumed(lab, cell)
