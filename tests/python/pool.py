"""Ranks that stay: processes that run one cell of the matrix after the other, so that PyTorch is loaded once.

    with Pool(2) as pool: result = pool.run(cell, {"socket": ...})

As a program this is a rank: it reads a request a line (JSON) and answers each with a line.
"""

from __future__ import annotations

import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from typing import Any

import zygote
from ports import free_port

HERE = os.path.dirname(os.path.abspath(__file__))
SECONDS = 120 * float(os.environ.get("ZSHARD_PATIENCE", "1"))  # for a cell, or for the start
GRACE = 10.0  # after one rank has failed


class RankFailed(Exception):
    """A rank raised, ended or did not answer; the text says which and why."""


@dataclass
class Result:
    """What a cell came to: [rank][step] losses, a hash of the parameters of each rank, and how far from plain torch."""

    losses: list[list[float]]
    hashes: list[str]
    off: dict[str, float]
    seconds: float
    nvme_bytes: int  # written to NVMe; for a kept job: read


def on_gpu(rank: int) -> dict[str, str]:
    """What ranks that share a GPU need: NCCL refuses them unless each seems to be on a host of its own, or is told; and
    results that are compared bit for bit are to be the same ones in each run."""
    if os.environ.get("ZSHARD_TEST_DEVICE", "cpu") == "cpu":
        return {}
    import torch

    told = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    if torch.cuda.nccl.version() < (2, 30):
        told = {"NCCL_HOSTID": f"zshard-{rank}"}
    return told | {
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo", "NCCL_MNNVL_ENABLE": "0"
    }  # fmt: skip


class Pool:
    """Processes of one world. A failure ends them all; the next run starts new ones."""

    def __init__(self, world: int, **env: str) -> None:
        self.world, self.env = world, env
        self.ranks: list[subprocess.Popen[bytes]] = []
        self.log = tempfile.TemporaryFile()  # noqa: SIM115
        self._rest = [b""] * world

    def start(self) -> None:
        port = free_port()
        self._rest = [b""] * self.world
        for rank in range(self.world):
            env = os.environ | {
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(self.world),
                "LOCAL_WORLD_SIZE": str(self.world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1",
                "GLOO_SOCKET_IFNAME": "lo",
            } | on_gpu(rank) | self.env  # fmt: skip
            self.ranks.append(
                zygote.Popen(
                    [sys.executable, "-B", "-X", "faulthandler", os.path.join(HERE, "pool.py")],
                    env=env,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self.log,
                )  # fmt: skip
            )

    def ask(self, requests: list[dict[str, Any] | None], seconds: float = SECONDS) -> list[dict[str, Any]]:
        """A request for each rank (None: none); their answers. Raises RankFailed, and then all ranks have ended."""
        if not self.ranks:
            self.start()
        waiting = {}
        for rank, request in enumerate(requests):
            if request is not None:
                pipe = self.ranks[rank].stdin
                assert pipe is not None
                try:
                    pipe.write(json.dumps(request).encode() + b"\n")
                    pipe.flush()
                except BrokenPipeError:
                    self.fail(f"rank {rank} has ended")
                waiting[rank] = None
        answers: list[dict[str, Any]] = [{} for _ in requests]
        end = time.monotonic() + seconds
        errors: list[str] = []
        while waiting:
            outs = {self.ranks[rank].stdout.fileno(): rank for rank in waiting}  # type: ignore[union-attr]
            ready, _, _ = select.select(list(outs), [], [], max(0.0, end - time.monotonic()))
            if not ready:
                missing = f"ranks {sorted(waiting)} did not answer"
                self.fail("\n".join([*errors, missing]), dump=not errors)
            for fd in ready:
                rank = outs[fd]
                line = self._line(rank, fd)
                if line is None:
                    continue
                del waiting[rank]
                answers[rank] = json.loads(line) if line else {"error": "ended"}
                if "error" in answers[rank]:
                    errors.append(f"rank {rank}: {answers[rank]['error']}")
                    end = min(end, time.monotonic() + GRACE)
        if errors:
            self.fail("\n".join(errors))
        return answers

    def _line(self, rank: int, fd: int) -> bytes | None:
        """A whole line of a rank's; b"": it has ended; None: not yet."""
        data = os.read(fd, 1 << 16)
        self._rest[rank] += data
        if not data:
            return b""
        line, newline, rest = self._rest[rank].partition(b"\n")
        if not newline:
            return None
        self._rest[rank] = rest
        return line

    def fail(self, why: str, dump: bool = False) -> None:
        """Ends all ranks and raises. dump: their stacks go to the log first."""
        codes = [p.poll() for p in self.ranks]
        if dump:
            for p in self.ranks:
                if p.poll() is None:
                    p.send_signal(signal.SIGUSR1)
            time.sleep(1)
        self.close()
        self.log.seek(0)
        tail = self.log.read()[-6000:].decode(errors="replace")
        self.log.truncate(0)
        raise RankFailed(f"{why}\nexit codes {codes}\n{tail}")

    def run(self, cell: Any, store: dict[str, Any], compare: bool = True) -> Result:
        """Runs a cell on all ranks; `compare`: with plain torch."""
        begin = time.monotonic()
        request = {"cell": dataclasses.asdict(cell), "store": store}
        answers = self.ask([request] * self.world)
        losses = [a["losses"] for a in answers]
        off: dict[str, float] = {}
        if compare:
            found: list[dict[str, Any] | None] = [None] * self.world
            found[0] = {"check": losses, "cell": dataclasses.asdict(cell)}
            off = self.ask(found)[0]["off"]
        moved = max(a["nvme_bytes"] for a in answers)
        return Result(losses, [a["hash"] for a in answers], off, time.monotonic() - begin, moved)

    def sizes(self, cell: Any) -> list[tuple[int, bool]]:
        """Elements of each unit of a cell's model, and whether it is frozen."""
        asked: list[dict[str, Any] | None] = [None] * self.world
        asked[0] = {"sizes": True, "cell": dataclasses.asdict(cell)}
        return [(elems, frozen) for elems, frozen in self.ask(asked)[0]["sizes"]]

    def close(self) -> None:
        for p in self.ranks:
            p.kill()
        for p in self.ranks:
            p.wait()
            for pipe in (p.stdin, p.stdout):
                if pipe is not None:
                    pipe.close()
        self.ranks = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def worker() -> None:
    """A rank: answers requests until its input ends."""
    import faulthandler

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    import cells
    import torch

    torch.set_num_threads(1)
    if cells.DEVICE != "cpu":
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.allow_tf32 = False
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world > 1:
        torch.distributed.init_process_group("gloo")
    params: dict[str, torch.Tensor] = {}
    for line in sys.stdin:
        request = json.loads(line)
        cell = cells.Cell(**request["cell"])
        try:
            if "sizes" in request:
                answer: dict[str, Any] = {"sizes": cells.sizes(cell)}
            elif "check" in request:
                answer = {"off": cells.check(cell, request["check"], params)}
            else:
                answer = cells.run(cell, rank, request["store"])
                params = answer.pop("params")
        except Exception:
            answer = {"error": traceback.format_exc(limit=-8)}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    worker()
