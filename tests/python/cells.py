"""Cells of the matrix: one way to train one model of the zoo, ours against plain torch.

A cell runs on all ranks of a pool (`pool.py`). Rank 0 also trains plain torch on the batches of all ranks; every rank
compares its losses, rank 0 the parameters. What is held to what is in `check`.
"""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import zoo

import zshard

LOSS_SCALE = 256.0
# Relative, of losses. In bf16 two units in the last place: torch adds up the uses of a tied weight in bf16, we in fp32.
NOISE_BOUND = 1e-5  # a cell this sensitive is not a test
BOUNDS = {"fp32": 1e-6, "bf16": 2**-6, "fp16": 2**-9}
PARAM_BOUND = 1e-5  # relative to a tensor's largest value; fp32, with an eps of EPS_PARAMS
EPS_PARAMS = 1e-4
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
DEVICE = os.environ.get("ZSHARD_TEST_DEVICE", "cpu")


@dataclass(frozen=True)
class Cell:
    """One cell. Defaults are the plainest way."""

    model: str = "plain"
    world: int = 1
    store: str = "none"  # none, host, nvme
    optimizer: str = "before"  # torch.optim's, built before or after shard; or ours ("zt")
    eps: float = 1e-8
    checkpoint: str = "no"  # no, yes, reentrant
    compile: str = "no"  # no, or a backend
    accumulate: str = "1"  # micro-batches of a step: 1, 3, uneven
    local: str = "reduce"  # shard(accumulate=)
    trained: str = "all"  # all, half, lora
    dtype: str = "fp32"
    clip: str = "no"  # no, torch, zt
    between: str = "nothing"  # nothing, eval, generate, save, exception
    steps: int = 20
    # For runs that die or resume
    keep: bool = False  # the job is kept, and each step is committed
    job: str = ""
    resume: bool = False
    die_at: int = -1  # before this step's optimizer
    die_rank: int = -1  # -1: all
    die_daemon: bool = False  # rank 0 kills the daemon (kill -9), instead of ranks

    @property
    def name(self) -> str:
        plain = asdict(Cell())
        more = [f"{k}={v}" for k, v in asdict(self).items() if v != plain[k] and k not in ("model", "world", "store")]
        return "-".join([self.model, str(self.world), self.store, *more])


def micros_of(cell: Cell) -> Callable[[int], int]:
    """How many micro-batches a step has."""
    return {"1": lambda s: 1, "3": lambda s: 3, "uneven": lambda s: 1 + s % 3}[cell.accumulate]


def valid(c: dict[str, Any]) -> bool:
    """Whether a cell means something: not everything is there in each model."""
    cell, entry = Cell(**c), zoo.ZOO[c["model"]]
    if cell.between == "generate" and ("decoder" not in entry.kinds or cell.dtype != "fp32"):
        return False
    if cell.between == "save" and (not entry.needs or cell.trained == "lora"):
        return False  # Transformers does not read its files
    if cell.checkpoint != "no" and not entry.checkpoints:
        return False
    if cell.model == "experts" and cell.world > 1 and cell.store == "none":
        return False  # without a daemon, gathers are collective
    if cell.checkpoint == "reentrant" and cell.trained != "all":
        return False  # plain torch loses the gradients of modules whose inputs need none
    if cell.trained == "lora" and cell.model == "gpt2":
        return False  # its blocks have no Linear
    return cell.dtype == "fp32" or cell.eps == EPS_PARAMS


def build(cell: Cell) -> torch.nn.Module:
    model = zoo.build(cell.model, dtype=DTYPES[cell.dtype])
    if cell.trained == "half":
        zoo.freeze_half(model)
    elif cell.trained == "lora":
        torch.manual_seed(2)
        zoo.add_lora(model)
    if cell.checkpoint != "no":
        zoo.add_checkpoints(model, cell.checkpoint == "reentrant")
    return model


def sizes(cell: Cell) -> list[tuple[int, bool]]:
    """Elements of each unit that shard() makes of the model, and whether it is frozen."""
    from zshard.torch._units import plan

    return [(unit.elems, unit.frozen) for unit in plan(build(cell)).units]


def make_optimizer(cell: Cell, params: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=1e-3, eps=cell.eps)


@functools.cache
def reference(cell: Cell, noise: int = 0) -> zoo.Trained:
    """Plain torch, on what makes a difference to it, and on the same device: other kernels add up in other orders.

    Args:
        noise: a seed: every element of a gradient is changed by at most one unit in the last place.
    """
    model = build(cell).to(DEVICE)
    half = cell.dtype != "fp32"
    params = zoo.fp32_masters(model) if half else list(model.parameters())
    data = [placed(zoo.batches(cell.model, rank, DTYPES[cell.dtype])) for rank in range(cell.world)]
    scale = LOSS_SCALE if cell.dtype == "fp16" else 1.0
    clip = 0.0 if cell.clip == "no" else 0.5
    optimizer = make_optimizer(cell, params)
    return zoo.train_plain(
        model, data, optimizer, cell.steps, micros=micros_of(cell), clip=clip, masters=half, scale=scale, noise=noise
    )


