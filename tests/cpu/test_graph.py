"""The product as a node of MLX's graph: lazy, compiled, replayed with other shapes, differentiated, refused."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from .engine import nodes
from .oracle import DTYPES, activate, check, expected, f64, random


def test_nothing_is_computed_before_eval(product):
    a = mx.array(np.full((4, 4), 2.0, np.float32)) + 1
    got = product(a, a)
    mx.eval(got)
    assert (f64(got) == 36).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_shapeless_compile_replays_other_shapes(product, dtype):
    rng = np.random.default_rng(21)

    traces = []

    def layer(x, w, bias, residual):
        traces.append(x.shape)
        return product(x, w.T, dtype, bias, "gelu_tanh", residual)

    replay = mx.compile(layer, shapeless=True)
    for m, n, k in ((4, 8, 16), (1, 300, 70), (130, 33, 257), (4, 8, 16), (9, 1, 1), (0, 5, 3)):
        x, w = random(rng, (m, k), dtype), random(rng, (n, k), dtype)
        bias, residual = random(rng, (1, n), dtype)[0], random(rng, (m, n), dtype)
        check(replay(x, w, bias, residual), *expected(x, w.T, bias, "gelu_tanh", residual), (m, n, k))
    assert len(traces) == 1


def test_shapeless_batches(product):
    rng = np.random.default_rng(22)
    f = mx.compile(lambda x, w: product(x, w), shapeless=True)
    for batch, m in ((2, 3), (5, 1), (1, 40)):
        x, w = random(rng, (batch, m, 20), mx.float16), random(rng, (20, 11), mx.float16)
        check(f(x, w), *expected(x, w))


def test_equal_nodes_collapse_and_others_do_not(product):
    a = mx.ones((8, 8), mx.float16)
    assert nodes("CpuMatmul", lambda x: product(x, x) + product(x, x), a) == 1
    assert nodes("CpuMatmul", lambda x: product(x, x, mx.float16) + product(x, x, mx.float32), a) == 2
    assert nodes("CpuMatmul", lambda x: product(x, x) + product(x, x, activation="relu"), a) == 2
    assert nodes("CpuMatmul", lambda x: product(x, x, bias=x) + product(x, x, residual=x), a) == 2


@pytest.mark.parametrize("activation", (None, "relu", "silu", "gelu_tanh", "gelu_erf"))
@pytest.mark.parametrize("shapes", [((5, 6), (6, 4)), ((3, 5, 6), (6, 4)), ((2, 1, 5, 6), (3, 6, 4)), ((6,), (6, 4))])
def test_gradients_against_differences(product, activation, shapes):
    if len(shapes[0]) == 1:
        shapes = ((1, *shapes[0]), shapes[1])
    rng = np.random.default_rng(23)
    a, b = (mx.array(rng.standard_normal(s, np.float32)) for s in shapes)
    out = np.broadcast_shapes(a.shape[:-2], b.shape[:-2]) + (a.shape[-2], b.shape[-1])
    bias, residual = mx.array(rng.standard_normal(out[-1:], np.float32)), mx.array(rng.standard_normal(out, np.float32))
    weight = rng.standard_normal(out)

    def loss(*x):
        return (product(x[0], x[1], mx.float32, x[2], activation, x[3]) * mx.array(weight.astype(np.float32))).sum()

    def loss64(*x):
        return ((activate(x[0] @ x[1] + x[2], activation) + x[3]) * weight).sum()

    arguments = (a, b, bias, residual)
    gradients = mx.grad(loss, argnums=(0, 1, 2, 3))(*arguments)
    plain = [f64(x) for x in arguments]
    for i, gradient in enumerate(gradients):
        assert gradient.shape == arguments[i].shape and gradient.dtype == arguments[i].dtype
        want = np.empty(plain[i].shape)
        for at in np.ndindex(want.shape):
            ends = []
            for step in (1e-6, -1e-6):
                moved = [x.copy() for x in plain]
                moved[i][at] += step
                ends.append(loss64(*moved))
            want[at] = (ends[0] - ends[1]) / 2e-6
        np.testing.assert_allclose(f64(gradient), want, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("dtype", (mx.float16, mx.bfloat16))
def test_gradients_of_halves_match_the_f32_ones(product, dtype):
    rng = np.random.default_rng(24)
    a, b = random(rng, (4, 30, 20), dtype), random(rng, (20, 10), dtype)
    loss = lambda x, w: (product(x, w) ** 2).sum()
    x, w = f64(a), f64(b)
    c = f64(product(a, b))
    want = (2 * c @ w.T, np.einsum("bmk,bmn->kn", x, 2 * c))
    for gradient, right in zip(mx.grad(loss, argnums=(0, 1))(a, b), want):
        assert gradient.dtype == dtype
        assert np.linalg.norm(f64(gradient) - right) / np.linalg.norm(right) < (2e-3 if dtype == mx.float16 else 1.2e-2)


def test_gradient_inside_compile(product):
    a, b = mx.ones((3, 4)), mx.ones((4, 2))
    gradient = mx.compile(mx.grad(lambda x: product(x, b, activation="silu").sum()))(a)
    sigmoid = 1 / (1 + np.exp(-4.0))
    np.testing.assert_allclose(f64(gradient), 2 * (sigmoid + 4 * sigmoid * (1 - sigmoid)), rtol=1e-5)


def test_streams(product):
    rng = np.random.default_rng(25)
    a, b = random(rng, (40, 30), mx.float32), random(rng, (30, 20), mx.float32)
    for stream in (mx.cpu, mx.new_stream(mx.cpu), mx.default_stream(mx.cpu), None):
        check(product(a, b, stream=stream), *expected(a, b))


REFUSED = [
    (lambda p: p(mx.ones((2, 3)), mx.ones((4, 5))), r"\[cpu_matmul\] a is \(2,3\) and b is \(4,5\).*last dimension of a must equal the second-last of b"),
    (lambda p: p(mx.ones((3,)), mx.ones((3, 5))), r"both need two dimensions or more; add one with mx.expand_dims"),
    (lambda p: p(mx.ones((2, 3, 4)), mx.ones((3, 4, 5))), r"cannot be broadcast"),
    (lambda p: p(mx.ones((2, 3), mx.int32), mx.ones((3, 5))), r"a is int32, but must be float32, float16 or bfloat16; convert it with astype"),
    (lambda p: p(mx.ones((2, 3)), mx.ones((3, 5)), "int8"), r"out_dtype = 'int8', but must be float32, float16 or bfloat16"),
    (lambda p: p(mx.ones((2, 3)), mx.ones((3, 5)), activation="gelu"), r"activation = 'gelu' is not known; it may be None, relu, gelu_tanh, gelu_erf, silu"),
    (lambda p: p(mx.ones((2, 3)), mx.ones((3, 5)), bias=mx.ones((4,))), r"broadcast"),
    (lambda p: p(mx.ones((2, 3)), mx.ones((3, 5)), residual=mx.ones((1, 2, 5))), r"residual is \(1,2,5\), which does not broadcast to the result \(2,5\)"),
]


@pytest.mark.parametrize("call, text", REFUSED)
def test_refusals_teach(product, call, text):
    with pytest.raises(ValueError, match=text):
        call(product)


def test_settings_are_checked(configure):
    with pytest.raises(ValueError, match=r"instruction_set = 'mmx' does not run on this processor; usable here: .*baseline"):
        configure(instruction_set="mmx")
    with pytest.raises(ValueError, match=r"threads = -1, but it must be in 0..256"):
        configure(threads=-1)
    with pytest.raises(ValueError, match=r"blas = 'maybe', but it must be auto, never or always"):
        configure(blas="maybe")
