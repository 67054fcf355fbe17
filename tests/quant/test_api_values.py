"""quantized_matmul of every engine against float64: formats, ranks, views, epilogues, global scales."""

import mlx.core as mx
import numpy as np
import pytest

import mlx_tensorops as mt
from mlx_tensorops import formats
from mlx_tensorops.epilogues import ACTIVATIONS, Epilogue, apply_float64
from mlx_tensorops.reference import to_float64
from tests.quant.api import ENGINES, FORMATS, floats, on, one, over, stack

RANKS = ((64,), (1, 64), (7, 64), (2, 3, 64), (2, 1, 3, 64), (0, 64), (3, 0, 64))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("engine", ENGINES)
def test_every_rank(engine, name):
    stored, w, words = one(name, 40, 64, seed=1)
    with on(engine):
        for shape in RANKS:
            x = floats(shape, 2)
            got = mt.quantized_matmul(x, *stored, **words, engine=engine)
            assert got.dtype == mx.float32
            assert over(got, to_float64(x) @ w, np.abs(to_float64(x)) @ np.abs(w), k=64) <= 1, shape


@pytest.mark.parametrize("engine", ENGINES)
def test_weights_packed_along_n(engine):
    stored, w, words = one("nvfp4", 64, 48, transpose=False, seed=1)
    x = floats((5, 48), 2)
    with on(engine):
        got = mt.quantized_matmul(x, *stored, **words, engine=engine)
        assert over(got, to_float64(x) @ w, np.abs(to_float64(x)) @ np.abs(w), k=48) <= 1


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("x_batch, w_batch", [((5,), (5,)), ((1,), (5,)), ((5,), (1,)), ((2, 5), (5,)), ((2, 1), (5,)), ((2, 5), (2, 1)), ((3, 5), (2, 1, 5))])
def test_batches_broadcast_and_weights_are_not_copied(engine, x_batch, w_batch):
    stored, w, words = stack("nvfp4", int(np.prod(w_batch)), 40, 64, seed=3)
    stored = [a.reshape(*w_batch, *a.shape[1:]) for a in stored]
    x, w = floats((*x_batch, 3, 64), 4), w.reshape(*w_batch, *w.shape[1:])
    with on(engine):
        got = mt.quantized_matmul(x, *stored, **words, engine=engine)
        assert over(got, to_float64(x) @ w, np.abs(to_float64(x)) @ np.abs(w), k=64) <= 1


@pytest.mark.parametrize("engine", ENGINES)
def test_a_matrix_meets_the_first_of_a_stack_as_in_mlx(engine):
    stored, w, words = stack("affine4_g64", 3, 40, 64, seed=3)
    for shape in ((4, 64), (64,)):
        x = floats(shape, 4)
        with on(engine):
            got = mt.quantized_matmul(x, *stored, **words, engine=engine)
            assert over(got, to_float64(x) @ w[0], np.abs(to_float64(x)) @ np.abs(w[0]), k=64) <= 1
        assert got.shape == mx.quantized_matmul(x, *stored, **words).shape


@pytest.mark.parametrize("engine", ENGINES)
def test_views(engine):
    stored, w, words = one("affine4_g64", 40, 64, seed=1)
    wide, rows = floats((9, 200), 2), [a[::2] for a in stored]
    for x, given, weights in ((wide[1:8, 3:67], stored, w), (wide[:, ::3][:7, :64], stored, w), (floats((64, 7), 3).T, rows, w[:, ::2]),
                              (mx.broadcast_to(floats((1, 64), 4), (7, 64)), [mx.concatenate([a, a], axis=-1)[:, : a.shape[-1]] for a in stored], w)):
        with on(engine):
            got = mt.quantized_matmul(x, *given, **words, engine=engine)
            assert over(got, to_float64(x) @ weights, np.abs(to_float64(x)) @ np.abs(weights), k=64) <= 1


@pytest.mark.parametrize("engine", ENGINES)
def test_scales_that_repeat_along_a_row(engine):
    (w, scales, biases), _, words = one("affine4_g32", 40, 96, seed=1)
    repeated = [mx.broadcast_to(a[:, :1], a.shape) for a in (scales, biases)]
    weights, x = formats.dequantise(w, *repeated, formats.by_name("affine4_g32")).T, floats((5, 96), 2)
    with on(engine):
        got = mt.quantized_matmul(x, w, *repeated, **words, engine=engine)
        assert over(got, to_float64(x) @ weights, np.abs(to_float64(x)) @ np.abs(weights), k=96) <= 1


@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
@pytest.mark.parametrize("engine, out", [("cpu", mx.bfloat16), ("cpu", mx.float32), ("mlx", mx.float16), ("auto", None)])
def test_epilogue_is_computed_in_f32_and_rounded_once(engine, out, activation):
    stored, w, words = one("nvfp4", 40, 64, seed=1)
    x, bias, residual = floats((6, 64), 2, mx.float16), floats((40,), 3), floats((6, 1), 4, mx.bfloat16)
    got = mt.quantized_matmul(x, *stored, **words, bias=bias, activation=activation, residual=residual, out_dtype=out, engine=engine, global_scale=700.0)
    assert got.dtype == (out or mx.float16)
    product = to_float64(x) @ w * np.float64(700 / 2688)
    want = apply_float64(np, Epilogue(True, activation, True), product, bias=to_float64(bias), residual=to_float64(residual))
    magnitude = np.abs(to_float64(x)) @ np.abs(w) * 700 / 2688 + np.abs(to_float64(bias)) + np.abs(to_float64(residual))
    assert over(got, want, magnitude, k=64, slope=1.13, operations=12) <= 1