def placed(source: Iterator[zoo.Batch]) -> Iterator[zoo.Batch]:
    """The batches on DEVICE."""
    for batch in source:
        yield {k: v.to(DEVICE) for k, v in batch.items()}


def known_of(cell: Cell) -> Cell:
    """What plain torch knows of a cell: cells that differ only in the rest share its run."""
    return Cell(
        model=cell.model, world=cell.world, eps=cell.eps, accumulate=cell.accumulate, trained=cell.trained,
        dtype=cell.dtype, clip="torch" if cell.clip != "no" else "no", steps=cell.steps,
    )  # fmt: skip


def reference_of(cell: Cell) -> zoo.Trained:
    """The cached run of plain torch."""
    return reference(known_of(cell))


def apart(got: Sequence[Sequence[float]], want: Sequence[Sequence[float]]) -> tuple[float, int, int]:
    """The largest relative difference of losses, [step][rank] of both, and its step and rank."""
    return max(
        (abs(loss - want[step][rank]) / max(abs(want[step][rank]), 1e-3), step, rank)
        for step, row in enumerate(got)
        for rank, loss in enumerate(row)
    )


def noise_of(cell: Cell) -> float:
    """How far plain torch comes from itself when its gradients are rounded otherwise: the largest of three runs."""
    known = known_of(cell)
    return max(apart(reference(known, seed).losses, reference(known).losses)[0] for seed in (1, 2, 3))


# ---- ours


def wishes(zt: Any, store: dict[str, Any]) -> dict[str, Any]:
    """Tells zt.init which daemon and job come next. Returns what shard() is to be told, where there is no zt.init."""
    if hasattr(zt, "init"):
        zt.init(**store)
        return {}
    words = dict(store)
    if words.pop("resume", False):
        words["resume_if_there"] = True
    return words


class Boom(Exception):
    """What a cell raises in the middle of a forward pass."""


class Run:
    """A cell at work on one rank."""

    def __init__(self, cell: Cell, rank: int, store: dict[str, Any]) -> None:
        import zshard.torch as zt

        self.cell, self.rank, self.zt = cell, rank, zt
        self.model = build(cell).to(DEVICE)
        params = list(self.model.parameters())
        self.opt: Any = None
        if cell.optimizer == "zt":
            self.opt = zt.AdamW(params, lr=1e-3, eps=cell.eps)
        elif cell.optimizer == "before":
            self.opt = make_optimizer(cell, params)
        compile_how = {"backend": cell.compile} if cell.compile != "no" else None
        words = wishes(zt, store)
        self.handle = zt.shard(
            self.model, self.opt, offload=cell.store, accumulate=cell.local, compile=compile_how, **words
        )
        if self.opt is None:
            self.opt = make_optimizer(cell, params)
        self.scaler = torch.amp.GradScaler(DEVICE, init_scale=LOSS_SCALE) if cell.dtype == "fp16" else None
        self.losses: list[float] = []

    def batch(self, source: Any) -> zoo.Batch:
        return next(placed(source))

    def step(self, n: int, source: Any) -> float:
        """One step of n micro-batches; the mean of their losses."""
        total = 0.0
        for i in range(n):
            if self.cell.local == "local":
                self.handle.set_boundary(i == n - 1)
            loss = zoo.loss_of(self.model, self.batch(source))
            part = loss / n
            (self.scaler.scale(part) if self.scaler else part).backward()
            total += float(loss.detach()) / n
        if self.scaler:
            self.scaler.unscale_(self.opt)
        if self.cell.clip == "torch":
            torch.nn.utils.clip_grad_norm_([p for p in self.model.parameters() if p.requires_grad], 0.5)
        elif self.cell.clip == "zt":
            self.zt.clip_grad_norm_(self.opt, 0.5)
        return total

    def finish(self) -> None:
        if self.scaler:
            self.scaler.step(self.opt)
            self.scaler.update()
        else:
            self.opt.step()
        self.opt.zero_grad()

    def between(self, step: int) -> None:
        """What comes between two steps and must change nothing."""
        alone = 0 if self.cell.store == "none" else self.rank  # with a daemon, ranks may do different things
        if self.cell.between == "eval" and step % 5 == 2 + alone:
            self.model.eval()
            with torch.no_grad():
                for source in (zoo.batches(self.cell.model, 99, DTYPES[self.cell.dtype]),):
                    assert torch.isfinite(zoo.loss_of(self.model, self.batch(source)))
            self.model.train()
        elif self.cell.between == "generate" and step in (3, 9):
            self.generate(4 + alone)
        elif self.cell.between == "save" and step == 9:
            self.save()
        elif self.cell.between == "exception" and step == 4:
            self.fail()

    def generate(self, count: int) -> torch.Tensor:
        """Greedy tokens; ranks make different numbers of them."""
        self.model.eval()
        ids = self.batch(zoo.batches(self.cell.model, 7))["input_ids"][:, :4]
        out = self.model.generate(input_ids=ids, max_new_tokens=count, do_sample=False)  # type: ignore[operator]
        self.model.train()
        assert out.shape[0] == ids.shape[0]
        return out  # type: ignore[no-any-return]

    def save(self) -> None:
        """What is saved, Transformers opens, and has the values of now."""
        want = self.zt.full_state_dict(self.model, rank0_only=True)
        with tempfile.TemporaryDirectory() as own:
            folder = self.shared(own)
            self.zt.save_pretrained(self.model, folder, max_shard_size="50KB", background=False).wait()
            if self.rank == 0:
                got = type(self.model).from_pretrained(folder, dtype=DTYPES[self.cell.dtype]).state_dict()  # type: ignore[attr-defined]
                assert got.keys() == want.keys()
                assert [n for n in want if not torch.equal(got[n], want[n].cpu())] == []

    def shared(self, folder: str) -> str:
        """Rank 0's folder, on all ranks."""
        found = [folder]
        if self.cell.world > 1:
            torch.distributed.broadcast_object_list(found)
        return found[0]

    def fail(self) -> None:
        """An exception in the middle of a forward pass; then the model is as before."""

        def raises(*_: Any) -> None:
            raise Boom

        block = list(self.model.get_submodule(zoo.ZOO[self.cell.model].blocks))[-1]  # type: ignore[arg-type]
        hooks = [module.register_forward_pre_hook(raises) for module in block.modules() if module is not block]
        try:
            for _ in range(4):  # an expert may not be used in a pass
                zoo.loss_of(self.model, self.batch(zoo.batches(self.cell.model, 55, DTYPES[self.cell.dtype])))
        except Boom:
            pass
        finally:
            for hook in hooks:
                hook.remove()
        self.handle.reset()

    def train(self) -> None:
        cell, micros = self.cell, micros_of(self.cell)
        first = int(self.handle.step_number)
        skipped = sum(micros(s) for s in range(first))
        source = zoo.batches(cell.model, self.rank, DTYPES[cell.dtype], first=skipped)
        for step in range(first, cell.steps):
            self.losses.append(self.step(micros(step), source))
            if step == cell.die_at:
                self.die()
            self.finish()
            if cell.keep:
                self.handle.commit()
            self.between(step)

    def die(self) -> None:
        if not self.cell.die_daemon:
            if self.cell.die_rank in (self.rank, -1):
                os.kill(os.getpid(), 9)
        elif self.rank == 0:
            with zshard.Client(self.handle.engine.options["socket"]) as client:
                os.kill(client.server()["pid"], 9)

    def params(self) -> dict[str, torch.Tensor]:
        """The engine's end: parameters are real tensors again. Collective."""
        self.handle.close(gather=True)
        return {n: p.detach().cpu() for n, p in self.model.named_parameters()}


