"""The process that forks for zygote.py: it has imported some modules, and each request becomes a new process with them.

    zygote_server.py SOCKET MODULES...        standard input: the listening socket, which is bound to SOCKET

A connection is one process: the request comes with its descriptors, the answer is the process id, then, at its end, the
status of waitpid(). A connection that closes before that kills the process and its group: its owner has died. If this
process dies, the kernel kills what it forked.

Its output, the log, has the processor time of each process and of the children that it waited for.

It has one thread, and starts none: a fork copies no other thread, but the locks that it holds. It ends when it was idle
for long, or when SOCKET is gone or belongs to another one.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import gc
import importlib
import io
import json
import os
import random
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
import types
from typing import Any, TextIO

IDLE = 300.0  # seconds
PR_SET_PDEATHSIG = 1


class Client:
    """A connection, and the process that was forked for it; 0: the request has not come yet."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket, self.pid, self.pidfd = connection, 0, -1
        self.words: list[str] = []


class Server:
    def __init__(self, listener: socket.socket, path: str) -> None:
        self.listener, self.path, self.inode = listener, path, os.stat(path).st_ino
        self.poll = select.poll()
        self.poll.register(listener, select.POLLIN)
        self.clients: dict[int, Client] = {}  # by each of their descriptors

    def watch(self, fd: int, client: Client) -> None:
        self.poll.register(fd, select.POLLIN)
        self.clients[fd] = client

    def leave(self, fd: int) -> None:
        self.poll.unregister(fd)
        del self.clients[fd]

    def replaced(self) -> bool:
        try:
            return os.stat(self.path).st_ino != self.inode
        except OSError:
            return True

    def serve(self) -> tuple[dict[str, Any], list[int]] | None:
        """Returns in a new process only, with what it is to do; or None at the end."""
        used = time.monotonic()
        while self.clients or (time.monotonic() - used < IDLE and not self.replaced()):
            for fd, _ in self.poll.poll(1000):
                used = time.monotonic()
                if fd == self.listener.fileno():
                    connection = self.listener.accept()[0]
                    self.watch(connection.fileno(), Client(connection))
                    continue
                client = self.clients.get(fd)
                if client is None:  # it left in this turn
                    continue
                if fd == client.pidfd:
                    self.ended(client)
                elif client.pid:  # its owner has gone
                    self.leave(fd)
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(client.pid, signal.SIGKILL)
                else:
                    task = self.fork(client)
                    if task is not None:
                        return task
        return None

    def fork(self, client: Client) -> tuple[dict[str, Any], list[int]] | None:
        """Reads the request. Returns what is to be done in the new process, None here."""
        try:
            message, fds, _, _ = socket.recv_fds(client.socket, 64, 8)
        except ConnectionError:
            message, fds = b"", []
        if not message:
            self.leave(client.socket.fileno())
            client.socket.close()
            return None
        with os.fdopen(fds[0], "rb") as f:
            f.seek(0)
            request = json.loads(f.read())
        client.words = request["words"]
        server, client.pid = os.getpid(), os.fork()
        if client.pid == 0:
            os.setpgid(0, 0)
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != server:
                os._exit(1)
            for one in (self.listener, *(c.socket for c in self.clients.values())):
                one.detach()  # all descriptors will be closed, once
            return request, fds[1:]
        with contextlib.suppress(OSError):  # the process has done it, or has ended
            os.setpgid(client.pid, client.pid)
        client.pidfd = os.pidfd_open(client.pid)
        self.watch(client.pidfd, client)
        self.send(client, str(client.pid).encode())
        for fd in fds[1:]:
            os.close(fd)
        return None

    def ended(self, client: Client) -> None:
        self.leave(client.pidfd)
        os.close(client.pidfd)
        _, status, used = os.wait4(client.pid, 0)
        print(f"{used.ru_utime + used.ru_stime:.1f} s, status {status}: {client.words[1:]!r:.100}", flush=True)
        self.send(client, struct.pack("i", status))
        if client.socket.fileno() in self.clients:
            self.leave(client.socket.fileno())
        client.socket.close()

    @staticmethod
    def send(client: Client, answer: bytes) -> None:
        with contextlib.suppress(OSError):  # its owner has gone
            client.socket.send(answer, socket.MSG_NOSIGNAL)


