"""zshard: sharded, offloaded, durable training. This module alone looks into a daemon; it needs no torch and opens
nothing when it is imported.

    import zshard
    with zshard.Client() as c:
        print(c.jobs())

`zshard.torch` trains. The whole C API is here by ctypes: the structs and constants of the headers by their names
(constants without ZC_), and `load()`, the library with every function bound. Callbacks are made with
`DONE(function)`; keep them referenced for as long as C may call them.
"""

from ._c import *  # noqa: F403
from ._client import Client, plain
from ._lib import load
from ._version import VERSION
from .errors import (
    Corrupt,
    DeviceFailed,
    Interrupted,
    Invalid,
    NoSpace,
    NotConnected,
    PeerLost,
    Refused,
    RolledBack,
    TakenOver,
    TimedOut,
    ZshardError,
)

Error = ZshardError
__version__ = VERSION
__all__ = [name for name in dir() if not name.startswith("_")]
