"""Every device builder gives the host's arrays: whatever the routing, the order of threads, the type and the strides of the ids."""

import mlx.core as mx
import numpy as np
import pytest

import mlx_tensorops as mt
from mlx_tensorops.policies import tile_plan as policy
from tests.cases import tile_plan as cases
from tests.tile_plan import judge

# rows, experts, rows of a tile: on both sides of what one launch takes, of a step, of a block of bins, and of a chunk
SMALL = ((1, 1, 16), (1, 700, 64), (5, 3, 1), (255, 8, 16), (256, 255, 16), (257, 256, 32), (700, 1024, 16), (2048, 64, 32), (33, 4, 1000))
STAGED = ((2049, 8, 16), (100, 1025, 16), (4096, 1023, 64), (5000, 512, 16), (16385, 3, 64))


@pytest.mark.parametrize("kind", cases.KINDS)
def test_routings_under_every_order(kind):
    rng = np.random.default_rng(5)
    for rows, experts, block_m in SMALL + STAGED:
        ids = cases.routing(kind, rows, experts, rng)
        want = cases.definition(ids, experts, block_m)
        for seed in cases.ORDERS if rows < 1000 else cases.ORDERS[:3]:
            plan, dispatches = judge.emulated(ids, experts, block_m, order_seed=seed)
            judge.assert_same(plan.arrays, want)
            assert [d["row"] for d in dispatches] == (["whole"] if policy.in_one_launch(rows, experts) else ["count", "scan", "scatter"])
        for builder in ("cpu", "mlx"):
            judge.assert_same(mt.tile_plan(mx.array(ids), num_experts=experts, block_m=block_m, builder=builder).arrays, want)


@pytest.mark.parametrize("rows, experts, block_m", SMALL + STAGED)
def test_checked_builds_find_nothing(rows, experts, block_m):
    rng = np.random.default_rng(rows)
    for number, kind in enumerate(("skewed", "out_of_range")):
        ids = cases.routing(kind, rows, experts, rng)
        plan, _ = judge.emulated(ids, experts, block_m, checked=True, order_seed=number * 7)
        judge.assert_same(plan.arrays, cases.definition(ids, experts, block_m))
        plan.check()


@pytest.mark.parametrize("kind", ["uniform", "skewed", "one", "out_of_range"])
def test_forty_thousand_rows_of_512_experts(kind):
    rows, experts, block_m = 40_000, 512, 64
    ids = cases.routing(kind, rows, experts, np.random.default_rng(1))
    want = cases.definition(ids, experts, block_m)
    for seed in cases.ORDERS:
        judge.assert_same(judge.emulated(ids, experts, block_m, order_seed=seed)[0].arrays, want)
    judge.assert_same(judge.emulated(ids, experts, block_m, checked=kind == "skewed", order_seed=4)[0].arrays, want)
    if kind != "out_of_range":
        judge.assert_same(mt.tile_plan(ids, num_experts=experts, block_m=block_m).arrays, want)


def test_a_million_rows_of_5000_experts():
    ids = cases.routing("skewed", 2**20 + 77, 5000, np.random.default_rng(2))
    host = mt.tile_plan(ids, num_experts=5000, block_m=16)
    plan, _ = judge.emulated(ids, 5000, 16, order_seed=9)
    judge.assert_same(plan.arrays, [np.array(x) for x in host.arrays])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("rows, experts", [(300, 100), (3000, 200)])
def test_ids_of_any_integer_type(dtype, rows, experts):
    """Ids beyond every expert stay beyond: also those whose low 32 bits look like one."""
    limits = np.iinfo(dtype)
    values = [x for x in (-1, limits.min, limits.max, 2**32 + 1, -2**32 + 1, 2**63 + 1, *range(experts)) if limits.min <= x <= limits.max]
    ids = np.random.default_rng(rows).choice(np.array(values, dtype), rows)
    want = cases.definition(ids, experts, 16)
    judge.assert_same(judge.emulated(mx.array(ids), experts, 16)[0].arrays, want)
    for builder in ("cpu", "mlx"):
        judge.assert_same(mt.tile_plan(mx.array(ids), num_experts=experts, block_m=16, builder=builder).arrays, want)


@pytest.mark.parametrize("rows, checked", [(40, True), (900, True), (2500, False)])
def test_ids_of_any_strides(rows, checked):
    base = mx.array(cases.routing("out_of_range", 4 * rows, 20, np.random.default_rng(rows)).astype(np.int32))
    views = (base.reshape(-1, 4)[:, 1], base[::-1], base.reshape(4, -1).T, mx.broadcast_to(base[:rows, None], (rows, 3)), mx.broadcast_to(base[5], (rows,)), base[3:][::3])
    for ids in views:
        want = cases.definition(np.array(ids), 20, 16)
        judge.assert_same(judge.emulated(ids, 20, 16, checked=checked)[0].arrays, want)


def test_an_array_is_not_evaluated():
    ids = mx.array([3, 1]) + mx.array([0, 9])
    with mt.trace() as trace:
        mt.tile_plan(ids, num_experts=4)
    assert trace.dispatches == [] and [c.engine for c in trace.calls] == ["cpu"]
    with pytest.raises(ValueError, match="eval"):  # what reads values cannot be compiled
        mx.compile(lambda i: mt.tile_plan(i, num_experts=4, builder="host").order)(ids)


def test_sizes_of_every_engine_follow_the_arrays_alone():
    """No rows at all: only inert tiles."""
    for experts in (1, 1024, 2000):
        want = cases.definition([], experts, 32)
        judge.assert_same(judge.emulated(mx.zeros((0, 8), mx.int32), experts, 32, checked=True)[0].arrays, want)
        for builder in ("cpu", "mlx", "host"):
            judge.assert_same(mt.tile_plan(mx.zeros((0,), mx.int32), num_experts=experts, block_m=32, builder=builder).arrays, want)