def run(cell: Cell, rank: int, store: dict[str, Any]) -> dict[str, Any]:
    """Runs a cell on this rank. Returns {"losses", "hash", "nvme_bytes"}: the hash of the parameters' bytes, and what
    the daemon wrote to NVMe; of a job that is kept what it read, since commits write always. Raises where it fails."""
    it = Run(cell, rank, store)
    try:
        it.train()
        moved = it.handle.stats()["nvme_read_bytes" if cell.keep else "nvme_written_bytes"]
        params = it.params()
    except BaseException:
        it.handle.close(clean=False)
        raise
    digest = hashlib.sha256()
    for name, value in params.items():
        digest.update(name.encode())
        digest.update(value.contiguous().view(torch.uint8).numpy().tobytes())
    return {
        "losses": it.losses,
        "hash": digest.hexdigest(),
        "nvme_bytes": moved,
        "params": params if rank == 0 else {},
    }


# ---- what must hold


def check(cell: Cell, losses: list[list[float]], params: dict[str, torch.Tensor]) -> dict[str, float]:
    """Compares with plain torch; losses are [rank][step]. Returns how far away they are. AssertionError: too far."""
    plain = reference_of(cell)
    bound = max(BOUNDS[cell.dtype], zoo.ZOO[cell.model].bound)
    assert all(len(row) == len(plain.losses) for row in losses)
    worst, step, rank = apart(list(zip(*losses, strict=True)), plain.losses)
    if worst > bound and cell.dtype == "fp32":  # a ReLU or a router that decides differently
        bound = min(max(bound, 2 * noise_of(cell)), NOISE_BOUND)
    assert worst <= bound, (
        f"loss of rank {rank} in step {step}: {losses[rank][step]!r}, plain torch has {plain.losses[step][rank]!r} "
        f"({worst:.2g}, allowed are {bound:.2g})"
    )
    far = 0.0
    assert params.keys() == plain.params.keys()
    for name, value in params.items():
        want_t = plain.params[name]
        assert value.shape == want_t.shape and value.dtype == want_t.dtype, name
        off = float((value.float() - want_t.float()).abs().max() / want_t.float().abs().max().clamp_min(1e-3))
        if cell.dtype == "fp32" and cell.eps == EPS_PARAMS:
            assert off <= PARAM_BOUND, f"parameter {name} differs by {off:.2g} of its largest"
        assert off <= 0.05, f"parameter {name} differs by {off:.2g} of its largest"
        far = max(far, off)
    return {"losses": worst, "params": far}
