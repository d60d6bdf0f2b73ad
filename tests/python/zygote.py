"""Python processes that start with PyTorch loaded, because they are forked from a process that has imported it.

    process = zygote.Popen([sys.executable, "-B", "program.py", "1"], env=env, stdout=subprocess.PIPE, text=True)
    done = zygote.run([sys.executable, "-c", "print(1)"], capture_output=True, text=True)

Both take what subprocess.Popen and subprocess.run take (not preexec_fn, pass_fds and a new session), with the words of
a Python command: options -B, -X NAME and -P, then a program, -c CODE or -m MODULE. The process has its own environment,
folder, arguments and sys.path. At its end, functions of atexit run and the program's globals are freed; modules are
not. Importing PyTorch costs three seconds of a processor, transformers' Trainer ten; a fork costs little. A test of an
interpreter's own start or end uses subprocess.

`preload` names the modules to import. Nothing of zshard is among them: each process imports it itself.

As a program this is the process that forks: it reads requests from its socket, file descriptor 3. A request is answered
with the id of the process, and its end comes through a pipe of its own.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
import threading
import traceback
import types
from collections.abc import Sequence
from typing import Any

TORCH = ("torch", "torch.distributed", "torch.distributed.tensor", "torch._dynamo", "torch.export", "numpy")
# What transformers imports, without itself: how it sees DeepSpeed is decided when it is imported.
BELOW_TRANSFORMERS = (
    *TORCH, "torch.distributed.fsdp", "datasets",
    "tokenizers", "safetensors.torch", "huggingface_hub", "yaml", "psutil",
)  # fmt: skip
TRAINER = (*BELOW_TRANSFORMERS, "transformers", "transformers.trainer", "accelerate", "peft")
# These are set before anything is imported; a process that wants other values has to be started on its own.
FIXED = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "HF_HUB_OFFLINE", "TRANSFORMERS_VERBOSITY")


class _Zygote:
    """The process that forks; one for each set of modules and of fixed variables."""

    def __init__(self, preload: Sequence[str], env: dict[str, str]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket, self.lock = ours, threading.Lock()
        os.set_inheritable(theirs.fileno(), True)
        words = [sys.executable, "-B", os.path.abspath(__file__), str(theirs.fileno()), *preload]
        self.process = subprocess.Popen(words, env=env, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL)
        theirs.close()
        atexit.register(self.close)

    def fork(self, request: dict[str, Any], fds: list[int]) -> int:
        """The id of the new process."""
        with self.lock:
            body, end = json.dumps(request).encode(), os.memfd_create("request")
            try:
                os.write(end, body)
                socket.send_fds(self.socket, [b"fork"], [end, *fds])
            finally:
                os.close(end)
            answer = self.socket.recv(64)
        if not answer:
            raise RuntimeError(f"the process that forks has ended: {self.process.wait(10)}")
        return int(answer)

    def close(self) -> None:
        self.socket.close()
        self.process.wait(30)


_zygotes: dict[tuple[Any, ...], _Zygote] = {}


class Popen(subprocess.Popen):  # type: ignore[type-arg]
    """A process that was forked. It is not our child: how it ended comes through a pipe."""

    def __init__(self, words: Sequence[Any], *, preload: Sequence[str] = TORCH, **options: Any) -> None:
        self._preload, self._end = preload, -1
        super().__init__([os.fspath(word) for word in words], **options)

    def _execute_child(self, *given: Any) -> None:  # type: ignore[override]
        words, preexec, pass_fds, cwd, env = given[0], given[2], given[4], given[5], given[6]
        reads, writes, errors = given[10], given[13], given[15]
        if preexec or pass_fds or words[0] != sys.executable:
            raise ValueError("this process cannot be forked")
        env = {os.fsdecode(k): os.fsdecode(v) for k, v in (os.environ if env is None else env).items()}
        fixed = {name: env[name] for name in FIXED if name in env}
        key = (*self._preload, *sorted(fixed.items()))
        if key not in _zygotes:
            keep = {k: v for k, v in os.environ.items() if k != "PYTHONPATH" and k not in FIXED}
            _zygotes[key] = _Zygote(self._preload, keep | fixed)
        self._end, end = os.pipe()
        fds = [fd if fd != -1 else number for number, fd in enumerate((reads, writes, errors))]
        request = {"words": [str(word) for word in words[1:]], "cwd": cwd and os.fspath(cwd), "env": env}
        self.pid = _zygotes[key].fork(request, [end, *fds])
        self._child_created = True
        os.close(end)
        devnull = getattr(self, "_devnull", None)
        for fd, other in ((reads, given[11]), (writes, given[12]), (errors, given[14])):
            if fd != -1 and other != -1 and fd != devnull:
                os.close(fd)
        if devnull is not None:
            os.close(devnull)

    def _try_wait(self, flags: int) -> tuple[int, int]:
        if flags & os.WNOHANG and not select.select([self._end], [], [], 0)[0]:
            return 0, 0
        data = os.read(self._end, 4)
        os.close(self._end)
        return self.pid, struct.unpack("i", data)[0] if len(data) == 4 else 9

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:  # type: ignore[override]
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


def _become(request: dict[str, Any], fds: list[int], base: list[str]) -> None:
    """In the new process: takes the place of an interpreter's start, and runs the program to its end."""
    for number, fd in enumerate(fds):
        os.dup2(fd, number + 100)
    for number in range(3):
        os.dup2(number + 100, number)
    os.closerange(3, 256)
    os.environ.clear()
    os.environ.update(request["env"])
    if request["cwd"]:
        os.chdir(request["cwd"])
    sys.stdin = open(0, closefd=False)
    sys.stdout = open(1, "w", closefd=False)
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    words = request["words"]
    while words[0] in ("-B", "-X", "-P"):
        words = words[2 if words[0] == "-X" else 1 :]
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
        main.__file__ = words[0]
        with open(words[0], "rb") as f:
            code = compile(f.read(), words[0], "exec")
        exec(code, main.__dict__)


