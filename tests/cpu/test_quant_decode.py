"""Every code and every scale byte decodes exactly, whatever the instruction set and the route; and what the counters say about the work."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mlx_tensorops.formats import by_name
from mlx_tensorops.formats.codec import scale_values, small_float
from mlx_tensorops.primitives import _cpu

from .engine import counters
from .oracle import random
from .quant import FORMATS, SETS, check, of_arrays, qmm, stored

ROWS = (1, 2, 4, 6, 8, 20)  # every few-row kernel, and the strips


def decoded(s, m: int) -> np.ndarray:
    """The weights [K, N] as the engine sees them: rows of the identity pick them out, m at a time, and the rest of each sum is zero."""
    k = s.weights.shape[0]
    rows = [np.array(qmm(mx.array(np.eye(k, dtype=np.float32)[i : i + m]), s)) for i in range(0, k, m)]
    return np.concatenate(rows)


def same(got: np.ndarray, want: np.ndarray) -> bool:
    return bool(((got == want) | (np.isnan(got) & np.isnan(want))).all())


def byte_weights(name: str, codes: np.ndarray, scales: np.ndarray, transpose: bool):
    """Stored rows of 8-bit codes, or pairs of 4-bit ones."""
    return of_arrays(mx.array(np.ascontiguousarray(codes).view(np.uint32)), mx.array(scales), None, by_name(name), transpose)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("transpose", (True, False))
def test_every_e4m3_code(configure, instruction_set, transpose):
    configure(instruction_set=instruction_set)
    codes = np.arange(256, dtype=np.uint8).reshape(8, 32)
    finite = np.where((codes & 0x7F) == 0x7F, 0, codes)
    s = byte_weights("mxfp8", finite, np.full((8, 1), 127, np.uint8), transpose)
    want = small_float(4, 3, True)[finite]
    for m in ROWS:
        assert same(decoded(s, m), want.T if transpose else want), m
    # One NaN makes its whole column of the result NaN, and no other.
    s = byte_weights("mxfp8", codes, np.full((8, 1), 127, np.uint8), transpose)
    for m in (1, 5, 20):
        got = np.array(qmm(mx.ones((m, s.weights.shape[0])), s))
        assert (np.isnan(got) == np.isnan(s.weights).any(0)).all()
        assert np.isnan(got).any() and (transpose is False or not np.isnan(got).all())


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("transpose", (True, False))
@pytest.mark.parametrize("name", ("mxfp4", "nvfp4", "mxfp8"))
def test_every_scale_byte(configure, instruction_set, transpose, name):
    configure(instruction_set=instruction_set)
    form = by_name(name)
    scales = np.arange(256, dtype=np.uint8).reshape(64, 4)
    codes = np.zeros((64, 4 * form.group * form.bits // 8), np.uint8)
    codes[:] = 0x39 if form.codes == "e4m3" else 0xA3  # 2^0 * 1.125; 1.5 and -1
    s = byte_weights(name, codes, scales, transpose)
    value = 1.125 if form.codes == "e4m3" else 1.5
    with np.errstate(over="ignore"):
        want = (scale_values(form.scale)[scales] * value).astype(np.float32)
    first = s.weights.T if transpose else s.weights  # stored rows
    assert same(first[:, :: form.group].astype(np.float32), want)
    # One weight at a time: every product but one is zero times a finite number, unless the scale is not finite.
    for m in (1, 8, 20):
        x = np.zeros((m, s.weights.shape[0]), np.float32)
        if transpose:
            for group in range(4):
                x[:] = 0
                x[:, group * form.group] = 1
                got = np.array(qmm(mx.array(x), s))
                finite = np.isfinite(scale_values(form.scale)[scales]).all(1)
                assert same(got[:, finite], np.broadcast_to(want[finite, group], (m, finite.sum()))), (m, group)
                assert np.isnan(got[:, ~finite]).all()  # zero times infinity, or NaN
        else:
            got = decoded(s, m)
            finite = np.isfinite(scale_values(form.scale)[scales]).all(0)
            for group in np.flatnonzero(finite):
                assert same(got[:, group * form.group], want[:, group]), (m, group)


@pytest.mark.parametrize("instruction_set", SETS)
def test_infinite_and_huge_scales_act_on_weights(configure, instruction_set):
    """0 times an infinite scale is NaN for that weight; and a product is not scaled after it has been summed where that could overflow."""
    configure(instruction_set=instruction_set)
    ones, zeros = np.full((1, 16), 0x22, np.uint8), np.zeros((1, 16), np.uint8)
    infinite, huge, tiny = (np.full((1, 1), b, np.uint8) for b in (255, 254, 10))
    for m in (1, 3, 12):
        x = mx.ones((m, 32))
        assert (np.array(qmm(x, byte_weights("mxfp4", ones, infinite, True))) == np.inf).all()
        assert (np.array(qmm(-x, byte_weights("mxfp4", ones, infinite, True))) == -np.inf).all()
        assert np.isnan(np.array(qmm(x, byte_weights("mxfp4", zeros, infinite, True)))).all()
        assert (np.array(qmm(x * 2.0**-10, byte_weights("mxfp4", ones, huge, True))) == 2.0**122).all()
        assert (np.array(qmm(x * 2.0**126, byte_weights("mxfp4", ones * 3, tiny, True))) == 32 * 4 * 2.0**9).all()
        assert np.isnan(np.array(qmm(x * mx.inf, byte_weights("mxfp4", zeros, tiny, True)))).all()
        assert (np.array(qmm(x * mx.inf, byte_weights("mxfp4", ones, tiny, True))) == np.inf).all()


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("form", FORMATS, ids=lambda f: f.name)
def test_random_weights_exactly(configure, form, instruction_set):
    configure(instruction_set=instruction_set)
    rng = np.random.default_rng(61)
    # Short rows of codes; and rows of which blocks along K and strips along N take parts, more of them than scales are converted at a time.
    small, large = (19, 3 * form.group), (300, 640)
    for transpose in (True, False):
        for (across, along), rows in ((small, (1, 3, 8, 13)), (large, (20,))):
            n, k = (across, along) if transpose else (along, across)
            s = stored(rng, form, n, k, transpose, mx.bfloat16)
            for m in rows:
                # The baseline has no fused multiply-add, so that affine weights are rounded twice there.
                if form.biased and instruction_set == "baseline":
                    np.testing.assert_allclose(decoded(s, m), s.weights, rtol=0, atol=2.0**-22 * 8)
                else:
                    assert same(decoded(s, m), s.weights), (transpose, m)


def test_mlx_packs_are_read_as_mlx_reads_them():
    """Weights that mx.quantize packed, against mx.dequantize in f32."""
    rng = np.random.default_rng(62)
    w, x = mx.array(rng.standard_normal((64, 256), np.float32)), random(rng, (9, 256), mx.float32)
    for form in FORMATS:
        packed = mx.quantize(w, group_size=form.group, bits=form.bits, mode=form.mode)
        biases = packed[2] if form.biased else None
        s = of_arrays(packed[0], packed[1], biases, form, True)
        values = mx.dequantize(*packed, group_size=form.group, bits=form.bits, mode=form.mode, dtype=mx.float32)
        np.testing.assert_allclose(np.array(values), s.weights.T, rtol=0, atol=0 if not form.biased else 2.0**-22)
        check(qmm(x, s), x, s)


# ---- counters --------------------------------------------------------------------------------------


@pytest.mark.parametrize("transpose", (True, False))
@pytest.mark.parametrize("threads", (1, 2))
def test_weights_are_decoded_once_for_each_block_of_rows(configure, threads, transpose):
    configure(threads=threads)
    rng, n, k, block = np.random.default_rng(63), 704, 1024, 288
    for name in ("nvfp4", "affine5_g64"):
        s = stored(rng, by_name(name), n, k, transpose, mx.float16)
        for m in (1, 4, 7, 8, 9, 64, block, block + 1, 600, 2 * block + 24):
            x = random(rng, (m, k), mx.float16)
            count = counters(lambda x=x, s=s: qmm(x, s))
            assert count["weights_decoded"] == -(-m // block) * n * k, (name, m)
            assert 1 <= count["panels"]
    shared = random(rng, (8, 30, k), mx.float16)
    assert counters(lambda: qmm(shared, s))["weights_decoded"] == n * k, "batches that share weights are rows of one product"


def test_no_path_decodes_a_whole_matrix(configure):
    """Scratch is at most 1 MB a thread, and does not grow with the matrix: a panel of it is all that is decoded at a time."""
    rng = np.random.default_rng(64)
    assert _cpu.info()["scratch_bytes_per_thread"] <= 10**6
    for threads in (1, 2):
        configure(threads=threads)
        for name in ("mxfp4", "affine3_g32", "mxfp8"):
            for transpose in (True, False):
                s = stored(rng, by_name(name), 1024, 1024, transpose, mx.bfloat16)
                for m in (1, 8, 64, 300):
                    x = random(rng, (m, 1024), mx.bfloat16)
                    used = counters(lambda x=x, s=s: qmm(x, s))["scratch_bytes_per_thread"]
                    assert 0 < used <= 10**6 < 1024 * 1024 * 4
