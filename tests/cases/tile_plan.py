"""Tile plans: a definition by brute force, and routings that are hard in some way."""

from __future__ import annotations

import numpy as np

ORDERS = (0, 1, 2, 3, 5, 8, 13, 21)  # hostmetal's order_seed: index order, and seven drawn orders of threadgroups and threads


def definition(ids, num_experts: int, block_m: int) -> tuple[np.ndarray, ...]:
    """The six arrays of a plan, written down row by row: no sort, no prefix sum."""
    flat = [int(i) for i in np.asarray(ids).reshape(-1)]
    bins = [[] for _ in range(num_experts + 1)]
    for row, expert in enumerate(flat):
        bins[expert if 0 <= expert < num_experts else num_experts].append(row)
    tiles, order = [], []
    for expert, rows in enumerate(bins):
        for first in range(0, len(rows), block_m):
            tiles.append((expert if expert < num_experts else -1, len(order) + first, len(rows[first:first + block_m])))
        order += rows
    tiles += [(-1, len(flat), 0)] * (-(-len(flat) // block_m) + num_experts - len(tiles))
    inverse = [0] * len(flat)
    for position, row in enumerate(order):
        inverse[row] = position
    columns = (*zip(*tiles), order, inverse, [len(bins[-1])])
    return tuple(np.array(column, np.int32) for column in columns)


def routing(kind: str, rows: int, num_experts: int, rng: np.random.Generator) -> np.ndarray:
    """Expert ids of so many rows."""
    if kind == "uniform":
        return rng.integers(0, num_experts, rows)
    if kind == "skewed":  # a few experts get nearly everything
        return np.minimum((num_experts * rng.random(rows) ** 6).astype(np.int64), num_experts - 1)
    if kind == "one":
        return np.full(rows, rng.integers(num_experts))
    if kind == "sorted":
        return np.sort(rng.integers(0, num_experts, rows))
    if kind == "holes":  # every other expert is empty
        return rng.integers(0, (num_experts + 1) // 2, rows) * 2 % num_experts
    if kind == "out_of_range":
        return rng.choice([*range(num_experts), -1, -2**31, num_experts, 2**31 - 1], rows)
    if kind == "none":
        return rng.choice([-1, num_experts], rows)
    raise ValueError(kind)


KINDS = ("uniform", "skewed", "one", "sorted", "holes", "out_of_range", "none")


def example_shapes(variant) -> tuple[tuple[int, ...], ...]:
    """Shapes of inputs that every variant takes: 3,000 ids, 60 experts, tiles of 16 rows."""
    ids, sizes, counts = (3000,), (60, 16), (12, 61)
    return {"count": (ids, sizes), "whole": (ids, sizes), "scan": (counts, ids, sizes), "scatter": (ids, ids, counts)}[variant.dataflow]
