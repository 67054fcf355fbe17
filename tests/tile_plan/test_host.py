"""The host builder against the definition, and what a plan says about itself."""

import mlx.core as mx
import numpy as np
import pytest

import mlx_tensorops as mt
from mlx_tensorops.errors import DTypeError, ShapeError, TensorOpsError
from mlx_tensorops.plans import ARRAYS
from mlx_tensorops.policies import tile_plan as policy
from tests.cases import tile_plan as cases
from tests.tile_plan import judge


@pytest.mark.parametrize("kind", [k for k in cases.KINDS if k not in ("out_of_range", "none")])
def test_against_the_definition(kind):
    rng = np.random.default_rng(11)
    for rows, experts, block_m in ((0, 1, 1), (0, 9, 16), (1, 1, 16), (1, 300, 64), (17, 3, 1), (200, 8, 16), (1000, 512, 32), (3000, 5, 64), (500, 7, 1000)):
        ids = cases.routing(kind, rows, experts, rng)
        plan = mt.tile_plan(ids, num_experts=experts, block_m=block_m)
        judge.assert_same(plan.arrays, cases.definition(ids, experts, block_m))
        assert (plan.rows, plan.num_experts, plan.block_m) == (rows, experts, block_m)
        plan.check()


def test_ids_of_any_form():
    want = cases.definition([2, 0, 1, 2, 2, 0], 3, 2)
    for ids in ([2, 0, 1, 2, 2, 0], [[2, 0, 1], [2, 2, 0]], (2, 0, 1, 2, 2, 0), np.array([[[2, 0], [1, 2], [2, 0]]], np.uint8), np.array([0, 2, 2, 1, 0, 2])[::-1]):
        judge.assert_same(mt.tile_plan(ids, num_experts=3, block_m=2).arrays, want)
    judge.assert_same(mt.tile_plan(mx.array([2, 0, 1, 2, 2, 0]), num_experts=3, block_m=2, builder="host").arrays, want)


def test_from_offsets_is_the_plan_of_sorted_ids():
    rng = np.random.default_rng(3)
    for experts, rows, block_m in ((1, 0, 16), (1, 5, 2), (6, 100, 16), (40, 333, 32)):
        ids = cases.routing("sorted", rows, experts, rng)
        offsets = np.concatenate([[0], np.cumsum(np.bincount(ids, minlength=experts))])
        want = cases.definition(ids, experts, block_m)
        for given in (offsets, offsets.tolist()):
            judge.assert_same(mt.tile_plan(offsets=given, block_m=block_m).arrays, want)
        judge.assert_same(mt.tile_plan(offsets=mx.array(offsets), rows=rows, block_m=block_m).arrays, want)


def test_device_offsets_that_make_no_sense_still_give_a_plan():
    for offsets in ([0, 50, 20, 90, 70], [-5, 3, 1000, 1000, 1000], [9, 9, 9, 9, 9], [0, 0, 0, 0, 0]):
        plan = mt.tile_plan(offsets=mx.array(offsets), rows=64, block_m=16)
        plan.check()
        assert plan.dropped.item() == 64 - min(max(max(offsets[1:]), 0), 64)


@pytest.mark.parametrize("rows, experts, block_m", [(8, 128, 4), (4 * 8 - 1, 8, 4), (4 * 8, 8, 64), (64 * 8 - 1, 8, 64), (64 * 8, 8, 128), (16384, 128, 128), (0, 4, 4)])
def test_block_m_by_rows_per_expert(rows, experts, block_m):
    assert policy.block_m(rows, experts) == block_m
    assert mt.tile_plan(np.zeros(rows, int), num_experts=experts).block_m == block_m
    assert mt.tile_plan(mx.zeros(rows, mx.int32), num_experts=experts).block_m == block_m


def test_utilisation_and_text():
    plan = mt.tile_plan([2, 0, 1, 2, 2, 0], num_experts=4, block_m=2)
    assert plan.utilisation() == 6 / 8
    assert repr(plan) == "TilePlan(6 rows, 4 experts, block_m 2, 7 tiles, 4 of them with rows: 75% useful)"
    lazy = mt.tile_plan(mx.array([2, 0, -1, 9, 2, 0]), num_experts=4, block_m=2)
    assert repr(lazy) == "TilePlan(6 rows, 4 experts, block_m 2, 7 tiles)"
    assert lazy.utilisation() == 4 / 6 and lazy.dropped.item() == 2
    assert mt.tile_plan([], num_experts=4).utilisation() == 1.0


