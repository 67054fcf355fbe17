"""Covering arrays: few rows in which every combination of any `strength` axis values occurs."""

from __future__ import annotations

import itertools
import random
from typing import Callable, Mapping, Sequence


def covering_array(axes: Mapping[str, Sequence], *, strength: int = 2, seed: int = 0, legal: Callable[[dict], bool] = lambda row: True) -> list[dict]:
    """Rows that cover every legal combination of `strength` axes, chosen greedily and reproducibly.

    A combination is legal when some full row that contains it is legal. The axes are small here, so full rows are enumerated.
    """
    names = list(axes)
    candidates = [row for row in (dict(zip(names, values)) for values in itertools.product(*axes.values())) if legal(row)]
    groups = list(itertools.combinations(names, strength))

    def combinations(row):
        return {(group, tuple(row[name] for name in group)) for group in groups}

    todo = set().union(*map(combinations, candidates)) if candidates else set()
    order = random.Random(seed)
    order.shuffle(candidates)
    chosen = []
    while todo:
        best = max(candidates, key=lambda row: len(combinations(row) & todo))
        chosen.append(best)
        todo -= combinations(best)
    return chosen
