"""The product with block-quantised weights as a node of MLX's graph: lazy, compiled, replayed, differentiated, mapped, refused."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mlx_tensorops.formats import by_name
from mlx_tensorops.primitives import _native

from .engine import nodes
from .oracle import DTYPES, f64, random
from .quant import check, qmm, stored


def normal(rng, *shape, dtype=mx.float32):
    return mx.array(rng.standard_normal(shape, np.float32)).astype(dtype)


def dense(s) -> mx.array:
    """The weights as an f32 array, [..., K, N]: for comparison with MLX's own operations."""
    return mx.array(s.weights.astype(np.float32))


def silu(x):
    return x * mx.sigmoid(x)


def test_nothing_is_computed_before_eval():
    rng = np.random.default_rng(50)
    s = stored(rng, by_name("nvfp4"), 32, 64)
    ext = _native.ext()
    x = normal(rng, 4, 64)
    mx.eval(x)
    ext.cpu_counters_reset()
    got = qmm(x + 1, s)
    assert ext.cpu_counters()["weights_decoded"] == 0
    check(got, x + 1, s)
    assert ext.cpu_counters()["weights_decoded"] == 32 * 64


@pytest.mark.parametrize("dtype", DTYPES)
def test_shapeless_compile_replays_other_shapes(dtype):
    rng, form = np.random.default_rng(51), by_name("affine4_g32")
    traces = []

    def layer(x, w, scales, biases, bias, residual):
        traces.append(x.shape)
        return _native.ext().cpu_qmm(x, w, scales, biases, form.native, True, dtype, None, bias, "gelu_tanh", residual, None)

    replay = mx.compile(layer, shapeless=True)
    for m, n, k in ((4, 8, 64), (1, 300, 96), (130, 33, 256), (4, 8, 64), (0, 5, 32)):
        s, x = stored(rng, form, n, k, True, dtype), random(rng, (m, k), dtype)
        bias, residual = normal(rng, n, dtype=dtype), random(rng, (m, n), dtype)
        check(replay(x, s.w, s.scales, s.biases, bias, residual), x, s, bias=bias, activation="gelu_tanh", residual=residual)
    assert len(traces) == 1


def test_equal_nodes_collapse_and_others_do_not():
    rng = np.random.default_rng(52)
    s, x = stored(rng, by_name("nvfp4"), 64, 64), normal(rng, 8, 64)
    scale = mx.array([2.0])
    assert nodes("CpuQuantizedMatmul", lambda x: qmm(x, s) + qmm(x, s), x) == 1
    assert nodes("CpuQuantizedMatmul", lambda x: qmm(x, s) + qmm(x, s, mx.float16), x) == 2
    assert nodes("CpuQuantizedMatmul", lambda x: qmm(x, s) + qmm(x, s, activation="relu"), x) == 2
    assert nodes("CpuQuantizedMatmul", lambda x: qmm(x, s, None, (scale, 1.0)) + qmm(x, s, None, (scale, 2688.0)), x) == 2
    assert nodes("CpuQuantizedMatmul", lambda x: qmm(x, s, bias=x) + qmm(x, s, residual=x), x) == 2
    flipped = type(s)(s.w, s.scales, s.biases, s.format, False, s.weights)
    assert nodes("CpuQuantizedMatmul", lambda x: qmm(x, s) + qmm(x, flipped), x) == 2


