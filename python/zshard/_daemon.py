"""Finds the daemon, or starts one: the embedded daemon.

Search order: the socket that is asked for, or $ZSHARD_SOCKET (nothing is started); the machine's
daemon ($XDG_RUNTIME_DIR/zshard.sock, /run/zshard/zshard.sock), unless a data directory is asked for; an embedded one,
in $XDG_RUNTIME_DIR/zshard/, else /tmp/zshard-UID/ (mode 0700, and its owner is checked).

There is one embedded daemon for each user, node and data directory: the socket's name is a hash of the directory.
A process that finds none takes a lock (flock), looks again, and starts `zshardd --embedded`, which reports on a pipe
that it is ready, or the error. The daemon is in a session of its own and ends 30 s after its last client (10 min
while a kept job is in memory). The process that starts it sets its budgets; a request for other budgets is refused
with the numbers.

Data directory: the one asked for, $ZSHARD_DATA, else ~/.cache/zshard/HOST. Budgets: those asked for,
$ZSHARD_HOST_BYTES and $ZSHARD_NVME_BYTES, else half of the memory that the machine and the cgroup leave, and a
quarter of the space that the file system has (64 GiB at most; a data file that is there keeps its size).
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import select
import shutil
import socket as sockets
import stat
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from ._client import Client
from ._lib import program
from .errors import NoSpace, NotConnected, Refused, TimedOut, error

__all__ = ["Daemon", "available_memory", "connect", "data_warning", "parse_bytes", "show_bytes"]

_UNITS = "KMGT"
_NVME_MOST = 64 << 30
_SYSTEM_SOCKET = "/run/zshard/zshard.sock"
_STATUS_IN_USE = 3  # of zshardd: the socket or the data directory is another daemon's
_PATIENCE_S = 10.0  # with such a daemon, which may be about to end
_SLACK = 16 << 20  # what a daemon may round a budget by


class _InUse(Refused):
    """The socket or the data directory belongs to another daemon."""


@dataclass
class Daemon:
    """A daemon that answers.

    Attributes:
        socket: its path.
        line: one line about it, for people.
        started: this process started it. embedded: some process of this user started it, and it ends by itself.
        warnings: about its data directory; one line each.
        host_bytes, nvme_bytes: budgets. host_free, nvme_free: what no job has taken.
        client: a connection that keeps the daemon alive; the caller closes it.
    """

    socket: str
    line: str
    started: bool
    host_bytes: int
    nvme_bytes: int
    host_free: int
    nvme_free: int
    client: Client
    warnings: list[str] = field(default_factory=list)
    embedded: bool = False


def parse_bytes(value: int | str, what: str) -> int:
    """Bytes: a number, or a text such as "64M", "1.5G" (powers of 1024). ValueError names `what`."""
    if isinstance(value, int):
        size = value
    else:
        text = value.strip().upper().removesuffix("IB").removesuffix("B")
        unit = 1
        if text[-1:] in tuple(_UNITS):
            unit = 1 << (10 * (_UNITS.index(text[-1]) + 1))
            text = text[:-1]
        try:
            size = int(float(text) * unit)
        except (ValueError, OverflowError):
            raise ValueError(f"{what} is '{value}', not a size such as 64M or 1.5G") from None
    if size < 0:
        raise ValueError(f"{what} is {value}: less than 0")
    return size


def show_bytes(size: int) -> str:
    """ "1.5 GiB"."""
    if size < 1024:
        return f"{size} B"
    power = min(len(_UNITS), (size.bit_length() - 1) // 10)
    return f"{size / (1 << 10 * power):.1f} {_UNITS[power - 1]}iB"


# ---- what the machine has


def _number_in(path: str) -> int | None:
    try:
        with open(path, encoding="ascii") as file:
            text = file.read().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _cgroup_left() -> int | None:
    """The least that the cgroups of this process leave; None: no limit."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    left: list[int] = []
    for line in lines:
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0" and not names:
            base, limit, used = "/sys/fs/cgroup", "memory.max", "memory.current"
        elif "memory" in names.split(","):
            base, limit, used = "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        while True:
            folder = base + path.rstrip("/")
            most, taken = _number_in(f"{folder}/{limit}"), _number_in(f"{folder}/{used}")
            if most is not None and taken is not None and most < 1 << 60:
                cache = _stat_value(f"{folder}/memory.stat", "inactive_file")
                left.append(max(0, most - taken + cache))
            if path in ("", "/"):
                break
            path = os.path.dirname(path)
    return min(left) if left else None


def _stat_value(path: str, name: str) -> int:
    try:
        with open(path, encoding="ascii") as file:
            for line in file:
                key, _, value = line.partition(" ")
                if key == name:
                    return int(value)
    except (OSError, ValueError):
        pass
    return 0


def available_memory() -> int:
    """Bytes that the machine and this process's cgroups leave."""
    left = _cgroup_left()
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) << 10
                return free if left is None else min(free, left)
    return 0 if left is None else left


