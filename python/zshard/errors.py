"""Exceptions: one class for each family of the C library's codes.

ZshardError
|-- NotConnected    the daemon is not there, is gone, or does not speak the protocol
|-- NoSpace         it does not fit; the message has the numbers
|-- Refused         wrong now, or not allowed: it exists, is taken, belongs to somebody else
|   `-- Invalid     an argument is wrong
|-- PeerLost        another rank of the job died
|-- TakenOver       another process took the job over
|-- Corrupt         stored bytes are damaged
|-- DeviceFailed    a drive or GPU failed
|-- TimedOut        nothing moved until the deadline
|-- Interrupted     the call was interrupted; nothing changed
`-- RolledBack      the daemon was lost, and the job continues from an older step
"""

import errno
from typing import Any

__all__ = [
    "Corrupt",
    "DeviceFailed",
    "Interrupted",
    "Invalid",
    "NoSpace",
    "NotConnected",
    "PeerLost",
    "Refused",
    "RolledBack",
    "TakenOver",
    "TimedOut",
    "ZshardError",
    "error",
]


class ZshardError(Exception):
    """A call of the library failed.

    Attributes:
        code: the negative errno, as the C function returned it.
        name: its name, "ENOSPC".
        message: what happened, for people.
    """

    def __init__(self, code: int, name: str = "", message: str = "") -> None:
        self.code = -abs(code)
        self.name = name or errno.errorcode.get(abs(code), str(abs(code)))
        self.message = message or self.name
        super().__init__(self.message)

    @property
    def rc(self) -> int:
        """The same as `code`."""
        return self.code

    def __reduce__(self) -> tuple[type, tuple[int, str, str]]:
        return type(self), (self.code, self.name, self.message)


class NotConnected(ZshardError):
    """The daemon is not there, is gone, or does not speak the protocol."""


class NoSpace(ZshardError):
    """It does not fit; the message has the numbers."""


class Refused(ZshardError):
    """Not allowed, or not possible now: it exists already, is taken, is missing, is not supported."""


class Invalid(Refused):
    """An argument is wrong, or the ranks disagree."""


class PeerLost(ZshardError):
    """Another rank of the job died."""


class TakenOver(ZshardError):
    """Another process took the job over."""


class Corrupt(ZshardError):
    """Stored bytes are damaged; none of them was handed out."""


class DeviceFailed(ZshardError):
    """A drive or a GPU failed."""


class TimedOut(ZshardError):
    """Nothing moved until the deadline."""


class Interrupted(ZshardError):
    """The call was interrupted. Nothing has changed, unless the engine has `failed`."""


class RolledBack(ZshardError):
    """The daemon was lost, and the job continues from an older step: the loop continues there. Nothing has failed.

    Attributes:
        step: the step that the job is at now, as the handle's step_number.
        note: what commit(note=...) of this rank was given last before that step; None: nothing.
    """

    step: int = 0
    note: Any = None


_CLASSES: dict[int, type[ZshardError]] = {
    **dict.fromkeys((errno.ENOTCONN, errno.EPROTO, errno.ECANCELED, errno.ECONNREFUSED, errno.ENOSYS), NotConnected),
    **dict.fromkeys((errno.ENOSPC, errno.ENOMEM, errno.ENOBUFS), NoSpace),
    **dict.fromkeys(
        (
            errno.ENOENT,
            errno.EEXIST,
            errno.EPERM,
            errno.EACCES,
            errno.EBUSY,
            errno.ENOTSUP,
            errno.ENODEV,
            errno.EAGAIN,
            errno.EUSERS,
            errno.EDQUOT,
            errno.EROFS,
            errno.EMFILE,
            errno.EADDRINUSE,
            errno.ERANGE,
        ),
        Refused,
    ),
    **dict.fromkeys((errno.EINVAL, errno.EMSGSIZE), Invalid),
    errno.EOWNERDEAD: PeerLost,
    errno.ESTALE: TakenOver,
    errno.EBADMSG: Corrupt,
    errno.EIO: DeviceFailed,
    errno.ETIMEDOUT: TimedOut,
    errno.EINTR: Interrupted,
    errno.ERESTART: RolledBack,
}


def error(code: int, message: str) -> ZshardError:
    """The exception for a code (its sign does not matter) and its message."""
    return _CLASSES.get(abs(code), ZshardError)(code, "", message)
