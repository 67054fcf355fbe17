"""Dense weights of experts in any memory order, read where they lie: mlx-lm's layers pass ``weight.swapaxes(-1, -2)``. Emulated."""

import mlx.core as mx
import numpy as np
import pytest

import mlx_tensorops as mt
from mlx_tensorops import registry
from mlx_tensorops.policies import gateup, gather
from mlx_tensorops.primitives import _weighted
from mlx_tensorops.reference import to_float64
from mlx_tensorops.spec import WeightedSpec, WeightSpec
from mlx_tensorops.variant import VariantSet
from tests.moe.api import ids, products
from tests.planted import planted
from tests.quant.api import floats, on, over
from tests.weighted import experts, flows
from tests.weighted.cases import Problem

E, N, K = 5, 72, 40
FEW, MANY = 12, 90

# name -> (array [E, K, N], second letter of the row that reads it, None where any strides do)
VIEWS = {
    "rows of N": (lambda: floats((E, K, N), 1), "n"),
    "rows of K": (lambda: floats((E, N, K), 1).swapaxes(-1, -2), "t"),
    "rows of K of wider ones, from the last expert back": (lambda: floats((E, N + 3, K + 8), 1)[::-1, 2 : N + 2, 5 : K + 5].swapaxes(-1, -2), "t"),
    "one matrix for all": (lambda: mx.broadcast_to(floats((N, K), 1).T, (E, K, N)), "t"),
    "every other": (lambda: floats((E, 2 * N, 2 * K), 1)[:, ::2, ::2].swapaxes(-1, -2), None),
    "one column for all": (lambda: mx.broadcast_to(floats((E, K, 1), 1), (E, K, N)), "t"),
}


def row_of(dispatches, op: str) -> str:
    """Layout of the one row that ran."""
    (row,) = {d["row"].removeprefix("few/").split("/")[0] for d in dispatches if d["op"] == op}
    return row


@pytest.mark.parametrize("rows", [FEW, MANY])
@pytest.mark.parametrize("engine", ["mpp", "simdgroup"])
@pytest.mark.parametrize("name", VIEWS)
def test_values_and_rows(name, engine, rows):
    make, letter = VIEWS[name]
    b, x, right = make(), floats((rows, 1, K), 2), ids((rows,), E, 3, beyond=1)
    with on(engine), mt.trace() as trace:
        got = mt.gather_mm(x, b, rhs_indices=mx.array(right), engine=engine)
        assert over(got, *products(x, to_float64(b), None, right)[:2], k=K) <= 1
    assert row_of(trace.dispatches, "gather_mm") == (f"n{letter}" if letter else "tn")


@pytest.mark.parametrize("own", ["rows of K", "rows of N"])
@pytest.mark.parametrize("transpose", [True, False])
def test_gate_and_up_of_one_order_or_two(own, transpose):
    """Where gate lies one way and up the other, the row for any strides reads both."""
    gate, up = (VIEWS[name][0]() for name in ("rows of K", own))
    arrays = [w.swapaxes(-1, -2) if transpose else w for w in (gate, up[::-1])]
    x, right = floats((FEW, 1, K), 2), ids((FEW,), E, 3)
    with on("mpp"), mt.trace() as trace:
        got = mt.gather_gateup(x, *arrays, None, mx.array(right), transpose, activation=None, engine="mpp")
        for y, w in zip(got, (gate, up[::-1])):
            assert over(y, *products(x, to_float64(w), None, right)[:2], k=K) <= 1
    assert row_of(trace.dispatches, "gather_gateup") == ("nt" if own == "rows of K" else "tt" if transpose else "tn")


def spec_of(family: str = "gather", x: str = "float32") -> WeightedSpec:
    two = family == "gateup"
    return WeightedSpec(x, x, WeightSpec("", x, transpose=False), rows="runs", destinations=1 + two, gate="swiglu" * two, op="gather_gateup" if two else "gather_mm")


def set_of(spec: WeightedSpec, engine: str) -> VariantSet:
    table = gateup if spec.destinations == 2 else gather
    return VariantSet(spec, engine, _weighted.rows(spec, engine, table.choose(spec, engine)))


def in_order(problem: Problem, order: str) -> Problem:
    """The same weights, in memory as rows of K ("t"), of N ("n"), or every other element of twice as many ("s")."""
    def view(w):
        if order == "s":
            return mx.repeat(mx.repeat(w, 2, 1), 2, 2)[:, ::2, ::2]
        return mx.contiguous(w.swapaxes(-1, -2)).swapaxes(-1, -2) if order == "t" else w

    return Problem(problem.spec, {name: view(a) if name.startswith("w") else a for name, a in problem.arrays.items()})


