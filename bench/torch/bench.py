"""The rounds of `zbench torch`, which starts this and asks it for one line after the other (bench/peer.h).

Each slice is a launch of its own: a daemon where the contestant has one, two ranks, in one memory cgroup. Rounds go
through the contestants forwards and backwards in turn. Answers are "note TEXT", "row NAME UNIT BETTER REFERENCE V:R..."
with the values of the rounds, and "end". Standard library only; ranks run in the environment of requirements.txt.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import select
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from measure import MIB, Memory, written_bytes
from sizes import SHAPES, SIZES

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
OURS = ("host", "nvme")
EVERYBODY = ("ddp", "fsdp2", "ds-cpu", "ds-nvme", *OURS)
# Whom a row compares, a contestant and its reference.
PAIRS = (
    ("host", "ddp"),
    ("host", "fsdp2"),
    ("host", "ds-cpu"),
    ("nvme", "host"),
    ("nvme", "ds-nvme"),
    ("fsdp2", "ddp"),
    ("ds-cpu", "ddp"),
    ("ds-nvme", "ddp"),
)
# Figures of a slice: the word in a row's name, its unit, which is better, and how many digits are printed.
FIGURES = {
    "rate": ("tokens/s", "higher"),
    "memory": ("MiB", "lower"),
    "written": ("MiB/step", "lower"),
    "first-step": ("s", "lower"),
    "save": ("s", "lower"),
    "resume": ("s", "lower"),
}
LOSS_BOUND = {"fp32": 1e-3, "bf16": 5e-2}  # relative, of a step's loss against DDP's: a slip, not a matter of rounding
SLICE_SECONDS = 1800
START_SECONDS = 120  # of the daemon


class Broken(Exception):
    """A slice failed, and why."""


@dataclass(frozen=True)
class Case:
    """One model in one shape and dtype, with or without clipping."""

    shape: str
    model: str
    dtype: str
    clip: bool

    @property
    def name(self) -> str:
        return f"torch/{self.shape}/{self.model}/{self.dtype}/{'clip' if self.clip else 'plain'}"


@dataclass
class Slice:
    """What came of one launch. Values that were not measured are missing."""

    figures: dict[str, float] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    python: float = 0.0  # part of a step in code of the contestant's in Python; 0: not counted
    nvme: float = math.nan  # part of the booked bytes that are places on NVMe; NaN: not known
    step: int = 0  # that was saved
    memory_kind: str = ""


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class Launch:
    """Two ranks and what they need; everything ends with it."""

    def __init__(self, bench: Bench, who: str, case: Case, folder: str, resume: bool, life: bool) -> None:
        self.bench, self.who, self.folder = bench, who, folder
        self.memory = Memory()
        self.late = False
        self.daemon: subprocess.Popen[bytes] | None = None
        self.ranks: list[subprocess.Popen[str]] = []
        self.log = os.path.join(folder, "log")
        batch, seq = SHAPES[case.shape]
        self.spec = {
            "who": who,
            "model": case.model,
            "dtype": case.dtype,
            "batch": batch,
            "seq": seq,
            "clip": case.clip,
            "warm": bench.options.warm,
            "steps": bench.options.steps,
            "seconds": bench.options.seconds,
            "save": life,
            "resume": resume,
            "folder": folder,
            "threads": max(1, (os.cpu_count() or 1) // bench.options.ranks),
            "socket": os.path.join(folder, "s"),
        }
        self.params = SIZES[case.model].params()

    def start_daemon(self) -> None:
        """A zshardd of this slice; of NVMe with room in memory for parameters, gradients and staging, not for all of
        the state. How much of it is on NVMe is in the notes."""
        room = 64 * MIB + (24 if self.who == "host" else 12) * self.params
        words = [self.bench.program("zshardd"), "--socket", self.spec["socket"], "--data", f"{self.folder}/data"]
        words += ["--host-bytes", str(room), "--nvme-bytes", str(256 * MIB + 48 * self.params), "--log-level", "warn"]
        log = open(self.log, "ab")  # noqa: SIM115
        self.daemon = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, preexec_fn=self.memory.enter
        )
        log.close()
        self.memory.pids.add(self.daemon.pid)
        assert self.daemon.stdout is not None
        said, _, _ = select.select([self.daemon.stdout], [], [], START_SECONDS)
        line = self.daemon.stdout.readline() if said else b"no word"
        if not line.startswith(b"ready "):
            raise Broken(f"zshardd did not start: {line.decode()}{self.tail()}")

    def start_ranks(self) -> None:
        port, options = free_port(), self.bench.options
        for rank in range(options.ranks):
            env = os.environ | {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(options.ranks),
                "LOCAL_WORLD_SIZE": str(options.ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": str(self.spec["threads"]),
                "DS_ACCELERATOR": "cpu",
                "DS_SKIP_CUDA_CHECK": "1",
                "ZSHARD_BUILD": self.bench.build,
                "PYTHONPATH": os.path.join(ROOT, "python"),
                "PATH": os.path.dirname(self.bench.python) + os.pathsep + os.environ["PATH"],
            }
            if self.who == "ds-nvme":
                env["LD_PRELOAD"] = "libaio.so.1"  # DeepSpeed links its op without it
            with open(self.log, "ab") as log:
                process = subprocess.Popen(
                    [self.bench.python, "-B", os.path.join(HERE, "rank.py"), json.dumps(self.spec)],
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    preexec_fn=self.memory.enter,
                )
            self.ranks.append(process)
            self.memory.pids.add(process.pid)

    def tail(self) -> str:
        with open(self.log, encoding="utf-8", errors="replace") as f:
            return "\n" + "".join(f.readlines()[-25:])

    def events(self) -> Iterator[tuple[dict[str, Any], float]]:
        """What rank 0 says, and when."""
        timer = threading.Timer(SLICE_SECONDS, self.kill_ranks)
        timer.start()
        watch = threading.Thread(target=self._watch, daemon=True)
        watch.start()
        try:
            out = self.ranks[0].stdout
            assert out is not None
            for line in out:
                yield json.loads(line), time.monotonic()
        finally:
            timer.cancel()

    def kill_ranks(self) -> None:
        self.late = True
        for p in self.ranks:
            p.kill()

    def _watch(self) -> None:
        """One rank that fails ends the others: they would wait for it."""
        while any(p.poll() is None for p in self.ranks):
            if any(p.poll() not in (None, 0) for p in self.ranks):
                for p in self.ranks:
                    p.kill()
            time.sleep(0.2)

    def run(self, after: Slice | None) -> Slice:
        """Everything that one launch tells; of one that resumes, `after` is what it resumes. Ends all processes."""
        with self.memory:
            try:
                return self.go(after)
            finally:
                self.end()

    def go(self, after: Slice | None) -> Slice:
        ret = Slice(memory_kind=self.memory.kind)
        begin, written = time.monotonic(), 0
        if self.who in OURS:
            self.start_daemon()
        self.start_ranks()
        for event, at in self.events():
            match event["event"]:
                case "first_step":
                    ret.figures["first-step"] = at - begin
                case "resumed":
                    ret.figures["resume"] = at - begin
                    if after is None or event["step"] != after.step + 1:
                        raise Broken(f"{self.who}: made step {event['step']} instead of resuming")
                case "begin":
                    written = written_bytes(self.memory.pids)
                case "end":
                    moved = written_bytes(self.memory.pids) - written
                    tokens = self.spec["batch"] * self.spec["seq"] * len(self.ranks) * event["steps"]
                    ret.figures["rate"] = tokens / event["seconds"]
                    ret.figures["written"] = moved / MIB / event["steps"]
                    ret.losses = event["losses"]
                    ret.python = event["python"] / event["seconds"]
                    ret.nvme = event["nvme"]
                    ret.figures["memory"] = self.memory.peak / MIB
                case "saved":
                    ret.figures["save"], ret.step = event["seconds"], event["step"]
        codes = [wait(p, 300) for p in self.ranks]
        if self.late:
            raise Broken(f"{self.who}: not finished after {SLICE_SECONDS} s{self.tail()}")
        if any(codes):
            raise Broken(f"{self.who}: ranks ended with {codes}{self.tail()}")
        return ret

    def end(self) -> None:
        for p in self.ranks:
            if p.poll() is None:
                p.kill()
            p.wait()
        if self.daemon:
            self.daemon.send_signal(signal.SIGTERM)
            try:
                self.daemon.wait(60)
            except subprocess.TimeoutExpired:
                self.daemon.kill()
                self.daemon.wait()


class Bench:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.build = options.build
        self.python = options.python
        self.who: list[str] = [who for who in EVERYBODY if who in options.who.split(",")]

    def program(self, name: str) -> str:
        return os.path.join(self.build, "bin", name)

    def cases(self) -> list[Case]:
        """Those that are asked for; by default each shape with its own models."""
        usual = {"many": ("25M", "125M"), "few": ("70M", "125M")}
        o = self.options
        every = [
            Case(shape, model, dtype, clip)
            for shape in o.shape.split(",")
            for model in (o.model.split(",") if o.model else usual[shape])
            for dtype in o.dtype.split(",")
            for clip in (False, True)
        ]
        return [case for case in every if any(wants(row, case.name) for row in self.wanted())]

    def wanted(self) -> list[str]:
        return self.options.rows.split(",") if self.options.rows else [""]

    # ---- the environment

    def environment(self) -> Iterator[str]:
        """Makes it where no interpreter was given; leaves out who cannot run."""
        if not self.python:
            env = os.environ | {"ZSHARD_REQUIREMENTS": os.path.join(HERE, "requirements.txt")}
            venv = os.path.join(ROOT, "tests", "venv.sh")
            made = subprocess.run([venv, "make"], env=env, check=False, stdout=sys.stderr)
            if made.returncode != 0:
                raise Broken("no environment with PyTorch and DeepSpeed could be made: tests/venv.sh says why")
            done = subprocess.run([venv, "path"], env=env, check=True, stdout=subprocess.PIPE, text=True)
            self.python = os.path.join(done.stdout.strip(), "bin", "python")
        yield from self.check("ours", OURS, "import zshard.torch")
        yield from self.check("ds-cpu", ("ds-cpu", "ds-nvme"), op("CPUAdamBuilder"))
        yield from self.check("ds-nvme", ("ds-nvme",), op("AsyncIOBuilder"))

    def check(self, name: str, who: tuple[str, ...], code: str) -> Iterator[str]:
        """Leaves out contestants whose first words fail. DeepSpeed compiles its ops in them: minutes, once."""
        if not any(w in self.who for w in who):
            return
        env = os.environ | {
            "DS_ACCELERATOR": "cpu",
            "DS_SKIP_CUDA_CHECK": "1",
            "PYTHONPATH": os.path.join(ROOT, "python"),
            "ZSHARD_BUILD": self.build,
            "PATH": os.path.dirname(self.python) + os.pathsep + os.environ["PATH"],
        }
        if name == "ds-nvme":
            env["LD_PRELOAD"] = "libaio.so.1"
        done = subprocess.run(
            [self.python, "-c", code], env=env, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if done.returncode != 0:
            why = done.stdout.strip().splitlines()[-1:] or ["no reason given"]
            self.who = [w for w in self.who if w not in who]
            yield f"note {', '.join(who)} left out: {why[0]}"

    # ---- rounds

    def slice(self, who: str, case: Case, life: bool) -> Slice:
        """One launch; with `life` a second one, which resumes what the first one saved."""
        folder = tempfile.mkdtemp(prefix="zbench-torch-", dir=self.options.dir)
        try:
            os.mkdir(os.path.join(folder, "swap"))
            ret = Launch(self, who, case, folder, False, life).run(None)
            if life:
                ret.figures |= Launch(self, who, case, folder, True, False).run(ret).figures
            return ret
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def case(self, case: Case) -> Iterator[str]:
        slices: dict[str, list[Slice]] = {who: [] for who in self.who}
        for n in range(self.options.rounds):
            for who in self.who if n % 2 == 0 else self.who[::-1]:
                slices[who].append(self.slice(who, case, n < self.options.life))
        yield from self.compare_losses(case, slices)
        for who in self.who:
            parts = []
            for figure, (unit, _) in FIGURES.items():
                values = [s.figures[figure] for s in slices[who] if figure in s.figures]
                if values:
                    parts.append(f"{figure} {statistics.median(values):.4g} {unit}")
            python = statistics.median(s.python for s in slices[who])
            nvme = [s.nvme for s in slices[who] if not math.isnan(s.nvme)]
            if nvme:
                parts.append(f"{100 * statistics.median(nvme):.0f} % of its booked bytes are places on NVMe")
            if python > 0:
                parts.append(f"Python {100 * python:.2f} % of a step")
            yield f"note {case.name} {who}: {', '.join(parts)} ({slices[who][0].memory_kind})"
        for figure, (unit, better) in FIGURES.items():
            for who, reference in PAIRS:
                if who in slices and reference in slices:
                    yield from self.row(case, figure, unit, better, who, reference, slices)

    def row(
        self,
        case: Case,
        figure: str,
        unit: str,
        better: str,
        who: str,
        reference: str,
        slices: dict[str, list[Slice]],
    ) -> Iterator[str]:
        name = f"{case.name}/{who}/{reference}" if figure == "rate" else f"{case.name}/{figure}/{who}/{reference}"
        pairs = zip(slices[who], slices[reference], strict=True)
        both = [(a.figures[figure], b.figures[figure]) for a, b in pairs if figure in a.figures and figure in b.figures]
        both = [pair for pair in both if pair[0] > 0 and pair[1] > 0]  # who writes nothing has no ratio
        if both and any(wants(row, name) for row in self.wanted()):
            values = " ".join(f"{a:.9g}:{b:.9g}" for a, b in both)
            yield f"row {name} {unit} {better} {reference} {values}"

    def compare_losses(self, case: Case, slices: dict[str, list[Slice]]) -> Iterator[str]:
        """All train the same: a contestant whose losses are not DDP's has made another step."""
        if "ddp" not in slices:
            return
        ours = slices["ddp"][0].losses
        worst: dict[str, float] = {}
        for who, of in slices.items():
            for one in of:
                worst[who] = max(worst.get(who, 0), furthest(one.losses, ours))
        for who, most in worst.items():
            if not most <= LOSS_BOUND[case.dtype]:
                raise Broken(f"{case.name}: the losses of {who} differ from DDP's by {most:.2g}")
        yield f"note {case.name}: losses differ from DDP's by " + ", ".join(f"{w} {m:.1e}" for w, m in worst.items())

    def lines(self) -> Iterator[str]:
        yield from self.environment()
        for case in self.cases():
            yield from self.case(case)


