"""Few rows against many experts: each is a run of its own, in any order of ids, in one launch. Emulated."""

import mlx.core as mx
import numpy as np
import pytest

import mlx_tensorops as mt
from mlx_tensorops.reference import to_float64
from tests.moe.api import ids, products
from tests.quant.api import floats, on, over, stack

N, K = 40, 64
FORMS = (((7, 1), None, (7,)), ((2, 3, 1, 1), None, (2, 3, 2)), ((6, 2), None, (6,)), ((6, 1), (4, 1), (1, 3)), ((1, 1), None, (5,)))


def dispatched(call):
    """(result, name and row of each launch)."""
    with mt.trace() as trace:
        result = call()
        mx.eval(result)
    return result, [(d["op"], d["row"].split("/")[0]) for d in trace.dispatches]


@pytest.mark.parametrize("engine", ["mpp", "simdgroup"])
@pytest.mark.parametrize("name", ["nvfp4", None])
def test_one_launch_and_zero_rows_for_what_does_not_exist(name, engine):
    experts = 5
    stored, w, words = stack(name, experts, N, K, seed=1)
    bias = floats((experts, N), 4)
    for case, (shape, lhs, rhs) in enumerate(FORMS):
        x = floats((*shape, K), case)
        count = int(np.prod(shape[:-1]))
        left, right = None if lhs is None else ids(lhs, count, case, beyond=1), ids(rhs, experts, case, beyond=2)
        want, magnitude, valid = products(x, w, left, right)
        added = np.where(valid[..., None, None], to_float64(bias)[np.clip(np.broadcast_to(right, valid.shape), 0, experts - 1)][..., None, :], 0)
        given = [None if i is None else mx.array(i) for i in (left, right)]
        arrays = (x, *stored, *[None] * (3 - len(stored)), *given) if words else (x, stored[0].swapaxes(-1, -2), *given)
        operation = mt.gather_qmm if words else mt.gather_mm
        with on(engine):
            got, launches = dispatched(lambda: operation(*arrays, **words, bias=bias, activation="relu", engine=engine))
        assert launches == [("gather_qmm" if words else "gather_mm", "few")] and over(got, np.maximum(want + added, 0), magnitude + np.abs(added), k=K) <= 1
        assert not np.array(got)[~valid].any()


@pytest.mark.parametrize("experts, rows, few", [(5, 15, True), (5, 16, False), (40, 39, True), (40, 40, False)])
def test_where_few_ends(experts, rows, few):
    """Below 16 rows, or fewer rows than experts; from there on a plan, unless the ids ascend."""
    stored, w, words = stack("nvfp4", experts, N, K, seed=1)
    x, right = floats((rows, 1, K), 2), ids((rows,), experts, 3)
    for ascending in (False, True):
        chosen = np.sort(right) if ascending else right
        with on("mpp"):
            got, launches = dispatched(lambda: mt.gather_qmm(x, *stored, rhs_indices=mx.array(chosen), sorted_indices=ascending, **words, engine="mpp"))
        assert [op for op, _ in launches] == ["gather_qmm"] if few or ascending else {"tile_plan", "gather_qmm"} == {op for op, _ in launches}
        assert over(got, *products(x, w, None, chosen)[:2], k=K) <= 1


def test_a_layer_of_few_rows_is_three_launches():
    (gate, _, words), (up, _, _), (down, _, _) = (stack("nvfp4", 8, n, k, seed=n) for n, k in ((96, 64), (96, 64), (64, 96)))
    x, scores, right = floats((2, 64), 1), floats((2, 4), 2), ids((2, 4), 8, 3, beyond=1)
    with on("mpp"):
        got, launches = dispatched(lambda: mt.switch_glu(x, gate, up, down, mx.array(right), scores, **words, engine="mpp"))
        planned, others = dispatched(lambda: mt.switch_glu(x, gate, up, down, mx.array(right), scores, **words, plan=mt.tile_plan(mx.array(right), num_experts=8), engine="mpp"))
    assert [op for op, _ in launches] == ["gather_gateup", "gather_qmm", "switch_glu"]
    assert [op for op, _ in others][-3:] == ["gather_gateup", "gather_qmm", "switch_glu"] and len(others) > 3
    assert np.abs(np.array(got) - np.array(planned)).max() <= 1e-4 * np.abs(np.array(planned)).max() and np.abs(np.array(planned)).max() > 0


def test_host_ids_are_checked_without_a_plan_too():
    stored, _, words = stack("nvfp4", 5, N, K, seed=1)
    with on("mpp"), pytest.raises(mt.errors.TensorOpsError, match="rhs_indices holds 5 at position 1"):
        mt.gather_qmm(mx.ones((3, 1, K)), *stored, rhs_indices=[0, 5, 1], **words, engine="mpp")
