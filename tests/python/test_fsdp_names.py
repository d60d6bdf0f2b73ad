# ctest: LABELS full COST 30 TIMEOUT 900
"""Every public name of fully_shard() and FullyShardedDataParallel: it does what torch's does, or is refused by name."""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed import fsdp
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, always_wrap_policy, size_based_auto_wrap_policy
from torch_models import Block, Net, adamw, assert_close, batch, loss_of, plain_step, values

import zshard.torch as zt
from zshard.torch import FSDP, FSDPModule, fully_shard

BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    torch.manual_seed(0)
    zt.init()
    yield


def marked(model: Net, blocks: dict[str, Any] | None = None, **root: Any) -> Net:
    """fully_shard() of each block, and of the model."""
    for block in model.blocks:
        fully_shard(block, **(blocks if blocks is not None else {k: v for k, v in root.items() if k != "offload"}))
    return fully_shard(model, **{"offload": "none", **root})  # type: ignore[return-value]


def against_plain(model: nn.Module, wrap: Callable[[nn.Module], nn.Module], step: Any = plain_step,
                  steps: int = 5, make: Any = None) -> nn.Module:  # fmt: skip
    """Trains a copy by plain torch and the model wrapped. Returns the wrapped model, still open."""
    make = make or (lambda m: adamw(m.parameters()))
    plain = copy.deepcopy(model)
    opt = make(plain)
    want = [step(plain, opt, i) for i in range(steps)]
    wrapped = wrap(model)
    opt = make(wrapped)
    got = [step(wrapped, opt, i) for i in range(steps)]
    handle = zt.handle_of(wrapped)
    assert_close(want, got, plain, handle.model if isinstance(handle.model, Net) else model_of(handle))
    return wrapped


def model_of(handle: zt.Handle) -> nn.Module:
    """What values() reads, under the names of the wrapped module."""
    runtime = handle.runtime
    for unit in runtime.plan.units:
        for piece in unit.pieces:
            piece.name = piece.name.replace("_fsdp_wrapped_module.", "")
    return handle.model


# ---- FSDP2

STEPS: dict[str, Any] = {}


def step(name: str) -> Callable[[Any], Any]:
    def keep(function: Any) -> Any:
        STEPS[name] = function
        return function

    return keep


@step("unshard")
def step_unshard(model: Any, opt: torch.optim.Optimizer, i: int) -> float:
    """unshard() and no reshard(): the passes reshard, the next step's weights are used."""
    if hasattr(model, "unshard"):
        model.unshard()
        for block in model.blocks:
            waits = block.unshard(async_op=True)
            waits.wait()
    return plain_step(model, opt, i)


@step("reshard")
def step_reshard(model: Any, opt: torch.optim.Optimizer, i: int) -> float:
    """Values are there between unshard() and reshard()."""
    if hasattr(model, "unshard"):
        assert model.unshard() is None
        model.blocks[0].unshard()
        assert model.blocks[0].up.weight.isfinite().all()
        model.blocks[0].reshard()
        model.reshard()
        assert model.blocks[0].up.weight.isnan().all()
    return plain_step(model, opt, i)


@step("sync")
def step_sync(model: Any, opt: torch.optim.Optimizer, i: int) -> float:
    """Micro-batches under each of the names that say which is the last."""
    names = ("set_requires_gradient_sync", "set_is_last_backward", "set_requires_all_reduce")
    total = 0.0
    for k in range(3):
        if hasattr(model, "unshard"):
            getattr(model, names[i % 3])(k == 2)
        loss = loss_of(model, batch(10 * i + k)) / 3
        loss.backward()
        total += float(loss.detach())
    opt.step()
    opt.zero_grad()
    return total


@step("hints")
def step_hints(model: Any, opt: torch.optim.Optimizer, i: int) -> float:
    if hasattr(model, "unshard"):
        model.set_reshard_after_forward(i % 2 == 0, recurse=True)
        model.set_reshard_after_backward(i % 2 == 0, recurse=True)
        model.set_modules_to_forward_prefetch([model.blocks[0]])
        model.set_modules_to_backward_prefetch([model.blocks[1]])
        model.set_unshard_in_backward(False)
    return plain_step(model, opt, i)