def by_hand(**changed):
    """A legal plan of 5 rows for 2 experts in an order nobody would choose, with changes."""
    given = dict(tile_expert=[1, 0, -1], tile_row_start=[3, 0, 2], tile_row_count=[2, 2, 1], order=[4, 1, 0, 2, 3], inverse=[2, 1, 3, 4, 0],
                 dropped=[1], num_experts=2, block_m=2)
    return mt.TilePlan(**given | changed)


def test_a_plan_made_by_hand():
    plan = by_hand()
    assert plan.utilisation() == 4 / 6 and all(x.dtype == mx.int32 for x in plan.arrays)
    lazy = mt.TilePlan(*plan.arrays, num_experts=2, block_m=2)
    lazy.check()
    judge.assert_same(lazy.arrays, [np.array(x) for x in plan.arrays])


@pytest.mark.parametrize("change, message", [
    (dict(tile_expert=[1, 2, -1]), r"tile_expert\[1\] = 2.\n  nearest legal: -1 .. 1"),
    (dict(tile_row_count=[2, 3, 0]), r"tile_row_count\[1\] = 3.\n  nearest legal: 0 .. block_m = 2"),
    (dict(tile_row_start=[4, 0, 2]), r"tile_row_start\[0\] = 4.\n  nearest legal: the tile's rows within 0 .. 4"),
    (dict(tile_row_start=[3, 0, 1]), r"position 1 is in two tiles"),
    (dict(tile_row_count=[2, 2, 0]), r"positions 2 .. 2 are in no tile"),
    (dict(tile_row_count=[1, 2, 1]), r"positions 4 .. 4 are in no tile"),
    (dict(order=[4, 1, 0, 2, 5]), r"order\[4\] = 5.\n  nearest legal: 0 .. 4"),
    (dict(order=[4, 1, 0, 2, 2]), r"order\[4\] = 2.\n  nearest legal: a permutation that inverse undoes"),
    (dict(inverse=[2, 1, 3, -1, 0]), r"inverse\[3\] = -1"),
    (dict(dropped=[0]), r"dropped = 0, but tiles of expert -1 hold 1 rows"),
    (dict(dropped=[1, 1]), r"dropped has shape \(2,\).\n  nearest legal: \(1,\)"),
    (dict(tile_row_count=[2, 2]), r"tile_row_count has shape \(2,\).\n  nearest legal: \(3,\)"),
    (dict(inverse=[[0]]), r"inverse has shape \(1, 1\)"),
    (dict(order=[[0]], inverse=[[0]]), r"order has shape \(1, 1\).\n  nearest legal: one axis"),
    (dict(order=[4.0, 1, 0, 2, 3]), r"order is float64.\n  nearest legal: an integer type"),
    (dict(num_experts=0), r"num_experts = 0.\n  nearest legal: 1"),
    (dict(block_m=True), r"block_m is True.\n  nearest legal: a whole number of at least 1"),
])
def test_contradictions_are_named(change, message):
    with pytest.raises(TensorOpsError, match=rf"\[tile_plan\] {message}"):
        by_hand(**change)


def test_a_device_plan_is_checked_on_request():
    arrays = dict(zip(ARRAYS, by_hand().arrays))
    wrong = mt.TilePlan(**arrays | {"tile_row_start": mx.array([3, 0, 1])}, num_experts=2, block_m=2)
    with pytest.raises(TensorOpsError, match="position 1 is in two tiles"):
        wrong.check()
    lost = mt.TilePlan(**arrays | {"tile_row_count": mx.array([2, 2, 0])}, num_experts=2, block_m=2)
    with pytest.raises(TensorOpsError, match="positions 2 .. 2 are in no tile"):
        lost.check()
    with pytest.raises(ShapeError, match=r"order has shape \(2,\)|inverse has shape \(5,\)"):
        mt.TilePlan(**arrays | {"order": mx.array([1, 0])}, num_experts=2, block_m=2)
    with pytest.raises(DTypeError, match=r"dropped is uint32.\n  nearest legal: int32\n  instead: dropped.astype\(mx.int32\)"):
        mt.TilePlan(**arrays | {"dropped": mx.array([1], mx.uint32)}, num_experts=2, block_m=2)
