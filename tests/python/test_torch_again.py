# ctest: LABELS full COST 30
"""Runs that outlive their daemon: a restart in good order shows nothing, a death raises RolledBack. Losses and weights
are those of an uninterrupted run, bit for bit."""

from __future__ import annotations

import os
import sys
import textwrap
import time

import pytest
import zygote

pytest.importorskip("torch")

from own_daemon import ROOT, Daemon
from ports import free_port

STEPS = 40
TRAIN = """
    import os, random, sys, time
    import torch
    import zshard
    import zshard.torch as zt
    steps, socket, job, reconnect = int(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4])

    def say(*words):  # one write: the ranks share a pipe
        os.write(1, (" ".join(map(str, words)) + chr(10)).encode())

    torch.manual_seed(0); random.seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 4))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    zt.init(job=job, socket=socket, durable=True, reconnect=reconnect)
    handle = zt.shard(model, opt, offload="host", commit_every=0)
    rank = handle.engine.rank
    while handle.step_number < steps:
        try:
            x = torch.randn(5, 8) + random.random()
            loss = model(x).pow(2).mean()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            opt.step()
            opt.zero_grad()
            if handle.step_number % 3 == 0:
                handle.commit(note={"batches": handle.step_number})
        except zshard.RolledBack as e:
            assert e.step == handle.step_number and e.note == handle.note, (e.step, e.note)
            say("back", e.step, e.note)
            continue
        if rank == 0:
            say(handle.step_number, float(norm).hex(), loss.item().hex())
        time.sleep(0.02)
    for name, value in model.state_dict().items():
        say(name, value.double().sum().item().hex())
    handle.close()
"""


def restart(daemon: Daemon) -> None:
    assert daemon.process is not None
    daemon.process.terminate()
    assert daemon.process.wait(60) == 0
    daemon.start()


def death(daemon: Daemon) -> None:
    daemon.kill()
    time.sleep(0.2)
    daemon.start()


class Run:
    """A run of some ranks, each in a process of its own, and what they say."""

    def __init__(self, daemon: Daemon, job: str, ranks: int, reconnect: float = 60) -> None:
        script = daemon.folder / "train.py"
        script.write_text(textwrap.dedent(TRAIN), encoding="utf-8")
        words = [sys.executable, "-B", str(script), str(STEPS), daemon.socket, job, str(reconnect)]
        env = os.environ | {
            "PYTHONPATH": str(ROOT / "python"), "ZSHARD_NOTES": str(daemon.folder / "notes"), "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        group = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo"}  # fmt: skip
        self.lines: list[str] = []
        self.log = daemon.folder / f"{job}.log"
        out, theirs = os.pipe()
        with self.log.open("w", encoding="utf-8") as log:
            self.processes = [
                zygote.Popen(
                    words, stdout=theirs, stderr=log,
                    env=env | (group | {"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {}),
                )
                for rank in range(ranks)
            ]  # fmt: skip
        os.close(theirs)
        self.out = os.fdopen(out, encoding="utf-8")

    def until(self, step: int) -> None:
        """Reads until this step was made."""
        for line in self.out:
            self.lines.append(line.strip())
            if line.startswith(f"{step} "):
                return
        raise AssertionError(f"step {step} was not made: {self.lines}\n{self.errors()}")

    def errors(self) -> str:
        return self.log.read_text(encoding="utf-8")[-3000:]

    def wait(self) -> list[int | None]:
        """The ranks' exit statuses."""
        with self.out:
            self.lines += [line.strip() for line in self.out]
        return [process.wait(300) for process in self.processes]

    def end(self) -> list[str]:
        assert not any(self.wait()), self.errors()
        return [line for line in self.lines if line]


@pytest.mark.parametrize("ranks", [1, 2])
def test_daemons_come_and_go(daemon: Daemon, ranks: int) -> None:
    whole = Run(daemon, "whole", ranks).end()
    run = Run(daemon, "again", ranks)
    for step, what in ((4, restart), (10, death), (20, restart), (26, death)):
        run.until(step)
        what(daemon)
    lines = run.end()
    backs = [line for line in lines if line.startswith("back")]
    assert len(backs) == 2 * ranks, backs
    for line in backs:  # the note is that of the last commit
        step = int(line.split()[1])
        assert step % 3 == 0 and line == f"back {step} {{'batches': {step}}}", line
    steps = {line.split()[0]: line for line in whole}
    for line in lines:
        assert line.startswith("back") or line == steps[line.split()[0]]
    assert {line.split()[0] for line in lines if not line.startswith("back")} == set(steps)


def test_without_reconnecting(daemon: Daemon) -> None:
    run = Run(daemon, "ends", 1, reconnect=0)
    run.until(3)
    death(daemon)
    assert run.wait() == [1] and "NotConnected" in run.errors()