@pytest.mark.parametrize("engine", ["mpp", "simdgroup"])
def test_epilogue_of_the_kernels_with_leading_axes(engine):
    stored, w, words = one("nvfp4", 40, 64, seed=1)
    x = floats((2, 3, 64), 2)
    product, magnitude = to_float64(x) @ w, np.abs(to_float64(x)) @ np.abs(w)
    with on(engine):
        for bias, residual in (((40,), (2, 3, 40)), ((1, 1, 40), (3, 1)), ((2, 1, 1), (2, 3, 40)), ((), ())):
            b, r = floats(bias, 3), floats(residual, 4)
            got = mt.quantized_matmul(x, *stored, **words, bias=b, activation="relu", residual=r, engine=engine)
            want = np.maximum(product + to_float64(b), 0) + to_float64(r)
            assert over(got, want, magnitude + np.abs(to_float64(b)) + np.abs(to_float64(r)), k=64) <= 1


@pytest.mark.parametrize("engine", ENGINES)
def test_both_conventions_of_the_global_scale(engine):
    stored, w, words = one("nvfp4", 40, 64, seed=1)
    x, amax = floats((6, 64), 2), 3.75
    magnitude = np.abs(to_float64(x)) @ np.abs(w)
    with on(engine):
        for keyword, factor in (("global_scale", amax / 2688), ("weight_scale_2", amax)):
            for value in (mx.array(amax), mx.array([amax]), amax):
                got = mt.quantized_matmul(x, *stored, **words, **{keyword: value}, engine=engine)
                assert over(got, to_float64(x) @ w * factor, magnitude * factor, k=64) <= 1


@pytest.mark.parametrize("engine", ENGINES)
def test_a_registered_format(engine):
    f = formats.register_format(formats.Format("api_nf3", "api_nf3", 3, 32, "table", "float", values=(-1, -0.5, -0.25, 0, 0.1, 0.3, 0.6, 1)))
    rng = np.random.default_rng(0)
    w = mx.array(formats.codec.pack(rng.integers(0, 8, (40, 64)), 3))
    scales, x = floats((40, 2), 5, mx.float16), floats((6, 64), 2)
    values = formats.dequantise(w, scales, None, f).T
    with on(engine):
        got = mt.quantized_matmul(x, w, scales, mode="api_nf3", engine=engine)
        assert over(got, to_float64(x) @ values, np.abs(to_float64(x)) @ np.abs(values), k=64) <= 1


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
@pytest.mark.parametrize("name", ["mxfp4", "nvfp4"])
def test_half_results_are_rounded_once_where_the_engine_is_ours(name, dtype):
    stored, w, words = one(name, 40, 256, seed=1)
    x = floats((9, 256), 2, dtype)
    for engine in ("cpu", "mpp"):
        with on(engine):
            got = mt.quantized_matmul(x, *stored, **words, engine=engine)
            assert got.dtype == dtype and over(got, to_float64(x) @ w, np.abs(to_float64(x)) @ np.abs(w), k=256) <= 1


@pytest.mark.parametrize("engine", ENGINES)
def test_gradients(engine):
    stored, w, words = one("affine4_g64", 40, 64, seed=1)
    x, bias, residual = floats((6, 64), 2), floats((40,), 3), floats((6, 40), 4)

    def loss(x, bias, residual):
        return (mt.quantized_matmul(x, *stored, **words, bias=bias, activation="relu", residual=residual, engine=engine) ** 2).sum()

    with on(engine):
        gx, gb, gr = mx.grad(loss, argnums=(0, 1, 2))(x, bias, residual)
        mx.eval(gx, gb, gr)
    inner = to_float64(x) @ w + to_float64(bias)
    outer = 2 * (np.maximum(inner, 0) + to_float64(residual))
    masked = outer * (inner > 0)
    for got, want in ((gx, masked @ w.T), (gb, masked.sum(0)), (gr, outer)):
        assert got.shape == want.shape and np.abs(to_float64(got) - want).max() <= 2e-5 * np.abs(want).max()


@pytest.mark.parametrize("shapeless", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_compiled_with_other_lengths(engine, shapeless):
    stored, w, words = one("nvfp4", 40, 64, seed=1)
    with on(engine):
        compiled = mx.compile(lambda x: mt.quantized_matmul(x, *stored, **words, engine=engine), shapeless=shapeless)
        for rows in (4, 70, 1):
            x = floats((rows, 64), rows)
            assert over(compiled(x), to_float64(x) @ w, np.abs(to_float64(x)) @ np.abs(w), k=64) <= 1


def test_vmap_and_jvp_of_the_cpu_engine():
    stored, w, words = one("nvfp4", 40, 64, seed=1)
    x, t = floats((2, 3, 64), 2), floats((2, 3, 64), 3)

    def call(x):
        return mt.quantized_matmul(x, *stored, **words, engine="cpu")

    assert over(mx.vmap(call)(x), to_float64(x) @ w, np.abs(to_float64(x)) @ np.abs(w), k=64) <= 1
    assert over(mx.jvp(call, [x], [t])[1][0], to_float64(t) @ w, np.abs(to_float64(t)) @ np.abs(w), k=64) <= 1
