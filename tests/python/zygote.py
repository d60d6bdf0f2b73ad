"""Python processes that start with PyTorch loaded, because they are forked from a process that has imported it.

    process = zygote.Popen([sys.executable, "-B", "program.py", "1"], env=env, stdout=subprocess.PIPE, text=True)
    done = zygote.run([sys.executable, "-c", "print(1)"], capture_output=True, text=True)

    python3 -B tests/python/zygote.py [--with torch|trainer|MODULE,...] WORDS...
                                                runs `python3 -B WORDS...` like this, and ends as that ends
    path = zygote.shim(folder)                  folder/python does that: for what starts a Python by its name

Both functions take what subprocess.Popen and subprocess.run take (not preexec_fn, pass_fds and a new session), with the
words of a Python command: options -B, -X NAME, -P and -u, then a program, -c CODE or -m MODULE. The process has its own
environment, folder, arguments, limits and sys.path, and leads a process group. At its end, functions of atexit run and
the program's globals are freed; modules are not. It is killed when the process that asked for it ends. Importing
PyTorch costs three to six seconds of a processor, transformers' Trainer ten; a fork costs little. A test of an
interpreter's own start (sitecustomize, too) or end uses subprocess.

`preload` names the modules that are imported. Nothing of zshard is among them: each process imports it itself.

The process that forks (zygote_server.py) is started by the first that needs it. All tests of a build folder share it:
CTest sets ZSHARD_ZYGOTE, the folder of its sockets and logs. Without that variable, zygote.py as a program is the plain
command, and a process that calls Popen() gets a process that forks of its own. There is one for each set of modules, of
fixed variables, and version of all this. If it cannot be used, a message says why, and the process is started plainly.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import resource
import select
import shutil
import signal
import site
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

SERVER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "zygote_server.py")
TORCH = (
    "torch", "torch.distributed", "torch.distributed.tensor", "torch.distributed.checkpoint", "torch.distributed.run",
    "torch._dynamo", "torch.export", "numpy", "pytest",
)  # fmt: skip
# What transformers imports, without itself: how it sees DeepSpeed is decided when it is imported.
BELOW_TRANSFORMERS = (
    *TORCH, "torch.distributed.fsdp", "datasets",
    "tokenizers", "safetensors.torch", "huggingface_hub", "yaml", "psutil",
)  # fmt: skip
TRAINER = (*BELOW_TRANSFORMERS, "transformers", "transformers.trainer", "accelerate", "peft")
# A process that forks for the right set is itself forked from the one for the left set.
FORKED_FROM = {BELOW_TRANSFORMERS: TORCH, TRAINER: BELOW_TRANSFORMERS}
# Variables that count when something is imported: who wants other values needs another process that forks.
FIXED = ("HOME", "LANG", "TZ", "TMPDIR")
FIXED_BEGINNINGS = ("LC_", "LD_", "MALLOC_", "MKL_", "OMP_", "OPENBLAS_", "PYTHON", "PYTORCH_", "TORCH_LOGS")
FIXED_LATER = {"huggingface_hub": ("HF_HUB_OFFLINE",), "transformers": ("TRANSFORMERS_VERBOSITY",)}
PER_PROCESS = ("PYTHONPATH", "PYTHONFAULTHANDLER", "PYTHONUNBUFFERED")  # as the process wants them
# Unless the process wants other values: imports start no thread, of OpenBLAS and of pyarrow's allocator.
NO_THREADS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
SECONDS = 120 * float(os.environ.get("ZSHARD_PATIENCE", "1"))  # for the imports
PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)

_private = ""  # the folder of this process's own


class Unusable(Exception):
    """There is no process that forks; the text says why."""


def _folder() -> str:
    global _private
    shared = os.environ.get("ZSHARD_ZYGOTE")
    if shared:
        os.makedirs(shared, exist_ok=True)
        return shared
    if not _private:
        _private = tempfile.mkdtemp(prefix="zshard-zygote-")
        atexit.register(shutil.rmtree, _private, ignore_errors=True)
    return _private


def _on_cpu() -> bool:
    return os.environ.get("ZSHARD_TEST_DEVICE", "cpu") == "cpu"


def _fixed(preload: Sequence[str], env: dict[str, str]) -> dict[str, str]:
    names = {*FIXED, *(n for module, late in FIXED_LATER.items() if module in preload for n in late)}
    if not _on_cpu():  # an import may ask for the devices
        names.add("CUDA_VISIBLE_DEVICES")
    names |= {n for n in env if n.startswith(FIXED_BEGINNINGS)} - {*PER_PROCESS}
    return {n: env[n] for n in sorted(names) if n in env}


def _limits() -> dict[int, tuple[int, int]]:
    numbers = {getattr(resource, n) for n in dir(resource) if n.startswith("RLIMIT_")}
    return {n: resource.getrlimit(n) for n in sorted(numbers)}


def _name(preload: Sequence[str], fixed: dict[str, str]) -> str:
    """Of the socket: another one for whatever would make other processes."""
    packages = [(p, os.stat(p).st_mtime_ns) for p in site.getsitepackages() if os.path.isdir(p)]
    with open(SERVER, "rb") as f:
        code = f.read()
    hard = [limits[1] for limits in _limits().values()]  # a process cannot raise those that it has
    key = repr((sys.prefix, sys.version, packages, code, tuple(preload), fixed, hard))
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def _start(path: str, at: str, preload: tuple[str, ...], fixed: dict[str, str]) -> None:
    """Starts it; from now on, connections to the socket wait for its imports. at: the same path, a short one."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, open(path + ".log", "w") as log:
        listener.bind(at)
        listener.listen(128)
        words = [sys.executable, "-B", SERVER, path, *preload]
        options: dict[str, Any] = {"stdin": listener, "stdout": log, "stderr": log, "cwd": "/"}
        env = NO_THREADS | fixed | {"PATH": os.environ.get("PATH", os.defpath)}
        base = FORKED_FROM.get(preload)
        popen = Popen(words, preload=base, env=env, **options) if base else subprocess.Popen(words, env=env, **options)
        popen.wait()