# ---- in the new process


def output(buffered: bool) -> TextIO:
    if buffered:
        return open(1, "w", closefd=False)
    return io.TextIOWrapper(open(1, "wb", buffering=0, closefd=False), write_through=True)


def options_of(words: list[str]) -> list[str]:
    """Does what options of the interpreter say; returns the words after them."""
    fault = bool(os.environ.get("PYTHONFAULTHANDLER"))
    while words[0] in ("-B", "-X", "-P", "-u"):
        fault = fault or words[:2] == ["-X", "faulthandler"]
        if words[0] == "-u":
            sys.stdout = output(buffered=False)
        words = words[2 if words[0] == "-X" else 1 :]
    if fault:
        faulthandler.enable()
    return words


def become(request: dict[str, Any], fds: list[int], base: list[str]) -> None:
    """Takes the place of an interpreter's start, and runs the program to its end."""
    for number, fd in enumerate(fds):
        os.dup2(fd, number + 100)
    for number in range(3):
        os.dup2(number + 100, number)
    os.closerange(3, 1 << 20)
    os.environ.clear()
    os.environ.update(request["env"])
    os.umask(request["umask"])
    for what, limits in request["limits"].items():
        resource.setrlimit(int(what), limits)
    os.chdir(request["cwd"])
    sys.stdin = open(0, closefd=False)
    sys.stdout = output(buffered=not os.environ.get("PYTHONUNBUFFERED"))
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    importlib.invalidate_caches()
    sys.executable, *words = request["words"]
    words = options_of(words)
    path = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        sys.path[:] = ["", *path, *base]
        exec(compile(words[1], "<string>", "exec"), main.__dict__)
    elif words[0] == "-m":
        import runpy

        sys.argv = ["-m", *words[2:]]
        sys.path[:] = [os.getcwd(), *path, *base]
        runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]
    else:
        sys.argv = words
        sys.path[:] = [os.path.dirname(os.path.abspath(words[0])), *path, *base]
        main.__file__ = os.path.abspath(words[0])
        try:
            with open(words[0], "rb") as f:
                code = compile(f.read(), words[0], "exec")
        except OSError as e:
            why = f"[Errno {e.errno}] {e.strerror}"
            print(f"{sys.executable}: can't open file {os.path.abspath(words[0])!r}: {why}", file=sys.stderr)
            sys.exit(2)
        exec(code, main.__dict__)


def end_of(request: dict[str, Any], fds: list[int], base: list[str]) -> int:
    """Runs the program as become() does; returns the exit status."""
    status: Any = None
    interrupted = False
    try:
        become(request, fds, base)
    except SystemExit as e:
        status = e.code
    except BaseException as e:
        traceback.print_exc()
        status, interrupted = 1, isinstance(e, KeyboardInterrupt)
    if status is not None and not isinstance(status, int):
        print(status, file=sys.stderr)
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.modules["__main__"].__dict__.clear()
    gc.collect()
    for file in (sys.stdout, sys.stderr):
        if not file.closed:
            file.flush()
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return (status or 0) & 0xFF


def main() -> None:
    if os.fork() > 0:  # who started this does not wait for it, and does not take it along when it is killed
        os._exit(0)
    os.setsid()
    here = os.path.dirname(os.path.abspath(__file__))
    base = [p for p in sys.path if os.path.abspath(p) != here]
    path, *modules = sys.argv[1:]
    listener = socket.socket(fileno=os.dup(0))
    for name in modules:
        importlib.import_module(name)
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        sys.exit(f"the imports of {' '.join(modules)} started threads: there are {threads}")
    gc.collect()
    gc.freeze()  # a collection in a new process does not touch, and so copy, the memory of what was imported
    task = Server(listener, path).serve()
    if task is not None:
        os._exit(end_of(*task, base))
    os._exit(0)


if __name__ == "__main__":
    main()