def furthest(losses: list[float], reference: list[float]) -> float:
    """The most that a loss differs, relative; infinity where one is not a number, or there is none."""
    off = [abs(a - b) / abs(b) for a, b in zip(losses, reference, strict=False)]
    return max(off) if off and all(math.isfinite(x) for x in off) else math.inf


def wait(process: subprocess.Popen[str], seconds: float) -> int:
    """The exit code of one that is to end by itself by now; else it is killed."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def wants(row: str, name: str) -> bool:
    """Whether the beginning of a row's name asks for this, a row or a case."""
    return name.startswith(row) or row.startswith(name)


def op(builder: str) -> str:
    return f"from deepspeed.ops.op_builder import {builder}; {builder}().load()"


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, kind in {
        "build": str, "dir": str, "python": str, "who": str, "rows": str, "model": str, "dtype": str, "shape": str,
        "rounds": int, "ranks": int, "warm": int, "steps": int, "life": int, "seconds": float,
    }.items():  # fmt: skip
        parser.add_argument(f"--{name}", type=kind, required=True)
    bench = Bench(parser.parse_args())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # folders, cgroups and processes go, too
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    lines = bench.lines()
    print("ready torch " + f"{bench.options.ranks} ranks, {', '.join(bench.who)}", file=answers, flush=True)
    try:
        for _ in sys.stdin:  # a question for each line
            print(next(lines, "end"), file=answers, flush=True)
    except Broken as why:
        print(f"zbench torch: {why}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
