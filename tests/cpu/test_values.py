"""Right values: every instruction set of this machine, with and without BLAS, every type, layout and size class."""

from __future__ import annotations

import itertools
from functools import lru_cache

import mlx.core as mx
import numpy as np
import pytest

from mlx_tensorops.primitives import _cpu

from .oracle import DTYPES, LAYOUTS, NAMES, activate, check, expected, f64, random, wrong

SETS = _cpu.info()["usable_instruction_sets"]
BLAS = ("never", "always", "auto")
# Around the edges of register tiles (4, 6, 12 x 8, 16, 32), packed strips (64), the few-row path (8) and packed depth (256).
SIZES = ((1, 1, 1), (1, 70, 33), (2, 64, 600), (3, 17, 5), (5, 129, 257), (8, 40, 256), (8, 600, 20), (9, 16, 64), (13, 65, 31), (33, 48, 260), (70, 7, 130),
         (130, 1, 50), (97, 100, 300), (301, 31, 9))


@lru_cache(maxsize=1)
def of_every_size_and_type() -> list[tuple]:
    """(case, a, b, product in float64, its bound): the same for every instruction set."""
    rng, found = np.random.default_rng(1), []
    for (m, n, k), a_type, b_type, layout in itertools.product(SIZES, DTYPES, DTYPES, ("nn", "nt", "tn", "tt")):
        a, b = random(rng, (m, k), a_type, layout[0]), random(rng, (k, n), b_type, layout[1])
        found.append(((m, n, k, a_type, b_type, layout), a, b, *expected(a, b)))
    return found


@pytest.mark.parametrize("blas", BLAS)
@pytest.mark.parametrize("instruction_set", SETS)
def test_sizes_and_types(configure, product, instruction_set, blas):
    configure(instruction_set=instruction_set, blas=blas, threads=2)
    for case, a, b, want, slack in of_every_size_and_type():
        for out in {a.dtype, mx.float32}:
            check(product(a, b, out), want, slack, (*case, out))


@pytest.mark.parametrize("blas", ("never", "always"))
@pytest.mark.parametrize("instruction_set", SETS)
def test_every_pair_of_layouts(configure, product, instruction_set, blas):
    configure(instruction_set=instruction_set, blas=blas, threads=2)
    rng = np.random.default_rng(2)
    for (m, n, k), one, two in itertools.product(((1, 40, 70), (6, 90, 33), (65, 50, 270), (40, 3, 90)), LAYOUTS, LAYOUTS):
        dtype = DTYPES[(LAYOUTS.index(one) + LAYOUTS.index(two)) % 3]
        a, b = random(rng, (m, k), dtype, one), random(rng, (k, n), dtype, two)
        check(product(a, b), *expected(a, b), (m, n, k, dtype, one, two))


@pytest.mark.parametrize("blas", ("never", "always"))
@pytest.mark.parametrize("instruction_set", SETS)
def test_epilogues(configure, product, instruction_set, blas):
    configure(instruction_set=instruction_set, blas=blas, threads=2)
    rng = np.random.default_rng(3)
    for (m, n, k), activation, dtype, layout in itertools.product(((1, 700, 40), (5, 33, 17), (70, 66, 300), (50, 4, 200)), (None, "relu", "silu", "gelu_tanh", "gelu_erf"),
                                                                  DTYPES, "nts"):
        a, b = (mx.array(rng.standard_normal((m, k), np.float32)) / 8).astype(dtype), random(rng, (k, n), dtype)
        bias, residual = random(rng, (1, 2 * n), DTYPES[m % 3])[0, ::2], random(rng, (m, n), dtype, layout)
        for extras in ({}, {"bias": bias, "residual": residual}) if layout == "n" else ({"residual": residual},):
            got = product(a, b, dtype, activation=activation, **extras)
            check(got, *expected(a, b, activation=activation, **extras), (m, n, k, activation, dtype, layout, list(extras)))


@pytest.mark.parametrize("threads", (1, 3))
def test_batches(configure, product, threads):
    configure(threads=threads)
    rng = np.random.default_rng(4)
    shapes = (((4,), (4,)), ((4,), ()), ((), (4,)), ((2, 3), (3,)), ((2, 1), (1, 3)), ((1,), (5,)), ((2, 3), (2, 1)), ((3, 1, 2), (2, 2)))
    for (left, right), (m, n, k), dtype in itertools.product(shapes, ((1, 50, 64), (7, 5, 3), (20, 33, 40)), DTYPES):
        for layout in ("nn", "nt", "tn", "rs"):
            a, b = random(rng, (*left, m, k), dtype, layout[0]), random(rng, (*right, k, n), dtype, layout[1])
            check(product(a, b), *expected(a, b), (left, right, m, n, k, dtype, layout))


