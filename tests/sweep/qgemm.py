"""Quantised products, exhaustively: a 3-wise covering array of kernels, and random problems on those that take every size."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from tests.cases import gemm as cases
from tests.weighted import pool
from tests.weighted.test_pool import right

SEED = 20261130
FUZZ_ITEMS, FUZZ_CASES, FUZZ_KERNELS = 60, 25, 5  # 1,500 random problems; few kernels, many problems: builds are dear


def items():
    for choice in choices():
        yield f"kernel/{choice.name}", lambda c=choice: _kernel(c)
    for number in range(FUZZ_ITEMS):
        yield f"fuzz/{number}", lambda n=number: _fuzz(SEED + n)


@lru_cache(maxsize=1)
def choices():
    """Kernels in which every triple of axis values occurs."""
    return tuple({c.name: c for c in pool.pool(strength=3, seed=SEED, apart=())}.values())


def _kernel(choice) -> None:
    """The checked build, each of its edges on two lane layouts."""
    for seed, layout in enumerate(cases.LAYOUTS):
        right(choice, choice.edges[seed % 2], seed, layout=layout)


def _fuzz(seed: int) -> None:
    """Random sizes, layouts of lanes and seeds."""
    rng = np.random.default_rng(seed)
    general = [c for c in choices() if c.row.endswith("/ragged")]
    kernels = [general[i] for i in rng.choice(len(general), size=FUZZ_KERNELS, replace=False)]
    for number in range(FUZZ_CASES):
        choice = kernels[number % FUZZ_KERNELS]
        m, n, k = (int(x) for x in rng.integers(1, (150, 280, 200)))
        group = choice.format.group
        sizes = (m, n, -(-k // group) * group) if choice.transpose else (m, -(-n // group) * group, k)
        right(choice, "", int(rng.integers(2**31)), layout=str(rng.choice(cases.LAYOUTS)), checked=False, sizes=sizes)
