"""Gathered products as nodes of MLX's graph, with plans, on threads, within their memory, and what they refuse."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from .engine import counters, nodes
from .experts import combine, experts, gather_mm, gateup, ids, plan, product
from .oracle import DTYPES, check, f64, random

BLOCK_ROWS = 288  # a weight is decoded again for each so many rows of its expert


# ---- plans ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outside", (False, True))
@pytest.mark.parametrize("block_m", (1, 16, 64, 1000))
def test_a_plan_changes_the_walk_only(block_m, outside):
    rng = np.random.default_rng(1)
    for rows, m in ((0, 1), (1, 1), (300, 1), (40, 3)):
        weights, x = experts(rng, "affine4_g64", 8, 72, 128), random(rng, (rows, 1, m, 128), mx.float32)
        rhs = ids(rng, (rows, 2), 8, outside=outside)
        want, slack = product(x, weights, rhs)
        tiles = plan(rhs, 8, block_m)
        check(gather_mm(x, weights, rhs, plan=tiles), want, slack)
        # Tiles in any sequence, rows of an expert in any order.
        shuffled = mx.array(rng.permutation(tiles[0].size))
        check(gather_mm(x, weights, rhs, plan=[t[shuffled] for t in tiles[:3]] + tiles[3:]), want, slack)
        order = np.array(tiles[3])
        for e in range(8):
            where = np.flatnonzero(np.array(rhs).reshape(-1)[order] == e)
            order[where] = rng.permutation(order[where])
        check(gather_mm(x, weights, rhs, plan=tiles[:3] + [mx.array(order)]), want, slack)


def test_a_plan_with_lhs_out_of_range():
    rng = np.random.default_rng(2)
    weights, x, rhs, lhs = experts(rng, "mxfp4", 4, 40, 64), random(rng, (6, 1, 64), mx.float32), ids(rng, (50,), 4, outside=True), ids(rng, (50,), 6, outside=True)
    check(gather_mm(x, weights, rhs, lhs, plan=plan(rhs, 4, 16)), *product(x, weights, rhs, lhs))


def broken(tiles, index, entry, value):
    arrays = [np.array(t) for t in tiles]
    arrays[index][entry] = value
    return [mx.array(a) for a in arrays]


@pytest.mark.parametrize("index, entry, value, text", [
    (0, 0, 2, "tile 0 is of expert 2, but row 0 has id 0"), (0, 0, -1, "tile 0 is of expert -1, but row 0 has id 0"), (1, 1, 2, "which another tile has, too"), (1, 0, 5, "tile 0 is of expert 0, but row 8"), (1, 0, -1, "tile 0 has rows -1"),
    (2, 0, 1, "its tiles have"), (2, 0, 90, "tile 0 has rows"), (3, 0, 99, r"order\[0\] = 99 is not a row"), (3, 1, 0, "comes twice"), (2, 0, -3, "tile 0 has rows"),
])
def test_a_wrong_plan_is_an_error(index, entry, value, text):
    rng = np.random.default_rng(3)
    weights, x, rhs = experts(rng, None, 3, 8, 16), random(rng, (20, 1, 16), mx.float32), mx.array(np.repeat([0, 1, 2], [8, 8, 4]).astype(np.int32))
    tiles = plan(rhs, 3, 4)
    with pytest.raises(RuntimeError, match=r"\[cpu_gather_mm\] plan: .*" + text):
        mx.eval(gather_mm(x, weights, rhs, plan=broken(tiles, index, entry, value)))
    check(gather_mm(x, weights, rhs, plan=tiles), *product(x, weights, rhs))


# ---- threads, memory, work ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", (None, "affine4_g64", "nvfp4", "mxfp8"))
def test_threads_do_not_change_a_bit(configure, name):
    rng = np.random.default_rng(4)
    for tokens in (1, 6, 300):
        gate, up, down = (experts(rng, name, 16, n, k, dtype=mx.bfloat16) for n, k in ((200, 256), (200, 256), (300, 256)))
        x, rhs = random(rng, (tokens, 1, 1, 256), mx.bfloat16), ids(rng, (tokens, 4), 16, outside=True)
        h, scores = random(rng, (tokens, 4, 256), mx.bfloat16), random(rng, (tokens, 4), mx.float32)
        results = []
        for threads in (1, 2, 5, 2):
            configure(threads=threads)
            results.append([np.array(a) for a in (gather_mm(x, gate, rhs, dtype=mx.float32), *gateup(x, gate, up, rhs, activation="swiglu", dtype=mx.float32),
                                                  combine(h, down, rhs, scores, dtype=mx.float32))])
        for other in results[1:]:
            for a, b in zip(results[0], other, strict=True):
                np.testing.assert_array_equal(a, b)


def histogram_work(rhs, experts_: int, k: int, n: int) -> int:
    """Weights decoded: each expert's once for each 288 of its rows."""
    counts = np.bincount(np.array(rhs).reshape(-1), minlength=experts_)
    return int(sum(-(-c // BLOCK_ROWS) for c in counts)) * k * n


@pytest.mark.parametrize("rows", (1, 40, 3000))
def test_weights_are_decoded_once_for_a_block_of_rows(rows):
    rng = np.random.default_rng(5)
    for name, transpose in (("affine4_g64", True), ("nvfp4", True), ("mxfp4", False)):
        weights, x = experts(rng, name, 8, 320, 256, transpose=transpose), random(rng, (rows, 1, 1, 256), mx.bfloat16)
        rhs = mx.array(np.minimum(rng.geometric(0.4, (rows, 2)) - 1, 7).astype(np.int32))
        mx.eval(x, rhs)
        for tiles in (None, plan(rhs, 8, 64)):
            seen = counters(lambda: gather_mm(x, weights, rhs, plan=tiles))
            assert seen["weights_decoded"] == histogram_work(rhs, 8, 256, 320)
            assert 0 < seen["scratch_bytes_per_thread"] <= 2**20


def test_peak_memory_is_inputs_and_outputs():
    """No room for gathered rows: 8000 x 256 would be 4 MB, of which MLX's allocator sees nothing and a thread's scratch holds a quarter at most."""
    rng = np.random.default_rng(6)
    gate, up = (experts(rng, "affine4_g64", 8, 512, 256, dtype=mx.bfloat16) for _ in range(2))
    x, rhs = random(rng, (2000, 1, 1, 256), mx.bfloat16), ids(rng, (2000, 4), 8)
    mx.eval(x, rhs)
    for run, results in ((lambda: [gather_mm(x, gate, rhs)], 1), (lambda: gateup(x, gate, up, rhs), 2), (lambda: gateup(x, gate, up, rhs, activation="swiglu"), 1)):
        mx.eval(run())
        mx.synchronize()
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        out = []
        seen = counters(lambda: out.extend(run()) or out)
        assert 0 < seen["scratch_bytes_per_thread"] <= 2**20
        assert mx.get_peak_memory() - before <= results * 8000 * 512 * 2 + 4096
        del out


# ---- graph --------------------------------------------------------------------------------------------


def test_nothing_is_computed_before_eval():
    rng = np.random.default_rng(7)
    weights, x = experts(rng, "nvfp4", 4, 16, 64), random(rng, (5, 1, 64), mx.float32)
    lazy = []
    seen = counters(lambda: lazy.append(gather_mm(x + 0, weights, mx.array([0, 1, 2, 3, 9]))) or [])
    assert seen["panels"] == 0 and lazy[0].shape == (5, 1, 16)
    check(lazy[0], *product(x, weights, mx.array([0, 1, 2, 3, 9])))


@pytest.mark.parametrize("dtype", DTYPES)
def test_shapeless_compile_replays_other_rows(dtype):
    rng = np.random.default_rng(8)
    weights = experts(rng, "affine4_g64", 6, 40, 128, dtype=dtype)
    traces = []

    def layer(x, rhs):
        traces.append(1)
        tiles = plan(rhs, 6, 16)
        return gather_mm(x, weights, rhs), gather_mm(x, weights, rhs, plan=tiles, activation="relu")

    replay = mx.compile(layer, shapeless=True)
    for rows, k in ((7, 2), (1, 1), (90, 3), (0, 2), (7, 2)):
        x, rhs = random(rng, (rows, 1, 1, 128), dtype), ids(rng, (rows, k), 6, outside=True)
        plain, planned = replay(x, rhs)
        want, slack = product(x, weights, rhs)
        check(plain, want, slack)
        check(planned, np.maximum(want, 0), slack)
    assert len(traces) == 1


def test_equal_nodes_collapse_and_others_do_not():
    rng = np.random.default_rng(9)
    w, v = experts(rng, "affine4_g64", 4, 128, 128), experts(rng, "affine4_g32", 4, 128, 128)
    x, rhs, bias = random(rng, (4, 1, 128), mx.float32), ids(rng, (4,), 4), random(rng, (4, 128), mx.float32)
    assert nodes("CpuGather", lambda x: gather_mm(x, w, rhs) + gather_mm(x, w, rhs), x) == 1
    for other in (lambda x: gather_mm(x, v, rhs), lambda x: gather_mm(x, w, rhs, activation="relu"), lambda x: gather_mm(x, w, rhs, dtype=mx.float16),
                  lambda x: gather_mm(x, w, rhs, bias=bias), lambda x: gather_mm(x, w, rhs, rhs), lambda x: gateup(x, w, w, rhs, activation="swiglu")[0],
                  lambda x: gather_mm(x, w, rhs, global_scale=mx.ones((1,)), divisor=2.0)):
        assert nodes("CpuGather", lambda x, other=other: gather_mm(x, w, rhs) + other(x), x) == 2
    assert nodes("CpuGather", lambda x: gateup(x, w, w, rhs, activation="swiglu")[0] + gateup(x, w, w, rhs, activation="geglu_erf")[0], x) == 2
    scale = mx.ones((1,))
    assert nodes("CpuGather", lambda x: gather_mm(x, w, rhs, global_scale=scale, divisor=2.0) + gather_mm(x, w, rhs, global_scale=scale, divisor=3.0), x) == 2


# ---- derivatives and vmap -------------------------------------------------------------------------------


def reference(x, values, rhs, lhs, bias, activation):
    """The operation as MLX operations on dense float32 weights [E, K, N]; ids in range."""
    rows = x if lhs is None else x.reshape(-1, *x.shape[-2:])[lhs]
    shape = np.broadcast_shapes(rows.shape[:-2], rhs.shape)
    result = mx.broadcast_to(rows, (*shape, *rows.shape[-2:])) @ mx.broadcast_to(values[rhs], (*shape, *values.shape[1:]))
    if bias is not None:
        result = result + bias[rhs][..., None, :]
    return result * mx.sigmoid(result) if activation else result


@pytest.mark.parametrize("transpose", (True, False))
@pytest.mark.parametrize("activation", (None, "silu"))
@pytest.mark.parametrize("lhs_shape", (None, (5, 2)))
def test_gradients_and_tangents(transpose, activation, lhs_shape):
    rng = np.random.default_rng(10)
    weights = experts(rng, "affine4_g32", 4, 64, 96, transpose=transpose)
    values = mx.array(weights.values.astype(np.float32))
    x, rhs, bias = random(rng, (5, 1, 3, 96), mx.float32) / 8, ids(rng, (5, 2), 4), random(rng, (4, 64), mx.float32)
    lhs = None if lhs_shape is None else ids(rng, lhs_shape, 5)
    along, weight = random(rng, x.shape, mx.float32), random(rng, (5, 2, 3, 64), mx.float32)

    def ours(x, bias):
        return gather_mm(x, weights, rhs, lhs, bias=bias, activation=activation)

    def theirs(x, bias):
        return reference(x, values, rhs, lhs, bias, activation)

    np.testing.assert_allclose(np.array(ours(x, bias)), np.array(theirs(x, bias)), rtol=1e-4, atol=1e-4)
    got, want = (mx.grad(lambda *a, f=f: (f(*a) * weight).sum(), argnums=(0, 1))(x, bias) for f in (ours, theirs))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(np.array(a), np.array(b), rtol=1e-4, atol=1e-3)
    got, want = (mx.jvp(lambda a, f=f: f(a, bias), [x], [along])[1][0] for f in (ours, theirs))
    np.testing.assert_allclose(np.array(got), np.array(want), rtol=1e-4, atol=1e-3)


def test_gradients_of_rows_without_an_expert_are_zero():
    rng = np.random.default_rng(11)
    weights, x = experts(rng, "nvfp4", 3, 32, 64), random(rng, (6, 1, 64), mx.bfloat16)
    rhs, lhs = mx.array([0, -1, 2, 3, 1, 0]), mx.array([0, 1, 2, 3, 7, -1])
    bias = random(rng, (3, 32), mx.float32)
    gx, gb = mx.grad(lambda x, b: gather_mm(x, weights, rhs, lhs, bias=b, dtype=mx.float32).sum(), argnums=(0, 1))(x, bias)
    assert gx.dtype == mx.bfloat16
    rows = np.abs(f64(gx)).sum((1, 2))
    assert (rows[[0, 2]] > 0).all() and (rows[[1, 3, 4, 5]] == 0).all()
    np.testing.assert_array_equal(np.array(gb)[:, 0], [1, 0, 1])


def test_gradients_of_no_rows_and_of_no_experts_are_empty():
    """Nothing is there for an index to name: every result is zero, and what it leads back to is empty."""
    rng, rhs = np.random.default_rng(12), mx.array([0, 1])
    two, none = experts(rng, None, 2, 4, 8), experts(rng, None, 0, 4, 8)

    def of_rows(x):
        return gather_mm(x, two, rhs, rhs)

    def of_experts(bias):
        return gather_mm(mx.ones((2, 1, 8)), none, rhs, bias=bias)

    for f, shape in ((of_rows, (0, 1, 8)), (of_experts, (0, 4))):
        (result,), (gradient,) = mx.vjp(f, [mx.zeros(shape)], [mx.ones((2, 1, 4))])
        assert np.array_equal(np.array(result), np.zeros((2, 1, 4)))
        assert np.array(gradient).shape == shape


@pytest.mark.parametrize("axes", [(0, None, None), (None, None, 0), (1, None, 1), (None, 0, None), (2, 1, None), (0, 0, 1), (None, 1, 0)])
def test_vmap(axes):
    rng = np.random.default_rng(12)
    weights = experts(rng, "mxfp4", 4, 32, 64)

    def mapped(shape, axis):
        return shape if axis is None else (*shape[:axis], 3, *shape[axis:])

    x = random(rng, mapped((5, 1, 2, 64), axes[0]), mx.float32)
    lhs, rhs = ids(rng, mapped((5, 2), axes[1]), 5, outside=True), ids(rng, mapped((5, 2), axes[2]), 4, outside=True)

    def part(a, axis, i):
        return a if axis is None else mx.take(a, i, axis)

    forms = [(lambda x, lhs, rhs: gather_mm(x, weights, rhs, lhs))] + [(lambda x, lhs, rhs: gather_mm(x, weights, rhs))] * (axes[1] is None)
    for form in forms:
        got = mx.vmap(form, in_axes=axes)(x, lhs, rhs)
        want = mx.stack([form(*(part(a, axis, i) for a, axis in zip((x, lhs, rhs), axes))) for i in range(3)])
        # Not the same bits: rows of one expert are added up in another order when there are many of them.
        np.testing.assert_allclose(np.array(got), np.array(want), rtol=1e-4, atol=1e-4)


# ---- refusals -----------------------------------------------------------------------------------------


def test_refusals():
    rng = np.random.default_rng(13)
    w, x, rhs = experts(rng, "affine4_g64", 4, 32, 128), random(rng, (5, 1, 128), mx.float32), ids(rng, (5,), 4)
    for run, text in (
        (lambda: gather_mm(x, w, rhs.astype(mx.float32)), "rhs_indices is float32, but must be integers"),
        (lambda: gather_mm(x, w, rhs, x), "lhs_indices is float32"),
        (lambda: gather_mm(x[..., :64], w, rhs), "the last dimension of x must be 128"),
        (lambda: gather_mm(x[0, 0], w, rhs), "x is .*needs two dimensions"),
        (lambda: gather_mm(x.astype(mx.int32), w, rhs, dtype=mx.float32), "x is int32, but must be float32"),
        (lambda: gather_mm(x, w, rhs, bias=mx.ones((32,))), r"bias is .*must be \[4, 32\]"),
        (lambda: gather_mm(x, w, rhs, global_scale=mx.ones((3,))), "global_scale is .*one or 4"),
        (lambda: gather_mm(x, w, rhs, plan=[rhs] * 3), "plan has 3 arrays"),
        (lambda: gather_mm(x, w, rhs, plan=plan(rhs[:2], 4, 16)), "plan orders 2 rows, but the indices have 5"),
        (lambda: gather_mm(x, w, mx.zeros((7, 2), mx.int32)), "cannot be broadcast"),
        (lambda: gateup(x, w, experts(rng, "affine4_g64", 4, 64, 128), rhs), "must agree"),
        (lambda: gateup(x, w, w, rhs, activation="tanh"), "activation = 'tanh' is not known; it may be None, swiglu"),
        (lambda: combine(x[:, 0], w, rhs[:, None], x), "scores are .*must agree"),
        (lambda: mx.grad(lambda w_: gather_mm(x, type(w)(w_, None, None, None, True, w.values), rhs).sum())(mx.ones((4, 32, 128))), "none in w"),
        (lambda: mx.vmap(lambda b: gather_mm(x, w, rhs, bias=b))(mx.ones((2, 4, 32))), "vmap maps x and the indices, but not bias"),
        (lambda: mx.vmap(lambda x: gather_mm(x, w, rhs, plan=plan(rhs, 4, 16)))(x[None]), "leave the plan out"),
    ):
        with pytest.raises(ValueError, match=text):
            mx.eval(run())
