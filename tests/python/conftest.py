"""What the pytest runs of all files share: the forms `long` and `cuda`, and skips as tests/report.py reads them."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from typing import Any

import pytest
from own_daemon import daemon as daemon  # a fixture of several files

LONG = bool(os.environ.get("ZSHARD_LONG"))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: only where ZSHARD_LONG is set, as in the nightly run")
    # Embedded daemons of these tests end with them. They use neither a daemon of the machine nor files of the user.
    folder = tempfile.mkdtemp(prefix="zshard-test-")
    config._zshard_folder = folder  # type: ignore[attr-defined]
    for name, value in (
        ("XDG_RUNTIME_DIR", os.path.join(folder, "run")),
        ("ZSHARD_DATA", os.path.join(folder, "data")),
        ("ZSHARD_HOST_BYTES", "256M"),
        ("ZSHARD_NVME_BYTES", "512M"),
    ):
        os.environ[name] = value
    os.mkdir(os.environ["XDG_RUNTIME_DIR"], 0o700)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Ends the embedded daemon, if one was started."""
    folder = config._zshard_folder  # type: ignore[attr-defined]
    sockets = os.path.join(folder, "run", "zshard")
    for name in os.listdir(sockets) if os.path.isdir(sockets) else []:
        if name.endswith(".sock"):
            import zshard

            with contextlib.suppress(zshard.ZshardError), zshard.Client(os.path.join(sockets, name)) as client:
                os.kill(client.server()["pid"], 15)
    shutil.rmtree(folder, ignore_errors=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is marked `long`, unless this is the nightly run or the test was named."""
    if LONG or any("::" in arg for arg in config.args):
        return
    left_out = [item for item in items if item.get_closest_marker("long")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("long")]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Says of each skipped function why, in the lines that tests/report.py looks for."""
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        name = report.nodeid.rpartition("::")[2].partition("[")[0].rpartition("/")[2].removesuffix(".py")
        terminalreporter.write_line("skipped: " + reason.removeprefix("Skipped: "))
        terminalreporter.write_line(f"[  SKIPPED ] {name}")
