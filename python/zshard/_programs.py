"""Console scripts: the programs of the wheel."""

import os
import sys

from ._lib import program


def _run(name: str) -> None:
    path = program(name)
    if path is None or (os.path.exists(sys.argv[0]) and os.path.samefile(path, sys.argv[0])):
        sys.exit(f"{name}: not found beside the package; ZSHARD_BIN names the folder that has it")
    os.execv(path, [name, *sys.argv[1:]])


def zctl() -> None:
    """Becomes zctl."""
    _run("zctl")


def zshardd() -> None:
    """Becomes zshardd."""
    _run("zshardd")
