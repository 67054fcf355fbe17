"""Plans under ``mx.compile``: built by the device, arrays in and out."""

import mlx.core as mx
import numpy as np
import pytest

import mlx_tensorops as mt
from mlx_tensorops import hostmetal
from tests.cases import tile_plan as cases
from tests.tile_plan import judge

REPLAYS = (100, 3, 0, 1, 2500, 257)


@pytest.mark.parametrize("builder, shapeless", [("simdgroup", False), ("simdgroup", True), ("cpu", False), ("cpu", True)])
@pytest.mark.parametrize("first", [10, 3000])
def test_replays(builder, shapeless, first):
    """A graph traced on few rows takes many, and the other way round; block_m stays."""
    with hostmetal.active(checked=True):
        compiled = mx.compile(lambda ids: mt.tile_plan(ids, num_experts=9, block_m=16, builder=builder).arrays, shapeless=shapeless)
        for rows in (first, *REPLAYS):
            ids = cases.routing("out_of_range", rows, 9, np.random.default_rng(rows))
            with mt.trace() as trace:
                arrays = compiled(mx.array(ids.astype(np.int32)))
                mx.eval(*arrays)
            judge.assert_same(arrays, cases.definition(ids, 9, 16))
            if builder == "simdgroup" and shapeless and rows:
                assert len(trace.dispatches) == (1 if first == 10 else 3)


def test_composed_plans_have_one_shape_and_mlx_says_so():
    ids = mx.array([4, 9, 0, 4, -1])
    arrays = mx.compile(lambda ids: mt.tile_plan(ids, num_experts=9, block_m=2, builder="mlx").arrays)(ids)
    judge.assert_same(arrays, cases.definition(np.array(ids), 9, 2))
    compiled = mx.compile(lambda ids: mt.tile_plan(ids, num_experts=9, builder="mlx").arrays, shapeless=True)
    with pytest.raises(ValueError, match="cannot infer output shapes"):
        mx.eval(*compiled(mx.array([1, 2])))


def test_a_plan_goes_into_a_compiled_function_as_arrays():
    """Sums of x per tile, by a graph that never sees another plan than the one it is given."""

    def walk(x, *arrays):
        plan = mt.TilePlan(*arrays, num_experts=4, block_m=2)
        place = plan.tile_row_start[:, None] + mx.arange(2)
        inside = mx.arange(2) < plan.tile_row_count[:, None]
        return mx.where(inside, x[plan.order][mx.minimum(place, plan.rows - 1)], 0).sum(axis=1)

    compiled = mx.compile(walk)
    x = mx.array([1.0, 10, 100, 1000, 10000])
    assert compiled(x, *mt.tile_plan([0, 1, 0, 0, 3], num_experts=4, block_m=2).arrays).tolist() == [101, 1000, 10, 10000, 0, 0, 0]
    assert compiled(x, *mt.tile_plan([3, 3, 3, 3, 3], num_experts=4, block_m=2).arrays).tolist() == [11, 1100, 10000, 0, 0, 0, 0]


@pytest.mark.parametrize("builder", ["simdgroup", "cpu", "mlx"])
def test_a_plan_inside_a_gradient(builder):
    """Router scores lead to ids, ids to a plan, the plan to the order in which rows are summed: only the rows have a gradient."""

    def loss(router, x):
        ids = mx.argmax(router, axis=-1)
        plan = mt.tile_plan(ids, num_experts=3, block_m=4, builder=builder)
        return (x[plan.order] * mx.arange(5)).sum() + router.sum()

    router, x = mx.array(np.eye(3, dtype=np.float32)[[2, 0, 1, 0, 2]]), mx.zeros(5)
    with hostmetal.active():
        by_router, by_x = mx.grad(loss, argnums=(0, 1))(router, x)
        mx.eval(by_router, by_x)
    assert np.all(np.array(by_router) == 1) and by_x.tolist() == [3, 0, 2, 1, 4]
