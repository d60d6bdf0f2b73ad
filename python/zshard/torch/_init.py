"""`init`: what a process wishes of its collectives, daemon and job; `shard` asks for them here.

    context().comm()                        the ranks' collectives, opened at the first use
    context().store(offload, ...)           options of an engine: where its state lives, and its job's name
    context().daemon                        the daemon, or None

Ranks find each other by torch.distributed's store where it is initialised, else by the environment, as zc_comm_open()
does.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import socket as sockets
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .. import _daemon
from .._daemon import Daemon, available_memory, show_bytes
from .._engine import Comm
from ..errors import NoSpace, Refused, ZshardError, error
from . import _step

__all__ = ["Context", "Wishes", "context", "init"]

OFFLOADS = ("auto", "none", "host", "nvme")
_NAME_MOST = 48  # of ZC_NAME_MAX, with room for numbers after it


@dataclass(frozen=True)
class Wishes:
    """The arguments of `init`."""

    job: str | None = None
    socket: str | None = None
    data: str | None = None
    host_bytes: int | str | None = None
    nvme_bytes: int | str | None = None
    keep: bool = False
    durable: bool = False
    resume: bool | str = False
    comm: str | Comm = "auto"
    timeout: float = 60
    reconnect: float = 120

    @property
    def explicit(self) -> str:
        """The arguments that only a daemon can fulfil, as they were given; "" where there are none."""
        given = [f"{name}={value!r}" for name in ("socket", "data", "host_bytes", "nvme_bytes")
                 if (value := getattr(self, name)) is not None]  # fmt: skip
        return ", ".join(given + [f"{name}=True" for name in ("keep", "durable", "resume") if getattr(self, name)])


_lock = threading.Lock()
_wishes = Wishes()
_context: Context | None = None


def init(
    job: str | None = None,
    *,
    socket: str | None = None,
    data: str | None = None,
    host_bytes: int | str | None = None,
    nvme_bytes: int | str | None = None,
    keep: bool = False,
    durable: bool = False,
    resume: bool | str = False,
    comm: str | Comm = "auto",
    timeout: float = 60,
    reconnect: float = 120,
) -> None:
    """Sets what the next `shard` uses. Optional; opens nothing. A later call replaces the settings.

    Args:
        job: the job's name: letters, digits, '.', '_', '-'. None: SCRIPT-PID.K. A second model of the process gets
            ".2" appended, and so on; an init() with `resume`, while no model is sharded, begins again without one.
        socket: of a running daemon. None: $ZSHARD_SOCKET, the machine's daemon, or one that is started.
        data: directory of a daemon that is started; None: $ZSHARD_DATA, else ~/.cache/zshard/HOST.
        host_bytes, nvme_bytes: its budgets: a number, or a text such as "64G".
        keep: the job stays in the daemon after its ranks have ended. durable: steps are also committed to the data
            directory (implies keep).
        resume: continue the job of that name. "auto": if it exists; otherwise start it.
        comm: "auto", "self", "tcp", "mpi", "nccl", or a Comm.
        timeout: seconds to wait for the daemon or a peer.
        reconnect: seconds to wait for another daemon if this one restarts or, of a durable job, dies. A restart in good
            order shows nothing. If the daemon dies, optimizer.step() raises RolledBack, with the step that the job
            continues from. 0: the loss of the daemon ends the run. Not for a daemon that was started by the run.

    Raises:
        ValueError: the arguments contradict each other.
    """
    global _wishes, _context
    if job is not None and not re.fullmatch(r"[A-Za-z0-9._-]{1,55}", job):
        raise ValueError(f"job='{job}': up to 55 letters, digits, '.', '_' and '-'")
    if resume not in (False, True, "auto"):
        raise ValueError(f"resume={resume!r}: True, False or 'auto'")
    if resume and job is None:
        raise ValueError("resume needs the job's name: init(job=...)")
    if timeout <= 0:
        raise ValueError(f"timeout={timeout}: seconds, more than 0")
    if not 0 <= reconnect <= 1e6:
        raise ValueError(f"reconnect={reconnect}: seconds, 0 to 1000000")
    for name, value in (("host_bytes", host_bytes), ("nvme_bytes", nvme_bytes)):
        if value is not None:
            _daemon.parse_bytes(value, name)
    made = Wishes(job, socket, data, host_bytes, nvme_bytes, keep or durable, durable, resume, comm, timeout,
                   reconnect)  # fmt: skip
    with _lock:
        before, _wishes = _wishes, made
        if _context is not None:
            _context.replace(made, before)


def context() -> Context:
    """This process's context; a child of fork has its own."""
    global _context
    with _lock:
        if _context is None or _context.pid != os.getpid():
            _context = Context(_wishes)
        return _context


