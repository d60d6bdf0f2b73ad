# ctest: TRAINER LABELS full COST 60 TIMEOUT 900
"""zshard.deepspeed: programs as DeepSpeed's documents have them, under both names, against plain torch; and what
differs or is refused."""

from __future__ import annotations

import functools
import importlib.util
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import zoo
import zygote
from ports import free_port

pytest.importorskip("transformers")

HERE = os.path.dirname(os.path.abspath(__file__))
SECONDS = 240
STEPS = 6


def run(folder: Path, cases: str, world: int, words: list[str]) -> dict[str, list[dict[str, Any]]]:
    """What each rank wrote, by case. words: before the program's own arguments."""
    out, at = str(folder / "out"), str(free_port())
    ranks = []
    for rank in range(world):
        env = os.environ | {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": at, "GLOO_SOCKET_IFNAME": "lo",
        }  # fmt: skip
        ranks.append(
            zygote.Popen([sys.executable, "-B", *words, out, cases], env=env, stderr=subprocess.PIPE, text=True)
        )
    try:
        errors = [process.communicate(timeout=SECONDS)[1] for process in ranks]
        failed = [err[-2500:] for process, err in zip(ranks, errors, strict=True) if process.returncode != 0]
        assert not failed, "\n".join(failed)
    finally:
        for process in ranks:
            process.kill()
    made = [json.loads(Path(f"{out}.{rank}").read_text(encoding="utf-8")) for rank in range(world)]
    return {case: [m[case] for m in made] for case in cases.split(",")}


PROGRAM = os.path.join(HERE, "deepspeed_program.py")
ONE_CHANGED = [PROGRAM, "zshard.deepspeed"]
UNCHANGED = ["-m", "zshard.run", PROGRAM, "deepspeed"]
RUNS = {
    "two": (2, ONE_CHANGED, "zero1,zero2,zero3,steps,init,own,sum"),
    "one": (1, ONE_CHANGED, "zero3,stage0,bare,bf16,fp16,init"),
    "unchanged": (2, UNCHANGED, "zero1,zero2,zero3"),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, list[dict[str, Any]]]]:
    """What a row of RUNS wrote; each is run once."""

    @functools.cache
    def of(name: str) -> dict[str, list[dict[str, Any]]]:
        world, words, cases = RUNS[name]
        return run(tmp_path_factory.mktemp(name), cases, world, words)

    return of


Runs = Callable[[str], dict[str, list[dict[str, Any]]]]


def plain(world: int, steps: int, accumulation: int = 1, lr: float = 1e-3, decay: float = 0.01, clip: float = 0.0,
          lrs: Any = None, make: Any = None) -> list[list[float]]:  # fmt: skip
    """Losses of plain torch, of each micro-step and rank."""
    model = zoo.build("gpt2")
    make = make or (lambda params: torch.optim.AdamW(params, lr=lr, weight_decay=decay))
    optimizer = make(model.parameters())
    data = [zoo.batches("gpt2", r) for r in range(world)]
    losses = []
    for step in range(steps):
        for _ in range(accumulation):
            row = []
            for source in data:
                loss = zoo.loss_of(model, next(source))
                (loss / (accumulation * world)).backward()
                row.append(loss.item())
            losses.append(row)
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        if lrs is not None:
            for group in optimizer.param_groups:
                group["lr"] = lrs[step]
        optimizer.step()
        optimizer.zero_grad()
    return losses


def same(got: list[dict[str, Any]], want: list[list[float]], rel: float = 2e-6) -> None:
    for rank, made in enumerate(got):
        assert len(made["losses"]) == len(want)
        for i, loss in enumerate(made["losses"]):
            assert loss == pytest.approx(want[i][rank], rel=rel), f"rank {rank}, micro-step {i}"


@pytest.mark.parametrize(
    ("name", "case"),
    [("two", "zero1"), ("two", "zero2"), ("two", "zero3"), ("unchanged", "zero1"), ("unchanged", "zero2"),
     ("unchanged", "zero3"), ("one", "zero3"), ("one", "stage0")],
)  # fmt: skip
def test_the_documents_programs(runs: Runs, name: str, case: str) -> None:
    """ZeRO-1, ZeRO-2 with optimizer offload and ZeRO-3, with one import changed, and unchanged."""
    same(runs(name)[case], plain(RUNS[name][0], STEPS))


