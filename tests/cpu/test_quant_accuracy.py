"""Half results are as good as rounding the float64 result once, at every activation scale and in the presence of cancellation."""

from __future__ import annotations

from functools import lru_cache

import mlx.core as mx
import numpy as np
import pytest

from mlx_tensorops.formats import by_name
from mlx_tensorops.formats.codec import pack

from .oracle import f64, random
from .quant import SETS, check, of_arrays, qmm, stored

NAMES = ("affine1_g32", "affine2_g32", "affine3_g64", "affine4_g32", "affine4_g128", "affine5_g64", "affine6_g64", "affine8_g32", "mxfp4", "mxfp8", "nvfp4")
HALVES = (mx.float16, mx.bfloat16)


def error(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def over_once(got: mx.array, want: np.ndarray) -> float:
    """The error over that of rounding the float64 result to the type once."""
    once = f64(mx.array(want.astype(np.float32)).astype(got.dtype))
    return error(f64(got), want) / error(once, want)


# Weights in float64 take longer than the products; the instances of a format follow each other.
@lru_cache(maxsize=1)
def products(name: str) -> list[tuple]:
    """(case, x, stored weights, product in float64) of every type, orientation and size."""
    rng, found = np.random.default_rng(71), []
    for dtype in HALVES:
        for transpose in (True, False):
            for m, n, k in ((1, 2048, 256), (4, 512, 512), (8, 256, 512), (48, 128, 512)):
                s, x = stored(rng, by_name(name), n, k, transpose, dtype), random(rng, (m, k), dtype)
                found.append(((dtype, transpose, m, n, k), x, s, x_times(x, s)))
    return found


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("name", NAMES)
def test_halves_round_once(configure, instruction_set, name):
    configure(instruction_set=instruction_set)
    for case, x, s, want in products(name):
        assert over_once(qmm(x, s), want) <= 1.1, case


def x_times(x, s) -> np.ndarray:
    return f64(x) @ s.weights


@lru_cache(maxsize=1)
def unscaled(name: str) -> list[tuple]:
    """(type, x in f32, stored weights of small scales) of every type and number of rows."""
    rng, found = np.random.default_rng(72), []
    for dtype in HALVES:
        for m in (1, 6, 40):
            s, x = stored(rng, by_name(name), 4096 // m, 256, True, dtype), random(rng, (m, 256), mx.float32)
            s = of_arrays(s.w, s.scales if s.scales.dtype == mx.uint8 else s.scales / 32, None if s.biases is None else s.biases / 32, s.format, True)
            found.append((dtype, x, s))
    return found


@pytest.mark.parametrize("sigma", (10, 1, 0.1, 0.01, 0.003))
@pytest.mark.parametrize("name", NAMES)
def test_activation_scales(name, sigma):
    for dtype, values, s in unscaled(name):
        x = (values * sigma).astype(dtype)
        assert over_once(qmm(x, s), x_times(x, s)) <= 1.1, (dtype, x.shape)


@pytest.mark.parametrize("name", NAMES)
def test_far_magnitudes_side_by_side(name):
    """x of +-2^17 and of +-2^-20 in one row. The results that only small ones reach come out right: nothing is scaled by the largest."""
    rng, form = np.random.default_rng(73), by_name(name)
    k, n = 8 * form.group, 64
    s = stored(rng, form, n, k, True, mx.float32)
    # Large x meets weights of exactly zero in half of the rows: code 0 with bias 0.
    packed, groups = np.array(s.w).view(np.uint8).reshape(n, k * form.bits // 8).copy(), np.arange(k // form.group)
    packed.reshape(n, len(groups), -1)[: n // 2, ::2] = 0
    biases = None
    if s.biases is not None:
        b = np.array(s.biases)
        b[: n // 2, ::2] = 0
        biases = mx.array(b)
    s = of_arrays(mx.array(packed.view(np.uint32)), s.scales, biases, form, True)
    assert (s.weights[: form.group, : n // 2] == 0).all()
    for m in (1, 5, 33):
        sign = rng.choice([-1.0, 1.0], (m, k))
        large = np.repeat(groups % 2 == 0, form.group)
        x = mx.array((sign * np.where(large, 2.0**17, 2.0**-20)).astype(np.float32)).astype(mx.bfloat16)
        check(qmm(x, s, mx.float32), x, s)
        assert over_once(qmm(x, s)[:, : n // 2], x_times(x, s)[:, : n // 2]) <= 1.1


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith("affine")])
def test_weights_that_cancel(name):
    """All weights but one of each group are exactly zero, as scale * code + bias: sum(x * code) * scale + sum(x) * bias would leave an
    error of the size of the large x, and the result is of the size of the small one."""
    rng, form = np.random.default_rng(74), by_name(name)
    k, n = 4 * form.group, 32
    zero_code = 2 ** (form.bits - 1)
    codes = np.full((n, k), zero_code, np.uint8)
    codes[:, 5 :: form.group] = zero_code - 1
    scales = rng.uniform(0.5, 1.5, (n, k // form.group)).astype(np.float32)
    s = of_arrays(mx.array(pack(codes, form.bits)), mx.array(scales), mx.array(-scales * zero_code), form, True)
    assert (s.weights[np.arange(k) % form.group != 5] == 0).all()
    for m in (1, 2, 8, 20):
        x = np.full((m, k), 2.0**17, np.float32)
        x[:, 5 :: form.group] = 2.0**-20
        x = mx.array(x).astype(mx.bfloat16)
        assert over_once(qmm(x, s), x_times(x, s)) <= 1.1, m
        check(qmm(x, s, mx.float32), x, s)


def test_the_bounds_reject_weights_rounded_to_half():
    """The bound of the far magnitudes can fail: one rounding of the affine weights to bf16 is enough."""
    rng = np.random.default_rng(75)
    s, x = stored(rng, by_name("affine4_g64"), 1024, 1024, True, mx.bfloat16), random(rng, (4, 1024), mx.bfloat16)
    rounded = f64(mx.array(s.weights.astype(np.float32)).astype(mx.bfloat16))
    got = mx.array((f64(x) @ rounded).astype(np.float32)).astype(mx.bfloat16)
    assert over_once(got, x_times(x, s)) > 1.1


@pytest.mark.parametrize("instruction_set", SETS)
def test_f32_sums_are_as_good_as_sgemm(configure, instruction_set):
    configure(instruction_set=instruction_set)
    rng = np.random.default_rng(76)
    for name in ("nvfp4", "affine4_g64"):
        for transpose in (True, False):
            for m, n, k in ((1, 512, 2048), (4, 128, 2048), (64, 64, 2048)):
                s, x = stored(rng, by_name(name), n, k, transpose), random(rng, (m, k), mx.float32)
                want = x_times(x, s)
                sgemm = error(np.array(x) @ s.weights.astype(np.float32), want)
                assert error(f64(qmm(x, s)), want) <= 2.5 * sgemm, (name, transpose, m, n, k)
