"""vmap and jvp of the CPU engine against MLX's own product of the same operands, in f32."""

import mlx.core as mx
import numpy as np
import pytest

import mlx_tensorops as mt

RNG = np.random.default_rng(4)


def normal(*shape):
    return mx.array(RNG.normal(size=shape).astype(np.float32))


def silu(x):
    return x * mx.sigmoid(x)


@pytest.mark.parametrize("a_shape, b_shape, axes", [
    ((7, 3, 4), (4, 5), (0, None)), ((3, 7, 4), (4, 5), (1, None)), ((3, 4), (4, 5, 7), (None, 2)), ((7, 3, 4), (4, 7, 5), (0, 1)),
    ((2, 7, 3, 4), (4, 7, 5), (1, 1)), ((7, 3, 4), (2, 4, 5), (0, None)), ((3, 4, 7), (7, 2, 4, 5), (2, 0)),
])
def test_vmap(a_shape, b_shape, axes):
    a, b = normal(*a_shape), normal(*b_shape)
    got = mx.vmap(lambda x, y: mt.matmul(x, y, engine="cpu"), in_axes=axes)(a, b)
    want = mx.vmap(mx.matmul, in_axes=axes)(a, b)
    assert got.shape == want.shape and np.allclose(np.array(got), np.array(want), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bias_axis", [None, 0])
def test_vmap_of_an_epilogue(bias_axis):
    a, b = normal(6, 2, 3, 4), normal(4, 5)
    bias = normal(5) if bias_axis is None else normal(6, 5)
    call = lambda x, y, z: mt.matmul(x, y, bias=z, activation="silu", residual=z, engine="cpu")  # noqa: E731
    plain = lambda x, y, z: silu(mx.matmul(x, y) + z) + z  # noqa: E731
    axes = (0, None, bias_axis)
    got, want = mx.vmap(call, in_axes=axes)(a, b, bias), mx.vmap(plain, in_axes=axes)(a, b, bias)
    assert got.shape == want.shape and np.allclose(np.array(got), np.array(want), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("activation", [None, "silu"])
def test_jvp(activation):
    primals = [normal(3, 4), normal(4, 5), normal(5), normal(3, 5)]
    tangents = [normal(*p.shape) for p in primals]
    act = silu if activation else lambda x: x
    ours = lambda a, b, c, d: mt.matmul(a, b, bias=c, activation=activation, residual=d, engine="cpu")  # noqa: E731
    plain = lambda a, b, c, d: act(mx.matmul(a, b) + c) + d  # noqa: E731
    for count in (1, 2, 4):
        along = [t if i < count else mx.zeros_like(t) for i, t in enumerate(tangents)]
        (got,), (want,) = mx.jvp(ours, primals, along)[1], mx.jvp(plain, primals, along)[1]
        assert np.allclose(np.array(got), np.array(want), rtol=1e-4, atol=1e-5)
