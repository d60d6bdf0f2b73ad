"""Ctrl-C ends a call of the engine that waits for other ranks or for a drive.

Python runs its signal handlers between bytecodes: not while the main thread is inside of the C library. What Python
does at once is to write the signal's number to a file descriptor (`signal.set_wakeup_fd`). A thread of this module
reads it and interrupts the engines. The call then returns, and Python raises KeyboardInterrupt.

This happens only where SIGINT has Python's own handler: a program with another handler decides by itself, and may call
`Engine.interrupt()`. Where something else has the file descriptor (an event loop of asyncio) it keeps it, and a call
that waits ends before Python sees the signal.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zshard._engine import Engine

_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_lock = threading.Lock()
_written = -1  # what signals are written to; -1: nothing is watched


def watch(engine: Engine) -> None:
    """From now on Ctrl-C interrupts it, until unwatch(). Does nothing in a thread that is not the main one."""
    with _lock:
        _engines.add(engine)
    if threading.current_thread() is threading.main_thread():
        _begin()


def unwatch(engine: Engine) -> None:
    """Called when it is closed. Gives the file descriptor back after the last one."""
    with _lock:
        _engines.discard(engine)
        last = not _engines
    if last and threading.current_thread() is threading.main_thread():
        _end()


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Ctrl-C waits until the end of the block. Only in the main thread, and where SIGINT has Python's own handler."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    came: list[int] = []

    def later(number: int, _frame: Any) -> None:
        came.append(number)

    signal.signal(signal.SIGINT, later)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if came:
        raise KeyboardInterrupt


def _begin() -> None:
    global _written
    if _written >= 0 or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    os.set_blocking(read, True)
    other = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    if other >= 0:  # somebody else's
        signal.set_wakeup_fd(other)
        os.close(read)
        os.close(write)
        return
    _written = write
    threading.Thread(target=_listen, args=(read,), name="zshard-interrupt", daemon=True).start()


def _end() -> None:
    global _written
    write, _written = _written, -1
    if write < 0:
        return
    now = signal.set_wakeup_fd(-1)
    if now >= 0 and now != write:
        signal.set_wakeup_fd(now)
    os.close(write)  # which ends the thread


def _listen(read: int) -> None:
    while numbers := os.read(read, 64):
        if signal.SIGINT in numbers and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            with _lock:
                engines = list(_engines)
            for engine in engines:
                engine.interrupt()
    os.close(read)


def _in_child() -> None:
    """After a fork: what the child is sent does not concern the parent's engines."""
    global _lock, _written
    _lock = threading.Lock()
    _engines.clear()
    write, _written = _written, -1
    if write >= 0 and threading.current_thread() is threading.main_thread():
        now = signal.set_wakeup_fd(-1)
        if now >= 0 and now != write:
            signal.set_wakeup_fd(now)


os.register_at_fork(after_in_child=_in_child)