class Context:
    """What engines of this process share. Methods are collective: all ranks call them in one order."""

    def __init__(self, wishes: Wishes) -> None:
        self.wishes, self.pid = wishes, os.getpid()
        self.daemon: Daemon | None = None
        self._comm: Comm | None = None
        self._said: set[str] = set()
        self._jobs = 0
        self._hosts: list[str] = []

    def replace(self, wishes: Wishes, before: Wishes) -> None:
        """Other wishes, for engines that are opened later."""
        self.wishes = wishes
        if wishes.comm != before.comm:
            self._comm, self._hosts = None, []
        if wishes.job != before.job or wishes.resume and not _step.any_open():  # a cell that is run again
            self._jobs = 0
        if self.daemon is not None:
            self.daemon.client.close()
            self.daemon = None

    # ---- collectives

    def comm(self, device: str = "cpu") -> Comm:
        """The ranks' collectives; between GPUs by NCCL where there are several ranks."""
        if self._comm is None or self._comm.handle is None:
            wish = self.wishes.comm
            self._comm = wish if isinstance(wish, Comm) else _open_comm(wish, device)
            self._hosts = []
        return self._comm

    def _ranks_here(self, comm: Comm) -> int:
        """Ranks of this node."""
        if len(self._hosts) != comm.world:
            self._hosts = [h.decode() for h in comm.all_gather(_host().encode())]
        return self._hosts.count(self._hosts[comm.rank])

    def one_node(self, device: str = "cpu") -> bool:
        """Whether there are several ranks, all on this node."""
        comm = self.comm(device)
        return comm.world > 1 and self._ranks_here(comm) == comm.world

    def say(self, line: str) -> None:
        """Prints a line once in this process."""
        if line not in self._said:
            self._said.add(line)
            print(line, file=sys.stderr, flush=True)

    # ---- the job's name

    def job_name(self, comm: Comm) -> str:
        """A name that no other engine of this run has, the same on all ranks."""
        self._jobs += 1
        if self.wishes.job is not None:
            return self.wishes.job if self._jobs == 1 else f"{self.wishes.job}.{self._jobs}"
        script = os.path.basename(getattr(sys.modules.get("__main__"), "__file__", None) or "python")
        script = re.sub(r"[^A-Za-z0-9._-]", "_", os.path.splitext(script)[0])[: _NAME_MOST - 20] or "python"
        return comm.all_gather(f"{script}-{os.getpid()}.{self._jobs}".encode())[0].decode()

    # ---- where state lives

    def store(self, offload: str = "auto", *, state_bytes: int = 0, device: str = "cpu") -> dict[str, Any]:
        """Options of an engine: its comm is comm(device).

        Args:
            offload: "none" (this process), "host" or "nvme" (the daemon), "auto" (the daemon where it has room, else
                this process, which one line reports).
            state_bytes: of parameters, gradients and optimizer state over all ranks, about; 0: not known.

        Raises:
            ZshardError: there is no daemon, or it has no room; on all ranks alike. ValueError: no such offload.
        """
        if offload not in OFFLOADS:
            raise ValueError(f"offload='{offload}': one of {', '.join(OFFLOADS)}")
        wishes, comm = self.wishes, self.comm(device)
        options: dict[str, Any] = {"job": self.job_name(comm), "timeout_ms": int(wishes.timeout * 1000)}
        if offload == "none":
            if wishes.keep or wishes.resume:
                raise ValueError(f"offload='none' has no daemon, and init() asks for {wishes.explicit}")
            return options | {"offload_param": "none", "offload_optimizer": "none"}
        daemon = self._agree(comm, offload, state_bytes)
        if daemon is None:
            return options | {"offload_param": "none", "offload_optimizer": "none"}
        tier = offload if offload != "auto" else "nvme" if daemon.nvme_bytes else "host"
        options |= {"socket": daemon.socket, "offload_param": tier, "offload_optimizer": tier}
        options |= {"keep": wishes.keep, "durable": wishes.durable}
        if wishes.durable and not daemon.embedded:
            options["reconnect_ms"] = int(wishes.reconnect * 1000)
        if wishes.resume == "auto":
            options["resume_if_there"] = True
        elif wishes.resume:
            options["resume"] = True
        return options

    def _agree(self, comm: Comm, offload: str, state_bytes: int) -> Daemon | None:
        """The daemon, on all ranks, or None on all."""
        wishes, mine, found = self.wishes, None, self.daemon
        share = self._ranks_here(comm) / comm.world  # collective, so outside of what may fail
        try:
            if found is not None and not _answers(found):
                found = None  # its client is closed
            if found is None:
                found = _daemon.connect(
                    wishes.socket, wishes.data, wishes.host_bytes, wishes.nvme_bytes, wishes.timeout
                )
            self._check_room(share, found, offload, state_bytes)
        except (ZshardError, OSError, ValueError) as e:
            mine = e
        self.daemon = found
        told = {"code": getattr(mine, "code", -errno.EIO) if mine else 0, "why": str(mine) if mine else ""}
        answers = [json.loads(a) for a in comm.all_gather(json.dumps(told).encode())]
        failed = next(((rank, a) for rank, a in enumerate(answers) if a["code"]), None)
        if failed is None:
            assert found is not None
            if found.started or comm.rank == 0:
                self.say(found.line)
            for warning in found.warnings:
                self.say(warning)
            return found
        why = failed[1]["why"]
        if offload == "auto" and not wishes.explicit:
            self._check_memory(state_bytes, why, share)
            if comm.rank == 0:
                self.say(f"zshard: no daemon, so the state stays in this process: {why}")
            return None
        if mine is not None:
            raise mine
        raise error(failed[1]["code"], f"rank {failed[0]}: {why}")

    def _check_room(self, share: float, found: Daemon, offload: str, state_bytes: int) -> None:
        """NoSpace where a model cannot fit; the engine's start counts exactly."""
        if offload == "nvme" and not found.nvme_bytes:
            raise Refused(-errno.ENOSPC, "", f"offload='nvme': the daemon at {found.socket} has no NVMe tier")
        if not state_bytes or self.wishes.resume:
            return
        rows = {row["name"]: max(0, row["budget"] - row["used"]) for row in found.client.tiers()}
        host, nvme = rows.get("host", 0), rows.get("nvme", 0)
        state = int(state_bytes * share)
        saved = int(0.75 * state) if self.wishes.durable else 0  # on NVMe: masters and moments, not gradients
        if state + saved > host + nvme or (offload == "host" and state > host) or saved > nvme:
            raise NoSpace(
                -errno.ENOSPC,
                "",
                f"the model's state takes about {show_bytes(state)} of this node{self._saved(saved)}, and the daemon "
                f"at {found.socket} has {show_bytes(host)} of host memory and {show_bytes(nvme)} of NVMe free",
            )

    @staticmethod
    def _saved(saved: int) -> str:
        return f" and {show_bytes(saved)} of NVMe, as it is durable" if saved else ""

    def _check_memory(self, state_bytes: int, why: str, share: float) -> None:
        need, free = int(state_bytes * share), available_memory()
        if need > free:
            raise NoSpace(
                -errno.ENOSPC,
                "",
                f"{why}; without a daemon it takes {show_bytes(need)} of memory, and {show_bytes(free)} are available",
            )


