"""The Llamas of `zbench torch`, and the shapes of a step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """A Llama with an untied head and as many key and value heads as heads."""

    hidden: int
    inner: int
    layers: int
    heads: int
    vocab: int

    def params(self) -> int:
        block = 4 * self.hidden**2 + 3 * self.hidden * self.inner + 2 * self.hidden
        return self.layers * block + 2 * self.vocab * self.hidden + self.hidden


SIZES = {
    "1M": Size(64, 192, 2, 2, 4096),  # to try the bench
    "25M": Size(384, 1120, 10, 6, 8192),
    "70M": Size(512, 1536, 16, 8, 16384),
    "125M": Size(768, 2048, 12, 12, 25600),
}
SHAPES = {"many": (8, 128), "few": (2, 64)}  # sequences and tokens of each, a rank and step
