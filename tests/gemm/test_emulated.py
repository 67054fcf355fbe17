"""Every pooled variant of the direct dataflow, executed in the emulator against float64."""

import mlx.core as mx
import numpy as np
import pytest

import mlx_tensorops as mt
from mlx_tensorops import hostmetal, reference, registry
from mlx_tensorops.primitives.gemm_dataflows import EVERY_ROW as ROWS
from mlx_tensorops.variant import Tile
from tests.cases import gemm as cases
from tests.gemm import blocks, flows, judge
from tests.planted import planted

POOL = cases.pool()
CHECKED = [c for i, c in enumerate(POOL) if i % 3 == 0 or c["row"].endswith("/aligned")]
HALF = dict(operand="float16", out="float16", precision="exact")


def name(choice):
    return "-".join(choice.values())


def test_the_pool_covers_every_pair_of_axis_values():
    seen = {frozenset((n, row[n]) for n in pair) for row in POOL for pair in [(x, y) for x in row for y in row if x < y]}
    want = {frozenset((n, row[n]) for n in pair) for row in cases.everything() for pair in [(x, y) for x in row for y in row if x < y]}
    default = [v for v in registry.family("gemm").variants() if (v.engine, v.size, v.options) == ("mpp", "", ()) and v.dataflow in ("direct", "staged")]
    assert seen == want and len(cases.everything()) == len(default) and len(POOL) < len(cases.everything()) / 3


@pytest.mark.exhaustive
@pytest.mark.parametrize("choice", POOL, ids=name)
def test_values_on_every_layout(choice):
    case = cases.ROW_CASES[choice["row"]]
    for number, layout in enumerate(cases.LAYOUTS):
        a, b, c, dispatch = judge.run(choice, case, seed=number, layout=layout)
        assert judge.errors_over_bound(a, b, c, choice["out"]) <= 1, layout
        judge.counters_as_predicted(cases.variant_of(choice), (a.shape, b.shape), dispatch, layout)


@pytest.mark.exhaustive
@pytest.mark.parametrize("choice", CHECKED, ids=name)
def test_checked_build_finds_nothing_and_counts_every_byte(choice):
    case = cases.ROW_CASES[choice["row"]]
    layout = "nax"
    a, b, c, dispatch = judge.run(choice, case, seed=7, layout=layout, checked=True)
    assert judge.errors_over_bound(a, b, c, choice["out"]) <= 1
    assert dispatch["counters"]["device_load"][0] > 0
    judge.counters_as_predicted(cases.variant_of(choice), (a.shape, b.shape), dispatch, layout)


@pytest.mark.parametrize("m, n, k", cases.EDGE_SIZES)
def test_edges(m, n, k):
    for b_view in ("rows", "columns"):
        a = cases.make("rows", m, k, "float16", np.random.default_rng(m * n + k))
        b = cases.make(b_view, k, n, "float16", np.random.default_rng(m + n * k))
        for checked in (False, True):
            with hostmetal.active(layout="padded", checked=checked):
                c = mt.matmul(a, b, engine="mpp")
                mx.eval(c)
            assert judge.errors_over_bound(a, b, c, "float16") <= 1


@pytest.mark.parametrize("a_view", cases.VIEWS)
@pytest.mark.parametrize("b_view", cases.VIEWS)
def test_every_pair_of_views(a_view, b_view):
    a = cases.make(a_view, 35, 20, "float16", np.random.default_rng(1))
    b = cases.make(b_view, 20, 70, "float16", np.random.default_rng(2))
    with hostmetal.active(checked=True):
        c = mt.matmul(a, b, engine="mpp")
        mx.eval(c)
    assert judge.errors_over_bound(a, b, c, "float16") <= 1


def test_nothing_past_the_matrix_leaks_in():
    """NaN around both operands: rows, columns and the K tail outside the views must not reach the result."""
    rng = np.random.default_rng(3)
    wide_a, wide_b = np.full((40, 30), np.nan, np.float32), np.full((30, 90), np.nan, np.float32)
    wide_a[:35, :21], wide_b[:21, :70] = rng.normal(size=(35, 21)), rng.normal(size=(21, 70))
    a, b = (mx.array(x).astype(mx.float16) for x in (wide_a, wide_b))
    a, b = a[:35, :21], b[:21, :70]
    with hostmetal.active(checked=True):
        c = mt.matmul(a, b, engine="mpp")
        mx.eval(c)
    assert judge.errors_over_bound(a, b, c, "float16") <= 1


