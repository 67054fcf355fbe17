"""Random block-quantised weights in any format, and operand-matched float64 results of products with them."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from mlx_tensorops import formats
from mlx_tensorops.formats.codec import weights_f32
from mlx_tensorops.primitives import _cpu, _native

from . import oracle
from .oracle import f64

FORMATS = tuple(formats.BUILT_IN)
SETS = _cpu.info()["usable_instruction_sets"]


@dataclass(frozen=True)
class Stored:
    """Arrays as cpu_qmm takes them; ``weights`` is [..., K, N], in f32 precision but float64 type."""

    w: mx.array
    scales: mx.array
    biases: mx.array | None
    format: formats.Format
    transpose: bool
    weights: np.ndarray

    def view(self, function) -> Stored:
        """The same function of the stored rows' axes applied to every array, and to what they decode to."""
        w, scales, biases = (None if x is None else function(x) for x in (self.w, self.scales, self.biases))
        return of_arrays(w, scales, biases, self.format, self.transpose)


def of_arrays(w, scales, biases, form, transpose: bool) -> Stored:
    weights = weights_f32(np.array(w), scales, biases, form).astype(np.float64)
    return Stored(w, scales, biases, form, transpose, weights.swapaxes(-1, -2) if transpose else weights)


def stored(rng: np.random.Generator, form: formats.Format, n: int, k: int, transpose: bool = True, dtype: mx.Dtype = mx.float32,
           batch: tuple[int, ...] = ()) -> Stored:
    """Every code is as likely as any other; the weights are of about unit size."""
    rows, columns = (n, k) if transpose else (k, n)
    if columns % form.group:
        raise ValueError(f"{columns} is not a multiple of {form.group}")
    packed = rng.integers(0, 256, (*batch, rows, columns * form.bits // 8), np.uint8)
    if form.codes == "e4m3":
        packed[(packed & 0x7F) == 0x7F] -= 1  # NaN
    w = mx.array(np.ascontiguousarray(packed).view(np.uint32))
    grouped, biases = (*batch, rows, columns // form.group), None
    match form.scale:
        case "float":
            scales = mx.array(rng.uniform(0.5, 1.5, grouped).astype(np.float32) * np.where(rng.random(grouped) < 0.5, 2, -2).astype(np.float32) / 2**form.bits).astype(dtype)
        case "e4m3":
            scales = mx.array(rng.integers(0x20, 0x3A, grouped, np.uint8))
        case _:
            scales = mx.array(rng.integers(122, 128, grouped, np.uint8) - (6 if form.codes == "e4m3" else 0))
    if form.biased:
        biases = mx.array(rng.standard_normal(grouped, np.float32)).astype(dtype)
    return of_arrays(w, scales, biases, form, transpose)


def qmm(x: mx.array, s: Stored, out_dtype=None, global_scale=None, bias=None, activation=None, residual=None) -> mx.array:
    return _native.ext().cpu_qmm(x, s.w, s.scales, s.biases, s.format.native, s.transpose, out_dtype or x.dtype, global_scale, bias, activation, residual, None)


def expected(x, s: Stored, global_scale: float | None = None, bias=None, activation=None, residual=None) -> tuple[np.ndarray, np.ndarray]:
    """The result in float64, and a bound of the error of computing it in f32 (before the final rounding); see oracle.expected."""
    a, factor = f64(x), 1.0 if global_scale is None else global_scale
    want, size = a @ s.weights * factor, np.abs(a) @ np.abs(s.weights) * abs(factor)
    return oracle.finished(want, size, x.shape[-1], bias, activation, residual)


def check(got: mx.array, x, s: Stored, what: object = "", **epilogue) -> None:
    oracle.check(got, *expected(x, s, **epilogue), (s.format.name, s.transpose, x.shape, what))
