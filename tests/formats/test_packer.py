"""The packer: nearest value of the block, ties to the even code, scales as documented."""

from fractions import Fraction

import mlx.core as mx
import numpy as np
import pytest

from mlx_tensorops import formats
from mlx_tensorops.errors import ShapeError, TensorOpsError
from mlx_tensorops.formats import codec

from . import data, metal

EVERY = (*formats.BUILT_IN, *metal.OWN)


def weights(format, rows=4, groups=3, seed=0):
    """Rows of magnitudes from 2^-8 to 2^4, a row of zeros, a row of small whole numbers (ties)."""
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((rows, groups * format.group)) * np.exp2(rng.integers(-8, 5, (rows, 1)))).astype(np.float32)
    x[-2] = 0
    x[-1] = rng.integers(-24, 25, x.shape[1]) / 4
    return x


def nearest_by_search(x, scale, bias, format):
    """Codes by exact comparison of all distances, as fractions; among equals the even code, then the smaller."""
    values = [(code, Fraction(float(v)) * Fraction(float(scale)) + Fraction(float(bias))) for code, v in enumerate(codec.code_values(format)) if np.isfinite(v)]
    best, seen = [], {}
    for code, value in values:
        seen.setdefault(value, code)  # -0 and repeated values: the smaller code stands for them
    for weight in map(float, x):
        distance = {code: abs(Fraction(weight) - value) for value, code in seen.items()}
        least = min(distance.values())
        best.append(min((c for c, d in distance.items() if d == least), key=lambda c: (c % 2, c)))
    return best


@pytest.mark.parametrize("format", EVERY, ids=lambda f: f.name)
@pytest.mark.parametrize("scale_type", codec.SCALE_TYPES)
def test_nearest_value_of_the_block(format, scale_type):
    if format.scale != "float" and scale_type != "float32":
        return  # one byte per scale whatever the type
    x = weights(format)[:, : 2 * format.group]
    w, scales, biases = formats.quantise(x, format, scale_type=scale_type)
    codes = codec.unpack(w, format.bits)
    scale = np.repeat(codec.decode_scales(scales, format), format.group, -1)
    bias = np.repeat(biases.astype(float), format.group, -1) if format.biased else np.zeros_like(scale)
    values = codec.code_values(format)
    finite = np.sort(values[np.isfinite(values)])
    chosen = np.abs(x - (values[codes] * scale + bias))
    best = np.min(np.abs(x[..., None] - (finite * scale[..., None] + bias[..., None])), -1)
    assert (chosen <= best * (1 + 1e-12)).all()
    sample = np.random.default_rng(1).choice(x.shape[1], 24, replace=False)
    for row in (0, 1, 3):
        for i in sample:
            if scale[row, i]:
                assert [codes[row, i]] == nearest_by_search(x[row, i : i + 1], scale[row, i], bias[row, i], format)


def truncate(x, scale, values, codes=None):
    return np.searchsorted(values, np.divide(x, scale, out=np.zeros(x.shape), where=scale != 0), "right").clip(1) - 1


def half_away_from_zero(x, scale, values, codes=None):
    middle = (values[:-1] + values[1:]) / 2
    ratio = np.divide(x, scale, out=np.zeros(x.shape), where=scale != 0)
    return np.where(ratio > 0, np.searchsorted(middle, ratio, "right"), np.searchsorted(middle, ratio, "left"))


@pytest.mark.parametrize("wrong,caught_by", [(truncate, lambda: test_nearest_value_of_the_block(formats.by_name("nvfp4"), "float32")),
                                             (half_away_from_zero, lambda: test_ties_go_to_the_even_code(formats.by_name("mxfp4"))),
                                             (half_away_from_zero, lambda: test_ties_of_affine_codes_and_of_scales())])
def test_planted_roundings_are_caught(monkeypatch, wrong, caught_by):
    caught_by()
    monkeypatch.setattr(codec, "_nearest_sorted", wrong)
    with pytest.raises(AssertionError):
        caught_by()


