"""Operand-matched float64 results, and what may separate a right f32 sum from them."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np

DTYPES = (mx.float32, mx.float16, mx.bfloat16)
NAMES = {mx.float32: "float32", mx.float16: "float16", mx.bfloat16: "bfloat16"}
HALF_ULP = {mx.float32: 2.0**-24, mx.float16: 2.0**-11, mx.bfloat16: 2.0**-8}
F16_TINY = 2.0**-25  # half of the smallest subnormal


def f64(x: mx.array) -> np.ndarray:
    return np.array(x.astype(mx.float32)).astype(np.float64)


def activate(x: np.ndarray, name: str | None) -> np.ndarray:
    match name:
        case None:
            return x
        case "relu":
            return np.maximum(x, 0)
        case "silu":
            return x / (1 + np.exp(-x))
        case "gelu_tanh":
            return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        case "gelu_erf":
            return 0.5 * x * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2)))
    raise ValueError(name)


def expected(a, b, bias=None, activation=None, residual=None) -> tuple[np.ndarray, np.ndarray]:
    """The result in float64, and a bound of the error of computing it in f32 (before the final rounding)."""
    x, y = f64(a), f64(b)
    return finished(x @ y, np.abs(x) @ np.abs(y), a.shape[-1], bias, activation, residual)


def finished(want: np.ndarray, size: np.ndarray, k: int, bias=None, activation=None, residual=None) -> tuple[np.ndarray, np.ndarray]:
    """The same of a sum of k products, and of the sum of their magnitudes."""
    if bias is not None:
        want, size = want + f64(bias), size + np.abs(f64(bias))
    want = activate(want, activation)
    if residual is not None:
        want, size = want + f64(residual), size + np.abs(f64(residual))
    # Roundings of at most 2^-24 in the sum of k products add up like a random walk (4 sigma), and a few more follow in the
    # epilogue; no activation is steeper than 1.13. The worst case, proportional to k, would hide a wrong activation.
    return want, size * 2.0**-24 * 1.13 * (4 * k**0.5 + 8)


def wrong(got: mx.array, want: np.ndarray, slack: np.ndarray) -> np.ndarray:
    """Where the result is further away than f32 arithmetic and one rounding explain."""
    floor = F16_TINY if got.dtype == mx.float16 else 0.0
    allowed = slack + (np.abs(want) + slack) * HALF_ULP[got.dtype] + floor
    return ~(np.abs(f64(got) - want) <= allowed)


def check(got: mx.array, want: np.ndarray, slack: np.ndarray, what: object = "") -> None:
    assert got.shape == want.shape, (got.shape, want.shape, what)
    bad = wrong(got, want, slack)
    assert not bad.any(), f"{what}: {bad.sum()} of {bad.size} wrong, first at {np.argwhere(bad)[0]}: {f64(got)[bad][0]}, not {want[bad][0]}"


def random(rng: np.random.Generator, shape, dtype, layout: str = "n") -> mx.array:
    """Standard normal values of a shape, stored as `layout` says:
    n rows, t columns, r reversed, s every other element of larger storage, o offset, b broadcast rows, B broadcast columns."""

    def make(*dims):
        return mx.array(rng.standard_normal(dims, np.float32)).astype(dtype)

    *batch, m, n = shape
    match layout:
        case "n":
            return make(*batch, m, n)
        case "t":
            return make(*batch, n, m).swapaxes(-1, -2)
        case "r":
            return make(*batch, m, n)[..., ::-1, ::-1]
        case "s":
            return make(*batch, 3 * m, 2 * n)[..., ::3, ::2]
        case "o":
            return make(*batch, m + 3, n + 5)[..., 3:, 5:]
        case "b":
            return mx.broadcast_to(make(*batch, 1, n), shape)
        case "B":
            return mx.broadcast_to(make(*batch, m, 1), shape)
    raise ValueError(layout)


LAYOUTS = "ntrsobB"
