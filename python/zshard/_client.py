"""A connection to the daemon, for looking inside."""

import ctypes
from ctypes import POINTER, byref, c_char_p, c_size_t, string_at
from typing import Any

from . import _c
from ._lib import load
from .errors import ZshardError, error


def plain(row: Any) -> dict[str, Any]:
    """A struct as a dict: text decoded, arrays of bytes as bytes."""

    def value(v: Any) -> Any:
        if isinstance(v, ctypes.Array):
            return bytes(v)
        return v.decode(errors="replace") if isinstance(v, bytes) else v

    return {name: value(getattr(row, name)) for name, _ in row._fields_}


class Client:
    """A connection, for looking inside. With `with`, it is closed at the end.

    Args:
        socket: the daemon's; None: as zc_options.socket in zclient.h says.
        program: who asks, for zctl and the daemon's log.
        lib: of load(); None: load().

    Raises:
        NotConnected: nobody answers there. Every method: ZshardError of the code's family.
    """

    def __init__(self, socket: str | None = None, program: str = "python", lib: ctypes.CDLL | None = None) -> None:
        self.lib = lib or load()
        self.handle = _c.HANDLE()
        options = _c.zc_options(socket=socket.encode() if socket else None, program=program.encode())
        try:
            self.check(self.lib.zc_open(byref(self.handle), byref(options)))
        except ZshardError:
            self.close()
            raise

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection; may be called again."""
        self.lib.zc_close(self.handle)
        self.handle = _c.HANDLE()

    def check(self, rc: int) -> int:
        """rc, or the exception for it where it is negative."""
        if rc < 0:
            text = self.lib.zc_error(self.handle) if self.handle else self.lib.zc_strerror(rc)
            raise error(rc, text.decode(errors="replace"))
        return rc

    def server(self) -> dict[str, Any]:
        """What the daemon says of itself."""
        return plain(self.lib.zc_server(self.handle).contents)

    def ping(self) -> None:
        """Returns when the daemon has answered."""
        self.check(self.lib.zc_ping_wait(self.handle))

    def rows(self, function: Any, row: Any, *args: Any) -> list[dict[str, Any]]:
        """The rows of one of the library's listing functions."""
        first, n = POINTER(row)(), c_size_t()
        self.check(function(self.handle, *args, byref(first), byref(n)))
        try:
            return [plain(first[i]) for i in range(n.value)]
        finally:
            self.lib.zc_rows_free(first)

    def shards(self, job: str = "") -> list[dict[str, Any]]:
        """Shards of a job, or of all."""
        return self.rows(self.lib.zc_list_wait, _c.zc_shard_row, job.encode())

    def jobs(self, job: str = "") -> list[dict[str, Any]]:
        """One job, or all."""
        return self.rows(self.lib.zc_jobs_wait, _c.zc_job_row, job.encode())

    def snapshots(self, job: str = "") -> list[dict[str, Any]]:
        """Snapshots of a job, or of all."""
        return self.rows(self.lib.zc_snapshots_wait, _c.zc_snapshot_row, job.encode())

    def df(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The totals of the data files, and a row for each job."""
        total = _c.zc_df()
        rows = self.rows(self.lib.zc_df_wait, _c.zc_df_row, byref(total))
        return plain(total), rows

    def tiers(self) -> list[dict[str, Any]]:
        """Host memory, NVMe, and the GPU where there is one."""
        return self.rows(self.lib.zc_tiers_wait, _c.zc_tier_row)

    def health(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The state of the daemon (`errors` is 0: healthy), and the reasons for it."""
        state = _c.zc_health()
        rows = self.rows(self.lib.zc_health_wait, _c.zc_reason, byref(state))
        found = plain(state)
        found["tiers"] = [plain(state.tiers[i]) for i in range(state.ntiers)]
        return found, rows

    def metrics(self, prometheus: bool = False) -> str:
        """The daemon's metrics in OpenMetrics' text format, or in Prometheus' own."""
        text, n = c_char_p(), c_size_t()
        self.check(self.lib.zc_metrics_wait(self.handle, int(prometheus), byref(text), byref(n)))
        try:
            return string_at(text, n.value).decode()
        finally:
            self.lib.zc_rows_free(text)

    def stat(self) -> dict[str, int]:
        """The daemon's counters by name."""
        return {row["name"]: row["value"] for row in self.rows(self.lib.zc_stat_wait, _c.zc_counter)}