@pytest.mark.parametrize("format", [formats.by_name(n) for n in ("mxfp4", "mxfp8", "nvfp4")] + [metal.E4M3_BOTH], ids=lambda f: f.name)
def test_ties_go_to_the_even_code(format):
    """The middle of every two neighbours, in a block whose scale the largest value fixes at 1."""
    values = np.unique(codec.code_values(format)[np.isfinite(codec.code_values(format))])
    middles = (values[:-1] + values[1:]) / 2
    size = format.group - 1
    chunks = [middles[i : i + size] for i in range(0, len(middles), size)]
    x = np.zeros((len(chunks), format.group), np.float32)
    for row, chunk in zip(x, chunks):
        row[: len(chunk)], row[-1] = chunk, values[-1]
    assert np.array_equal(x[:, :-1].reshape(-1)[: len(middles)], middles)  # exact in float32
    w, scales, _ = formats.quantise(x, format)
    assert (codec.decode_scales(scales, format) == 1).all()
    codes = codec.unpack(w, format.bits)[:, :-1].reshape(-1)[: len(middles)]
    neighbours = {float(m): (a, b) for m, a, b in zip(middles, values[:-1], values[1:])}
    assert (codes % 2 == 0).all()
    assert all(codec.code_values(format)[c] in neighbours[float(m)] for c, m in zip(codes, middles))


def test_ties_of_affine_codes_and_of_scales():
    format = formats.by_name("affine4_g32")
    x = np.resize(np.arange(0, 15) + 0.5, (1, 32)).astype(np.float32)
    x[0, 30:] = 0, 15  # scale 1, bias 0
    codes = codec.unpack(formats.quantise(x, format)[0], 4)[0]
    assert codes[:4].tolist() == [0, 2, 2, 4] and (codes[:30] % 2 == 0).all()
    nvfp4 = formats.by_name("nvfp4")
    x = np.zeros((2, 16), np.float32)
    x[:, 0] = 6 * 1.0625, 6 * 1.1875  # the scales lie in the middle of 1, 1.125 and 1.125, 1.25
    assert formats.quantise(x, nvfp4)[1].reshape(-1).tolist() == [0x38, 0x3A]


def test_well_known_words():
    x = np.resize(np.float32([0.5, 1, 1.5, 2, 3, 4, 6, -0.5]), (1, 32))
    w, scales, biases = formats.quantise(x, formats.by_name("mxfp4"))
    assert w.dtype == np.uint32 and w.tolist() == [[0x97654321] * 4] and scales.tolist() == [[127]] and biases is None


@pytest.mark.parametrize("largest,byte", [(6.0, 127), (7.0, 128), (12.0, 128), (np.nextafter(np.float32(12), np.float32(13)), 129), (3.0, 126), (0.0, 0),
                                          (2.0**-149, 0), (3.4028234663852886e38, 253)])
def test_e8m0_scales_are_rounded_up(largest, byte):
    x = np.zeros((1, 32), np.float32)
    x[0, 5] = -largest
    w, scales, _ = formats.quantise(x, formats.by_name("mxfp4"))
    assert scales.tolist() == [[byte]]
    decoded = formats.dequantise(w, scales, None, formats.by_name("mxfp4"))
    assert (decoded[x == 0] == 0).all()


@pytest.mark.parametrize("format", EVERY, ids=lambda f: f.name)
def test_what_is_representable_survives(format):
    """decode -> quantise -> decode changes nothing where the block's range is used in full."""
    values = codec.code_values(format)
    values = values[np.isfinite(values)]
    codes = np.random.default_rng(2).integers(0, 2**format.bits, (4, 2 * format.group))
    if format.codes == "e4m3":
        codes[codes % 128 == 127] = 1
    codes[:, :: format.group] = np.flatnonzero(np.abs(codec.code_values(format)) == np.abs(values).max())[0]
    codes[:, 1 :: format.group] = np.flatnonzero(codec.code_values(format) == values.min())[0]
    if format.biased:
        codes[:, :: format.group] = 2**format.bits - 1
    scales = {"float": np.float32(0.25), "e4m3": np.uint8(0x30), "e8m0": np.uint8(120)}[format.scale] * np.ones((4, 2), {"float": np.float32}.get(format.scale, np.uint8))
    biases = np.full((4, 2), -1.5, np.float32) if format.biased else None
    x = formats.dequantise(codec.pack(codes, format.bits), scales, biases, format)
    again = formats.dequantise(*formats.quantise(x, format), format)
    assert np.array_equal(x, again)


def test_zeros_and_constant_blocks():
    for format in EVERY:
        if format.codes == "table" and format.scale == "e8m0":
            continue  # no byte and no value is 0
        x = np.zeros((2, format.group), np.float32)
        assert (formats.dequantise(*formats.quantise(x, format), format) == 0).all(), format.name
    constant = np.full((1, 32), -0.7, np.float32)
    for bits in (1, 4, 8):
        format = formats.by_name(f"affine{bits}_g32")
        assert (formats.dequantise(*formats.quantise(constant, format), format) == constant).all()


