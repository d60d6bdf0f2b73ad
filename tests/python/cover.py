"""Pairwise cover: few combinations that hold every pair of values of two dimensions."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Combination = dict[str, Any]
TRIES = 60  # random combinations tried for each one that is accepted


def pairs_of(made: Combination) -> set[tuple[Any, ...]]:
    return set(itertools.combinations(sorted(made.items()), 2))


def pairwise(
    dims: Mapping[str, Sequence[Any]], valid: Callable[[Combination], bool], seed: int = 1
) -> list[Combination]:
    """Combinations, each one valid, that hold every pair that some valid one holds. The same ones for the same seed.

    Greedy: of TRIES random valid combinations around a pair that is missing, the one with the most missing pairs. A
    pair that no try can complete is given up as impossible.
    """
    rng = random.Random(seed)
    names = sorted(dims)
    left = {
        pair
        for a, b in itertools.combinations(names, 2)
        for pair in itertools.product([(a, v) for v in dims[a]], [(b, v) for v in dims[b]])
    }
    taken: list[Combination] = []
    while left:
        goal = min(left, key=repr)
        best: Combination | None = None
        best_new: set[tuple[Any, ...]] = set()
        for _ in range(TRIES):
            made = {name: rng.choice(dims[name]) for name in names} | dict(goal)
            new = pairs_of(made) & left
            if len(new) > len(best_new) and valid(made):
                best, best_new = made, new
        if best is None:
            left.discard(goal)
        else:
            taken.append(best)
            left -= best_new
    return taken