def test_addends_broadcast_like_arrays(product):
    rng = np.random.default_rng(5)
    a, b = random(rng, (2, 3, 6, 20), mx.float16), random(rng, (3, 20, 40), mx.float16)
    for shape in ((40,), (1,), (6, 1), (6, 40), (3, 1, 40), (2, 1, 6, 40), (2, 3, 1, 1), (2, 3, 6, 40)):
        x = mx.array(rng.standard_normal(shape, np.float32))
        check(product(a, b, residual=x), *expected(a, b, residual=x), shape)
        check(product(a, b, bias=x, activation="relu"), *expected(a, b, bias=x, activation="relu"), shape)


def test_a_batch_of_rows_is_one_tall_product(product):
    """[B, 1, K] @ [K, N], with rows that are not adjacent."""
    rng = np.random.default_rng(6)
    a, b = random(rng, (60, 3, 50), mx.bfloat16)[:, 1:2, :], random(rng, (50, 30), mx.bfloat16)
    residual = random(rng, (60, 1, 30), mx.float32)
    check(product(a, b, residual=residual), *expected(a, b, residual=residual))


@pytest.mark.parametrize("shape", [((0, 5), (5, 3)), ((4, 5), (5, 0)), ((0, 0), (0, 0)), ((0, 3, 4), (4, 2)), ((2, 0, 4), (2, 4, 3))])
def test_empty_results(product, shape):
    a, b = (mx.zeros(s, mx.float16) for s in shape)
    got = product(a, b)
    assert got.shape == np.zeros(shape[0]).__matmul__(np.zeros(shape[1])).shape
    mx.eval(got)


@pytest.mark.parametrize("blas", BLAS)
def test_empty_sums_keep_the_epilogue(configure, product, blas):
    configure(blas=blas)
    rng = np.random.default_rng(7)
    for (m, n), dtype in itertools.product(((1, 5), (9, 70), (30, 2)), DTYPES):
        a, b = mx.zeros((m, 0), dtype), mx.zeros((0, n), dtype)
        bias, residual = random(rng, (1, n), mx.float32)[0], random(rng, (m, n), dtype)
        check(product(a, b), np.zeros((m, n)), np.zeros((m, n)))
        check(product(a, b, dtype, bias, "silu", residual), *expected(a, b, bias, "silu", residual))


def test_nan_and_infinity_stay_where_they_are(configure, product):
    for instruction_set, dtype, (m, n) in itertools.product(SETS, DTYPES, ((1, 80), (20, 80))):
        configure(instruction_set=instruction_set)
        a, b = np.ones((m, 40), np.float32), np.ones((40, n), np.float32)
        a[0, 3], b[5, 7] = np.nan, np.inf
        got = f64(product(mx.array(a).astype(dtype), mx.array(b).astype(dtype)))
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(got, a.astype(np.float64) @ b)


def test_halves_overflow_to_infinity(product):
    a = mx.full((16, 64), 100.0, mx.float16)
    assert mx.all(mx.isinf(product(a, a.T))).item()
    assert f64(product(a, a.T, mx.float32)).max() == 640000


def test_default_output_type_is_mlx_promotion(product):
    for one, two in itertools.product(DTYPES, DTYPES):
        a, b = mx.ones((3, 4), one), mx.ones((4, 5), two)
        assert product(a, b).dtype == mx.matmul(a, b).dtype == product(a, b, NAMES[mx.matmul(a, b).dtype]).dtype


def test_the_check_rejects_planted_bugs():
    """What a broken kernel would return, against the bound that the tests above use."""
    rng = np.random.default_rng(8)
    for dtype in DTYPES:
        # Sums of about 1, where the activations differ most.
        a, b = (mx.array(rng.standard_normal((24, 300), np.float32)) / 16).astype(dtype), random(rng, (300, 24), dtype)
        bias = random(rng, (1, 24), dtype)[0]
        want, slack = expected(a, b, bias, "gelu_tanh")
        x, y, c = f64(a), f64(b), f64(bias)
        right = activate(x @ y + c, "gelu_tanh")
        rounded_twice = f64(mx.array((x @ y).astype(np.float32)).astype(mx.bfloat16)) + c
        bugs = {
            "last K block dropped": activate(x[:, :256] @ y[:256] + c, "gelu_tanh"),
            "one element of K dropped": activate(x[:, :-1] @ y[:-1] + c, "gelu_tanh"),
            "b transposed": activate(x @ y[:24].T.repeat(13, 0)[:300] + c, "gelu_tanh"),
            "bias shifted": activate(x @ y + np.roll(c, 1), "gelu_tanh"),
            "the other gelu": activate(x @ y + c, "gelu_erf") if dtype == mx.float32 else activate(x @ y + c, "silu"),
            "two rows swapped": right[[1, 0, *range(2, 24)]],
            "rounded before the bias": activate(rounded_twice, "gelu_tanh") if dtype == mx.float32 else right * 1.02,
        }

        def stored(values):
            return mx.array(values.astype(np.float32)).astype(dtype)

        assert not wrong(stored(right), want, slack).any()
        for name, values in bugs.items():
            assert wrong(stored(values), want, slack).any(), (name, dtype)
