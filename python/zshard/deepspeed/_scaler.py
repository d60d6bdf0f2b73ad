"""The loss scale of fp16, by the rules of DeepSpeed's configuration.

The engine has the same rules for jobs that resume by themselves (client/zero/config/loss_scale.h). Here the state is in
this process, and in checkpoints: in DeepSpeed's too, under the same names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_MOST = 2.0**126  # a step divides by the scale in fp32
_STATE = {"cur_scale": float, "cur_iter": int, "last_overflow_iter": int, "cur_hysteresis": int}


class LossScaler:
    """A scale that does not change, or a dynamic one.

    Attributes:
        cur_scale: what the loss of the next step is multiplied by.
        cur_iter: steps of a dynamic scale, with skipped ones. last_overflow_iter: the last that overflowed; -1: none.
        cur_hysteresis: overflows until the scale is halved.
        scale_window, min_scale, delayed_shift, consecutive_hysteresis: the rules, from the configuration.
    """

    def __init__(self, rules: Mapping[str, Any]) -> None:
        """rules: struct zc_loss_scale as a dict; {}: 1, always."""
        self.dynamic = bool(rules.get("dynamic", False))
        self.scale_window = int(rules.get("window", 1))
        self.min_scale = float(rules.get("min", 1.0))
        self.delayed_shift = self.cur_hysteresis = int(rules.get("hysteresis", 1))
        self.consecutive_hysteresis = bool(rules.get("consecutive", False))
        self.cur_scale = 2.0 ** rules["power"] if self.dynamic else float(rules.get("fixed", 0) or 1)
        self.cur_iter, self.last_overflow_iter = 0, -1

    @property
    def loss_scale(self) -> float:
        """The same as cur_scale."""
        return self.cur_scale

    def update(self, overflow: bool) -> None:
        """After a step. RuntimeError: it overflowed at the smallest scale."""
        if not self.dynamic:
            return
        if overflow:
            self._shrink()
            self.last_overflow_iter = self.cur_iter
        else:
            self._grow(self.cur_iter - self.last_overflow_iter - 1)
        self.cur_iter += 1

    def _grow(self, good: int) -> None:
        doubles = good > 0 and good % self.scale_window == 0
        if doubles or self.consecutive_hysteresis:
            self.cur_hysteresis = self.delayed_shift
        if doubles:
            self.cur_scale = min(self.cur_scale * 2.0, _MOST)

    def _shrink(self) -> None:
        if self.delayed_shift > 1 and self.cur_hysteresis > 1:
            self.cur_hysteresis -= 1
            return
        if self.cur_scale == self.min_scale:
            raise RuntimeError(
                f"fp16: a gradient is not finite, and the loss scale is {self.min_scale:g}, its minimum "
                "(fp16.min_loss_scale): the step was not made"
            )
        self.cur_scale = max(self.cur_scale / 2.0, self.min_scale)

    def state(self) -> dict[str, Any]:
        """Rules and state, under DeepSpeed's names."""
        return dict(vars(self))

    def load(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state of state(), or of DeepSpeed's scaler. The rules stay the configuration's, and so does
        a scale that does not change."""
        scale = state.get("cur_scale")
        if not self.dynamic or not isinstance(scale, (int, float)) or not (0 < scale <= _MOST and math.isfinite(scale)):
            return
        for name, kind in _STATE.items():
            if name in state:
                setattr(self, name, kind(state[name]))
