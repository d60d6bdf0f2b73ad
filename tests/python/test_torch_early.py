# ctest: LABELS full COST 25
"""Steps that begin during their last backward pass: the same bits as those that do not, what is refused, and that a
refusal loses nothing."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import early_daemon
import pytest
import torch
import zygote
from early_daemon import Half, job, net, pages_early
from ports import free_port
from torch import nn
from torch_models import Net, adamw, assert_same, batch, loss_of, values

import zshard.torch as zt
from zshard.errors import Refused, RolledBack

CLIPPED = {"clip_mode": "tensor", "clip": 0.5, "clip_tensor_warmup": 1}
MODES: dict[str, dict[str, Any]] = {"none": {"clip_mode": "none"}, "tensor": CLIPPED}
STEPS = 3
HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with early_daemon.daemon(tmp_path_factory.mktemp("early")) as made:
        zt.init(socket=made)
        yield made
        zt.init()


def sharded(model: nn.Module, n: Any, opt: Any = None, **more: Any) -> tuple[zt.Handle, Any]:
    opt = opt or adamw(model.parameters())
    return zt.shard(model, opt, **{"offload": "nvme", "gradient_accumulation_steps": n, **more}), opt


def step(model: nn.Module, opt: Any, i: int, n: int = 1) -> None:
    for k in range(n):
        (loss_of(model, batch(i * n + k)) / n).backward()
    for one in opt if isinstance(opt, list) else [opt]:
        one.step()
    for one in opt if isinstance(opt, list) else [opt]:
        one.zero_grad()


def trained(n: int, said: Any, make: Callable[[], nn.Module] = net, steps: int = STEPS, **more: Any) -> dict[str, Any]:
    """Parameters after some steps."""
    torch.manual_seed(0)
    model = make()
    handle, opt = sharded(model, said, **more)
    for i in range(steps):
        step(model, opt, i, n)
    made = values(model)
    handle.close()
    return made


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n", [1, 3])
def test_same_bits(socket: str, n: int, mode: str) -> None:
    """With gradients added up by the daemon and by the trainer; with a ring of gradients; and on the host."""
    before = pages_early(socket)
    want = trained(n, None, **MODES[mode])
    assert pages_early(socket) == before
    for more in ({}, {"accumulate": "local"}, {"accumulate": "local", "grad_ring": True}):
        assert_same(want, trained(n, n, **MODES[mode], **more))
        assert pages_early(socket) > before, more
        before = pages_early(socket)
    for offload in ("host", "none"):
        small = trained(n, None, Net, offload=offload, **MODES[mode])
        assert_same(small, trained(n, n, Net, offload=offload, **MODES[mode]))
    assert pages_early(socket) == before


@pytest.mark.parametrize("recompute", ["reentrant", "non-reentrant"])
def test_checkpointing(socket: str, recompute: str) -> None:
    def make() -> Net:
        return net(recompute=recompute)

    assert_same(trained(1, None, make, **CLIPPED), trained(1, 1, make, grad_ring=True, **CLIPPED))


def test_what_is_said_of_the_job(socket: str) -> None:
    for said, more, why in (
        (1, MODES["none"], "yes"),
        (1, CLIPPED, "after 1 more steps, which are clipped globally"),
        (None, MODES["none"], "off: the number of micro-steps is not known in advance"),
        (1, {}, "off: the number of micro-steps is not known in advance"),
    ):
        handle, _ = sharded(net(), said, **more)
        assert job(socket)["early"] == why
        assert not job(socket)["grad_ring"]
        handle.close()
    handle, _ = sharded(net(), 1, grad_ring=True, grad_ring_keep=25, **MODES["none"])
    row = job(socket)
    assert (
        row["grad_ring"]
        and row["grad_ring_keep"] == 25
        and 0 < row["grads_ringed"] < 4 * net().head.weight.numel() * 100
    )
    handle.close()


# ---- passes


@pytest.mark.parametrize("more", [{}, {"accumulate": "local"}, {"accumulate": "local", "grad_ring": True}])
def test_fewer_passes(socket: str, more: dict[str, Any]) -> None:
    """Where data end, for example: the step is made as if nothing had been said."""
    want = trained(2, None, accumulate=more.get("accumulate", "reduce"), **CLIPPED)
    assert_same(want, trained(2, 3, **CLIPPED, **more))


def test_more_passes(socket: str) -> None:
    want = trained(1, None, **MODES["none"])
    torch.manual_seed(0)
    model = net()
    handle, opt = sharded(model, 1, **MODES["none"])
    for i in range(STEPS):
        loss_of(model, batch(i)).backward()
        if i == 1:
            with pytest.raises(RuntimeError, match="gradient_accumulation_steps=1 the one before was its last"):
                loss_of(model, batch(99)).backward()
        opt.step()  # nothing was lost
        opt.zero_grad()
    assert_same(want, values(model))
    handle.close()


@pytest.mark.parametrize("said", [1, 2, "no_sync"])
def test_no_sync(socket: str, said: Any) -> None:
    """no_sync() and set_boundary(False) say that a pass is not the last, whatever the number."""
    want = trained(3, None, **MODES["none"])
    torch.manual_seed(0)
    model = net()
    handle, opt = sharded(model, said, **MODES["none"])
    before = pages_early(socket)
    for i in range(STEPS):
        with handle.no_sync():
            (loss_of(model, batch(3 * i)) / 3).backward()
        handle.set_boundary(False)
        (loss_of(model, batch(3 * i + 1)) / 3).backward()
        handle.set_boundary(True)
        (loss_of(model, batch(3 * i + 2)) / 3).backward()
        opt.step()
        opt.zero_grad()
    assert pages_early(socket) > before
    assert_same(want, values(model))
    handle.close()


@pytest.mark.parametrize("ring", [False, True])
def test_steps_that_are_dropped(socket: str, ring: bool) -> None:
    """By zero_grad() after the last pass, by an exception in it, by reset(): parts of the step were made."""
    want = trained(1, None, **CLIPPED)
    torch.manual_seed(0)
    model = net()
    handle, opt = sharded(model, 1, grad_ring=ring, **CLIPPED)

    def boom(grad: torch.Tensor) -> None:
        raise ArithmeticError("in the middle")

    for i in range(STEPS):
        before = pages_early(socket)
        loss_of(model, batch(90 + i)).backward()
        opt.zero_grad()
        hook = model.blocks[1].register_forward_hook(lambda _m, _x, y: y.register_hook(boom) and None)
        with pytest.raises(ArithmeticError):
            loss_of(model, batch(70 + i)).backward()
        hook.remove()
        if i == 1:
            handle.reset()
        else:
            with pytest.raises(RuntimeError, match="not whole"):
                opt.step()
            opt.zero_grad()
        step(model, opt, i)
        assert i == 0 or pages_early(socket) > before
    assert_same(want, values(model))
    handle.close()


# ---- what is changed after the announcement


def change(name: str, value: Any) -> Callable[[Any, nn.Module], None]:
    def make(opt: Any, model: nn.Module) -> None:
        opt.param_groups[1][name] = value

    return make


def scaler(opt: Any, model: nn.Module) -> None:
    made = torch.amp.GradScaler("cpu", init_scale=4.0)
    made.scale(torch.ones(()))
    made.step(opt)


LATE: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "lr": (change("lr", 0.5), "AdamW: 'lr' of group 1 is 0.5, and the step was announced with 0.01"),
    "betas": (change("betas", (0.9, 0.5)), r"'betas\[1\]' of group 1 is 0.5"),
    "eps": (change("eps", 1e-3), "'eps' of group 1 is 0.001"),
    "weight decay": (change("weight_decay", 0.25), "'weight_decay' of group 1 is 0.25"),
    "clip": (lambda o, m: nn.utils.clip_grad_norm_(m.parameters(), 1.0), 'clip_mode="tensor"'),
    "our clip": (lambda o, m: zt.clip_grad_norm_(m.parameters(), 1.0), 'clip_mode="tensor"'),
    "norm": (lambda o, m: m.head.weight.grad.norm(), 'clip_mode="tensor"'),
    "scaler": (scaler, "GradScaler with announced steps"),
    "scaled": (lambda o, m: m.head.weight.grad.mul_(0.5), "the gradient of 'head.weight' was scaled"),
    "cleared": (lambda o, m: setattr(m.head.weight, "grad", None), "the gradient of 'head.weight' was cleared"),
    "zeroed": (lambda o, m: m.head.weight.grad.zero_(), "the gradient of 'head.weight' was cleared"),
    "replaced": (lambda o, m: setattr(m.head.weight, "grad", torch.ones_like(m.head.weight)), "is not zshard's"),
    "groups": (
        lambda o, m: o.param_groups[0]["params"].append(o.param_groups[1]["params"].pop()),
        "its groups have other parameters",
    ),
    "state": (
        lambda o, m: o.load_state_dict(o.state_dict()),
        "its state was loaded or cleared after its last forward pass",
    ),
    "another optimizer": (
        lambda o, m: torch.optim.AdamW(m.head.parameters(), lr=0.5).step(),
        "before this optimizer was known",
    ),
}


def groups_of(model: nn.Module) -> Any:
    last = list(model.head.parameters())  # type: ignore[operator, union-attr]
    own = {id(p) for p in last}
    return adamw([{"params": [p for p in model.parameters() if id(p) not in own]}, {"params": last}])


@pytest.mark.parametrize("name", LATE)
def test_changed_too_late(socket: str, name: str) -> None:
    """It is said, and after zero_grad() the step can be made again."""
    do, words = LATE[name]
    torch.manual_seed(0)
    model = net()
    handle, opt = sharded(model, 1, groups_of(model), **MODES["none"])
    lists = [list(g["params"]) for g in opt.param_groups]
    groups = [copy.copy({k: v for k, v in g.items() if k != "params"}) for g in opt.param_groups]
    for i in range(STEPS):
        if i == 1:
            loss_of(model, batch(99)).backward()
            with pytest.raises(RuntimeError, match=words):
                do(opt, model)
                opt.step()
            for group, was, had in zip(opt.param_groups, groups, lists, strict=True):
                group |= was
                group["params"][:] = had
            opt.zero_grad()
        step(model, opt, i)
    got = values(model)
    handle.close()
    assert_same(trained(1, None, **MODES["none"]), got)


def test_a_state_that_is_loaded(socket: str) -> None:
    """Before the forward pass, or cleared: the step has it. Later it is too late."""
    made = []
    for said in (None, 1):
        torch.manual_seed(0)
        model = net()
        handle, opt = sharded(model, said, **MODES["none"])
        step(model, opt, 0)
        saved = copy.deepcopy(opt.state_dict())
        step(model, opt, 1)
        opt.load_state_dict(saved)
        step(model, opt, 2)
        opt.state.clear()
        step(model, opt, 3)
        if said:
            loss_of(model, batch(99)).backward()
            opt.load_state_dict(saved)
            with pytest.raises(RuntimeError, match="its state was loaded or cleared after its last forward pass"):
                opt.step()
            opt.zero_grad()
        else:
            opt.load_state_dict(saved)
        step(model, opt, 4)
        made.append(values(model))
        handle.close()
    assert_same(*made)


def test_a_rate_that_is_set_back(socket: str) -> None:
    """The step is still there."""
    torch.manual_seed(0)
    model = net()
    handle, opt = sharded(model, 1, **MODES["none"])
    for i in range(STEPS):
        loss_of(model, batch(i)).backward()
        opt.param_groups[0]["lr"] = 0.5
        with pytest.raises(RuntimeError, match="set it back|Set it back"):
            opt.step()
        opt.param_groups[0]["lr"] = 1e-2
        opt.step()
        opt.zero_grad()
    got = values(model)
    handle.close()
    assert_same(trained(1, None, **MODES["none"]), got)


def test_a_scheduler(socket: str) -> None:
    """As usual, after the step."""
    made = []
    for said in (None, 2):
        torch.manual_seed(0)
        model = net()
        handle, opt = sharded(model, said, **CLIPPED)
        rates = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.5)
        for i in range(STEPS):
            step(model, opt, i, 2)
            rates.step()
        made.append(values(model))
        handle.close()
    assert_same(*made)


# ---- parameters


@pytest.mark.parametrize("ring", [False, True])
@pytest.mark.parametrize("unused", [False, True])
def test_without_a_gradient(socket: str, unused: bool, ring: bool) -> None:
    """With step_unused it is stepped as without an announcement; else the step is refused, and can be made again."""
    made = []
    for said in (None, 1):
        torch.manual_seed(0)
        model = Half(width=128, depth=4)
        handle, opt = sharded(model, said, step_unused=unused, grad_ring=ring and said is not None, **MODES["none"])
        for i in range(STEPS):
            model.out = i == 1
            if unused or said is None and i != 1:
                step(model, opt, i)
            elif said is not None:
                loss_of(model, batch(i)).backward()
                if i == 1:
                    with pytest.raises(Refused, match="tensor 'blocks.0.* has no gradient.*step_unused"):
                        opt.step()
                    with pytest.raises(RuntimeError, match="the announced step was refused"):
                        opt.step()
                else:
                    opt.step()
                opt.zero_grad()
        made.append(values(model))
        handle.close()
    assert_same(*made)


@pytest.mark.parametrize("ring", [False, True])
@pytest.mark.parametrize("which", ["blocks.0", "blocks.0.up", "embed"])
@pytest.mark.parametrize("when", ["before", "for a while"])
def test_frozen(socket: str, which: str, when: str, ring: bool) -> None:
    """Before shard(), and by requires_grad between two steps: a part of a unit, too."""
    made = []
    for said in (None, 1):
        torch.manual_seed(0)
        model = net()
        part = model.get_submodule(which)
        part.requires_grad_(when != "before")
        handle, opt = sharded(model, said, grad_ring=ring and said is not None, **MODES["none"])
        for i in range(STEPS):
            part.requires_grad_(when != "before" and i != 1)
            step(model, opt, i)
        made.append(values(model))
        handle.close()
    assert_same(*made)


# ---- optimizers


def two(model: nn.Module) -> list[Any]:
    own = {id(p) for p in model.head.parameters()}  # type: ignore[operator, union-attr]
    return [
        adamw([p for p in model.parameters() if id(p) not in own]),
        zt.AdamW(model.head.parameters(), lr=0.1),  # type: ignore[operator, union-attr]
    ]


def test_several_optimizers(socket: str) -> None:
    """In any order; one that does not step is missed."""
    made = []
    for said in (None, 1):
        torch.manual_seed(0)
        model = net()
        opts = two(model)
        handle, _ = sharded(model, said, opts, **MODES["none"])
        for i in range(STEPS):
            step(model, opts if i != 1 else opts[::-1], i)
        made.append(values(model))
        if said is not None:
            loss_of(model, batch(99)).backward()
            opts[0].step()
            with pytest.raises(RuntimeError, match="announced for 2 optimizers, and AdamW did not step"):
                loss_of(model, batch(98))
            with pytest.raises(RuntimeError, match="announced for 2 optimizers"):
                handle.commit()
            handle.reset()
            loss_of(model, batch(97)).backward()
        handle.close(clean=said is None)
    assert_same(*made)


def test_an_optimizer_that_comes_later(socket: str) -> None:
    """Its first step is made as ever, since nobody knew it."""
    torch.manual_seed(0)
    model = net()
    handle = zt.shard(model, offload="nvme", gradient_accumulation_steps=1, **MODES["none"])
    opt = adamw(model.parameters())
    counts = []
    for i in range(STEPS):
        step(model, opt, i)
        handle.stats()
        counts.append(pages_early(socket))
    assert counts[0] < counts[1] < counts[2]
    got = values(model)
    handle.close()
    assert_same(trained(1, None, **MODES["none"]), got)


# ---- arguments

NO = MODES["none"]
ARGUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "zero": ({"gradient_accumulation_steps": 0, **NO}, "a number of backward passes"),
    "a word": ({"gradient_accumulation_steps": "auto", **NO}, '"no_sync"'),
    "true": ({"gradient_accumulation_steps": True, **NO}, "a number of backward passes"),
    "a dynamic scale": (
        {"gradient_accumulation_steps": 1, "loss_scale": {"dynamic": True, "power": 8, "window": 2}, **NO},
        "dynamic loss scale",
    ),
    "a ring without a number": ({"grad_ring": True, **NO}, "say with gradient_accumulation_steps="),
    "a ring with global clipping": ({"grad_ring": True, "gradient_accumulation_steps": 1}, 'use clip_mode="tensor"'),
    "a ring that adds up": ({"grad_ring": True, "gradient_accumulation_steps": 2, **NO}, 'accumulate="local"'),
    "a ring on the host": ({"grad_ring": True, "gradient_accumulation_steps": 1, "offload": "none", **NO}, "nvme"),
    "a ring and no optimizer": (
        {"grad_ring": True, "gradient_accumulation_steps": 1, "optimizer": None, **NO},
        "give the optimizer",
    ),
    "a host optimizer": (
        {"gradient_accumulation_steps": 1, "optimizer": lambda m: zt.HostOptimizer(torch.optim.RAdam, m.parameters())}
        | NO,
        "HostOptimizer",
    ),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments(socket: str, name: str) -> None:
    """Nothing is changed: the model can be sharded afterwards."""
    given, words = ARGUMENTS[name]
    model = Net()
    make = {"optimizer": lambda m: adamw(m.parameters()), **given}["optimizer"]
    options = {"offload": "nvme", **{k: v for k, v in given.items() if k != "optimizer"}}
    with pytest.raises((ValueError, Refused), match=words):
        zt.shard(model, make(model) if make else None, **options)
    zt.shard(model, adamw(model.parameters()), offload="none").close()


def test_clipping_globally_says_nothing(socket: str) -> None:
    """A number alone changes nothing: clip_grad_norm_() needs all gradients."""
    made = []
    for said in (None, 1):
        torch.manual_seed(0)
        model = Net()
        handle, opt = sharded(model, said)
        for i in range(STEPS):
            loss_of(model, batch(i)).backward()
            loss_of(model, batch(50 + i)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            opt.step()
            opt.zero_grad()
        made.append(values(model))
        handle.close()
    assert_same(*made)


@pytest.mark.parametrize("where", ["together", "apart"])
def test_two_ranks(tmp_path: Path, where: str) -> None:
    """A rank that fails in the middle of an announced step, and one without a gradient of a tensor, too. And with a
    daemon each, as on two nodes."""
    out, port = tmp_path / "out.json", free_port()
    with contextlib.ExitStack() as daemons:
        size = "5M" if where == "together" else "2M"
        at = [daemons.enter_context(early_daemon.daemon(tmp_path / str(i), size)) for i in range(2)]
        ranks = []
        for rank in range(2):
            env = os.environ | {
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                "ZSHARD_PORT": str(port), "MASTER_PORT": str(port), "ZSHARD_COMM": "tcp", "OMP_NUM_THREADS": "1",
                "ZSHARD_SOCKET": at[rank if where == "apart" else 0],
                "PYTHONPATH": str(HERE.parents[1] / "python")}  # fmt: skip
            ranks.append(zygote.Popen([sys.executable, HERE / "early_ranks.py", out, where], env=env))
        assert [r.wait(120) for r in ranks] == [0, 0]
    for name, (want, *announced) in json.loads(out.read_text()).items():
        assert want["early"] == 0 and all(a["early"] > 0 for a in announced), name
        assert all(a["digest"] == want["digest"] for a in announced), name


def test_resume(socket: str) -> None:
    """A kept job goes on with the same bits, after a trainer that left in the middle of an announced step."""
    want = trained(1, None, **CLIPPED, steps=4)
    kept = {"job": "kept", "keep": True, "durable": True, "grad_ring": True, **CLIPPED}
    torch.manual_seed(0)
    model = net()
    handle, opt = sharded(model, 1, **kept)
    for i in range(2):
        step(model, opt, i)
    handle.commit()
    loss_of(model, batch(2)).backward()
    handle.close(clean=False)
    model = net()
    handle, opt = sharded(model, 1, resume=True, **kept)
    assert handle.step_number == 2
    for i in range(2, 4):
        step(model, opt, i)
    got = values(model)
    handle.close()
    assert_same(want, got)


@pytest.mark.parametrize("when", ["before the pass", "after the pass"])
def test_the_daemon_dies(tmp_path: Path, socket: str, when: str) -> None:
    """The job is back at its last commit, and continues with announced steps."""
    want = trained(1, None, **CLIPPED)
    process = early_daemon.start(tmp_path)
    at = {"job": "dies", "keep": True, "durable": True, "reconnect_ms": 60000, "socket": str(tmp_path / "z.sock")}
    torch.manual_seed(0)
    model = net()
    handle, opt = sharded(model, 1, grad_ring=True, commit_every=0, **at, **CLIPPED)
    back = 0
    while handle.step_number < STEPS:
        loss = loss_of(model, batch(handle.step_number))
        for now in ("before the pass", "after the pass"):
            if (now, handle.step_number, back) == (when, 2, 0):
                process.kill()
                process.wait()
                process = early_daemon.start(tmp_path)
            if now == "before the pass":
                loss.backward()
        try:
            opt.step()
            opt.zero_grad()
            handle.commit()
        except RolledBack as e:
            assert e.step == 2
            back += 1
    got = values(model)
    handle.close()
    process.terminate()
    assert process.wait(60) == 0 and back == 1
    assert_same(want, got)
