"""Gate and up projections of the same rows in one operation: both results, or one joined by a gate."""

from __future__ import annotations

import itertools
import math

import mlx.core as mx
import numpy as np
import pytest

from mlx_tensorops.primitives import _cpu

from .engine import counters
from .experts import Experts, experts, gated, gather_mm, gateup, ids, plan, product
from .oracle import DTYPES, check, f64, random, wrong

SETS = _cpu.info()["usable_instruction_sets"]
GATES = ("swiglu", "geglu_tanh", "geglu_erf", "swiglu_clamped")
FORMATS = (None, "affine4_g64", "affine6_g32", "mxfp4", "mxfp8", "nvfp4")


def pair(rng, name, e, n, k, **kwargs) -> tuple[Experts, Experts]:
    return experts(rng, name, e, n, k, **kwargs), experts(rng, name, e, n, k, **kwargs)


def expected_gate(g, u, slack_g, slack_u, name, alpha=1.702, limit=7.0):
    """The gate in float64, and how far errors of g and u move it: no gate is steeper than 1.13 |u| + 1.13 in g, nor than |act(g)| in u."""
    want = gated(g, u, name, alpha, limit)
    steep = np.abs(u) + 1
    return want, 1.13 * slack_g * steep + slack_u * (np.abs(g) + 1) + np.abs(want) * 2.0**-22