def _connect(preload: tuple[str, ...], env: dict[str, str]) -> tuple[socket.socket, str]:
    """A connection, and the path of the socket."""
    fixed, folder = _fixed(preload, env), _folder()
    path = os.path.join(folder, _name(preload, fixed))
    short = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)  # a socket's path has at most 107 bytes
    at = f"/proc/self/fd/{short}/{os.path.basename(path)}"
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with open(path + ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                connection.connect(at)
            except (FileNotFoundError, ConnectionRefusedError):
                _start(path, at, preload, fixed)
                connection.connect(at)
    except BaseException:
        connection.close()
        raise
    finally:
        os.close(short)
    connection.settimeout(SECONDS)
    return connection, path


def _umask() -> int:
    with open("/proc/self/status", encoding="ascii", errors="replace") as f:
        return next(int(line.split()[1], 8) for line in f if line.startswith("Umask:"))


def _fork(preload: tuple[str, ...], request: dict[str, Any], fds: list[int]) -> tuple[socket.socket, int]:
    """The connection and the id of a new process. Raises Unusable."""
    body = os.memfd_create("request")
    path, why = "", ""
    try:
        os.write(body, json.dumps(request | {"limits": _limits(), "umask": _umask()}).encode())
        for _ in range(2):  # one that was idle may end when it is asked
            try:
                connection, path = _connect(preload, request["env"])
            except OSError as e:
                raise Unusable(str(e)) from None
            try:
                socket.send_fds(connection, [b"fork"], [body, *fds])
                answer = connection.recv(32)
                if answer:
                    connection.settimeout(None)
                    return connection, int(answer)
                why = "it ended"
            except OSError as e:
                why = str(e)
            connection.close()
    finally:
        os.close(body)
    said = ""
    with contextlib.suppress(OSError), open(path + ".log", encoding="utf-8", errors="replace") as f:
        said = f.read()[-2000:].strip()
    raise Unusable(f"{why}; {path}.log says: {said or 'nothing'}")


def _say(why: Unusable) -> None:
    print(f"zygote: no process with the modules can be forked ({why}). It is started plainly", file=sys.stderr)


class Popen(subprocess.Popen):  # type: ignore[type-arg]
    """A process that was forked. It is not our child: how it ended comes through its connection."""

    def __init__(
        self, words: Sequence[Any], *, preload: Sequence[str] = TORCH, or_plainly: bool = True, **options: Any
    ) -> None:
        self._preload, self._or_plainly = tuple(preload), or_plainly
        self.connection: socket.socket | None = None
        super().__init__([os.fspath(word) for word in words], **options)

    def _execute_child(self, *given: Any) -> None:  # type: ignore[override]
        words, preexec, pass_fds, cwd, env = given[0], given[2], given[4], given[5], given[6]
        reads, writes, errors = given[10], given[13], given[15]
        if preexec or pass_fds or words[0] != sys.executable:
            raise ValueError("this process cannot be forked")
        env = {os.fsdecode(k): os.fsdecode(v) for k, v in (os.environ if env is None else env).items()}
        fds = [fd if fd != -1 else number for number, fd in enumerate((reads, writes, errors))]
        request = {"words": words, "cwd": os.path.abspath(cwd or os.getcwd()), "env": env}
        try:
            self.connection, self.pid = _fork(self._preload, request, fds)
        except Unusable as why:
            if not self._or_plainly:
                raise
            _say(why)
            super()._execute_child(*given)  # type: ignore[misc]
            return
        self._child_created = True
        devnull = getattr(self, "_devnull", None)
        for fd, other in ((reads, given[11]), (writes, given[12]), (errors, given[14])):
            if fd != -1 and other != -1 and fd != devnull:
                os.close(fd)
        if devnull is not None:
            os.close(devnull)

    def _try_wait(self, flags: int) -> tuple[int, int]:
        if self.connection is None:
            return super()._try_wait(flags)  # type: ignore[misc, no-any-return]
        if flags & os.WNOHANG and not select.select([self.connection], [], [], 0)[0]:
            return 0, 0
        try:
            status = self.connection.recv(4)
        except ConnectionError:
            status = b""
        self.connection.close()
        if len(status) == 4:
            return self.pid, int(struct.unpack("i", status)[0])
        print(f"zygote: the process that forks has died, and with it process {self.pid}", file=sys.stderr)
        return self.pid, int(signal.SIGKILL)

    def _internal_poll(self, *given: Any, **more: Any) -> int | None:  # type: ignore[override]
        if self.connection is None:
            return super()._internal_poll(*given, **more)  # type: ignore[misc, no-any-return]
        if self.returncode is None and self._waitpid_lock.acquire(False):
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid == self.pid:
                        self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode


def run(words: Sequence[Any], *, timeout: float | None = None, check: bool = False, capture_output: bool = False,
        input: str | None = None, **options: Any) -> subprocess.CompletedProcess[Any]:  # fmt: skip
    """subprocess.run, forked."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with Popen(words, **options) as process:
        try:
            out, err = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
        done = subprocess.CompletedProcess(list(words), process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def shim(folder: str | os.PathLike[str], preload: str = "torch") -> str:
    path = os.path.join(folder, "python")
    with open(path, "w", encoding="utf-8") as f:
        f.write(f'#!/bin/sh\nexec "{sys.executable}" -B "{os.path.abspath(__file__)}" --with {preload} "$@"\n')
    os.chmod(path, 0o700)
    return path


def main() -> None:
    preload, words = TORCH, sys.argv[1:]
    if words[0] == "--with":
        preload = {"torch": TORCH, "trainer": TRAINER}.get(words[1]) or tuple(words[1].split(","))
        words = words[2:]
    words = [sys.executable, "-B", *words]
    if not os.environ.get("ZSHARD_ZYGOTE") or not _on_cpu() or not importlib.util.find_spec(preload[0]):
        os.execv(sys.executable, words)
    early: list[int] = []
    process: Popen | None = None
    for number in PASSED_ON:
        signal.signal(number, lambda n, _: process.send_signal(n) if process else early.append(n))
    try:
        process = Popen(words, preload=preload, or_plainly=False)
    except Unusable as why:
        _say(why)
        os.execv(sys.executable, words)
    for number in early:
        process.send_signal(number)
    while process.poll() is None:  # a signal that comes just before select() waits for its end
        select.select([process.connection], [], [], 1.0)
    status = process.returncode
    if status < 0:  # as the process ended, but without another core file
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    main()
