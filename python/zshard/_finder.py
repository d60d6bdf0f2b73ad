"""`install()`: this process finds zshard where it asks for `deepspeed`.

One finder in sys.meta_path answers `import deepspeed...` with the modules of zshard.deepspeed, the same objects, and
importlib.metadata's question for a distribution of that name with DeepSpeed's version. Nothing is patched, and nothing
is installed under a foreign name. `python -m zshard.run` installs it in the processes that it starts. This module
imports no torch.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

VERSION = "0.19.8"  # of DeepSpeed, whose names and defaults zshard.deepspeed has
_NAME, _HERE = "deepspeed", "zshard.deepspeed"
_METADATA = (
    "Metadata-Version: 2.1\nName: deepspeed\nVersion: {}\nSummary: DeepSpeed's names, answered by zshard\n"
    "Author: zshard\n"
)


class _Loader(importlib.abc.Loader):
    """Gives a module of zshard.deepspeed for one of deepspeed's names."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._spec: Any = None

    def create_module(self, spec: Any) -> ModuleType:
        module = importlib.import_module(self.name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system has set that of the other name


class Distribution(importlib.metadata.Distribution):
    """What importlib.metadata knows of `deepspeed`."""

    def read_text(self, filename: str) -> str | None:
        return _METADATA.format(VERSION) if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        return os.path.join(os.path.dirname(__file__), os.fspath(path))


class Finder(importlib.metadata.DistributionFinder):
    """Answers for deepspeed and its submodules."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _NAME and not fullname.startswith(f"{_NAME}."):
            return None
        name = _HERE + fullname[len(_NAME) :]
        try:
            found = importlib.util.find_spec(name)
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise ModuleNotFoundError(
                f"zshard has no '{fullname}' (docs/pytorch/DEEPSPEED.md lists what it has)", name=fullname
            )
        return importlib.machinery.ModuleSpec(
            fullname, _Loader(name), origin=found.origin, is_package=found.submodule_search_locations is not None
        )

    def find_distributions(self, context: Any = None) -> Iterable[importlib.metadata.Distribution]:
        name = getattr(context, "name", None)
        return [Distribution()] if name is None or name.lower() == _NAME else []


def install() -> None:
    """From now on `import deepspeed` gives zshard.deepspeed in this process; one line on stderr says so. May be called
    again.

    Raises RuntimeError: DeepSpeed itself was imported before.
    """
    if any(isinstance(f, Finder) for f in sys.meta_path):
        return
    there = sys.modules.get(_NAME)
    if there is not None and there is not sys.modules.get(_HERE):
        raise RuntimeError("zshard.deepspeed.install(): deepspeed itself is imported already; install before that")
    sys.meta_path.insert(0, Finder())
    if os.environ.get("RANK", "0") == "0" and not os.environ.get("_ZSHARD_RUN_SAID"):
        os.environ["_ZSHARD_RUN_SAID"] = "1"
        print("zshard: 'import deepspeed' gives zshard.deepspeed in this run", file=sys.stderr, flush=True)