def agree(x, weights, rhs, lhs=None, *, activation=None, biases=(None, None), global_scales=(None, None), what=None, **kwargs) -> None:
    scales = [dict(global_scale=s and s[0], divisor=s[1] if s else 1.0) for s in global_scales]
    sums = [product(x, w, rhs, lhs, bias=b, **s) for w, b, s in zip(weights, biases, scales)]
    got = gateup(x, *weights, rhs, lhs, activation=activation, biases=biases, global_scales=global_scales, **kwargs)
    if activation is None:
        assert len(got) == 2
        for one, (want, slack) in zip(got, sums):
            check(one, want, slack, what)
        return
    (got,) = got
    (g, slack_g), (u, slack_u) = sums
    gate = {k: v for k, v in kwargs.items() if k in ("alpha", "limit")}
    want, slack = expected_gate(g, u, slack_g, slack_u, activation, **gate)
    index = np.broadcast_arrays(np.array(rhs), np.arange(x.size // (x.shape[-1] * x.shape[-2])).reshape(x.shape[:-2]) if lhs is None else np.array(lhs))[0]
    bad = ~((index >= 0) & (index < weights[0].values.shape[0]))
    want[bad], slack[bad] = 0, 0  # the gate of two zero rows need not be zero; the row of a bad id is
    check(got, want, slack, what)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("activation", (None, *GATES))
def test_formats_types_and_rows_per_expert(configure, activation, instruction_set):
    configure(instruction_set=instruction_set, threads=2)
    rng = np.random.default_rng(1)
    for i, (name, rows) in enumerate(itertools.product(FORMATS, (1, 7, 60))):
        dtype = DTYPES[i % 3]
        weights = pair(rng, name, 4, (96, 33, 128)[i % 3], 128, dtype=dtype)
        x = (random(rng, (rows, 1, 1, 128), mx.float32) / 4).astype(dtype)
        agree(x, weights, ids(rng, (rows, 2), 4, outside=True), activation=activation, what=(name, rows))


@pytest.mark.parametrize("activation", (None, *GATES))
def test_biases_and_global_scales(activation):
    rng = np.random.default_rng(2)
    weights, x = pair(rng, "nvfp4", 3, 64, 64), random(rng, (25, 1, 64), mx.bfloat16) / 8
    scale = mx.array([0.5, 1.5, 2.0]) * 2688, mx.array([1.25])
    for dtype, global_scales in itertools.product(DTYPES, ((None, None), ((scale[0], 2688.0), (scale[1], 1.0)), (None, (scale[1], 1.0)))):
        biases = random(rng, (3, 64), dtype), random(rng, (3, 64), dtype)
        for chosen in (biases, (None, biases[1]), (biases[0], None)):
            agree(x, weights, ids(rng, (25,), 3, outside=True), activation=activation, biases=chosen, global_scales=global_scales)


def test_the_clamp_of_gpt_oss():
    """Values on both sides of the limit, alpha and limit of one's own, NaN and infinity."""
    rng = np.random.default_rng(3)
    weights = pair(rng, None, 2, 40, 32)
    x = random(rng, (50, 1, 32), mx.float32) * 4
    g = product(x, weights[0], mx.zeros((50,), mx.int32))[0]
    assert (np.abs(g) > 7).mean() > 0.1 and (np.abs(g) < 7).mean() > 0.1
    for alpha, limit in ((1.702, 7.0), (1.0, 2.0), (-0.5, 100.0), (1.702, 0.0)):
        agree(x, weights, ids(rng, (50,), 2), activation="swiglu_clamped", alpha=alpha, limit=limit)
    eye = Experts(mx.eye(8)[None], None, None, None, True, np.eye(8)[None])
    special = mx.array([[np.nan, np.inf, -np.inf, 90.0, -90.0, 0.0, 3e38, -3e38]])
    for activation in GATES:
        got = np.array(gateup(special, eye, eye, mx.array(0), activation=activation)[0]).reshape(-1)
        assert np.isnan(got[0])
    rows = mx.eye(8) * mx.where(mx.isnan(special) | mx.isinf(special), 0, special)
    got = np.array(gateup(rows, eye, eye, mx.array(0), activation="swiglu_clamped")[0]).diagonal()
    np.testing.assert_allclose(got[[3, 4, 5, 6, 7]], gated(*[np.array([90.0, -90.0, 0.0, 3e38, -3e38])] * 2, "swiglu_clamped"), rtol=1e-5, atol=1e-30)


def test_matrices_indices_and_plans():
    rng = np.random.default_rng(4)
    weights = pair(rng, "affine4_g64", 5, 72, 128)
    for batch, m, lhs, rhs in (((), 3, None, (4,)), ((5, 1), 1, None, (5, 3)), ((4,), 300, None, (4,)), ((2, 3), 2, (4, 1), (1, 5))):
        x = random(rng, (*batch, m, 128), mx.float32)
        left = None if lhs is None else ids(rng, lhs, 6)
        right = ids(rng, rhs, 5, outside=True)
        agree(x, weights, right, left, what=(batch, m))
        tiles = plan(mx.broadcast_to(right, np.broadcast_shapes(rhs, lhs or batch)), 5, 16)
        agree(x, weights, right, left, activation="swiglu", plan=tiles, what=(batch, m))


def test_two_results_are_those_of_two_products():
    rng = np.random.default_rng(5)
    weights, x, rhs = pair(rng, "mxfp4", 4, 100, 96), random(rng, (30, 1, 1, 96), mx.bfloat16), ids(rng, (30, 2), 4)
    for one, w in zip(gateup(x, *weights, rhs, dtype=mx.float32), weights):
        assert mx.array_equal(one, gather_mm(x, w, rhs, dtype=mx.float32)).item()


@pytest.mark.parametrize("rows", (3, 100))
@pytest.mark.parametrize("name", FORMATS)
def test_a_block_of_x_is_packed_once_for_both(name, rows):
    rng = np.random.default_rng(9)
    weights, x, rhs = pair(rng, name, 2, 64, 192), random(rng, (rows, 1, 192), mx.bfloat16), ids(rng, (rows,), 2)
    mx.eval(x, rhs)
    one = counters(lambda: gather_mm(x, weights[0], rhs))
    for activation in (None, "swiglu"):
        both = counters(lambda activation=activation: gateup(x, *weights, rhs, activation=activation))
        assert both["x_packed"] == one["x_packed"] == rows * 192
        assert both["weights_decoded"] == 2 * one["weights_decoded"] and both["panels"] == 2 * one["panels"]


@pytest.mark.parametrize("activation", (None, *GATES))
def test_gradients_and_tangents(activation):
    rng = np.random.default_rng(6)
    weights = pair(rng, "affine8_g32", 3, 32, 64)
    values = [mx.array(w.values.astype(np.float32)) for w in weights]
    x, rhs = random(rng, (4, 1, 1, 64), mx.float32) / 8, ids(rng, (4, 2), 3)
    biases, along = (random(rng, (3, 32), mx.float32), random(rng, (3, 32), mx.float32)), random(rng, x.shape, mx.float32)

    def dense(x, b, c):
        g, u = (x @ v[rhs] + bias[rhs][..., None, :] for v, bias in zip(values, (b, c)))
        match activation:
            case None:
                return mx.stack([g, u])
            case "swiglu":
                return (g * mx.sigmoid(g) * u)[None]
            case "geglu_tanh":
                return (0.5 * g * (1 + mx.tanh(math.sqrt(2 / math.pi) * (g + 0.044715 * g**3))) * u)[None]
            case "geglu_erf":
                return (0.5 * g * (1 + mx.erf(g / math.sqrt(2))) * u)[None]
        g, u = mx.minimum(g, 1), mx.clip(u, -1, 1)
        return (g * mx.sigmoid(1.702 * g) * (u + 1))[None]

    def ours(x, b, c):
        return mx.stack(gateup(x, *weights, rhs, biases=(b, c), activation=activation, limit=1.0))

    np.testing.assert_allclose(np.array(ours(x, *biases)), np.array(dense(x, *biases)), rtol=1e-4, atol=1e-4)
    weight = random(rng, ours(x, *biases).shape[1:], mx.float32)
    got, want = (mx.grad(lambda *a, f=f: (f(*a) * weight).sum(), argnums=(0, 1, 2))(x, *biases) for f in (ours, dense))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(np.array(a), np.array(b), rtol=1e-3, atol=1e-3)
    got, want = (mx.jvp(lambda a, f=f: f(a, *biases), [x], [along])[1][0] for f in (ours, dense))
    np.testing.assert_allclose(np.array(got), np.array(want), rtol=1e-3, atol=1e-3)


def test_vmap_of_both_results():
    rng = np.random.default_rng(7)
    weights, x, rhs = pair(rng, "nvfp4", 3, 32, 64), random(rng, (4, 1, 3, 1, 64), mx.float32), ids(rng, (4, 2), 3)
    got = mx.vmap(lambda x: gateup(x, *weights, rhs), in_axes=2)(x)
    for i in range(3):
        for a, b in zip(got, gateup(x[:, :, i], *weights, rhs)):
            np.testing.assert_allclose(np.array(a[i]), np.array(b), rtol=1e-4, atol=1e-4)


def test_the_bound_notices_planted_faults():
    rng = np.random.default_rng(8)
    weights, x, rhs = pair(rng, "affine4_g64", 4, 64, 128), random(rng, (20, 1, 128), mx.float32) / 8, ids(rng, (20,), 4)
    (g, slack_g), (u, slack_u) = (product(x, w, rhs) for w in weights)
    for activation in GATES:
        want, slack = expected_gate(g, u, slack_g, slack_u, activation)
        (got,) = gateup(x, *weights, rhs, activation=activation)
        assert not wrong(got, want, slack).any()
        for other in set(GATES) - {activation}:
            assert wrong(gateup(x, *weights, rhs, activation=other)[0], want, slack).any()
        assert wrong(gateup(x, *weights[::-1], rhs, activation=activation)[0], want, slack).any()
        assert wrong(mx.array(f64(got) * (1 + 2.0**-12)), want, slack).any()
