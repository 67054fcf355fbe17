"""The Metal decode macros, emulated, against NumPy and against formulas of the formats' definitions."""

import numpy as np
import pytest

from mlx_tensorops import hostmetal
from mlx_tensorops.formats import codec

from . import data, metal
from .test_decode import e2m1, e4m3, e8m0

DIALECTS = ("3.1", "4.0", "4.1")


@pytest.mark.parametrize("name", metal.SUBJECTS)
def test_every_code_and_every_byte_that_straddles(name):
    format = metal.SUBJECTS[name]
    codes, w = data.every_code(format)
    blocks = (*codes.shape[:-1], codes.shape[-1] // format.group)
    scales = np.full(blocks, {"e4m3": 0x38, "e8m0": 127}[format.scale], np.uint8) if format.scale != "float" else np.ones(blocks, np.float16)
    biases = np.full(blocks, -3.0, np.float16) if format.biased else None
    got, weights = metal.decode(name, w, scales, biases)
    by_hand = {"e2m1": e2m1, "e4m3": e4m3, "unsigned": float, "table": lambda c: float(np.float32(format.values[c]))}[format.codes]
    expected = np.array([by_hand(int(c)) for c in codes.reshape(-1)]).reshape(codes.shape)
    assert data.same(got, expected)
    assert data.same(weights, expected - 3.0 if format.biased else expected)


@pytest.mark.parametrize("name,by_hand", [("nvfp4", e4m3), ("e4m3_both", e4m3), ("mxfp4", e8m0), ("mxfp8", e8m0)])
@pytest.mark.parametrize("flush_half", [False, True])
def test_every_scale_byte(name, by_hand, flush_half):
    """Code 1.0 (the same number for all weights) times each of the 256 bytes; packs at both ends of a group."""
    format = metal.SUBJECTS[name]
    one = {"e2m1": 2, "e4m3": 0x38}[format.codes]
    w = codec.pack(np.full((1, 256 * format.group), one, np.uint8), format.bits)
    _, weights = metal.decode(name, w, np.arange(256, dtype=np.uint8)[None], flush_half=flush_half)
    assert data.same(weights[0], np.repeat([by_hand(b) for b in range(256)], format.group))


def judge(name: str, scale_type: str = "float16", dialect: str = "4.0") -> bool:
    """Random weights, groups next to each other of different scales, NaN codes and bytes: does the macro agree with NumPy to the last bit?"""
    format = metal.SUBJECTS[metal.PLANTED[name][0] if name in metal.PLANTED else name]
    w, scales, biases = data.random_weights(format, (5, 6 * 2 * format.group), seed=3, scale_type=scale_type)
    scales[0, :3] = 0 if scales.dtype == np.uint8 else 0.0
    if scales.dtype == np.uint8:
        scales[1, :2] = 0xB8, 0x81  # e4m3: negative; e8m0: large
    if format.codes == "e4m3":
        w[2, :2] = 0xFF7F0180
    if biases is not None and format.bits == 8 and scale_type == "float32":  # 97 * 345922 lies between two float32, and the bias decides
        w[3], scales[3], biases[3] = 0x61616161, 345922.0, 2.0**-30
    msl = {"float16": "half", "bfloat16": "bfloat", "float32": "float"}[scale_type] if format.scale == "float" else None
    _, weights = metal.decode(name, w, data.metal_bytes(scales, scale_type), data.metal_bytes(biases, scale_type), scale_type=msl, dialect=dialect)
    return data.same(weights, codec.weights_f32(w, scales, biases, format))


@pytest.mark.parametrize("name", metal.SUBJECTS)
def test_weights_are_those_of_numpy_to_the_bit(name):
    scale_types = codec.SCALE_TYPES if metal.SUBJECTS[name].scale == "float" else ("float16",)
    for scale_type in scale_types:
        assert judge(name, scale_type), scale_type


@pytest.mark.parametrize("dialect", DIALECTS)
def test_language_versions(dialect):
    text, _ = metal.source()
    assert text.isascii() and hostmetal.lint(text, dialect=dialect) == ()
    for name in ("affine6_g64", "nvfp4", "mxfp8", "table3"):
        assert judge(name, dialect=dialect)


@pytest.mark.parametrize("bug", metal.PLANTED)
def test_planted_bugs_are_caught(bug):
    assert not judge(bug, "float32")


def test_no_branch_and_no_table_where_bits_say_it():
    for format in metal.SUBJECTS.values():
        words = metal.decode_text(format).replace("(", " ").split()
        assert "if" not in words and "?" not in words and "switch" not in words
        assert ("CODE_VALUES[code];" in words) == (format.codes == "table")


def one_word_in(name: str):
    """Decodes a row that starts one word into its buffer: aligned to 4 bytes and no more."""
    format = metal.SUBJECTS[metal.ALTERED[name][0] if name in metal.ALTERED else name]
    w, scales, biases = data.random_weights(format, (1, 2 * format.group), scale_type="float16")
    _, weights = metal.decode(name, w, scales, biases, first_word=1)
    return weights, codec.weights_f32(w, scales, biases, format)


@pytest.mark.parametrize("name", metal.SUBJECTS)
def test_loads_are_aligned_where_rows_start_on_any_word(name):
    assert data.same(*one_word_in(name))


@pytest.mark.parametrize("bug", metal.TOO_WIDE)
def test_wider_loads_are_caught(bug):
    with pytest.raises(hostmetal.HostMetalError, match="misaligned"):
        one_word_in(bug)