@step("eval")
def step_eval(model: Any, opt: torch.optim.Optimizer, i: int) -> float:
    model.eval()
    with torch.no_grad():
        model(batch(i)[:, :-1])
    model.train()
    return plain_step(model, opt, i)


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("how", [{}, {"accumulate": "local"}, {"reshard_after_forward": False}], ids=str)
def test_fully_shard(name: str, how: dict[str, Any]) -> None:
    blocks = {k: v for k, v in how.items() if k != "accumulate"}
    model = against_plain(Net(), lambda m: marked(m, blocks, **how), STEPS[name])  # type: ignore[arg-type]
    zt.handle_of(model).close()


def test_reset_iter_state() -> None:
    model = marked(Net())
    opt = adamw(model.parameters())
    plain = copy.deepcopy(Net())
    plain.load_state_dict(zt.full_state_dict(model) if "_zshard" in model.__dict__ else model.state_dict())
    plain_opt = adamw(plain.parameters())
    loss_of(model, batch(9)).backward()
    model.reset_iter_state()  # type: ignore[operator]
    assert all(p.grad is None for p in model.parameters())
    want = [plain_step(plain, plain_opt, i) for i in range(3)]
    assert [plain_step(model, opt, i) for i in range(3)] == pytest.approx(want, rel=1e-6)
    zt.handle_of(model).close()


class Typed(Net):
    """Notes the dtypes that its parts see."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = []
        h = self.embed(x)
        for block in self.blocks:
            self.seen.append((h.dtype, block.up.weight.dtype))
            h = block(h)
        return self.head(self.norm(h.to(self.head.weight.dtype)))


MIXED = {
    "all": ({"param_dtype": BF16}, {"param_dtype": BF16}, BF16, BF16),
    "blocks": ({"param_dtype": BF16}, {}, BF16, torch.float32),
    "root": ({}, {"param_dtype": BF16, "cast_forward_inputs": False}, torch.float32, BF16),
    "output": ({"param_dtype": BF16, "output_dtype": torch.float32}, {"output_dtype": torch.float16}, BF16,
               torch.float32),
}  # fmt: skip


@pytest.mark.parametrize("name", MIXED)
def test_mixed_precision(name: str) -> None:
    """A policy holds for the parameters of its own module, and not for those of marked modules inside."""
    blocks, root, inner, outer = MIXED[name]
    model: Any = marked(
        Typed(),
        {"mp_policy": fsdp.MixedPrecisionPolicy(**blocks)},
        mp_policy=fsdp.MixedPrecisionPolicy(reduce_dtype=torch.float32, **root),
    )
    opt = adamw(model.parameters(), lr=1e-3)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    x = batch(0)[:, :-1]
    if name == "root":
        for block in model.blocks:
            block.register_forward_pre_hook(lambda m, a: (a[0].float(),))
    out = model(x)
    assert out.dtype == root.get("output_dtype", outer)
    assert {w for _, w in model.seen} == {inner} and model.head.weight.dtype == outer
    out.float().pow(2).mean().backward()
    for n, p in model.named_parameters():  # masters keep the original values, not rounded ones
        assert torch.equal(zt.state_of(p, "master"), before[n])
    opt.step()
    opt.zero_grad()
    assert all(math.isfinite(plain_step(model, opt, i)) for i in range(3))
    zt.handle_of(model).close()


def test_mixed_precision_near_torch() -> None:
    plain = Net()
    model = marked(copy.deepcopy(plain), mp_policy=fsdp.MixedPrecisionPolicy(param_dtype=BF16))
    opt, plain_opt = adamw(model.parameters(), lr=1e-3), adamw(plain.parameters(), lr=1e-3)
    want = [plain_step(plain, plain_opt, i) for i in range(8)]
    assert [plain_step(model, opt, i) for i in range(8)] == pytest.approx(want, rel=1e-2)
    zt.handle_of(model).close()


class Mesh(SimpleNamespace):
    """What is read of a DeviceMesh."""

    def size(self) -> int:
        return math.prod(self.shape)


def mesh(*shape: int) -> Any:
    return Mesh(shape=shape, ndim=len(shape))


@pytest.mark.parametrize("shape", [(1,), (1, 1)])
def test_mesh(shape: tuple[int, ...]) -> None:
    zt.handle_of(against_plain(Net(), lambda m: marked(m, mesh=mesh(*shape)), steps=2)).close()  # type: ignore[arg-type]


class Two(nn.Module):
    """Its forward is not the only way in."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)

    def encode(self, x: torch.Tensor, *, times: float) -> torch.Tensor:
        if times > 1:
            raise ValueError("times")
        return self.inner(x) * times