def _end_of(request: dict[str, Any], fds: list[int], base: list[str]) -> int:
    """Runs the program as _become does; returns the exit status."""
    status: Any = None
    try:
        _become(request, fds, base)
    except SystemExit as e:
        status = e.code
    except BaseException:
        traceback.print_exc()
        status = 1
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
    return status or 0


def _serve(at: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Forks for each request. Returns in a new process only, with what it is to do, or None at the end."""
    while True:
        message, fds, _, _ = socket.recv_fds(at, 64, 8)
        if not message:
            return None
        body, end, *fds = fds
        with os.fdopen(body, "rb") as f:
            f.seek(0)
            request = json.loads(f.read())
        pid_out, pid_in = os.pipe()
        waiter = os.fork()
        if waiter == 0:  # it waits for the process, so that its end is seen even if nobody asks
            at.close()
            pid = os.fork()
            if pid == 0:
                for fd in (end, pid_out, pid_in):
                    os.close(fd)
                return request, fds
            os.write(pid_in, str(pid).encode())
            for fd in (pid_in, pid_out, *fds, 0, 1, 2):
                os.close(fd)
            os.write(end, struct.pack("i", os.waitpid(pid, 0)[1]))
            os._exit(0)
        os.close(pid_in)
        at.send(os.read(pid_out, 32))
        for fd in (pid_out, end, *fds):
            os.close(fd)
        while os.waitpid(-1, os.WNOHANG)[0] > 0:  # waiters that have ended
            pass


def main() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    base = [p for p in sys.path if os.path.abspath(p) != here]
    at = socket.socket(fileno=int(sys.argv[1]))
    for name in sys.argv[2:]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a new process does not touch, and so copy, the memory of what was imported
    task = _serve(at)
    if task is not None:
        os._exit(_end_of(*task, base))


if __name__ == "__main__":
    main()
