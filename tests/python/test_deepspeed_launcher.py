# ctest: LABELS full COST 15 TIMEOUT 300
"""The `deepspeed` command: DeepSpeed's arguments on torchrun, and what is refused."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import zygote
from ports import free_port

from zshard.deepspeed.launcher import runner

LAUNCHER = [sys.executable, "-B", "-m", "zshard.deepspeed.launcher"]

SCRIPT = """
import argparse, json, os, sys
import deepspeed

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
parser.add_argument("--out")
parser = deepspeed.add_config_arguments(parser)
args = parser.parse_args()
import torch

torch.manual_seed(0)
deepspeed.init_distributed()
model = torch.nn.Linear(4, 4)
engine, *_ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())
loss = engine(torch.ones(2, 4)).pow(2).mean()
engine.backward(loss)
engine.step()
seen = {"rank": deepspeed.comm.get_rank(), "world": deepspeed.comm.get_world_size(), "local_rank": args.local_rank,
        "deepspeed": args.deepspeed, "module": deepspeed.__name__, "steps": engine.global_steps, "main": __name__,
        "visible": os.environ["CUDA_VISIBLE_DEVICES"], "argv": sys.argv[0]}
engine.destroy()
with open(f"{args.out}.{seen['rank']}", "w") as f:
    json.dump(seen, f)
"""
CONFIG = {"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "Adam", "params": {"lr": 0.01}},
          "zero_optimization": {"stage": 2}}  # fmt: skip


def launch(words: list[str], **env: str) -> subprocess.CompletedProcess[str]:
    return zygote.run(
        [*LAUNCHER, *words], capture_output=True, text=True, timeout=200, check=False, env=os.environ | env
    )


def test_two_ranks_of_a_deepspeed_script(tmp_path: Path) -> None:
    """The form that recipes have, on two ranks."""
    script, config, out = tmp_path / "train.py", tmp_path / "ds.json", str(tmp_path / "out")
    script.write_text(SCRIPT)
    config.write_text(json.dumps(CONFIG))
    made = launch(["--num_gpus", "2", "--master_port", str(free_port()), str(script), "--out", out,
                   "--deepspeed", "--deepspeed_config", str(config)])  # fmt: skip
    assert made.returncode == 0, made.stderr[-3000:]
    for rank in range(2):
        assert json.loads(Path(f"{out}.{rank}").read_text()) == {
            "rank": rank, "world": 2, "local_rank": rank, "deepspeed": True, "module": "zshard.deepspeed", "steps": 1,
            "main": "__main__", "visible": "0,1", "argv": str(script),
        }  # fmt: skip
    assert made.stderr.count("gives zshard.deepspeed") == 1


ECHO = "import os, sys\nopen(sys.argv[-1] + os.environ['RANK'], 'w').write(repr(sys.argv[1:-1]))"


@pytest.mark.parametrize(
    ("options", "script", "argv"),
    [
        (["--include", "localhost:0"], ["echo.py"], ["--local_rank=0", "--run", "a b", "--n", "$HOME"]),
        (["--num_gpus", "1", "--no_local_rank"], ["echo.py"], ["--run", "a b", "--n", "$HOME"]),
        (["--num_gpus", "1", "--module"], ["echo"], ["--local_rank=0", "--run", "a b", "--n", "$HOME"]),
        (["--num_gpus", "1", "--no_python"], [sys.executable, "echo.py"], None),
        (
            ["--num_gpus", "1", "--no_python", "--no_local_rank"],
            [sys.executable, "echo.py"],
            ["--run", "a b", "--n", "$HOME"],
        ),
    ],
    ids=["script", "no local rank", "module", "program", "program, no local rank"],
)
def test_what_the_script_gets(tmp_path: Path, options: list[str], script: list[str], argv: list[str] | None) -> None:
    (tmp_path / "echo.py").write_text(ECHO)
    said = ["--run", "a b", "--n", "$HOME", str(tmp_path / "got")]
    words = ["--master_port", str(free_port()), *options, *script, *said]
    made = zygote.run([*LAUNCHER, *words], capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    if argv is None:  # python itself gets --local_rank=0
        assert made.returncode != 0 and "--local_rank=0" in made.stderr
        return
    assert made.returncode == 0, made.stderr[-2000:]
    assert (tmp_path / "got0").read_text() == repr(argv)


def test_a_rank_that_fails_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(
        "import os, sys, time\nsys.exit(3) if os.environ['RANK'] == '1' else time.sleep(99)"
    )
    made = launch(["--num_gpus", "2", "--master_port", str(free_port()), str(tmp_path / "fails.py")])
    assert made.returncode != 0 and "exitcode  : 3" in made.stderr


def given(*words: str) -> Any:
    return runner.parser().parse_args([*words, "train.py", "--num_gpus", "7"])


@pytest.mark.parametrize(
    ("words", "gpus", "visible", "want"),
    [
        ([], 4, "", "0,1,2,3"),
        ([], 0, "", "0"),
        ([], 4, "2,3", "2,3"),
        (["--num_gpus", "2"], 4, "2,3", "0,1"),
        (["--num_accelerators", "2"], 0, "", "0,1"),
        (["--num_nodes", "1"], 2, "", "0,1"),
        (["--include", "localhost:3,1"], 4, "", "1,3"),
        (["-i", "localhost"], 4, "", "0,1,2,3"),
        (["-i", "localhost:0,1"], 0, "", "0,1"),
        (["--exclude", "localhost:0"], 4, "", "1,2,3"),
        (["-e", f"{socket.gethostname()}:0,1"], 4, "", "2,3"),
        (["--hostfile", "one"], 4, "", "0,1,2"),
        (["--hostfile", "none"], 2, "", "0,1"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else str(v),
)
def test_devices(monkeypatch: Any, tmp_path: Path, words: list[str], gpus: int, visible: str, want: str) -> None:
    """Which GPUs the ranks get."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "_gpus", lambda: gpus)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    (tmp_path / "one").write_text("# here\nlocalhost slots=3\n")
    assert ",".join(runner.devices(given(*words))) == want


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--num_nodes", "2"], "start torchrun on each of them"),
        (["--hostfile", "two"], "two' has worker-0, worker-1; there is no start on several nodes"),
        (["--hostfile", "bad"], "lines are 'HOST slots=N'"),
        (["--include", "worker-1:0"], "no start on several nodes"),
        (["--include", "localhost@worker-1"], "no start on several nodes"),
        (["--include", "localhost:7"], "there are devices 0, 1"),
        (["--include", "localhost:a"], "devices are numbers"),
        (["--exclude", "localhost"], "no device is left"),
        (["--num_gpus", "1", "--include", "localhost:0"], "one of them"),
        (["--module", "--no_python"], "one of them"),
        (["--autotuning", "run"], "--autotuning: there is nothing to tune"),
        (["--bind_cores_to_rank"], "--numa-binding"),
        (["--node_rank", "1"], "no start on several nodes"),
        (["--save_pid"], "--save_pid"),
        (["--num_gpus", "x"], "invalid int"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_mistakes(monkeypatch: Any, tmp_path: Path, capsys: Any, words: list[str], says: str) -> None:
    """Each is refused by its name, with what does the same."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "_gpus", lambda: 2)
    (tmp_path / "two").write_text("worker-0 slots=4\nworker-1 slots=4\n")
    (tmp_path / "bad").write_text("worker-0\n")
    with pytest.raises(SystemExit) as e:
        runner.main([*words, "train.py"])
    assert e.value.code == 2
    assert says in capsys.readouterr().err