def test_register_forward_method() -> None:
    model = Two()
    zt.register_forward_method(model, "encode")
    fully_shard(model, offload="none")
    want = model.inner(batch(0)) if "_zshard" not in model.__dict__ else None
    got = model.encode(batch(0), times=0.5)
    assert want is not None and torch.allclose(got, want * 0.5)
    with pytest.raises(ValueError, match="times"):
        model.encode(batch(0), times=2.0)
    got = model.encode(batch(0), times=0.5)
    got.sum().backward()
    assert zt.grad_of(model.inner.head.weight) is not None
    with pytest.raises(AttributeError):
        zt.register_forward_method(model, "nothing")
    zt.handle_of(model).close()


REFUSED: dict[str, tuple[str, Callable[[], object]]] = {
    "shard_placement_fn": ("shard_placement_fn", lambda: fully_shard(Net(), shard_placement_fn=lambda p: None)),
    "ignored_params": ("ignored_params", lambda: fully_shard(Net(), ignored_params={nn.Parameter(torch.ones(1))})),
    "reshard_after_forward": ("reshard_after_forward", lambda: fully_shard(Net(), reshard_after_forward=2)),
    "mesh of three": ("mesh", lambda: fully_shard(Net(), mesh=mesh(1, 1, 1))),
    "mesh of some ranks": ("mesh", lambda: zt.handle_of(fully_shard(Net(), mesh=mesh(2)))),
    "meshes that differ": ("mesh", lambda: zt.handle_of(marked(Net(), {"mesh": mesh(1, 1)}, mesh=mesh(1)))),
    "a list without forward": ("ModuleList", lambda: fully_shard(nn.ModuleList([Net()]))),
    "twice": ("already", lambda: fully_shard(fully_shard(Net()))),
    "options of a block": ("offload", lambda: zt.handle_of(marked(Net(), {"offload": "host"}))),
    "an unknown option": ("nonsense", lambda: zt.handle_of(fully_shard(Net(), nonsense=1))),
    "divide": ("divide", lambda: marked(Net()).set_gradient_divide_factor(2.0)),  # type: ignore[operator]
    "scatter": ("divide", lambda: marked(Net()).set_reduce_scatter_divide_factor(2.0)),  # type: ignore[operator]
    "hook": ("all_reduce_hook", lambda: marked(Net()).set_all_reduce_hook(lambda t: None)),  # type: ignore[operator]
    "unmarked": ("fully_shard", lambda: zt.handle_of(Net())),
    "process_group": ("process_group", lambda: FSDP(Net(), process_group=object())),
    "ignored_modules": ("ignored_modules", lambda: FSDP(Net(), ignored_modules=[nn.Linear(1, 1)])),
    "ignored_states": ("ignored_states", lambda: FSDP(Net(), ignored_states=[nn.Parameter(torch.ones(1))])),
    "strategy": ("nonsense", lambda: FSDP(Net(), sharding_strategy="nonsense")),
    "buffer_dtype": ("buffer_dtype", lambda: FSDP(Net(), mixed_precision=fsdp.MixedPrecision(buffer_dtype=BF16))),
    "keep_low": ("keep_low", lambda: FSDP(Net(), mixed_precision=fsdp.MixedPrecision(keep_low_precision_grads=True))),
    "assign": ("assign", lambda: FSDP(Net(), offload="none").load_state_dict(Net().state_dict(), assign=True)),
    "sharded dict": (
        "SHARDED_STATE_DICT",
        lambda: FSDP.set_state_dict_type(FSDP(Net()), fsdp.StateDictType.SHARDED_STATE_DICT),
    ),
    "local dict": (
        "LOCAL_STATE_DICT",
        lambda: FSDP.state_dict_type(FSDP(Net()), fsdp.StateDictType.LOCAL_STATE_DICT).__enter__(),
    ),
    "with_grads": ("grad_of", lambda: FSDP.summon_full_params(FSDP(Net()), with_grads=True).__enter__()),
    "recurse": ("recurse", lambda: FSDP.summon_full_params(FSDP(Net()), recurse=False).__enter__()),
    "rank0": ("rank0_only", lambda: FSDP.summon_full_params(FSDP(Net()), rank0_only=True).__enter__()),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    match, call = REFUSED[name]
    with pytest.raises((NotImplementedError, ValueError, TypeError), match=match):
        call()


# torch has more methods, and gets more from release to release.
FSDP2_METHODS = (
    "reshard", "unshard", "set_is_last_backward", "set_requires_gradient_sync", "set_requires_all_reduce",
    "set_reshard_after_forward", "set_reshard_after_backward", "set_modules_to_forward_prefetch",
    "set_modules_to_backward_prefetch", "set_all_reduce_hook", "set_gradient_divide_factor",
    "set_reduce_scatter_divide_factor", "set_unshard_in_backward", "set_custom_all_gather",
    "set_custom_reduce_scatter", "set_post_optim_event", "set_force_sum_reduction_for_comms",
    "set_allocate_memory_from_process_group_for_comm",
)  # fmt: skip


@pytest.mark.parametrize("name", FSDP2_METHODS)
def test_method_of_fsdp2(name: str) -> None:
    """It is there, with torch's arguments."""
    ours, theirs = getattr(FSDPModule, name), getattr(fsdp.FSDPModule, name, None)
    if theirs is not None:
        assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)