def _file_system(path: str) -> str:
    """The type of the file system that a folder is on."""
    path, best, kind = os.path.realpath(path), "", ""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            words = before.split(" ")
            if len(words) < 5:
                continue
            mount = words[4].replace("\\040", " ")
            inside = path == mount or path.startswith(mount.rstrip("/") + "/")
            if inside and len(mount) >= len(best):
                best, kind = mount, after.split(" ")[0]
    return kind


def data_warning(data: str) -> str | None:
    """Why a data directory is a bad place; None: it is not."""
    kind = _file_system(data)
    if kind in ("tmpfs", "ramfs"):
        return f"the data directory {data} is on {kind}: it takes memory, and is gone with the machine"
    if kind in ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "lustre", "afs", "ceph"):
        return (
            f"the data directory {data} is on a network file system ({kind}): slow, and not safe against its failures"
        )
    if kind == "overlay":
        return f"the data directory {data} is on overlay, a container's own layer: slow, and gone with the container"
    return None


# ---- places


def runtime_folder() -> str:
    """Where embedded sockets are: made, and refused where it is not this user's alone."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    path = os.path.join(base, "zshard") if base and os.path.isdir(base) else f"/tmp/zshard-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    seen = os.lstat(path)
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid() or seen.st_mode & 0o077:
        raise Refused(-errno.EPERM, "", f"{path} must be a directory of uid {os.getuid()} with mode 0700")
    return path


def _data_folder(wish: str | None) -> str:
    data = wish or os.environ.get("ZSHARD_DATA")
    if not data:
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        data = os.path.join(cache, "zshard", sockets.gethostname().partition(".")[0] or "localhost")
    data = os.path.realpath(os.path.expanduser(data))
    try:
        os.makedirs(data, mode=0o700, exist_ok=True)
    except OSError as e:
        raise error(e.errno or errno.EIO, f"the data directory {data} cannot be made: {e.strerror}") from None
    return data


def _system_sockets() -> list[str]:
    base = os.environ.get("XDG_RUNTIME_DIR")
    return ([os.path.join(base, "zshard.sock")] if base else []) + [_SYSTEM_SOCKET]


# ---- connecting


def _try(path: str) -> Client | None:
    """A connection; None: nobody answers there."""
    try:
        client = Client(path, "zshard.torch")
    except NotConnected:
        return None
    try:
        client.ping()  # one that is about to end hangs up
    except NotConnected:
        client.close()
        return None
    return client


def _found(path: str, client: Client, started: bool, data: str | None = None) -> Daemon:
    tiers = {row["name"]: row for row in client.tiers()}

    def of(name: str, key: str) -> int:
        return int(tiers[name][key]) if name in tiers else 0

    host, nvme = of("host", "budget"), of("nvme", "budget")
    words = f"host {show_bytes(host)}, NVMe {show_bytes(nvme)}" + (f" in {data}" if data else "")
    how = "started a daemon" if started else "using the daemon"
    line = f"zshard: {how} at {path}: {words}"
    if started:
        line += "; it ends 30 s after its last client, 10 min after with a kept job"
        if os.environ.get("SLURM_JOB_ID"):
            line += "; under Slurm it dies with the job step, so commit often"
    return Daemon(path, line, started, host, nvme, host - of("host", "used"), nvme - of("nvme", "used"), client)


def _check_wishes(daemon: Daemon, host: int | None, nvme: int | None) -> None:
    """The budgets of a daemon that runs stand."""
    for name, wish, has in (("host_bytes", host, daemon.host_bytes), ("nvme_bytes", nvme, daemon.nvme_bytes)):
        if wish is not None and abs(wish - has) > max(_SLACK, wish >> 7):
            daemon.client.close()
            raise Refused(
                -errno.EBUSY,
                "",
                f"{name}={show_bytes(wish)} was requested, but the daemon at {daemon.socket} runs with "
                f"{show_bytes(has)}: end it first, or ask for another data directory",
            )


@contextlib.contextmanager
def _locked(path: str, deadline: float) -> Iterator[None]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimedOut(-errno.ETIMEDOUT, "", f"another process holds {path}, to start a daemon") from None
                time.sleep(0.02)
        yield
    finally:
        os.close(fd)


def _budgets(data: str, host: int | None, nvme: int | None) -> tuple[int, int | None]:
    """(host, nvme) to start with; nvme None: of the file that is there. NoSpace where a wish cannot be."""
    memory = available_memory()
    there = os.path.exists(os.path.join(data, "pages.zsd"))
    space = shutil.disk_usage(data).free
    if host is None:
        host = memory // 2
    elif host > memory:
        raise NoSpace(
            -errno.ENOSPC,
            "",
            f"host_bytes={show_bytes(host)} was requested, but only {show_bytes(memory)} of memory are available",
        )
    if nvme is None:
        return host, None if there else min(space // 4, _NVME_MOST)
    if not there and nvme > space:
        raise NoSpace(
            -errno.ENOSPC, "", f"nvme_bytes={show_bytes(nvme)} was requested, but {data} has {show_bytes(space)} free"
        )
    return host, nvme


def _spawn(path: str, data: str, host: int, nvme: int | None, deadline: float) -> None:
    """Starts a daemon and waits until it serves."""
    binary = program("zshardd")
    if binary is None:
        raise NotConnected(-errno.ENOENT, "", "zshardd is not found: install the wheel, or set ZSHARD_BIN or PATH")
    log = path.removesuffix(".sock") + ".log"
    read, write = os.pipe2(os.O_CLOEXEC)
    words = [binary, "--embedded", "--ready-fd", str(write), "--socket", path, "--data", data, "--host-bytes",
             str(host)] + ([] if nvme is None else ["--nvme-bytes", str(nvme)])  # fmt: skip
    env = {k: v for k, v in os.environ.items() if k not in ("NOTIFY_SOCKET", "STATE_DIRECTORY", "LD_PRELOAD")}
    try:
        with open(log, "ab", opener=lambda p, f: os.open(p, f | os.O_NOFOLLOW, 0o600)) as out:
            # By way of a shell that ends at once: the daemon is nobody's child, and leaves no zombie.
            subprocess.run(["/bin/sh", "-c", '"$@" &', "sh", *words], stdin=subprocess.DEVNULL, stdout=out,
                           stderr=out, pass_fds=(write,), start_new_session=True, cwd="/", env=env,
                           check=True)  # fmt: skip
    finally:
        os.close(write)
    try:
        said = _read_line(read, deadline)
    finally:
        os.close(read)
    try:
        answer = json.loads(said) if said else {"error": f"it ended at once; its log is {log}"}
    except ValueError:
        answer = {"error": f"it said '{said[:200]}'"}
    if not answer.get("ready"):
        why = answer.get("error", "it does not say why")
        kind = _InUse if answer.get("status") == _STATUS_IN_USE else Refused
        raise kind(-errno.EBUSY, "", f"zshardd did not start for {data}: {why}")


def _read_line(fd: int, deadline: float) -> str:
    said = b""
    while not said.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([fd], [], [], left)[0]:
            raise TimedOut(-errno.ETIMEDOUT, "", "zshardd was not ready in time")
        part = os.read(fd, 4096)
        if not part:
            break
        said += part
    return said.decode(errors="replace").strip()


def connect(socket: str | None = None, data: str | None = None, host_bytes: int | str | None = None,
            nvme_bytes: int | str | None = None, timeout: float = 60) -> Daemon:  # fmt: skip
    """The daemon for these wishes, started where there is none.

    Raises:
        NotConnected: nobody answers at the socket that is asked for, or there is no zshardd.
        Refused: the daemon that runs has other budgets, or did not start; the message has the numbers.
        NoSpace: the machine has less than what is asked for. TimedOut. ValueError: no size.
    """
    deadline = time.monotonic() + timeout
    host = _wish(host_bytes, "host_bytes", "ZSHARD_HOST_BYTES")
    nvme = _wish(nvme_bytes, "nvme_bytes", "ZSHARD_NVME_BYTES")
    named = socket or os.environ.get("ZSHARD_SOCKET")
    if named:
        found = _found(named, Client(named, "zshard.torch"), False)
        _check_wishes(found, *(None if b is None else parse_bytes(b, "") for b in (host_bytes, nvme_bytes)))
        return found
    if not data and not os.environ.get("ZSHARD_DATA"):
        for path in _system_sockets():
            client = _try(path) if os.path.exists(path) else None
            if client is not None:
                found = _found(path, client, False)
                _check_wishes(found, host, nvme)
                return found
    folder = _data_folder(data)
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    path = os.path.join(runtime_folder(), f"{name}.sock")
    client, started = _try(path), False
    patience = min(deadline, time.monotonic() + _PATIENCE_S)
    if client is None:
        with _locked(path.removesuffix(".sock") + ".start", deadline):
            client = _try(path)
            while client is None:
                try:
                    _spawn(path, folder, *_budgets(folder, host, nvme), deadline)
                    started = True
                except _InUse:  # one that is about to end holds its locks until then
                    if time.monotonic() > patience:
                        raise
                    time.sleep(0.1)
                client = _try(path)
    found = _found(path, client, started, folder)
    found.embedded = True
    if not started:
        _check_wishes(found, host, nvme)
    else:
        warning = data_warning(folder)
        found.warnings += [f"zshard: {warning}"] if warning else []
    return found


def _wish(value: int | str | None, name: str, variable: str) -> int | None:
    if value is not None:
        return parse_bytes(value, name)
    text = os.environ.get(variable)
    return parse_bytes(text, variable) if text else None
