"""In the path of the children of `python -m zshard.run`: installs the finder for `deepspeed`, then runs the
sitecustomize that it hides, if there is one."""

import os
import sys


def _install() -> None:
    from zshard import _finder

    _finder.install()


def _hidden() -> None:
    import importlib.machinery
    import importlib.util

    here = os.path.dirname(os.path.abspath(__file__))
    path = [p for p in sys.path if os.path.abspath(p or os.getcwd()) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


_hidden()
_install()