# ---- FSDP1

WRAPS: dict[str, Callable[[nn.Module], FSDP]] = {
    "one": lambda m: FSDP(m, offload="none"),
    "policy": lambda m: FSDP(m, offload="none", auto_wrap_policy=ModuleWrapPolicy({Block})),
    "always": lambda m: FSDP(m, offload="none", auto_wrap_policy=always_wrap_policy),
    "size": lambda m: FSDP(
        m, offload="none", auto_wrap_policy=lambda **k: size_based_auto_wrap_policy(**k, min_num_params=500)
    ),
    "nested": lambda m: FSDP(nested(m), offload="none"),
    "arguments": lambda m: FSDP(
        m,
        offload="none",
        sharding_strategy=fsdp.ShardingStrategy.SHARD_GRAD_OP,
        cpu_offload=fsdp.CPUOffload(offload_params=True),
        backward_prefetch=fsdp.BackwardPrefetch.BACKWARD_PRE,
        device_id=torch.device("cpu"),
        sync_module_states=True,
        forward_prefetch=True,
        limit_all_gathers=False,
        use_orig_params=True,
    ),
    "no_shard": lambda m: FSDP(m, offload="none", sharding_strategy=fsdp.ShardingStrategy.NO_SHARD),
    "hybrid": lambda m: FSDP(m, offload="none", sharding_strategy=fsdp.ShardingStrategy.HYBRID_SHARD),
    "mesh": lambda m: FSDP(m, offload="none", device_mesh=mesh(1)),
}  # fmt: skip


def nested(model: nn.Module) -> nn.Module:
    model.blocks = nn.ModuleList(FSDP(b) for b in model.blocks)  # type: ignore[union-attr]
    return model


