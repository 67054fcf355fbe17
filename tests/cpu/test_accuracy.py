"""Half results are as good as rounding the float64 result once; f32 results are as good as OpenBLAS's."""

from __future__ import annotations

from functools import lru_cache

import mlx.core as mx
import numpy as np
import pytest

from mlx_tensorops.primitives import _cpu

from .oracle import f64, random

SETS = _cpu.info()["usable_instruction_sets"]
SHAPES = ((64, 64, 4096), (64, 64, 700), (8, 512, 4096), (2, 2048, 2048))


def error(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


# The instances of a type follow each other.
@lru_cache(maxsize=1)
def products(dtype) -> list[tuple]:
    """(case, a, b, product in float64, error of rounding that once) of every shape and layout of b."""
    rng, found = np.random.default_rng(11), []
    for m, n, k in SHAPES:
        assert m * n >= 4096
        for layout in "nt":
            a, b = random(rng, (m, k), dtype), random(rng, (k, n), dtype, layout)
            want = f64(a) @ f64(b)
            found.append(((m, n, k, layout), a, b, want, error(f64(mx.array(want.astype(np.float32)).astype(dtype)), want)))
    return found


@pytest.mark.parametrize("blas", ("auto", "always"))
@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("dtype", (mx.float16, mx.bfloat16))
def test_halves_round_once(configure, product, instruction_set, dtype, blas):
    configure(instruction_set=instruction_set, blas=blas)
    for case, a, b, want, once in products(dtype):
        assert error(f64(product(a, b)), want) <= 1.1 * once, case


@pytest.mark.parametrize("instruction_set", SETS)
def test_f32_sums_are_as_good_as_sgemm(configure, product, instruction_set):
    """Sums in f32 cannot meet the bound above (OpenBLAS's error is 10 times it); OpenBLAS is the yardstick instead.
    Its few-row products add along lanes, ours along K in pieces of 256, so either may be the better one."""
    configure(instruction_set=instruction_set, blas="never")
    rng = np.random.default_rng(12)
    for m, n, k in SHAPES:
        for layout in "nt":
            a, b = random(rng, (m, k), mx.float32), random(rng, (k, n), mx.float32, layout)
            want = f64(a) @ f64(b)
            assert error(f64(product(a, b)), want) <= 2.5 * error(np.array(a) @ np.array(b), want), (m, n, k, layout)


@pytest.mark.parametrize("dtype", (mx.float16, mx.bfloat16))
def test_the_bound_rejects_sums_kept_in_half(dtype):
    """The bound can fail: rounding the running sum to the operands' type after each 256 products exceeds it."""
    rng = np.random.default_rng(13)
    a, b = random(rng, (64, 4096), dtype), random(rng, (4096, 64), dtype)
    want, total = f64(a) @ f64(b), np.zeros((64, 64))
    for k in range(0, 4096, 256):
        total = f64(mx.array((total + f64(a)[:, k : k + 256] @ f64(b)[k : k + 256]).astype(np.float32)).astype(dtype))
    once = error(f64(mx.array(want.astype(np.float32)).astype(dtype)), want)
    assert error(total, want) > 1.1 * once
