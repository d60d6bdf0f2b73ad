"""An engine of a library that lacks zc_zero_abandon()."""

from __future__ import annotations

from typing import Any

from .. import _lib
from .._engine import Comm, Engine, Stepped
from ._step import GROUP_NONE


class OldEngine(Engine):
    """abandon() made of a step that leaves every tensor alone, which counts as a step."""

    _micros = 0
    _open = False

    def micro(self, last: bool = False) -> None:
        """As ever."""
        super().micro(last)
        self._open = True

    def micro_end(self) -> None:
        """As ever."""
        super().micro_end()
        self._micros, self._open = self._micros + 1, False

    def step_by(self, *args: Any, **how: Any) -> Stepped:
        """As ever."""
        made = super().step_by(*args, **how)
        self._micros = 0
        return made

    def abandon(self) -> None:
        """Drops this step's gradients. Collective."""
        if self._open:
            self.micro_end()
        if self._micros:
            self.step_by([{}], group_of=[GROUP_NONE] * self.trainable)


def make(comm: Comm, **options: Any) -> Engine:
    """An engine as the library allows."""
    kind = Engine if _lib.has(comm.lib, "zc_zero_abandon") else OldEngine
    return kind(comm, micro_steps=0, **options)