def step_fsdp1(model: Any, opt: torch.optim.Optimizer, i: int) -> float:
    """no_sync, and clipping by the model's own method."""
    wrapped = isinstance(model, FSDP)
    first = loss_of(model, batch(2 * i)) / 2
    with model.no_sync() if wrapped else contextlib.nullcontext():
        first.backward()
    second = loss_of(model, batch(2 * i + 1)) / 2
    second.backward()
    order = 2.0 if i % 2 else math.inf
    norm = (
        model.clip_grad_norm_(0.02, norm_type=order)
        if wrapped
        else nn.utils.clip_grad_norm_(model.parameters(), 0.02, order)
    )
    opt.step()
    opt.zero_grad()
    return float(first.detach() + second.detach()) + float(norm)


@pytest.mark.parametrize("name", WRAPS)
def test_fsdp1(name: str) -> None:
    model: Any = against_plain(Net(), WRAPS[name], step_fsdp1)
    names = [n for n, _ in Net().named_parameters()]
    assert [n for n, _ in model.named_parameters()] == names
    assert list(model.state_dict()) == list(Net().state_dict())
    assert isinstance(model.module, Net) and model.embed is model.module.embed
    model.handle.close()


def test_fsdp1_values() -> None:
    """state_dict, load_state_dict, summon_full_params, the optimizer's dict: plain names, plain values."""
    model: Any = FSDP(nested(Net()), offload="none")
    opt = adamw(model.parameters())
    fresh = model.state_dict()  # before the start
    assert list(fresh) == list(Net().state_dict())
    plain = Net()
    plain.load_state_dict(fresh)
    plain_opt = adamw(plain.parameters())
    for i in range(2):
        plain_step(plain, plain_opt, i)
        plain_step(model, opt, i)
    config = fsdp.FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FSDP.state_dict_type(model, fsdp.StateDictType.FULL_STATE_DICT, config):
        saved = model.state_dict()
    moments = FSDP.optim_state_dict(model, opt)
    for name, p in plain.named_parameters():
        assert torch.allclose(saved[name], p, atol=1e-5)
        assert torch.allclose(moments["state"][name]["exp_avg"], plain_opt.state[p]["exp_avg"], atol=1e-6)
        assert float(moments["state"][name]["step"]) == 2.0
    with FSDP.summon_full_params(model, writeback=False):
        assert torch.equal(model.head.weight, saved["head.weight"])
    with FSDP.summon_full_params(model):
        with torch.no_grad():
            model.head.weight.zero_()
    assert model.state_dict()["head.weight"].abs().sum() == 0
    want = [plain_step(plain, plain_opt, i) for i in range(2, 5)]
    for i in range(7, 9):
        plain_step(model, opt, i)
    model.load_state_dict(saved)
    opt.load_state_dict(FSDP.optim_state_dict_to_load(model, opt, moments))
    assert [plain_step(model, opt, i) for i in range(2, 5)] == pytest.approx(want, rel=1e-5)
    with pytest.raises(RuntimeError, match="missing"):
        model.load_state_dict({})
    model.handle.close()


class Floats(nn.Module):
    """Its inputs are floats."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(8) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = x.dtype
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize("how", [{}, {"cast_root_forward_inputs": False, "cast_forward_inputs": True}], ids=str)
def test_fsdp1_mixed_precision(how: dict[str, Any]) -> None:
    """By default the root's inputs are cast, and no others."""
    model: Any = FSDP(Floats(), offload="none", mixed_precision=fsdp.MixedPrecision(param_dtype=BF16, **how))
    opt = adamw(model.parameters())
    out = model(torch.randn(3, 8))
    assert out.dtype == BF16 and model.module.seen == BF16
    out.float().pow(2).mean().backward()
    opt.step()
    opt.zero_grad()
    assert values(model.handle.model) and model(torch.randn(3, 8)).isfinite().all()
    model.handle.close()


def test_param_init_fn() -> None:
    def init(module: nn.Module) -> None:
        for p in module.parameters(recurse=False):
            nn.init.constant_(p, 0.25)

    with torch.device("meta"):
        inner = Net()
    model: Any = FSDP(inner, offload="none", param_init_fn=init, device_id=torch.device("cpu"))
    assert all((v == 0.25).all() for v in (model.handle, model.state_dict())[1].values())
    model.handle.close()
