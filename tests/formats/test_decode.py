"""NumPy decoding against definitions, ml_dtypes and MLX."""

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest

from mlx_tensorops import formats
from mlx_tensorops.errors import ShapeError, TensorOpsError
from mlx_tensorops.formats import codec

from . import data, metal

MLX_FORMATS = tuple(formats.BUILT_IN)


def e2m1(code: int) -> float:
    return (-1.0) ** (code >> 3) * (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)[code & 7]


def e4m3(byte: int) -> float:
    sign, exponent, mantissa = (-1.0) ** (byte >> 7), byte >> 3 & 15, byte & 7
    if (exponent, mantissa) == (15, 7):
        return float("nan")
    return sign * (mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))


def e8m0(byte: int) -> float:
    return float("inf") if byte == 255 else 2.0 ** (byte - 127)


def test_every_e4m3_byte():
    values, bytes_ = codec.small_float(4, 3, True), np.arange(256, dtype=np.uint8)
    assert data.same(values, [e4m3(b) for b in range(256)])
    assert data.same(values, bytes_.view(ml_dtypes.float8_e4m3fn))
    assert np.isnan(values[[0x7F, 0xFF]]).all() and values[0x7E] == 448 and values[1] == 2.0**-9


def test_every_e8m0_byte():
    values, bytes_ = codec.scale_values("e8m0"), np.arange(256, dtype=np.uint8)
    assert data.same(values, [e8m0(b) for b in range(256)])
    assert data.same(values[:255], bytes_[:255].view(ml_dtypes.float8_e8m0fnu))
    assert np.isnan(np.float64(bytes_[255:].view(ml_dtypes.float8_e8m0fnu)[0])) and np.isinf(values[255])  # OCP and MLX differ here


def test_every_e2m1_code():
    values, codes = codec.small_float(2, 1, False), np.arange(16, dtype=np.uint8)
    assert data.same(values, [e2m1(c) for c in range(16)])
    assert data.same(values, codes.view(ml_dtypes.float4_e2m1fn))


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 6, 8])
def test_codes_are_a_stream_of_bits(bits):
    """Against Python integers: code i is bits i * bits and up of the row as one little-endian number."""
    rng = np.random.default_rng(bits)
    w = rng.integers(0, 2**32, (2, 3, 2 * bits), np.uint32)
    rows = w.reshape(-1, w.shape[-1])
    expected = [[int.from_bytes(row.astype("<u4").tobytes(), "little") >> i * bits & 2**bits - 1 for i in range(64)] for row in rows]
    codes = codec.unpack(w, bits)
    assert codes.shape == (2, 3, 64) and codes.reshape(6, 64).tolist() == expected
    assert np.array_equal(codec.pack(codes, bits), w)


def test_first_code_in_the_lowest_bits():
    assert codec.pack(np.array([1, 2, 3, 4, 5, 6, 7, 9]), 4).tolist() == [0x97654321]


@pytest.mark.parametrize("format", MLX_FORMATS, ids=lambda f: f.name)
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_mlx_decodes_to_the_same_values(format, dtype):
    """On data that MLX packed. Its CPU backend rounds in the type of the scales after every step, so halves are widened first."""
    rng = np.random.default_rng(format.bits)
    x = mx.array(rng.standard_normal((6, 2 * 128)).astype(np.float32) * np.exp2(rng.integers(-8, 4, (6, 1)))).astype(dtype)
    w, scales, *rest = mx.quantize(x, format.group, format.bits, mode=format.mode, stream=mx.cpu)
    wide = [a.astype(mx.float32) if a.dtype != mx.uint8 else a for a in (scales, *rest)]
    theirs = np.array(mx.dequantize(w, *wide, group_size=format.group, bits=format.bits, mode=format.mode, dtype=mx.float32, stream=mx.cpu))
    biases = rest[0] if rest else None
    ours = codec.weights_f32(w, scales, biases, format)
    if format.biased and dtype == mx.float32:  # MLX rounds the product and the sum
        product = codec.unpack(w, format.bits).astype(np.float32) * np.repeat(np.array(scales), format.group, -1)
        ours_twice = product + np.repeat(np.array(biases), format.group, -1)
        assert np.array_equal(theirs, ours_twice)
        assert np.allclose(ours, theirs, rtol=0, atol=2.0**-23 * float(np.abs(product).max()))
    else:
        assert np.array_equal(theirs, ours)
    assert np.array_equal(formats.dequantise(w, scales, biases, format).astype(np.float32), ours)


@pytest.mark.parametrize("mode", ["mxfp4", "mxfp8", "nvfp4"])
def test_mlx_decodes_every_byte_to_the_same_value(mode):
    """Every code with every scale byte. One known difference is not MLX 0.32.4's: E4M3 0x7f is NaN there, 480 in 0.32.2."""
    format = formats.by_name(mode)
    codes, w = data.every_code(format, rows=256)
    scales = np.repeat(np.arange(256, dtype=np.uint8)[:, None], codes.shape[1] // format.group, 1)
    theirs = np.array(mx.dequantize(mx.array(w), mx.array(scales), group_size=format.group, bits=format.bits, mode=mode, dtype=mx.float32, stream=mx.cpu))
    assert np.array_equal(theirs, codec.weights_f32(w, scales, None, format), equal_nan=True)


@pytest.mark.parametrize("format", MLX_FORMATS, ids=lambda f: f.name)
def test_seams_of_groups(format):
    """Scales of neighbouring groups differ by 2^8 and more, so a pack with a neighbour's scale is far off."""
    groups = 5
    codes = np.full((2, groups * format.group), 2**format.bits - 1 if format.codes == "unsigned" else 2 if format.bits == 4 else 0x38, np.uint8)
    exponents = np.array([[0, 8, -8, 0, 4], [4, -4, 8, 0, -8]])
    scales = {"float": np.exp2(exponents).astype(np.float32), "e8m0": (exponents + 127).astype(np.uint8),
              "e4m3": np.exp2(exponents).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)}[format.scale]
    biases = -scales if format.biased else None
    weights = formats.dequantise(codec.pack(codes, format.bits), scales, biases, format)
    one_code = 2.0**format.bits - 2 if format.codes == "unsigned" else 1.0
    assert np.array_equal(weights, np.repeat(one_code * np.exp2(exponents), format.group, -1))