@pytest.mark.parametrize("activation", (None, "relu", "silu", "gelu_tanh", "gelu_erf"))
@pytest.mark.parametrize("name, transpose", (("nvfp4", True), ("affine3_g32", False)))
def test_gradients(activation, name, transpose):
    """Against MLX's own operations on the decoded weights, in f32: x, bias and residual; x broadcast over the weights' batch, too."""
    rng = np.random.default_rng(53)
    act = {None: lambda x: x, "relu": lambda x: mx.maximum(x, 0), "silu": silu, "gelu_erf": lambda x: 0.5 * x * (1 + mx.erf(x * 0.5**0.5)),
           "gelu_tanh": lambda x: 0.5 * x * (1 + mx.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))}[activation]
    for x_batch, w_batch in (((), ()), ((3,), ()), ((), (2,)), ((2, 1), (3,))):
        s = stored(rng, by_name(name), 64, 32, transpose, batch=w_batch)
        x = normal(rng, *x_batch, 5, 32) * 0.2
        batch = np.broadcast_shapes(x_batch, w_batch)
        bias, residual, weight = normal(rng, 64), normal(rng, *batch, 5, 64), normal(rng, *batch, 5, 64)
        scale, w = mx.array([0.75]), dense(s)
        ours = lambda x, b, r: (qmm(x, s, None, (scale, 1.0), b, activation, r) * weight).sum()  # noqa: E731
        plain = lambda x, b, r: ((act(x @ w * 0.75 + b) + r) * weight).sum()  # noqa: E731
        got, want = (mx.grad(f, argnums=(0, 1, 2))(x, bias, residual) for f in (ours, plain))
        for a, b, of in zip(got, want, (x, bias, residual)):
            assert a.shape == of.shape and a.dtype == of.dtype
            np.testing.assert_allclose(f64(a), f64(b), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", (mx.float16, mx.bfloat16))
def test_the_gradient_of_halves_is_rounded_once(dtype):
    rng = np.random.default_rng(54)
    s, x, c = stored(rng, by_name("mxfp8"), 96, 128), normal(rng, 7, 128, dtype=dtype), normal(rng, 7, 96, dtype=dtype)
    (gradient,) = mx.vjp(lambda x: qmm(x, s), [x], [c])[1]
    want = f64(c) @ s.weights.T
    once = f64(mx.array(want.astype(np.float32)).astype(dtype))
    assert gradient.dtype == dtype
    assert np.linalg.norm(f64(gradient) - want) <= 1.1 * np.linalg.norm(once - want)


def test_there_is_no_gradient_with_respect_to_the_weights():
    rng = np.random.default_rng(55)
    s, x = stored(rng, by_name("affine4_g32"), 32, 64), normal(rng, 2, 64)
    call = lambda scales: _native.ext().cpu_qmm(x, s.w, scales, s.biases, s.format.native, True, mx.float32, None, None, None, None, None).sum()  # noqa: E731
    with pytest.raises(ValueError, match=r"no gradient with respect to packed weights.*nearest: with respect to x, bias and residual"):
        mx.eval(mx.grad(call)(s.scales))
    with pytest.raises(ValueError, match="no tangent along packed weights"):
        mx.jvp(call, [s.scales], [s.scales])


@pytest.mark.parametrize("activation", (None, "silu"))
def test_jvp(activation):
    rng = np.random.default_rng(56)
    s, act = stored(rng, by_name("affine4_g32"), 48, 64), silu if activation else lambda x: x
    w = dense(s)
    primals = [normal(rng, 3, 64), normal(rng, 48), normal(rng, 3, 48)]
    tangents = [normal(rng, *p.shape) for p in primals]
    for keep in range(1, 8):
        along = [t if keep >> i & 1 else mx.zeros_like(t) for i, t in enumerate(tangents)]
        ours = lambda x, b, r: qmm(x, s, bias=b, activation=activation, residual=r)  # noqa: E731
        plain = lambda x, b, r: act(x @ w + b) + r  # noqa: E731
        (got,), (want,) = mx.jvp(ours, primals, along)[1], mx.jvp(plain, primals, along)[1]
        np.testing.assert_allclose(f64(got), f64(want), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ("nvfp4", "affine4_g32"))
def test_vmap(name):
    rng, ext = np.random.default_rng(57), _native.ext()
    form, scale = by_name(name), mx.array([[1.5], [2.0], [-3.0]])

    def both(x, s, x_axis, w_axis, bias=None, bias_axis=None, scales=None, scale_axis=None):
        def ours(x, w, sc, bi, b, g):
            return ext.cpu_qmm(x, w, sc, bi, form.native, True, mx.float32, None if g is None else (g, 1.0), b, "silu", b, None)

        def plain(x, w, b, g):
            y = x @ w * (1 if g is None else g)
            return silu(y if b is None else y + b) + (0 if b is None else b)

        axes = (x_axis, w_axis, w_axis, None if s.biases is None else w_axis, bias_axis, scale_axis)
        keep = [i for i, v in enumerate((x, s.w, s.scales, s.biases, bias, scales)) if v is not None]
        values = [v for v in (x, s.w, s.scales, s.biases, bias, scales) if v is not None]

        def spread(*given):
            full = [None] * 6
            for i, v in zip(keep, given):
                full[i] = v
            return full

        got = mx.vmap(lambda *v: ours(*spread(*v)), in_axes=tuple(axes[i] for i in keep))(*values)
        names = [(x, x_axis), (dense(s), w_axis), (bias, bias_axis), (scales, scale_axis)]
        kept = [i for i, (v, _) in enumerate(names) if v is not None]

        def spread_plain(*given):
            full = [None] * 4
            for i, v in zip(kept, given):
                full[i] = v
            return full

        want = mx.vmap(lambda *v: plain(*spread_plain(*v)), in_axes=tuple(names[i][1] for i in kept))(*[names[i][0] for i in kept])
        assert got.shape == want.shape
        np.testing.assert_allclose(f64(got), f64(want), rtol=1e-4, atol=1e-4)

    one, many = stored(rng, form, 32, 64), stored(rng, form, 32, 64, batch=(3,))
    both(normal(rng, 3, 5, 64), one, 0, None)
    both(normal(rng, 5, 3, 64), one, 1, None)
    both(normal(rng, 5, 64), many, None, 0)
    both(normal(rng, 3, 5, 64), many, 0, 0)
    both(normal(rng, 2, 3, 5, 64), many, 1, 0)
    both(normal(rng, 5, 64), one, None, None, normal(rng, 3, 32), 0)
    both(normal(rng, 3, 5, 64), one, 0, None, normal(rng, 32), None)
    if name == "nvfp4":
        both(normal(rng, 5, 64), one, None, None, None, None, scale, 0)
        both(normal(rng, 3, 5, 64), many, 0, 0, None, None, scale, 0)
        both(normal(rng, 3, 5, 64), one, 0, None, None, None, scale[0], None)


def call(x=None, w=None, scales=None, biases=None, fmt=None, transpose=True, out="float32", **more):
    form = by_name("affine4_g32")
    defaults = (mx.zeros((2, 64)), mx.zeros((32, 8), mx.uint32), mx.ones((32, 2)), mx.zeros((32, 2)), form.native)
    x, w, scales, biases, fmt = (given if given is not None else default for given, default in zip((x, w, scales, biases, fmt), defaults))
    return _native.ext().cpu_qmm(x, w, scales, biases, fmt, transpose, out, **more)


REFUSED = [
    (dict(x=mx.zeros((2, 32))), r"\[cpu_qmm\] x is \(2,32\), but the weights are 64 by 32: the last dimension of x must be 64; is transpose right"),
    (dict(x=mx.zeros((64,))), r"x is \(64\), but needs two dimensions or more; add one with mx.expand_dims"),
    (dict(x=mx.zeros((2, 64), mx.int32)), r"x is int32, but must be float32, float16 or bfloat16"),
    (dict(w=mx.zeros((32, 8))), r"w is float32, but packed weights are uint32"),
    (dict(w=mx.zeros((32, 9), mx.uint32)), r"scales are \(32,2\) and w is \(32,9\), but with 4 bits and groups of 32 weights"),
    (dict(scales=mx.ones((32, 3))), r"scales are \(32,3\)"),
    (dict(scales=mx.ones((32, 2), mx.uint8)), r"scales is uint8, but must be float32"),
    (dict(biases=mx.zeros((32, 2), mx.float16)), r"biases are float16 and scales float32, but they must agree"),
    (dict(fmt=("e2m1", 4, 32, "e8m0", [])), r"scales are float32, but this format stores them as uint8"),
    (dict(fmt=("codes", 4, 32, "float", [])), r"codes 'codes' are not known; nearest: unsigned, e2m1, e4m3, table"),
    (dict(fmt=("unsigned", 9, 32, "float", [])), r"bits = 9, but must be in 1..8"),
    (dict(fmt=("unsigned", 4, 12, "float", [])), r"group = 12, but must be a positive multiple of 8"),
    (dict(fmt=("table", 2, 32, "float", [1.0])), r"a table of 1 values does not fit codes of 2 bits"),
    (dict(fmt=("e2m1", 8, 32, "e8m0", [])), r"e2m1 codes have 4 bits"),
    (dict(out="int8"), r"\[cpu_qmm\] out_dtype = 'int8', but must be float32"),
    (dict(bias=mx.zeros((33,))), r"broadcast"),
    (dict(residual=mx.zeros((1, 2, 32))), r"residual is \(1,2,32\), which does not broadcast to the result \(2,32\)"),
    (dict(activation="gelu"), r"activation = 'gelu' is not known"),
    (dict(global_scale=(mx.zeros((1,), mx.float16), 1.0)), r"global_scale is float16, but must be float32"),
    (dict(global_scale=(mx.zeros((2,)), 1.0)), r"global_scale is \(2\), but must have one element, or broadcast to the batch \(\)"),
]


@pytest.mark.parametrize("arguments, text", REFUSED)
def test_refusals_teach(arguments, text):
    with pytest.raises(ValueError, match=text):
        call(**arguments)


def test_streams():
    rng = np.random.default_rng(58)
    s, x = stored(rng, by_name("mxfp4"), 32, 64), normal(rng, 4, 64)
    for stream in (mx.cpu, mx.new_stream(mx.cpu), None):
        check(_native.ext().cpu_qmm(x, s.w, s.scales, None, s.format.native, True, mx.float32, stream=stream), x, s)
