"""Calls of the public functions beside a float64 oracle: engines, weights, bounds."""

import contextlib

import mlx.core as mx
import numpy as np

from mlx_tensorops import hostmetal
from mlx_tensorops.dtypes import element_type
from mlx_tensorops.reference import ACCUMULATION, F32_UNIT, to_float64
from tests.cpu.experts import experts

ENGINES = ("cpu", "mlx", "mpp", "simdgroup")
FORMATS = ("affine4_g64", "affine3_g32", "mxfp4", "mxfp8", "nvfp4")


def on(engine: str):
    """Where an engine is legal here: the Metal engines run emulated, every finding an error."""
    return hostmetal.active(checked=True) if engine in ("mpp", "simdgroup") else contextlib.nullcontext()


def floats(shape, seed: int, dtype=mx.float32, scale: float = 1.0):
    """Normal numbers of a type."""
    return mx.array((np.random.default_rng(seed).normal(size=shape) * scale).astype(np.float32)).astype(dtype)


def one(name: str, n: int, k: int, *, transpose: bool = True, dtype=mx.float32, seed: int = 0):
    """(arrays as ``mx.quantize`` gives them, float64 weights [K, N], keywords) of one matrix."""
    stored, values, words = stack(name, 1, n, k, transpose=transpose, dtype=dtype, seed=seed)
    return tuple(a[0] for a in stored), values[0], words


def stack(name: str | None, e: int, n: int, k: int, *, transpose: bool = True, dtype=mx.float32, seed: int = 0):
    """The same for a stack of matrices, float64 weights [E, K, N]. Dense weights have no keywords."""
    made = experts(np.random.default_rng(seed), name, e, n, k, transpose=transpose, dtype=dtype)
    if name is None:
        return (made.w,), made.values, {}
    f = made.format
    return tuple(a for a in made.stored if a is not None), made.values, dict(mode=f.mode, group_size=f.group, bits=f.bits, transpose=transpose)


def over(got, want, magnitude, *, k: int, slope: float = 1.0, operations: int = 4) -> float:
    """Largest error / bound: f32 sums of ``k`` terms of that magnitude and a few f32 operations, widened by ``slope``, and one rounding.

    Weights count as decoded to f32 with one rounding.
    """
    out = element_type(str(got.dtype).rsplit(".", 1)[-1])
    assert got.shape == want.shape, (got.shape, want.shape)
    if want.size == 0:
        return 0.0
    error = slope * F32_UNIT * ((ACCUMULATION * max(k, 1) ** 0.5 + 1 + operations) * magnitude + operations * np.abs(want))
    bound = error + out.epsilon / 2 * (np.abs(want) + error) + (2.0**-25 if out.name == "float16" else 1e-30)
    return float(np.max(np.abs(to_float64(got) - want) / bound))
