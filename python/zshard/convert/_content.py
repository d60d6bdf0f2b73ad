"""What a checkpoint holds, whatever its form: `Content`, and the sources that read its tensors by ranges."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..torch._sources import Source

PIECE = 1 << 20  # elements that are moved at a time: 4 MiB of fp32
FORMS = ("portable", "universal", "dcp", "zero")
FP32 = "fp32"  # the plane of values; others are named as torch names an optimizer's state
MOMENTS = ("exp_avg", "exp_avg_sq", "momentum_buffer", "sum")
HYPER = ("lr", "initial_lr", "betas", "eps", "weight_decay", "momentum", "dampening", "nesterov", "lr_decay")

Wanted = tuple[Source, int, int]  # elements [first, first + count) of a source
Writing = Generator[Wanted, torch.Tensor | None, None]  # is sent the fp32 values that it yielded a wish for


class ConvertError(ValueError):
    """A checkpoint that cannot be read, does not fit the model, or cannot be written; the message has all reasons."""


class Problems:
    """Reasons that are collected and raised together."""

    def __init__(self, what: str) -> None:
        self.what, self.found = what, list[str]()

    def add(self, text: str) -> None:
        if text not in self.found:
            self.found.append(text)

    def check(self) -> None:
        """Raises ConvertError with all that was added."""
        if self.found:
            raise ConvertError("\n  - ".join([f"{self.what}:", *self.found]))


@dataclass
class Tensor:
    """One tensor of a checkpoint.

    Attributes:
        shape, dtype: of the tensor in the module.
        kind: "trained" (fp32 master and moments), "frozen" (a parameter without them) or "buffer".
        planes: FP32: the values, of a trained tensor its master; by the names of MOMENTS: fp32 state of its shape.
        step: steps that were applied to it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    kind: str
    planes: dict[str, Source]
    step: int = 0

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


@dataclass
class Content:
    """A checkpoint.

    Attributes:
        form: one of FORMS, or "live".
        path: its folder; "" where it is a model.
        tag: the folder's name below the one with `latest`; None: there was none.
        step: steps that were made, with skipped ones as far as they were counted.
        tensors: by name, in the module's order as far as the form keeps it.
        aliases: further names of tied tensors: the name in `tensors`.
        groups: an optimizer's param_groups with names as "params"; empty: not known.
        optimizer: the engine's name of its kind; "": not known.
        loss_scale: of fp16 training; None: not known.
        engine_state: what a training engine keeps besides, under DeepSpeed's names: skipped_steps, global_samples,
            loss_scaler (a dict); what is not known is not there.
        about: what the form says besides, for people.
    """

    form: str
    path: str
    tag: str | None = None
    step: int = 0
    tensors: dict[str, Tensor] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    groups: list[dict[str, Any]] = field(default_factory=list)
    optimizer: str = ""
    client_state: dict[str, Any] = field(default_factory=dict)
    lr_scheduler: Any = None
    loss_scale: float | None = None
    engine_state: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)

    def find(self, names: Sequence[str]) -> Tensor | None:
        """The tensor that has one of these names, as its own or as an alias."""
        for name in names:
            found = self.tensors.get(name) or self.tensors.get(self.aliases.get(name, ""))
            if found is not None:
                return found
        return None

    def of_kind(self, *kinds: str) -> list[Tensor]:
        return [t for t in self.tensors.values() if t.kind in kinds]

    def moments(self) -> list[str]:
        """Names of the state's planes that some tensor has, in a fixed order."""
        there = {p for t in self.tensors.values() for p in t.planes if p != FP32}
        return sorted(there, key=lambda p: (MOMENTS.index(p) if p in MOMENTS else len(MOMENTS), p))

    def grouped(self) -> list[tuple[dict[str, Any], list[Tensor]]]:
        """Each group's settings and its trained tensors. Raises ConvertError where a trained tensor is in none."""
        if not self.groups:
            return [({}, self.of_kind("trained"))]
        made, seen = [], set[str]()
        for group in self.groups:
            mine = [t for n in group["params"] if (t := self.find([n])) is not None and t.kind == "trained"]
            seen |= {t.name for t in mine}
            made.append(({k: v for k, v in group.items() if k != "params"}, mine))
        left = [t.name for t in self.of_kind("trained") if t.name not in seen]
        if left:
            raise ConvertError(f"{names_text(left)}: trained, and in no group of the optimizer")
        return made


def names_text(names: Sequence[str], most: int = 8) -> str:
    """Some names, and how many there are besides."""
    shown = ", ".join(f"'{n}'" for n in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def ranges(source: Source) -> Iterator[tuple[int, int]]:
    """(first, count) of each piece of a source."""
    for first in range(0, source.numel, PIECE):
        yield first, min(PIECE, source.numel - first)


def values_of(source: Source) -> torch.Tensor:
    """All of a source that is read without other ranks: fp32, of its shape."""
    out = torch.empty(source.numel, dtype=torch.float32)
    for first, n in ranges(source):
        source.read(first, out[first : first + n])
    return out.view(source.shape)


class Joined(Source):
    """Flat fragments in host memory, or mapped from files, one after the other."""

    def __init__(self, parts: Sequence[torch.Tensor], shape: Sequence[int]) -> None:
        self.parts = [p.detach() for p in parts if p.numel()]
        self.shape = tuple(shape)
        self.dtype = self.parts[0].dtype if self.parts else torch.float32
        self.starts = [0]
        for p in self.parts:
            self.starts.append(self.starts[-1] + p.numel())
        if self.starts[-1] != self.numel:
            raise ValueError(f"fragments have {self.starts[-1]} elements, shape {list(shape)} has {self.numel}")

    def read(self, first: int, out: torch.Tensor) -> None:
        done, total = 0, out.numel()
        at = bisect_right(self.starts, first) - 1
        while done < total:
            begin = first + done - self.starts[at]
            n = min(self.parts[at].numel() - begin, total - done)
            out[done : done + n].copy_(self.parts[at].reshape(-1)[begin : begin + n])
            done += n
            at += 1


class Zeros(Source):
    """A plane of zeros: state of a tensor that was never stepped."""

    def __init__(self, shape: Sequence[int]) -> None:
        self.shape, self.dtype = tuple(shape), torch.float32

    def read(self, first: int, out: torch.Tensor) -> None:
        out.zero_()


def number(value: Any, default: int = 0) -> int:
    """A count that may be an int, a scalar tensor, or an enum of a class that is not loaded."""
    if isinstance(value, torch.Tensor):
        return int(value.item()) if value.numel() == 1 else default
    if isinstance(value, (int, float)):
        return int(value)
    args = getattr(value, "args", None)
    if isinstance(args, tuple) and len(args) == 1 and isinstance(args[0], (int, float)):
        return int(args[0])
    return default


def settings(group: dict[str, Any]) -> dict[str, Any]:
    """A param_group without its parameters: numbers, booleans, strings, None and tuples of numbers."""
    made: dict[str, Any] = {}
    for key, value in group.items():
        if key in ("params", "param_names"):
            continue
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            value = value.item()
        if isinstance(value, (list, tuple)):
            value = tuple(v.item() if isinstance(v, torch.Tensor) and v.numel() == 1 else v for v in value)
            if not all(isinstance(v, (int, float)) for v in value):
                continue
        elif value is not None and not isinstance(value, (bool, int, float, str)):
            continue
        made[key] = value
    return made
