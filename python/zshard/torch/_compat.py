"""An engine of a library that lacks micro_steps 0 and steps by group: one backward pass a step, one group."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import _lib
from .._engine import Comm, Engine, Stepped


class OldEngine(Engine):
    """micro(), micro_end(), reduce_of() and step_by() made of what there is."""

    def __init__(self, comm: Comm, **options: Any) -> None:
        super().__init__(comm, **options)
        self._reduced: set[int] = set()

    def micro(self, last: bool = False) -> None:
        """Nothing."""

    def reduce_of(self, unit: int, has: Sequence[bool] | None = None) -> None:
        """All tensors count as with a gradient."""
        self._reduced.add(unit)
        self.reduce(unit)

    def micro_end(self) -> None:
        """Reduces what was not."""
        for unit in reversed(range(len(self.units))):
            if not self._frozen[unit] and unit not in self._reduced:
                self.grad(unit)
                self.reduce(unit)
        self._reduced.clear()

    def step_by(self, groups: Any, **how: Any) -> Stepped:
        """The first group's learning rate."""
        return self.step(groups[0]["lr"])


def make(comm: Comm, **options: Any) -> Engine:
    """An engine as the library allows."""
    if _lib.has(comm.lib, "zc_zero_step_by") and _lib.has(comm.lib, "zc_zero_micro"):
        return Engine(comm, micro_steps=0, **options)
    return OldEngine(comm, micro_steps=1, **options)
