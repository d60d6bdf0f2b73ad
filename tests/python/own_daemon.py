"""A zshardd of a test's own, which can be killed and started again on what it left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Daemon:
    """A zshardd of this test's."""

    def __init__(self, folder: Path) -> None:
        build = Path(os.environ.get("ZSHARD_BUILD") or ROOT / "build")
        self.program, self.folder = build / "bin" / "zshardd", folder
        self.socket = str(folder / "z.sock")
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        words = [self.program, "--socket", self.socket, "--data", self.folder / "data", "--host-bytes", "32M"]
        self.process = subprocess.Popen(
            [*words, "--nvme-bytes", "128M"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith(b"ready"), "zshardd did not start"

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.socket)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    (tmp_path / "data").mkdir()
    made = Daemon(tmp_path)
    yield made
    assert made.process is not None
    made.process.terminate()
    made.process.wait(60)