@pytest.mark.parametrize("family, engine, rows", [("gather", "mpp", 128), ("gather", "simdgroup", 128), ("gather", "mpp", FEW), ("gateup", "mpp", FEW)])
def test_bytes_of_every_order_are_those_of_the_cost(family, engine, rows):
    """Full blocks of one expert, or each row alone: x and the weights are read as often as the cost rules say, no element for its view."""
    spec = spec_of(family)
    chosen = ids((rows,), E, 1).astype(np.int32) if rows == FEW else np.full(rows, 2, np.int32)
    given, *where = experts.problem(spec, chosen, 128, 64, 3)
    variants = set_of(spec, engine)
    loaded = {}
    for order in "tns":
        problem = in_order(given, order)
        results, dispatch = flows.run(variants, problem.inputs, checked=True)
        assert experts.over_bound(problem, *where, results) <= 1
        variant = variants[dispatch["row"]]
        assert variant.layout == {"t": "nt", "n": "nn", "s": "tn"}[order]
        rules = registry.family(family).cost(variant).operand_bytes
        shapes = [a.shape for a in problem.inputs]
        for name, count, bytes_of in zip(problem.names, dispatch["counters"]["device_load"], rules):
            if name[0] in "xw":
                assert count == bytes_of(shapes), (order, name)
                if name[0] == "w" and rows == FEW:
                    assert count == FEW * 128 * 64 * 4, "each row reads its expert's weights once"
        loaded[order] = dispatch["counters"]["device_load"][1]
    assert loaded["t"] == loaded["n"] or engine == "simdgroup"


@pytest.mark.parametrize("engine", ["mpp", "simdgroup"])
def test_an_expert_set_is_not_copied(engine):
    """Peak memory of a call stays far below the weights', which a copy reaches."""
    stored = floats((16, 256, 1024), 1, mx.bfloat16)
    x, right = floats((4, 1, 1024), 2, mx.bfloat16), mx.array([3, 15, 0, 3])
    mx.eval(stored, x, right)

    def peak(b):
        mx.synchronize()
        mx.clear_cache()
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        with on(engine):
            mx.eval(mt.gather_mm(x, b, rhs_indices=right, engine=engine))
        return mx.get_peak_memory() - before

    swapped = stored.swapaxes(-1, -2)
    assert peak(swapped) < stored.nbytes // 8
    assert peak(stored.reshape(4, 4, 256, 1024).swapaxes(-1, -2).reshape(16, 1024, 256)) < stored.nbytes // 8
    assert peak(mx.contiguous(swapped)) >= stored.nbytes, "what this test would see"


def test_leading_axes_of_experts_are_merged_without_a_copy():
    stored, x = floats((2, 3, N, K), 1), floats((6, 1, K), 2)
    right = np.arange(6)[::-1].copy()
    with on("mpp"), mt.trace() as trace:
        got = mt.gather_mm(x, stored.swapaxes(-1, -2), rhs_indices=mx.array(right), engine="mpp")
        w = to_float64(stored.reshape(6, N, K).swapaxes(-1, -2))
        assert over(got, *products(x, w, None, right)[:2], k=K) <= 1
    assert row_of(trace.dispatches, "gather_mm") == "nt"


@pytest.mark.parametrize("shapeless", [False, True])
def test_a_compiled_graph_is_replayed_with_another_order(shapeless):
    """Only a graph that is evaluated knows strides: the row is chosen then, also where the graph was traced with others."""
    with on("mpp"), mt.trace() as trace:
        compiled = mx.compile(lambda x, b, right: mt.gather_mm(x, b, rhs_indices=right, engine="mpp"), shapeless=shapeless)
        for name, rows in (("rows of K", FEW), ("rows of N", FEW), ("every other", FEW), ("rows of N", 7), ("rows of K", 7)):
            b, x, right = VIEWS[name][0](), floats((rows, 1, K), 2), ids((rows,), E, rows)
            assert over(compiled(x, b, mx.array(right)), *products(x, to_float64(b), None, right)[:2], k=K) <= 1
    assert [d["row"] for d in trace.dispatches] == [f"few/{layout}/ragged" for layout in ("nt", "nn", "tn", "nn", "nt")]


def test_gradients_through_a_swapped_view():
    stored, x, right = floats((E, N, K), 1), floats((FEW, 1, K), 2), ids((FEW,), E, 3)
    with on("mpp"):
        dx, dw = mx.grad(lambda x, w: (mt.gather_mm(x, w.swapaxes(-1, -2), rhs_indices=mx.array(right), engine="mpp") ** 2).sum(), argnums=(0, 1))(x, stored)
        mx.eval(dx, dw)
    w = to_float64(stored)
    y = np.einsum("rk,rnk->rn", to_float64(x)[:, 0], w[right])
    want = np.zeros_like(w)
    np.add.at(want, right, 2 * y[:, :, None] * to_float64(x))
    for got, exact in ((dx[:, 0], np.einsum("rn,rnk->rk", 2 * y, w[right])), (dw, want)):
        assert np.abs(to_float64(got) - exact).max() <= 2e-5 * np.abs(exact).max()


BUGS = (
    ("the step of a row taken for 1", "s", FEW, "(inner + i) * w_step", "(inner + i)"),
    ("rows of K walked as rows of N", "t", FEW, "outer = column, inner = k", "outer = k, inner = column"),
    ("staged rows of K shifted", "t", 128, "w + column0 * w_row + k0 * w_step", "w + column0 * w_row + k0 * w_row"),
)


@pytest.mark.parametrize("bug, order, rows, before, after", BUGS, ids=[bug[0] for bug in BUGS])
def test_planted_bugs_are_caught(bug, order, rows, before, after):
    spec = spec_of()
    chosen = ids((rows,), E, 1).astype(np.int32) if rows == FEW else np.full(rows, 2, np.int32)
    given, *where = experts.problem(spec, chosen, 128, 128, 3)
    problem = in_order(given, order)
    with planted(before, after):
        assert flows.caught(set_of(spec, "mpp"), problem, lambda results: experts.over_bound(problem, *where, results)), bug
