"""Tile plans: 2,000 random routings, every builder against the definition, the kernels under 8 orders of threads."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

import mlx_tensorops as mt
from tests.cases import tile_plan as cases
from tests.tile_plan import judge

SEED = 20261130
ITEMS, PLANS = 40, 50
LARGE = ((40_000, 512, 64), (100_000, 2048, 32), (16_384, 128, 64), (65_536, 100_000, 16), (20_480, 512, 32), (8_000, 1, 16), (2**20, 1024, 64), (30_000, 3000, 16))  # one per item


def items():
    for number in range(ITEMS):
        yield f"plans/{number}", lambda n=number: _plans(n)


def _plans(number: int) -> None:
    """All but one are small. The checked build runs on every fifth."""
    rng = np.random.default_rng(SEED + number)
    for index in range(PLANS - 1):
        # Small numbers matter most: sizes spread evenly over powers of two.
        rows, experts = int(2 ** rng.uniform(0, 12)) - 1, int(2 ** rng.uniform(0, 10.3))
        block_m = int(rng.choice((1, 8, 16, 32, 64, 100)))
        ids = cases.routing(cases.KINDS[index % len(cases.KINDS)], rows, experts, rng)
        _compare(ids, experts, block_m, checked=index % 5 == 0)
    rows, experts, block_m = LARGE[number % len(LARGE)]
    ids = cases.routing(cases.KINDS[number % len(cases.KINDS)], rows, experts, rng)
    _compare(ids, experts, block_m, checked=False)


def _compare(ids, experts: int, block_m: int, checked: bool) -> None:
    want = cases.definition(ids, experts, block_m)
    if checked:
        judge.assert_same(judge.emulated(ids, experts, block_m, checked=True)[0].arrays, want)
    for seed in cases.ORDERS:
        judge.assert_same(judge.emulated(ids, experts, block_m, order_seed=seed)[0].arrays, want)
    for builder in ("cpu", "mlx"):
        judge.assert_same(mt.tile_plan(mx.array(ids), num_experts=experts, block_m=block_m, builder=builder).arrays, want)
    if ((ids >= 0) & (ids < experts)).all():
        judge.assert_same(mt.tile_plan(ids, num_experts=experts, block_m=block_m).arrays, want)
