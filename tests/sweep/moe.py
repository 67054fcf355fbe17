"""Rows of experts, exhaustively: 400 products on random histograms, formats and ragged N and K, and a pool in which every kernel meets every coding."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from tests.cases.tile_plan import KINDS
from tests.moe import pool
from tests.moe.test_pool import right

SEED = 20261201
ITEMS, PRODUCTS = 40, 10  # 400 products; few kernels each, since builds are dear
LAYOUTS = ("nax", "strict", "permuted", "padded")
LARGE = (("skewed", 512, 40_000), ("uniform", 512, 40_000), ("out_of_range", 300, 33_000))  # more than 32,767 rows, and no multiple of a block
# Pairs that only multiply epilogues, result types and groups need not meet.
APART = (("kernel", "finish"), ("code", "finish"), ("kernel", "out"), ("code", "out"), ("kernel", "group"), ("group", "finish"), ("code", "bias"))


def items():
    for number in range(ITEMS):
        yield f"histograms/{number}", lambda n=number: _histograms(n)
    for number, histogram in enumerate(LARGE):
        yield f"large/{number}", lambda n=number, h=histogram: _large(n, h)
    for choice in kernels():
        yield f"kernel/{choice.family}/{choice.name}", lambda c=choice: _kernel(c)


@lru_cache(maxsize=1)
def kernels() -> tuple[pool.Choice, ...]:
    """Kernels in which every kernel meets every coding, type, row source, stride and edge."""
    return tuple({(c.family, c.name): c for c in pool.pool(seed=SEED, apart=APART)}.values())


def _kernel(choice: pool.Choice) -> None:
    for seed, layout in enumerate(LAYOUTS):
        right(choice, SEED + seed, layout=layout, checked=seed < 2)


def _histograms(number: int) -> None:
    """From one row to 300, over 1 to 512 experts; sizes that fit no block."""
    rng = np.random.default_rng(SEED + number)
    ragged = [c for c in kernels() if c.edge == "ragged"]
    few = [ragged[i] for i in rng.choice(len(ragged), size=3, replace=False)]
    for product in range(PRODUCTS):
        choice = few[product % len(few)]
        experts = int(2 ** rng.uniform(0, 9))
        histogram = (str(rng.choice(KINDS)), experts, 2 * int(2 ** rng.uniform(0, 7.2)))
        most = 200 if experts < 64 else 70
        right(choice, int(rng.integers(2**31)), layout=str(rng.choice(LAYOUTS)), histogram=histogram, sizes=_sizes(choice, rng, most), checked=bool(rng.integers(2)))


def _sizes(choice: pool.Choice, rng: np.random.Generator, most: int) -> tuple[int, int]:
    """Random N and K, of which the one that weights are packed along is whole groups."""
    group = choice.format.group if choice.format else 1
    n, k = int(rng.integers(1, most)), int(rng.integers(1, most))
    return (n, -(-k // group) * group) if choice.transpose else (-(-n // group) * group, k)


def _large(number: int, histogram: tuple) -> None:
    """The heights that policy takes, in the fast build."""
    for kernel, code, group in (("staged 64", ("nvfp4", 4, ""), 16), ("staged 128", ("affine", 4, ""), 32), ("vector 4", ("mxfp4", 4, ""), 32)):
        choice = pool.Choice("gather", kernel, code, group, "bfloat16", "bfloat16", True, ("plan", "runs")[number % 2], False, "n", "ragged", "", "")
        right(choice, SEED + number, layout="nax", histogram=histogram, sizes=(9, group), checked=False)
