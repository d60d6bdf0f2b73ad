"""An engine of a library that lacks steps by group: all groups have the first one's learning rate."""

from __future__ import annotations

from typing import Any

from .. import _lib
from .._engine import Comm, Engine, Stepped


class OldEngine(Engine):
    """step_by() made of what there is."""

    def step_by(self, groups: Any, **how: Any) -> Stepped:
        """The first group's learning rate; divided by the micro-steps made."""
        return self.step(groups[0]["lr"])


def make(comm: Comm, **options: Any) -> Engine:
    """An engine as the library allows."""
    kind = Engine if _lib.has(comm.lib, "zc_zero_step_by") else OldEngine
    return kind(comm, micro_steps=0, **options)
