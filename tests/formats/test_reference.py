"""The float64 oracle of quantised products and its bound: right, tight enough to catch bugs, honest about staging."""

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest

from mlx_tensorops import formats, reference
from mlx_tensorops.formats import codec

from . import data

CHOSEN = [formats.by_name(n) for n in ("affine4_g64", "affine3_g32", "affine8_g128", "mxfp4", "mxfp8", "nvfp4")]
STAGED = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


def case(format, transpose=True, m=5, k=256, n=128, seed=0):
    x = np.random.default_rng(seed).standard_normal((m, k)).astype(np.float16)
    return x, *data.random_weights(format, (n, k) if transpose else (k, n), seed, "float16")


def engine(x, weights, out=np.float16, factor=1.0):
    """f32 products and sums, as an engine does: one rounding at the end."""
    return ((x.astype(np.float32) @ weights.astype(np.float32)) * np.float32(factor)).astype(out)


@pytest.mark.parametrize("format", CHOSEN, ids=lambda f: f.name)
@pytest.mark.parametrize("transpose", [True, False])
def test_oracle_is_a_sum_over_k(format, transpose):
    x, w, scales, biases = case(format, transpose, m=3, k=128, n=128)
    got = reference.qgemm(mx.array(x), mx.array(w), mx.array(scales), None if biases is None else mx.array(biases), format, transpose)
    codes, values = codec.unpack(w, format.bits), codec.code_values(format)
    for row, column in ((0, 0), (1, 33), (2, 127)):
        total = 0.0
        for k in range(128):
            at = (column, k) if transpose else (k, column)
            block = (at[0], at[1] // format.group)
            bias = float(biases[block]) if format.biased else 0.0
            total += float(x[row, k]) * (values[codes[at]] * codec.decode_scales(scales, format)[block] + bias)
        assert np.isclose(got[row, column], total, rtol=1e-12)


@pytest.mark.parametrize("format", CHOSEN, ids=lambda f: f.name)
@pytest.mark.parametrize("staged", [None, "bfloat16", "float16"])
def test_bound_holds_for_f32_engines_and_not_for_bugs(format, staged):
    x, w, scales, biases = case(format)
    if staged == "float16" and not format.biased:
        scales = scales.clip(0, 140 if format.scale == "e8m0" else 100)  # weights that half holds
        if format.codes == "e4m3":
            w = w & 0x3F3F3F3F
    weights = codec.weights_f32(w, scales, biases, format)
    if staged:
        weights = weights.astype(STAGED[staged])
    exact = reference.qgemm(x, w, scales, biases, format)
    bound = reference.qgemm_bound(x, w, scales, biases, format, "float32", staged=staged)
    assert np.isfinite(bound).all()

    def caught(wrong):
        return (np.abs(engine(x, wrong.T, np.float32) - exact) > bound).mean() > 0.5

    assert (np.abs(engine(x, weights.T, np.float32) - exact) <= bound).all()
    codes = codec.unpack(w, format.bits)
    swapped = codes.reshape(-1, 2)[:, ::-1].reshape(codes.shape)
    assert caught(codec.weights_f32(codec.pack(swapped, format.bits), scales, biases, format))
    assert caught(codec.weights_f32(w, np.roll(scales, 1, -1), biases, format))
    assert caught(codec.weights_f32(w, scales, None if biases is None else -biases, format) * 1.01)
    if staged is None and format.biased:
        assert caught(weights.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_e2m1_and_e4m3_weights_are_exact_in_bfloat16():
    for format in (formats.by_name(n) for n in ("mxfp4", "mxfp8", "nvfp4")):
        x, w, scales, _ = case(format)
        assert np.array_equal(reference.qgemm(x, w, scales, None, format, staged="bfloat16"), reference.qgemm(x, w, scales, None, format))
        assert np.array_equal(reference.qgemm_bound(x, w, scales, None, format, "bfloat16", staged="bfloat16"),
                              reference.qgemm_bound(x, w, scales, None, format, "bfloat16"))


@pytest.mark.parametrize("convention,factor", [("amax", 3.7), ("prescaled", 3.7 / 2688)])
def test_global_scale_in_the_epilogue(convention, factor):
    format = formats.by_name("nvfp4")
    x, w, scales, _ = case(format)
    exact = reference.qgemm(x, w, scales, None, format, global_scale=factor, convention=convention)
    bound = reference.qgemm_bound(x, w, scales, None, format, "float32", global_scale=factor, convention=convention)
    f32 = np.float32(factor) / np.float32(codec.CONVENTIONS[convention])
    weights = codec.weights_f32(w, scales, None, format).T
    assert (np.abs(engine(x, weights, np.float32, f32) - exact) <= bound).all()
    assert (np.abs(engine(x, weights, np.float32) - exact) > bound).all()
    other = {"amax": "prescaled", "prescaled": "amax"}[convention]
    assert (np.abs(reference.qgemm(x, w, scales, None, format, global_scale=factor, convention=other) - exact) > bound).mean() > 0.99


def test_batches_broadcast():
    format = formats.by_name("nvfp4")
    w, scales, _ = data.random_weights(format, (3, 1, 32, 64))
    x = np.random.default_rng(0).standard_normal((2, 4, 64)).astype(np.float32)
    got = reference.qgemm(x, w, scales, None, format)
    assert got.shape == (3, 2, 4, 32)
    for e in range(3):
        for b in range(2):
            assert np.allclose(got[e, b], reference.qgemm(x[b], w[e, 0], scales[e, 0], None, format), rtol=1e-13, atol=1e-10)
    bound = reference.qgemm_bound(x, w, scales, None, format, "float16")
    assert bound.shape == got.shape


@pytest.mark.parametrize("out,dtype", [("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)])
def test_one_rounding_of_the_result(out, dtype):
    """The bound of a half result is met by one rounding and little more: at most 1.02 half units in the last place."""
    format = formats.by_name("affine4_g64")
    x, w, scales, biases = case(format)
    exact = reference.qgemm(x, w, scales, biases, format)
    bound = reference.qgemm_bound(x, w, scales, biases, format, out)
    assert (np.abs(exact.astype(dtype).astype(float) - exact) <= bound).all()
    unit = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[out]
    magnitude = np.abs(x.astype(float)) @ np.abs(formats.dequantise(w, scales, biases, format).T)
    assert (bound <= unit * np.abs(exact) * 1.001 + magnitude * 1e-5 + 2.0**-25).all()
    twice = exact.astype(dtype).astype(float) * (1 + 2 * unit)
    assert (np.abs(twice - exact) > bound).mean() > 0.4
