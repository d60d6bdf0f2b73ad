"""An engine of a library that lacks zc_zero_abandon()."""

from __future__ import annotations

from typing import Any

from .. import _lib
from .._engine import Comm, Engine
from ._step import GROUP_NONE


class OldEngine(Engine):
    """abandon() made of a step that leaves every tensor alone, which counts as a step."""

    def abandon(self) -> None:
        """Drops this step's gradients. Collective."""
        self.step_by([{}], group_of=[GROUP_NONE] * self.trainable)


def make(comm: Comm, **options: Any) -> Engine:
    """An engine as the library allows."""
    kind = Engine if _lib.has(comm.lib, "zc_zero_abandon") else OldEngine
    return kind(comm, micro_steps=0, **options)
