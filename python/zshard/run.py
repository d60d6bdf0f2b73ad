"""python -m zshard.run [-m] SCRIPT [ARGUMENTS]: a script that imports deepspeed, on zshard.

`import deepspeed` gives zshard.deepspeed in this process and in the Python processes that it starts: torchrun and
accelerate launch may be the script.

    python -m zshard.run train.py --deepspeed ds.json
    python -m zshard.run -m torch.distributed.run --nproc-per-node 2 train.py
"""

from __future__ import annotations

import os
import runpy
import sys

from . import _finder

USAGE = "usage: python -m zshard.run [-m] SCRIPT [ARGUMENTS]"
SITE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_site")


def _pass_on() -> None:
    """Children find sitecustomize.py in SITE, which installs the finder there; and this package."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    given = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p not in (SITE, package)]
    os.environ["PYTHONPATH"] = os.pathsep.join([SITE, *given, package])


def main(argv: list[str]) -> int:
    """Runs a script, or a module after -m, as __main__. Returns 2 for wrong usage."""
    module = argv[:1] == ["-m"]
    rest = argv[1:] if module else argv
    if not rest or rest[0] in ("-h", "--help"):
        print(__doc__ if rest else USAGE, file=sys.stdout if rest else sys.stderr)
        return 0 if rest else 2
    if not module and not os.path.exists(rest[0]):
        print(f"zshard.run: '{rest[0]}' does not exist; a program such as torchrun needs -m torch.distributed.run",
              file=sys.stderr)  # fmt: skip
        return 2
    _pass_on()
    _finder.install()
    sys.argv = list(rest)
    if module:
        sys.path[0] = os.getcwd()
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(rest[0]))
        runpy.run_path(rest[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