def test_the_two_conventions_differ_by_2688():
    format = formats.by_name("nvfp4")
    w, scales, _ = data.random_weights(format, (3, 4, 64))
    for factor in (1.0, 0.37109375, 2.0**-15):  # times 2688 they are float32 numbers
        amax = formats.dequantise(w, scales, None, format, factor * 2688, "amax")
        prescaled = formats.dequantise(w, scales, None, format, factor, "prescaled")
        assert np.array_equal(amax, prescaled)
        assert np.array_equal(prescaled, formats.dequantise(w, scales, None, format) * factor)
        assert not np.allclose(formats.dequantise(w, scales, None, format, factor, "amax"), prescaled)


def test_a_global_scale_per_expert():
    format = formats.by_name("nvfp4")
    w, scales, _ = data.random_weights(format, (3, 4, 64))
    factors = np.array([1.0, 2.0, 0.25], np.float32)
    got = formats.dequantise(w, scales, None, format, mx.array(factors), "prescaled")
    assert np.array_equal(got, formats.dequantise(w, scales, None, format) * factors[:, None, None].astype(float))


def test_mlx_global_scale_is_the_amax():
    format, g = formats.by_name("nvfp4"), 3.7
    x = mx.array(np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32))
    w, scales = mx.quantize(x, mode="nvfp4", global_scale=mx.array(g), stream=mx.cpu)
    theirs = np.array(mx.dequantize(w, scales, mode="nvfp4", dtype=mx.float32, global_scale=mx.array(g), stream=mx.cpu))
    ours = formats.dequantise(w, scales, None, format, g)
    assert np.allclose(theirs, ours, rtol=2.0**-22, atol=0)


def test_one_rounding_of_the_bias():
    """97 * 345922 lies in the middle of two float32; float64 loses the bias, which decides."""
    format = formats.by_name("affine8_g64")
    w = np.full((1, 16), 0x61616161, np.uint32)
    for bias, expected in ((2.0**-30, 2.0**25 + 4), (-(2.0**-30), 2.0**25), (0.0, 2.0**25)):
        got = codec.weights_f32(w, np.float32([[345922]]), np.float32([[bias]]), format)
        assert (got == np.float32(expected)).all(), bias


@pytest.mark.parametrize("format", metal.OWN, ids=lambda f: f.name)
def test_formats_of_ones_own(format):
    w, scales, biases = data.random_weights(format, (2, 4 * format.group))
    codes = codec.unpack(w, format.bits)
    value = {"table": lambda c: np.float32(format.values)[c].astype(float), "e4m3": lambda c: np.vectorize(e4m3)(c), "unsigned": lambda c: c.astype(float)}
    scale = {"float": lambda s: s.astype(float), "e4m3": lambda s: np.vectorize(e4m3)(s), "e8m0": lambda s: np.vectorize(e8m0)(s)}
    expected = value[format.codes](codes) * np.repeat(scale[format.scale](scales), format.group, -1)
    assert np.array_equal(formats.dequantise(w, scales, biases, format), expected)


@pytest.mark.parametrize("change,error,says", [
    (dict(w=np.zeros((2, 15), np.uint32)), ShapeError, "one scale per 16 weights"),
    (dict(scales=np.zeros((2, 5), np.uint8)), ShapeError, r"nearest legal: scales of shape \(2, 8\)"),
    (dict(biases=np.zeros((2, 8), np.float32)), ShapeError, "format nvfp4 has none"),
    (dict(w=np.zeros((2, 16), np.int32)), ShapeError, "uint32"),
    (dict(global_scale=1.0, convention="amx"), TensorOpsError, "'amax', 'prescaled'"),
    (dict(global_scale=np.ones(3)), ShapeError, "one per leading index"),
])
def test_errors_teach(change, error, says):
    given = dict(w=np.zeros((2, 16), np.uint32), scales=np.zeros((2, 8), np.uint8), biases=None) | change
    with pytest.raises(error, match=says):
        formats.dequantise(format=formats.by_name("nvfp4"), **given)


def test_errors_of_formats_with_biases():
    w, scales, biases = data.random_weights(formats.by_name("affine4_g32"), (2, 64))
    with pytest.raises(ShapeError, match="biases missing"):
        formats.dequantise(w, scales, None, formats.by_name("affine4_g32"))
    with pytest.raises(ShapeError, match=r"biases of shape \(2, 1\)"):
        formats.dequantise(w, scales, biases[:, :1], formats.by_name("affine4_g32"))
    with pytest.raises(TensorOpsError, match="format 'affine4_g32', which has none"):
        formats.dequantise(w, scales, biases, formats.by_name("affine4_g32"), 1.0)
