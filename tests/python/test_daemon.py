# ctest: LABELS full COST 20
"""The embedded daemon: found, started once by many, refused with numbers, and gone when nobody uses it."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import pytest

import zshard
from zshard import _daemon, _lib

SMALL: dict[str, Any] = {"host_bytes": "64M", "nvme_bytes": "64M"}


def embeds() -> bool:
    """Whether this zshardd can be embedded."""
    binary = _lib.program("zshardd")
    text = subprocess.run([str(binary), "--help"], text=True, capture_output=True, check=False).stdout
    return "--embedded" in text


pytestmark = pytest.mark.skipif(not embeds(), reason="this zshardd has no --embedded")


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A folder for everything, with no daemon of the machine in sight; daemons of it are ended."""
    folder = tempfile.mkdtemp(prefix="zd-")
    for name in ("ZSHARD_SOCKET", "ZSHARD_DATA", "ZSHARD_HOST_BYTES", "ZSHARD_NVME_BYTES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    monkeypatch.setenv("XDG_CACHE_HOME", os.path.join(folder, "cache"))
    monkeypatch.setattr(_daemon, "_SYSTEM_SOCKET", os.path.join(folder, "none.sock"))
    yield folder
    sockets = os.path.join(folder, "zshard")
    for name in os.listdir(sockets) if os.path.isdir(sockets) else []:
        if name.endswith(".sock"):
            try:
                with zshard.Client(os.path.join(sockets, name)) as c:
                    os.kill(c.server()["pid"], 15)
            except zshard.ZshardError:
                continue
    shutil.rmtree(folder, ignore_errors=True)


def pid(found: _daemon.Daemon) -> int:
    return int(found.client.server()["pid"])


def test_started_then_found(place: str) -> None:
    first = _daemon.connect(**SMALL)
    assert first.started and first.host_bytes == 64 << 20 and 0 <= (64 << 20) - first.nvme_bytes < 1 << 20
    assert "64.0 MiB" in first.line and os.path.join(place, "cache", "zshard") in first.line
    second = _daemon.connect()
    assert not second.started and pid(second) == pid(first)
    assert "using the daemon" in second.line
    other = _daemon.connect(data=os.path.join(place, "other"), **SMALL)
    assert other.started and pid(other) != pid(first)
    for daemon in (first, second, other):
        daemon.client.close()


def test_budgets_stand(place: str) -> None:
    first = _daemon.connect(**SMALL)
    with pytest.raises(zshard.Refused, match="128.0 MiB was requested.*64.0 MiB"):
        _daemon.connect(host_bytes="128M")
    with pytest.raises(zshard.Refused, match="nvme_bytes"):
        _daemon.connect(nvme_bytes=1 << 30)
    _daemon.connect(host_bytes=64 << 20).client.close()
    first.client.close()


def test_more_than_there_is(place: str) -> None:
    with pytest.raises(zshard.NoSpace, match="host_bytes=1024.0 TiB .* available"):
        _daemon.connect(host_bytes=1 << 50)
    with pytest.raises(zshard.NoSpace, match="nvme_bytes=1024.0 TiB .* free"):
        _daemon.connect(host_bytes="64M", nvme_bytes=1 << 50)


def test_wrong_socket(place: str) -> None:
    with pytest.raises(zshard.NotConnected, match="nobody"):
        _daemon.connect(socket=os.path.join(place, "nobody"))
    assert not os.path.exists(os.path.join(place, "zshard"))


def test_folder_of_somebody_else(place: str) -> None:
    os.mkdir(os.path.join(place, "zshard"), 0o755)
    os.chmod(os.path.join(place, "zshard"), 0o755)
    with pytest.raises(zshard.Refused, match="0700"):
        _daemon.connect(**SMALL)


def test_refused_says_why(place: str) -> None:
    with pytest.raises(zshard.Refused, match="did not start.*host"):
        _daemon.connect(host_bytes=4096, nvme_bytes="64M")


CHILD = """
import sys
from zshard import _daemon
d = _daemon.connect(host_bytes="64M", nvme_bytes="64M")
print(d.client.server()["pid"], int(d.started))
sys.stdout.flush()
sys.stdin.read()
"""


def test_many_start_one(place: str) -> None:
    """Six processes at once: one daemon, started by one of them; the second life begins when the first was killed."""
    for _ in range(2):
        children = [subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                     text=True) for _ in range(6)]  # fmt: skip
        said = [c.stdout.readline().split() for c in children if c.stdout]
        for c in children:
            c.communicate()
        assert all(c.returncode == 0 for c in children)
        assert len({s[0] for s in said}) == 1 and sum(int(s[1]) for s in said) == 1, said
        os.kill(int(said[0][0]), 9)


def test_outlives_its_starter(place: str) -> None:
    child = subprocess.run([sys.executable, "-c", CHILD], input="", capture_output=True, text=True, check=True)
    found = _daemon.connect()
    assert pid(found) == int(child.stdout.split()[0]) and not found.started
    found.client.close()


def test_killed_one_is_replaced(place: str) -> None:
    first = _daemon.connect(**SMALL)
    os.kill(pid(first), 9)
    first.client.close()
    deadline = time.monotonic() + 30
    second = _daemon.connect(**SMALL)
    assert second.started and time.monotonic() < deadline
    second.client.close()


@pytest.mark.parametrize(("text", "size"), [("64M", 64 << 20), ("1.5G", 3 << 29), ("7", 7), ("2GiB", 2 << 30), (9, 9)])
def test_sizes(text: Any, size: int) -> None:
    assert _daemon.parse_bytes(text, "x") == size


def test_no_sizes() -> None:
    for text in ("", "many", "-1", "1X", -1):
        with pytest.raises(ValueError, match="x is"):
            _daemon.parse_bytes(text, "x")
    assert _daemon.show_bytes(5) == "5 B" and _daemon.show_bytes(1 << 20) == "1.0 MiB"
    assert _daemon.show_bytes(1 << 60) == "1048576.0 TiB"


def test_warnings(tmp_path: Any) -> None:
    if os.path.isdir("/dev/shm"):
        assert "takes memory" in (_daemon.data_warning("/dev/shm") or "")
    assert _daemon.available_memory() > 1 << 20
