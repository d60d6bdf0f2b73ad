# ctest: LABELS full COST 60
"""Runs that are killed and resumed: losses, weights, notes and random numbers are those of a run that was not."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import textwrap
import time
from typing import Any

import pytest
import zygote
from ports import free_port

pytest.importorskip("torch")

from own_daemon import ROOT, Daemon

sys.path.insert(0, str(ROOT / "python"))

TRAIN = """
    import os, random, sys
    import torch
    import zshard.torch as zt
    steps, die, socket, job = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    resume = sys.argv[5] == "resume"
    torch.manual_seed(0); random.seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 4))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    more = {"resume": True} if resume else {}
    zt.init(job=job, socket=socket, durable=True, **more)
    handle = zt.shard(model, opt, offload="nvme", commit_every=0)
    print("#", handle.resumed, handle.step_number, handle.note, handle.note_step)
    while handle.step_number < steps:
        x = torch.randn(5, 8) + random.random()
        model(x).pow(2).mean().backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        opt.step(); opt.zero_grad()
        print(handle.step_number, float(norm).hex(), flush=True)
        if handle.step_number % 3 == 0:
            handle.commit(note={"batches": handle.step_number})
        if handle.step_number == die:
            os.kill(os.getpid(), 9)
    for name, value in model.state_dict().items():
        print(name, value.double().sum().item().hex())
    handle.close()
"""


def run(daemon: Daemon, job: str, *, die: int = -1, resume: bool = False, script: str = TRAIN) -> list[str]:
    """The lines of a run of 8 steps."""
    env = os.environ | {"PYTHONPATH": str(ROOT / "python"), "ZSHARD_NOTES": str(daemon.folder / "notes")}
    words = ["8", str(die), daemon.socket, job, "resume" if resume else "new"]
    words = [sys.executable, "-c", textwrap.dedent(script), *words]
    done = zygote.run(words, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == (0 if die == -1 else -9), done.stderr[-2000:]
    return done.stdout.splitlines()


def test_a_killed_rank(daemon: Daemon) -> None:
    whole = run(daemon, "whole")
    assert whole[0] == "# False 0 None 0"
    first = run(daemon, "killed", die=5)
    again = run(daemon, "killed", resume=True)
    assert again[0] == "# True 5 {'batches': 3} 3"  # the newest step, and the note of the last commit
    assert first[1:] + again[1:] == whole[1:]


KIND = """
    import sys
    import torch
    import zshard
    import zshard.torch as zt
    resume = sys.argv[5] == "resume"
    zt.init(job=sys.argv[4], socket=sys.argv[3], keep=True, durable=not resume, resume=resume)
    model = torch.nn.Linear(4, 4)
    opt = torch.optim.SGD(model.parameters())
    try:
        handle = zt.shard(model, opt, offload="host")
    except zshard.Invalid as e:
        print(e)
        sys.exit()
    model(torch.ones(2, 4)).sum().backward()
    opt.step()
    handle.commit()
    handle.close()
"""


def test_another_kind_of_job(daemon: Daemon) -> None:
    """The error says what the job is, and what was asked for: while it is in memory, and when it is saved."""
    run(daemon, "kind", script=KIND)
    want = "job 'kind' is kept, durable, and has 1 parameter groups; rank 0 opens it kept, not durable, with 1"
    assert run(daemon, "kind", resume=True, script=KIND) == [want]
    daemon.kill()
    daemon.start()
    assert run(daemon, "kind", resume=True, script=KIND) == [want]


def test_a_killed_daemon(daemon: Daemon) -> None:
    whole = run(daemon, "whole")
    first = run(daemon, "killed", die=5)
    daemon.kill()
    time.sleep(0.2)
    daemon.start()
    again = run(daemon, "killed", resume=True)
    assert again[0] == "# True 3 {'batches': 3} 3"  # the last commit
    assert first[1:4] + again[1:] == whole[1:]


LARGE = (
    TRAIN.replace("    opt = ", "    model.register_buffer('seen', torch.zeros(10000))\n    opt = ")
    .replace("opt.step();", "model.seen.add_(1); opt.step();")
    .replace("    import torch\n", "    import torch, warnings\n")
    .replace("    steps,", "    warnings.showwarning = lambda message, *_: print('warned:', message)\n    steps,", 1)
)


def test_large_buffers(daemon: Daemon) -> None:
    """They come with a commit; a run that resumes from another step says whose they are."""
    whole = run(daemon, "whole", script=LARGE)
    first = run(daemon, "killed", die=5, script=LARGE)
    warned, *again = run(daemon, "killed", resume=True, script=LARGE)
    assert "buffers of step 5 were not saved" in warned and warned.endswith("they are those of step 3")
    differing = [a.split()[0] for a, b in zip(first[1:] + again[1:], whole[1:], strict=True) if a != b]
    assert differing == ["seen", "1.running_mean", "1.running_var", "1.num_batches_tracked"]
    first = run(daemon, "exact", die=5, script=LARGE)
    daemon.kill()
    time.sleep(0.2)
    daemon.start()
    again = run(daemon, "exact", resume=True, script=LARGE)
    assert first[1:4] + again[1:] == whole[1:]


HOST = """
    import os, sys
    import torch
    import zshard
    import zshard.torch as zt
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(3)])
    opt = zt.HostOptimizer(torch.optim.RAdam, model.parameters(), lr=1e-2)
    zt.init(job=sys.argv[4], socket=sys.argv[3], keep=True, resume=sys.argv[5] == "resume")
    try:
        handle = zt.shard(model, opt, offload="host", units=[torch.nn.Linear])
    except zshard.ZshardError as e:
        print("refused:", e)
        sys.exit()
    print("step", handle.step_number)
    write_on, writes = handle.engine.write_on, []
    def dies(*args):
        writes.append(args)
        if handle.step_number == int(sys.argv[2]) and len(writes) % 3 == 2:
            os.kill(os.getpid(), 9)
        write_on(*args)
    handle.engine.write_on = dies
    for _ in range(3):
        model(torch.ones(2, 16)).pow(2).mean().backward()
        opt.step(); opt.zero_grad()
    handle.close()