@pytest.mark.parametrize("m, n, k", [(0, 4, 3), (3, 0, 4), (3, 4, 0), (0, 0, 0)])
def test_empty(m, n, k):
    with hostmetal.active(), mt.trace() as trace:
        c = mt.matmul(mx.ones((m, k), mx.float16), mx.ones((k, n), mx.float16), engine="mpp")
        mx.eval(c)
    assert c.shape == (m, n) and not np.any(np.array(c)) and c.dtype == mx.float16
    assert trace.dispatches == []


def test_values_of_every_size():
    """Activations from large to tiny, where a type can hold the result: no scale is lost in staging."""
    for operand in ("float16", "bfloat16"):
        for scale in (10.0, 0.1, 0.003):
            choice = dict(row="nn/ragged", operand=operand, out="float32", precision="exact")
            a, b, c, _ = judge.run(choice, cases.ROW_CASES["nn/ragged"], seed=11, layout="strict", scale=scale)
            assert judge.errors_over_bound(a, b, c, "float32") <= 1


def test_tf32_may_lose_low_bits_and_exact_may_not():
    case = cases.ROW_CASES["nn/aligned"]
    over = {}
    for precision in ("exact", "tf32"):
        choice = dict(row="nn/aligned", operand="float32", out="float32", precision=precision)
        a, b, c, _ = judge.run(choice, case, seed=4, layout="nax", truncate_f32=True)
        over[precision] = judge.errors_over_bound(a, b, c, "float32")
        assert judge.errors_over_bound(a, b, c, "float32", relaxed_f32=True) <= 1
    assert over["exact"] <= 1 < over["tf32"], over


# Each changes one constant or expression of the emitted shader. A layout is named where only it reveals the bug.
PLANTED = (
    ("wrong descriptor K", "OK = 16;", "OK = 8;"),
    ("swapped coordinates", "row0 + int(index[1]), column = column0 + int(index[0]);", "row0 + int(index[0]), column = column0 + int(index[1]);"),
    ("operand coordinates swapped", "valid ? int(index[1]) : 0, column = valid ? int(index[0])", "valid ? int(index[0]) : 0, column = valid ? int(index[1])"),
    ("last K step dropped", "step < steps;", "step < steps - 1;"),
    ("second fragment of A from the first row", "a + (row0 + 1 * OM)", "a + (row0 + 0 * OM)"),
    ("B walks K too fast", "b0 += OK * b_k;", "b0 += OK * b_k + 1;"),
    ("simdgroups share columns", "int(simdgroup) % SIMDGROUPS_N * WN", "int(simdgroup) % SIMDGROUPS_N * ON"),
    ("wrong product into c01", "op.run(left0, right, c01);", "op.run(left1, right, c01);"),
    ("C not zeroed", "  zero(c11);\n", ""),
    ("tail not masked", "< k_left;", "< OK;"),
    ("rows not clamped", "if (CLAMP_ROWS) row = min(row, rows - 1);", ""),
    ("columns stored past the edge", "(!MASK_COLUMNS || column < N)", "true"),
    ("C rounded twice", "T(finish.apply(ct[i], row, column))", "T(float(bfloat(finish.apply(ct[i], row, column))))"),
)


@pytest.mark.parametrize("bug, before, after", PLANTED, ids=[p[0] for p in PLANTED])
def test_planted_bugs_are_caught(bug, before, after):
    """The emitted text is corrupted; the kernel must then be wrong or found out."""
    variants = flows.variant_set("mpp", "direct", Tile(64, 128, 2, 2, 16, 32, 16), flows.spec_of("float16"))
    a = cases.make("rows", 67, 37, "float16", np.random.default_rng(8))
    b = cases.make("rows", 37, 150, "float16", np.random.default_rng(9))
    with planted(before, after):
        assert blocks.caught(variants, a, b), f"not caught: {bug}"


def test_the_last_row_of_a_set_always_fits():
    assert ROWS[-1] == ("strided", "ragged")


def test_gradient_of_the_kernel():
    a = cases.make("rows", 20, 33, "float32", np.random.default_rng(1))
    b = cases.make("rows", 33, 40, "float32", np.random.default_rng(2))
    with hostmetal.active():
        da, db = mx.grad(lambda x, y: (mt.matmul(x, y, engine="mpp") ** 2).sum(), argnums=(0, 1))(a, b)
        mx.eval(da, db)
    c = 2 * reference.gemm(a, b)
    assert np.allclose(np.array(da), c @ reference.to_float64(b).T, rtol=1e-4, atol=1e-3)
    assert np.allclose(np.array(db), reference.to_float64(a).T @ c, rtol=1e-4, atol=1e-3)
