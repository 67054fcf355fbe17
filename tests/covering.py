"""Covering arrays: few rows in which every combination of any `strength` axis values occurs."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from typing import Callable, Mapping, Sequence

SAMPLE = 120  # candidates looked at per chosen row: more give slightly fewer rows and take longer
LIMIT = 20_000  # full rows enumerated; of a larger product so many are drawn, enough to meet every pair and triple that is not rare


def covering_array(
    axes: Mapping[str, Sequence],
    *,
    strength: int = 2,
    seed: int = 0,
    at_least: int = 1,
    legal: Callable[[dict], bool] = lambda row: True,
    apart: Sequence[tuple[str, str]] = (),
    also: Sequence[tuple[str, ...]] = (),
    limit: int = LIMIT,
) -> list[dict]:
    """Rows that cover every legal combination of `strength` axes, chosen greedily and reproducibly.

    Args:
        axes: name -> values.
        at_least: every single value occurs in so many rows, or in all legal rows that have it.
        legal: whether a full row can exist.
        apart: pairs of axes whose values need not meet.
        also: further axes of which every legal combination occurs.
        limit: full rows drawn to choose from, where there are more.
    """
    names = list(axes)
    source = random.Random(seed)
    candidates = _candidates(axes, legal, source, limit)
    groups = [g for g in itertools.combinations(names, min(strength, len(names))) if not any(set(pair) <= set(g) for pair in apart)]
    groups += also

    combinations = [[(group, tuple([row[name] for name in group])) for group in groups] for row in candidates]
    todo: dict[tuple, list[int]] = {}  # combination -> candidates that have it
    for index, found in enumerate(combinations):
        for combination in found:
            todo.setdefault(combination, []).append(index)
    chosen: list[int] = []
    while todo:
        open_one = next(iter(todo))  # always one that is still missing, so that every step makes progress
        having = todo[open_one]
        sample = having if len(having) <= SAMPLE else source.sample(having, SAMPLE)
        best = max(sample, key=lambda i: sum([c in todo for c in combinations[i]]))
        chosen.append(best)
        for combination in combinations[best]:
            todo.pop(combination, None)
    _top_up(candidates, chosen, names, at_least, source)
    return [candidates[i] for i in chosen]


def covering_sample(items: Sequence, features: Callable[[object], tuple], *, seed: int = 0) -> list:
    """Items in which every pair of features occurs that occurs in all of them; taken in a drawn order, reproducibly."""
    drawn, seen, chosen = list(items), set(), []
    random.Random(seed).shuffle(drawn)
    for item in drawn:
        pairs = set(itertools.combinations(features(item), 2))
        if pairs - seen:
            seen |= pairs
            chosen.append(item)
    return chosen


def _candidates(axes, legal, source: random.Random, limit: int) -> list[dict]:
    if math.prod(map(len, axes.values())) <= limit:
        rows = [dict(zip(axes, values)) for values in itertools.product(*axes.values())]
        source.shuffle(rows)
        return [row for row in rows if legal(row)]
    found: dict[tuple, dict] = {}
    for _ in range(100 * limit):
        row = {name: source.choice(values) for name, values in axes.items()}
        if legal(row):
            found[tuple(row.values())] = row
        if len(found) == limit:
            break
    return list(found.values())


def _top_up(candidates, chosen: list[int], names, at_least: int, source: random.Random) -> None:
    seen = Counter((name, candidates[i][name]) for i in chosen for name in names)
    taken = set(chosen)
    for name in names:
        for value in dict.fromkeys(row[name] for row in candidates):
            having = [i for i, row in enumerate(candidates) if row[name] == value and i not in taken]
            source.shuffle(having)
            for index in having[: max(0, at_least - seen[name, value])]:
                chosen.append(index)
                taken.add(index)
                seen.update((n, candidates[index][n]) for n in names)