"""


def test_killed_while_weights_are_written(daemon: Daemon) -> None:
    """A job of whose weights HostOptimizer had written some is not resumed as if it were whole; others are."""
    for job, at in (("first", 0), ("later", 2)):
        run(daemon, job, die=at, script=HOST)
        refused = run(daemon, job, resume=True, script=HOST)[-1]
        assert refused.startswith("refused:") and f"after step {at}, and some weights are a step ahead" in refused
    (file,) = [word for word in refused.split() if word.endswith("writing")]
    os.unlink(file)
    assert run(daemon, "later", resume=True, script=HOST) == ["step 2"]
    assert run(daemon, "later", resume=True, script=HOST) == ["step 5"]  # its marks are for steps that have ended


SAVE = """
    import os, sys
    import torch, transformers
    import zshard.torch as zt
    folder = os.path.join(os.path.dirname(sys.argv[3]), "saved")
    config = transformers.LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2)
    model = zt.from_config(transformers.AutoModelForCausalLM, config, dtype=torch.bfloat16, seed=1)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    zt.init(job="saved", socket=sys.argv[3], durable=True)
    handle = zt.shard(model, opt, offload="nvme")
    x = torch.arange(32).view(2, 16)
    def step():
        loss = model(input_ids=x, labels=x).loss
        loss.backward(); opt.step(); opt.zero_grad()
        return loss.item()
    losses = [step() for _ in range(3)]
    want = model.state_dict()
    saving = zt.save_pretrained(model, folder, max_shard_size="20KB")
    assert saving.background and saving.step == 3, saving
    later = [step() for _ in range(3)]
    saving.wait(120)
    got = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).state_dict()
    assert got.keys() == want.keys() and all(torch.equal(got[k], want[k]) for k in got)
    assert later[-1] < losses[0]
    handle.close()
    print("saved", sorted(os.listdir(folder))[0], len(os.listdir(os.path.dirname(folder))))
"""


def test_a_save_in_the_background(daemon: Daemon) -> None:
    pytest.importorskip("transformers")
    assert run(daemon, "saved", script=SAVE)[-1].startswith("saved config.json")
    assert not [n for n in os.listdir(daemon.folder) if ".tmp-" in n or ".old-" in n]


WORLDS = """
    import os, sys
    import torch
    import zshard.torch as zt
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4), torch.nn.Linear(4, 3))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)
    zt.init(job=sys.argv[4], socket=sys.argv[3], keep=True, durable=True, resume=sys.argv[5] == "resume")
    handle = zt.shard(model, opt, offload=os.environ["OFFLOAD"])
    until = int(os.environ["UNTIL"])
    while handle.step_number < until:
        step = handle.step_number
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(step))
        x = x[rank * 4 // world : (rank + 1) * 4 // world]
        if step == 2:
            model[3].requires_grad_(False)  # its tensors are one step fewer
        model(x).pow(2).mean().backward()
        opt.step(); opt.zero_grad()
        model.requires_grad_(True)
    state = opt.state_dict()["state"]
    values = [v.double().tolist() for v in model.state_dict().values()]
    steps = [int(state[i]["step"]) for i in range(6)]
    moments = [state[i][k].double().tolist() for i in range(6) for k in ("exp_avg", "exp_avg_sq")]
    if rank == 0:
        print(repr((steps, values, moments)))
    handle.close()
"""


def ranks(daemon: Daemon, world: int, job: str, until: int, offload: str, resume: bool) -> tuple[list[int], Any, Any]:
    """A run of so many ranks; the step counts, and all values."""
    processes = []
    port = free_port()
    for rank in range(world):
        env = os.environ | {"PYTHONPATH": str(ROOT / "python"), "OFFLOAD": offload, "UNTIL": str(until)}
        env |= {"ZSHARD_NOTES": str(daemon.folder / "notes"), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        env |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)} if world > 1 else {}
        words = [sys.executable, "-c", textwrap.dedent(WORLDS), "8", "-1", daemon.socket, job]
        words.append("resume" if resume else "new")
        processes.append(zygote.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    said = [p.communicate(timeout=600) for p in processes]
    assert all(p.returncode == 0 for p in processes), "\n".join(err[-1500:] for _, err in said)
    return ast.literal_eval(said[0][0].splitlines()[-1])  # type: ignore[no-any-return]


def flat(values: Any) -> list[float]:
    return [values] if isinstance(values, float) else [x for v in values for x in flat(v)]


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
@pytest.mark.parametrize("offload", ["host", "nvme"])
def test_another_number_of_ranks(daemon: Daemon, before: int, after: int, offload: str) -> None:
    """Weights, moments and each tensor's own step count are those of one rank that went through."""
    whole = ranks(daemon, 1, "whole", 6, offload, False)
    ranks(daemon, before, "moved", 4, offload, False)
    moved = ranks(daemon, after, "moved", 6, offload, True)
    assert moved[0] == whole[0] == [6, 6, 6, 6, 5, 5]
    assert flat(moved[1:]) == pytest.approx(flat(whole[1:]), rel=1e-5, abs=1e-7)