def _answers(found: Daemon) -> bool:
    try:
        found.client.ping()
    except ZshardError:
        found.client.close()
        return False
    return True


def _host() -> str:
    """This machine, or container: what ranks that share a daemon have in common."""
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{sockets.gethostname()}/{file.read().strip()}"
    return sockets.gethostname()


# ---- how ranks find each other

_opened = 0


def _open_comm(wish: str, device: str) -> Comm:
    global _opened
    dist = _distributed()
    chosen = os.environ.get("ZSHARD_COMM") or "auto" if wish == "auto" else wish
    if dist is None or dist.get_world_size() == 1 or chosen in ("self", "mpi"):
        many = dist is None and int(os.environ.get("WORLD_SIZE", "1") or 1) > 1
        alone = dist is not None and dist.get_world_size() == 1 and chosen == "auto"
        if chosen == "auto" and many and device.startswith("cuda"):
            chosen = "nccl"
        return Comm("self" if alone else chosen)
    if chosen == "auto":
        chosen = "nccl" if device.startswith("cuda") else "tcp"
    _opened += 1
    with _meeting(dist, _opened):
        return Comm(chosen)


def _distributed() -> Any:
    """torch.distributed where a process group is there, else None."""
    import torch.distributed as dist

    return dist if dist.is_available() and dist.is_initialized() else None


@contextlib.contextmanager
def _meeting(dist: Any, number: int) -> Iterator[None]:
    """The environment of the backend tcp, as the ranks agree by torch's store."""
    store = dist.distributed_c10d._get_default_store()
    rank, world = dist.get_rank(), dist.get_world_size()
    key = f"zshard/meeting/{number}"
    store.set(f"{key}/host/{rank}", _host())
    if rank == 0:
        hosts = {store.get(f"{key}/host/{r}").decode() for r in range(world)}
        address = "127.0.0.1" if len(hosts) == 1 else os.environ.get("MASTER_ADDR") or sockets.gethostname()
        with sockets.socket(sockets.AF_INET6 if ":" in address else sockets.AF_INET) as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        store.set(key, f"{address} {port}")
    address, port_text = store.get(key).decode().split()
    given = {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": address, "ZSHARD_PORT": port_text}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