def test_accumulation_clipping_and_schedule(runs: Runs) -> None:
    """Micro-steps are averaged, the step is clipped, the learning rate is DeepSpeed's."""
    gammas = [math.log(max(i - 1, 0) + 1) / math.log(4) if i - 1 < 4 else (9 - (i - 1)) / (9 - 4) for i in range(STEPS)]
    got = runs("two")["steps"]
    same(got, plain(2, STEPS, accumulation=3, clip=0.05, lrs=[1e-3 * g for g in gammas]))
    assert [row[0] for row in got[0]["seen"]] == [i // 3 for i in range(1, 3 * STEPS + 1)]
    assert got[0]["seen"][-1][3] > 0.05  # the norm before clipping


def test_bare_backward_divides_by_the_micro_steps(runs: Runs) -> None:
    """By SGD, whose steps are as large as the gradient."""
    same(runs("one")["bare"], plain(1, STEPS, accumulation=2, make=lambda params: torch.optim.SGD(params, lr=0.05)))


def test_gradients_may_be_added_instead_of_averaged(runs: Runs) -> None:
    same(runs("two")["sum"], plain(2, STEPS, make=lambda params: torch.optim.SGD(params, lr=0.05)))


def test_bf16_has_fp32_masters(runs: Runs) -> None:
    """Against plain torch with fp32 masters of weights that were rounded first."""
    model = zoo.build("gpt2", dtype=torch.bfloat16)
    masters = zoo.fp32_masters(model)
    optimizer = torch.optim.AdamW(masters, lr=1e-3, weight_decay=0.01)
    want = zoo.train_plain(model, [zoo.batches("gpt2", 0)], optimizer, STEPS, masters=True)
    same(runs("one")["bf16"], want.losses, rel=2e-3)


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_buffers_keep_their_dtype(ds: Any, kind: str) -> None:
    """As with DeepSpeed: the frequencies of a rotary embedding would be rounded."""
    model = tiny()
    model.register_buffer("inv_freq", torch.tensor([1.001]))
    engine = ds.initialize(model=model, config=CONFIG | {kind: {"enabled": True}})[0]
    assert engine.module.inv_freq.dtype == torch.float32
    assert {p.dtype for p in engine.module.parameters()} == {torch.bfloat16 if kind == "bf16" else torch.float16}
    engine.destroy()


def test_fp16_skips_steps_until_the_scale_fits(runs: Runs) -> None:
    """A first scale of 2^40 overflows: steps are skipped, the scheduler and the weights stay, and the scale halves."""
    (got,) = runs("one")["fp16"]
    steps, skipped = got["seen"][-1][:2]
    assert steps == STEPS and skipped == STEPS
    assert got["losses"][0] == pytest.approx(zoo.loss_of(zoo.build("gpt2", dtype=torch.float16),
                                                         next(zoo.batches("gpt2", 0))).item(), rel=1e-2)  # fmt: skip


@pytest.mark.parametrize(("name", "world"), [("one", 1), ("two", 2)])
def test_init_and_gathered_parameters(runs: Runs, name: str, world: int) -> None:
    """A model that was built under zero.Init, and given its values by rank 0, trains as one that was built whole."""
    same(runs(name)["init"], plain(world, STEPS))


def test_an_optimizer_and_a_scheduler_of_ones_own(runs: Runs) -> None:
    lrs = [2e-3 * 0.5 ** (i // 2) for i in range(STEPS)]
    same(runs("two")["own"], plain(2, STEPS, lr=2e-3, decay=0.01, lrs=lrs))


GROWS = """
import re, threading, time, torch, zshard.deepspeed as ds
def anonymous():
    return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) >> 10
most = [0]
def watch():
    while True:
        most[0] = max(most[0], anonymous())
        time.sleep(0.002)
ds.init_distributed()
before = anonymous()
threading.Thread(target=watch, daemon=True).start()
with ds.zero.Init(dtype=torch.float32):
    model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(64)])
with ds.zero.GatheredParameters(model[7].weight, modifier_rank=0):
    model[7].weight.data.fill_(7)
print(most[0] - before, anonymous() - before)
"""


def test_a_model_under_init_is_never_in_memory() -> None:
    """256 MiB of parameters: neither while it is built nor afterwards."""
    made = zygote.run([sys.executable, "-B", "-c", GROWS], capture_output=True, text=True, timeout=120, check=False)
    assert made.returncode == 0, made.stderr[-2000:]
    most, after = map(int, made.stdout.split())
    assert most < 96 and after < 48, made.stdout


class Outer(torch.nn.Module):
    """Changes parameters of inner modules, whose constructors have returned, in three ways."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (torch.nn.Linear(4, 4) for _ in range(3))
        with torch.no_grad():
            self.a.weight.fill_(1)
        self.b.weight.data = torch.full((4, 4), 2.0)
        self.c.weight.data.copy_(torch.full((4, 4), 3.0))


def test_outer_constructors_initialise_inner_modules(ds: Any) -> None:
    ds.init_distributed()
    with ds.zero.Init(dtype=torch.float32):
        model = Outer()
        with ds.zero.GatheredParameters(model.a.bias, modifier_rank=0):
            model.a.bias.data.fill_(4)
    assert torch.isnan(model.b.weight).all() and model.b.weight.shape == (4, 4)
    engine = ds.initialize(model=model, config=CONFIG)[0]
    state = engine.module_state_dict()
    for name, value in {"a.weight": 1, "b.weight": 2, "c.weight": 3, "a.bias": 4}.items():
        assert bool((state[name] == value).all()), name
    engine.destroy()


# ---- the finder

ASKS = """
import importlib.metadata, importlib.util, sys
from zshard._finder import install
assert importlib.util.find_spec("deepspeed") is None
install(); install()
import deepspeed
import deepspeed.runtime.zero.partition_parameters as pp
from deepspeed.ops.adam import DeepSpeedCPUAdam
import zshard.deepspeed
assert deepspeed is zshard.deepspeed and pp is zshard.deepspeed.runtime.zero.partition_parameters
assert deepspeed.zero.Init is pp.Init and deepspeed.__spec__.name == "zshard.deepspeed"
assert importlib.metadata.version("deepspeed") == deepspeed.__version__
assert deepspeed.runtime.lr_schedules.VALID_LR_SCHEDULES
try:
    import deepspeed.inference
except ModuleNotFoundError as e:
    assert "zshard has no 'deepspeed.inference'" in str(e), e
else:
    raise AssertionError("deepspeed.inference")
from transformers.integrations.deepspeed import is_deepspeed_available
assert is_deepspeed_available()
"""


def test_the_finder_answers_for_deepspeed() -> None:
    """The same modules under both names, a distribution of DeepSpeed's version, and a clear refusal."""
    if importlib.util.find_spec("deepspeed") is not None:
        pytest.skip("DeepSpeed itself is installed here")
    made = zygote.run(
        [sys.executable, "-B", "-c", ASKS],
        preload=zygote.BELOW_TRANSFORMERS, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr[-3000:]
    assert made.stderr.count("gives zshard.deepspeed") == 1


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [([], 2, "usage"), (["nowhere.py"], 2, "'nowhere.py' does not exist"), (["-h"], 0, "")],
)  # fmt: skip
def test_run_says_how_it_is_used(words: list[str], code: int, says: str) -> None:
    made = subprocess.run(
        [sys.executable, "-m", "zshard.run", *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert made.returncode == code and says in made.stderr


def test_children_of_run_find_it_too(tmp_path: Path) -> None:
    """A process that the script starts; a sitecustomize of the user's runs as well."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "sitecustomize.py").write_text("import os; os.environ['MINE'] = 'ran'")
    script = tmp_path / "script.py"
    script.write_text(
        "import subprocess, sys\n"
        "code = 'import deepspeed, os; print(deepspeed.__name__, os.environ[\"MINE\"])'\n"
        "subprocess.run([sys.executable, '-c', code], check=True)\n"
    )
    path = os.pathsep.join([str(tmp_path / "mine"), os.environ.get("PYTHONPATH", "")])
    made = subprocess.run(
        [sys.executable, "-m", "zshard.run", str(script)],
        capture_output=True, text=True, timeout=120, env=os.environ | {"PYTHONPATH": path}, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr[-2000:]
    assert made.stdout.split() == ["zshard.deepspeed", "ran"]


# ---- in this process


@pytest.fixture
def ds() -> Any:
    import zshard.deepspeed as module
    import zshard.torch as zt

    zt.init()
    return module


def tiny() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))


CONFIG = {"train_batch_size": 4, "optimizer": {"type": "Adam", "params": {"lr": 0.01}},
          "zero_optimization": {"stage": 3}, "gradient_clipping": 0}  # fmt: skip


def engine_of(ds: Any, **more: Any) -> Any:
    return ds.initialize(model=tiny(), config=CONFIG | more)[0]


def step(engine: Any, seed: int = 0) -> float:
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(seed))
    loss = engine(x).pow(2).mean()
    engine.backward(loss)
    engine.step()
    return float(loss)


def test_values_states_and_gradients(ds: Any) -> None:
    """safe_get_full_* and safe_set_full_*."""
    engine = engine_of(ds)
    weight = engine.module[0].weight
    assert hasattr(weight, "ds_id") and torch.isnan(weight).all()
    engine.backward(engine(torch.ones(4, 8)).pow(2).mean())
    grad = ds.utils.safe_get_full_grad(weight)
    assert grad.shape == weight.shape and bool(grad.abs().sum() > 0)
    engine.step()
    moment = ds.utils.safe_get_full_optimizer_state(weight, "exp_avg")
    assert torch.allclose(moment, 0.1 * grad, atol=1e-7)
    ds.utils.safe_set_full_optimizer_state(weight, torch.zeros(8, 8), "exp_avg")
    assert not ds.utils.safe_get_full_optimizer_state(weight, "exp_avg").any()
    ds.utils.safe_set_full_fp32_param(weight, torch.full((8, 8), 0.5))
    assert bool((ds.utils.safe_get_full_fp32_param(weight) == 0.5).all())
    with ds.zero.GatheredParameters(weight, modifier_rank=0):
        assert bool((weight == 0.5).all()) and weight.ds_status == ds.zero.ZeroParamStatus.AVAILABLE
        weight.data.zero_()
    with ds.zero.GatheredParameters([weight]):
        assert not weight.any()
    with pytest.raises(NotImplementedError, match="safe_get_full_grad"):
        ds.utils.safe_get_local_grad(weight)
    engine.destroy()


def test_nvme_path_is_the_daemons_data(ds: Any, tmp_path: Path) -> None:
    """Of an embedded daemon; another engine without a path goes on with its own."""
    nvme = {"device": "nvme", "nvme_path": str(tmp_path)}
    zero = {"stage": 3, "offload_optimizer": nvme, "offload_param": nvme}
    engine = engine_of(ds, zero_optimization=zero)
    assert step(engine) > 0 and any((tmp_path / "zshard").iterdir())
    from zshard.torch._init import context

    daemon = context().daemon
    assert daemon is not None
    os.kill(daemon.client.server()["pid"], 15)
    engine.destroy()


def test_two_ways_of_backward_in_one_step(ds: Any) -> None:
    """Only one of them divides by the number of micro-steps."""
    engine = engine_of(ds, train_batch_size=8, train_micro_batch_size_per_gpu=4)
    assert engine.gradient_accumulation_steps() == 2
    engine.backward(engine(torch.ones(4, 8)).pow(2).mean())
    engine.step()
    engine(torch.ones(4, 8)).pow(2).mean().backward()
    with pytest.raises(RuntimeError, match="use one of the two"):
        engine.step()
    engine.destroy()


def test_a_checkpoint_continues_exactly(ds: Any, tmp_path: Path) -> None:
    """Losses after a load are those of the run that went on; counts, scheduler and client_state come back."""
    pytest.importorskip("zshard.convert")
    more = {"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.01, "warmup_num_steps": 5}}}
    engine = engine_of(ds, **more)
    for i in range(3):
        step(engine, i)
    assert engine.save_checkpoint(str(tmp_path), client_state={"epoch": 7})
    assert (tmp_path / "latest").read_text() == "global_step3" and (tmp_path / "global_step3").is_dir()
    want = [step(engine, i) for i in range(3, 6)]
    engine.destroy()
    again = engine_of(ds, **more)
    path, client = again.load_checkpoint(str(tmp_path))
    assert path == str(tmp_path / "global_step3") and client == {"epoch": 7}
    assert (again.global_steps, again.global_samples) == (3, 12)
    assert [step(again, i) for i in range(3, 6)] == want
    assert again.load_checkpoint(str(tmp_path / "nowhere")) == (None, None)
    again.destroy()


def test_weights_alone(ds: Any, tmp_path: Path) -> None:
    engine = engine_of(ds)
    assert engine.save_16bit_model(str(tmp_path)) and engine.save_16bit_model(str(tmp_path), "model.safetensors")
    state = torch.load(tmp_path / "pytorch_model.bin", weights_only=True)
    for name, p in tiny().named_parameters():
        assert torch.equal(state[name], p.detach()), name
    from safetensors.torch import load_file

    assert torch.equal(load_file(tmp_path / "model.safetensors")["0.weight"], state["0.weight"])
    engine.load_module_state_dict({k: v * 2 for k, v in state.items()})
    assert torch.equal(engine.module_state_dict()["0.weight"], state["0.weight"] * 2)
    engine.destroy()


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda ds: ds.initialize(model=tiny(), config={"zero_optimization": {"stag": 3}}), ValueError, "stag"),
        (lambda ds: ds.initialize(model=tiny(), config={"zero_optimization": {"stage": 7}}), ValueError, "stage"),
        (lambda ds: ds.initialize(model=tiny()), ValueError, "configuration"),
        (lambda ds: ds.initialize(config=CONFIG), ValueError, "model="),
        (lambda ds: ds.initialize(model=tiny(), config=CONFIG, mpu=object()), NotImplementedError, "mpu"),
        (lambda ds: ds.initialize(model=tiny(), config="/nowhere/ds.json"), ValueError, "nowhere"),
        (lambda ds: ds.init_inference, NotImplementedError, "init_inference"),
        (lambda ds: ds.PipelineModule, NotImplementedError, "PipelineModule"),
        (lambda ds: ds.ops.adam.DeepSpeedCPUAdam([torch.zeros(1)], amsgrad=True), NotImplementedError, "amsgrad"),
        (lambda ds: ds.utils.set_z3_leaf_modules(tiny(), [torch.nn.GRU]), ValueError, "no modules"),
        (lambda ds: ds.initialize(model=tiny(), config=CONFIG | {"scheduler": {"type": "OneCycle", "params": {}}}),
         ValueError, "scheduler"),
    ],
)  # fmt: skip
def test_mistakes(ds: Any, call: Any, error: type[Exception], says: str) -> None:
    """Each says what is wrong by name."""
    with pytest.raises(error, match=says):
        call(ds)


def test_what_is_not_given_is_said(ds: Any, capfd: Any) -> None:
    """The default optimizer and the default clipping."""
    model, config = tiny(), {"train_batch_size": 4, "zero_optimization": {"stage": 2}}
    engine = ds.initialize(model=model, model_parameters=model.parameters(), config=config)[0]
    said = capfd.readouterr().err
    assert "AdamW, lr 1e-3, weight decay 0.01" in said and "clipped at 1" in said
    group = engine.optimizer.param_groups[0]
    assert (group["lr"], group["weight_decay"], engine.gradient_clipping()) == (1e-3, 1e-2, 1.0)
    engine.destroy()


def test_a_model_for_inference_gets_an_optimizer_when_it_trains(ds: Any) -> None:
    """Without an optimizer and model_parameters: no state, until a forward pass has gradients."""
    engine = ds.initialize(model=tiny(), config={"train_batch_size": 4, "zero_optimization": {"stage": 3}})[0]
    with torch.no_grad():
        want = engine(torch.ones(4, 8))
    assert ds.utils.safe_get_full_fp32_param(engine.module[0].weight) is None  # frozen
    assert torch.equal(engine(torch.ones(4, 8)), want)
    assert ds.utils.safe_get_full_fp32_param(engine.module[0].weight) is not None
    assert step(engine, 1) > step(engine, 1)
    again = ds.initialize(model=engine.module, config=CONFIG)[0]  # the first engine gives its model up
    assert engine.handle.runtime.closed and step(again, 1) > 0
    again.destroy()


def test_schedules_are_those_of_the_library(ds: Any) -> None:
    """Python's classes against zc_lr_at()."""
    import ctypes

    import zshard

    lib = zshard.load()
    for kind, args in [
        ("WarmupLR", {"warmup_min_lr": 1e-5, "warmup_max_lr": 1e-3, "warmup_num_steps": 7, "warmup_type": "linear"}),
        ("WarmupLR", {"warmup_min_lr": 0.0, "warmup_max_lr": 1e-3, "warmup_num_steps": 7}),
        ("WarmupDecayLR", {"total_num_steps": 20, "warmup_max_lr": 1e-3, "warmup_num_steps": 5}),
        ("WarmupCosineLR", {"total_num_steps": 20, "warmup_min_ratio": 0.1, "warmup_num_steps": 5}),
    ]:
        config = json.dumps(
            {
                "train_batch_size": 1,
                "optimizer": {"type": "SGD", "params": {"lr": 1e-3}},
                "scheduler": {"type": kind, "params": args},
            }  # fmt: skip
        ).encode()
        ret, why = ctypes.POINTER(zshard.zc_zero_config)(), ctypes.create_string_buffer(256)
        assert lib.zc_zero_config_parse(ctypes.byref(ret), config, len(config), 1, why, 256) == 0, why.value
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1e-3)
        schedule = getattr(ds.runtime.lr_schedules, kind)(optimizer, **args)
        for applied in range(25):
            want = lib.zc_lr_at(ctypes.byref(ret.contents.schedule), 1e-3, applied)
            assert optimizer.param_groups[0]["lr"] == want, (kind, applied)
            schedule.step()
        lib.zc_zero_config_free(ret)
