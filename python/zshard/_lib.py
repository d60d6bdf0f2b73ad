"""Finds libzclient.so and binds its functions.

Search order: $ZSHARD_LIB (or $ZSHARD_LIBRARY), a file; `zshard/_native/`, where the wheel has it; the build tree that
$ZSHARD_BUILD names, or build/ beside the sources' python/; the system's libzclient.so.0. The programs zshardd and
zctl are found the same way: $ZSHARD_BIN (a folder), _native/, the build tree, PATH.
"""

import ctypes
import os
import shutil
import threading
from collections.abc import Iterator

from . import _c

_HERE = os.path.dirname(os.path.abspath(__file__))
NATIVE = os.path.join(_HERE, "_native")

_lock = threading.Lock()
_loaded: ctypes.CDLL | None = None


def builds() -> Iterator[str]:
    """Build trees that may be meant, first choice first."""
    named = os.environ.get("ZSHARD_BUILD")
    if named:
        yield os.path.abspath(named)
    root = os.path.dirname(os.path.dirname(_HERE))  # of the sources, where this is python/zshard/
    if os.path.exists(os.path.join(root, "client", "zclient.h")):
        yield os.path.join(root, "build")


def find() -> str:
    """The library's path, or its name where only the system's is left."""
    named = os.environ.get("ZSHARD_LIB") or os.environ.get("ZSHARD_LIBRARY")
    if named:
        return named
    for path in (
        os.path.join(NATIVE, "libzclient.so.0"),
        *(os.path.join(b, "lib", "libzclient.so.0") for b in builds()),
    ):
        if os.path.exists(path):
            return path
    return "libzclient.so.0"


def program(name: str) -> str | None:
    """The path of zshardd or zctl; None: not found."""
    folder = os.environ.get("ZSHARD_BIN")
    places = [folder] if folder else [NATIVE, *(os.path.join(b, "bin") for b in builds())]
    for place in places:
        path = os.path.join(place, name)
        if os.access(path, os.X_OK):
            return path
    return shutil.which(name) if not folder else None


def load(path: str | None = None) -> ctypes.CDLL:
    """The library with every prototype bound: `path`, else the one that find() finds, which is loaded once.

    Calls release the GIL. Raises OSError where there is no library, or one that lacks a function.
    """
    global _loaded
    with _lock:
        if path is None and _loaded is not None:
            return _loaded
        name = path or find()
        try:
            lib = ctypes.CDLL(name)
        except OSError as e:
            raise OSError(
                f"cannot load '{name}': {e}. The wheel has it in {NATIVE}; a build tree is found by ZSHARD_BUILD, "
                "a library by ZSHARD_LIB"
            ) from None
        for symbol, (result, args) in _c.PROTOTYPES.items():
            try:
                function = getattr(lib, symbol)
            except AttributeError:
                raise OSError(f"'{name}' has no {symbol}(): it is older than this package") from None
            function.restype = result
            function.argtypes = args
        if path is None:
            _loaded = lib
        return lib