def test_values_past_the_largest_saturate():
    """E4M3 scales end at 448: a block of 1e6 becomes 448 * 6."""
    x = np.full((1, 16), 1e6, np.float32)
    x[0, 1] = -1e6
    w, scales, _ = formats.quantise(x, formats.by_name("nvfp4"))
    assert scales.tolist() == [[0x7E]]
    assert formats.dequantise(w, scales, None, formats.by_name("nvfp4"))[0, :2].tolist() == [2688.0, -2688.0]


def test_global_scale_brings_small_and_large_weights_into_range():
    format = formats.by_name("nvfp4")
    x = weights(format)[:2] * np.float32(1e-4)
    amax = float(np.abs(x).max())
    plain = formats.dequantise(*formats.quantise(x, format), format)
    for factor, convention in ((amax, "amax"), (amax / 2688, "prescaled")):
        packed = formats.quantise(x, format, global_scale=factor, convention=convention)
        scaled = formats.dequantise(*packed, format, factor, convention)
        assert packed[1].max() == 0x7E  # the largest block uses the largest scale
        assert np.linalg.norm(scaled - x) < 0.12 * np.linalg.norm(x) < np.linalg.norm(plain - x)


@pytest.mark.parametrize("format", [f for f in formats.BUILT_IN if not f.biased], ids=lambda f: f.name)
def test_as_good_as_mlx_packer(format):
    """Not the same bytes (ties, zeros), but the same error to one part in a thousand."""
    x = weights(format, rows=6, groups=8, seed=5)
    ours = formats.dequantise(*formats.quantise(x, format), format)
    w, scales = mx.quantize(mx.array(x), format.group, format.bits, mode=format.mode, stream=mx.cpu)
    theirs = formats.dequantise(w, scales, None, format)
    assert np.linalg.norm(ours - x) <= 1.001 * np.linalg.norm(theirs - x)


def test_mlx_arrays_of_every_type_and_leading_axes():
    format = formats.by_name("affine4_g64")
    for dtype in (mx.float32, mx.float16, mx.bfloat16):
        x = mx.array(weights(format).reshape(2, 2, 192)).astype(dtype)
        w, scales, biases = formats.quantise(x, format, scale_type=str(dtype).rpartition(".")[2])
        assert w.shape == (2, 2, 24) and scales.shape == biases.shape == (2, 2, 3)
        stored = mx.array(scales).astype(dtype)
        assert np.array_equal(np.array(stored.astype(mx.float32)), scales.astype(np.float32))
        theirs = mx.dequantize(mx.array(w), mx.array(scales).astype(mx.float32), mx.array(biases).astype(mx.float32), 64, 4, stream=mx.cpu)
        assert np.allclose(np.array(theirs), formats.dequantise(w, scales, biases, format), rtol=0, atol=1e-5)


@pytest.mark.parametrize("x,options,error,says", [
    (np.zeros((2, 60)), {}, ShapeError, "whole groups of 32.*\n.*nearest legal: 32"),
    (np.float32(3.0), {}, ShapeError, "whole groups of 32"),
    (np.where(np.arange(64).reshape(2, 32) == 33, np.nan, 0.0), {}, TensorOpsError, r"weight nan at \(1, 1\)"),
    (np.zeros((1, 32)), dict(scale_type="float64"), TensorOpsError, "float32, float16, bfloat16"),
    (np.full((1, 32), 1e6), dict(scale_type="float16"), TensorOpsError, "overflows float16"),
    (np.zeros((1, 32)), dict(global_scale=1.0), TensorOpsError, "which has none"),
])
def test_errors_teach(x, options, error, says):
    with pytest.raises(error, match=says):
        formats.quantise(x, formats.by_name("affine4_g32"), **options)


def test_a_global_scale_of_zero_is_refused():
    with pytest.raises(TensorOpsError, match="None for a tensor of zeros"):
        formats.quantise(np.zeros((1, 16)), formats.by_name("nvfp4"), global_scale=0.0)


@pytest.mark.parametrize("codes,bits,says", [([16] * 32, 4, "0 to 15"), ([-1] * 32, 4, "0 to 15"), ([0] * 31, 3, "multiple of 32")])
def test_pack_refuses_what_does_not_fit(codes, bits, says):
    with pytest.raises(TensorOpsError, match=says):
        codec.pack(np.array(codes), bits)
