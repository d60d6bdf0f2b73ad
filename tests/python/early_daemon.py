"""A daemon whose memory is smaller than the model of the tests, so that state streams, and what it counts."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch_models import Net

BIN = Path(os.environ.get("ZSHARD_BUILD") or Path(__file__).resolve().parents[2] / "build") / "bin"


class Half(Net):
    """A block that a step may leave out."""

    out = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x)
        for block in self.blocks if not self.out else self.blocks[1:]:
            h = block(h)
        return self.head(self.norm(h))


def net(**more: Any) -> Net:
    """4.5 MB of parameters, gradients and state."""
    return Net(**{"width": 128, "depth": 4, **more})


def start(folder: Path, host_bytes: str = "3M") -> subprocess.Popen[bytes]:
    """Its process, on the data in the folder."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    socket = folder / "z.sock"
    socket.unlink(missing_ok=True)
    words = [BIN / "zshardd", "--socket", socket, "--data", folder / "data", "--host-bytes", host_bytes]
    process = subprocess.Popen(
        [*words, "--nvme-bytes", "64M", "--page-elems", "4096", "--ring-bytes", "4K"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None and process.stdout.readline().startswith(b"ready")
    return process


@contextmanager
def daemon(folder: Path, host_bytes: str = "3M") -> Iterator[str]:
    """Its socket."""
    process = start(folder, host_bytes)
    try:
        yield str(folder / "z.sock")
    finally:
        process.terminate()
        assert process.wait(60) == 0


def _zctl(socket: str, *words: str) -> str:
    env = os.environ | {"ZSHARD_SOCKET": socket}
    return subprocess.run([BIN / "zctl", *words], env=env, capture_output=True, check=True, text=True).stdout


def job(socket: str) -> dict[str, Any]:
    """What zctl jobs says of the only job."""
    (row,) = json.loads(_zctl(socket, "-o", "json", "jobs"))["rows"]
    return row  # type: ignore[no-any-return]


def pages_early(socket: str) -> int:
    """Pages that were stepped before the step."""
    (line,) = [x for x in _zctl(socket, "metrics").splitlines() if x.startswith("zshard_pages_early_total")]
    return int(line.split()[-1])
