"""Stacked weights in any format with their float64 values, and operand-matched results of the products over experts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from mlx_tensorops.formats import Format, by_name
from mlx_tensorops.primitives import _native

from . import quant
from .oracle import activate, f64


@dataclass(frozen=True)
class Experts:
    """Arrays as an operation takes them; ``values`` is [E, K, N] in float64, whatever way they are stored."""

    w: mx.array
    scales: mx.array | None
    biases: mx.array | None
    format: Format | None
    transpose: bool
    values: np.ndarray

    @property
    def stored(self) -> tuple:
        return self.w, self.scales, self.biases

    @property
    def native(self):
        return self.format and self.format.native


def experts(rng: np.random.Generator, name: str | None, e: int, n: int, k: int, *, transpose: bool = True, dtype: mx.Dtype = mx.float32) -> Experts:
    """Random weights of about unit size; ``name`` is a format's, or None for dense weights of ``dtype`` (which is the scales' type, too)."""
    outer, inner = (n, k) if transpose else (k, n)
    if name is None:
        w = mx.array(rng.standard_normal((e, outer, inner), np.float32)).astype(dtype)
        values = f64(w)
        return Experts(w, None, None, None, transpose, values.swapaxes(1, 2) if transpose else values)
    s = quant.stored(rng, by_name(name), n, k, transpose, dtype, (e,))
    return Experts(s.w, s.scales, s.biases, s.format, transpose, s.weights)


def factor(e: int, global_scale, divisor: float) -> np.ndarray:
    """Global scale of each expert."""
    return np.ones(e) if global_scale is None else np.broadcast_to(f64(global_scale) / divisor, (e,))


def product(x, weights: Experts, rhs, lhs=None, *, bias=None, global_scale=None, divisor=1.0) -> tuple[np.ndarray, np.ndarray]:
    """MLX's gather in float64, before the activation: result, and a bound of the error of f32 sums. Bad ids give zeros."""
    values = f64(x)
    rhs = np.array(rhs).astype(np.int64)
    if lhs is None:
        index = np.arange(math.prod(x.shape[:-2])).reshape(x.shape[:-2])
    else:
        index = np.array(lhs).astype(np.int64)
    matrices = values.reshape(index.size if lhs is None else math.prod(x.shape[:-2]), *values.shape[-2:])
    index, rhs = np.broadcast_arrays(index, rhs)
    e, k, n = weights.values.shape
    scale = factor(e, global_scale, divisor)
    want = np.zeros((*rhs.shape, x.shape[-2], n))
    slack = np.zeros_like(want)
    flat, flat_slack = (a.reshape(rhs.size, *a.shape[-2:]) for a in (want, slack))
    valid = (rhs >= 0) & (rhs < e) & (index >= 0) & (index < len(matrices))
    for expert in np.unique(rhs[valid]):
        rows = np.flatnonzero((valid & (rhs == expert)).reshape(-1))
        chosen = matrices[index.reshape(-1)[rows]]
        flat[rows] = chosen @ weights.values[expert] * scale[expert]
        size = np.abs(chosen) @ np.abs(weights.values[expert]) * abs(scale[expert])
        if bias is not None:
            flat[rows] += f64(bias)[expert]
            size += np.abs(f64(bias)[expert])
        flat_slack[rows] = size * 2.0**-24 * (4 * k**0.5 + 8)
    return want, slack


def gated(g: np.ndarray, u: np.ndarray, name: str, alpha: float = 1.702, limit: float = 7.0) -> np.ndarray:
    match name:
        case "swiglu":
            return activate(g, "silu") * u
        case "geglu_tanh" | "geglu_erf":
            return activate(g, "gelu_" + name.removeprefix("geglu_")) * u
        case "swiglu_clamped":
            g, u = np.minimum(g, limit), np.clip(u, -limit, limit)
            return g / (1 + np.exp(-alpha * g)) * (u + 1)
    raise ValueError(name)


# ---- the operations, called with the above -----------------------------------------------------------


def gather_mm(x, weights: Experts, rhs, lhs=None, *, dtype=None, global_scale=None, divisor=1.0, bias=None, activation=None, plan=None, stream=None):
    return _native.ext().cpu_gather_mm(x, *weights.stored, weights.native, weights.transpose, dtype or x.dtype, lhs, rhs,
                                       global_scale if global_scale is None else (global_scale, divisor), bias, activation, plan, stream)


def gateup(x, gate: Experts, up: Experts, rhs, lhs=None, *, dtype=None, global_scales=(None, None), biases=(None, None), activation=None, alpha=1.702, limit=7.0,
           plan=None):
    return _native.ext().cpu_gather_gateup(x, (*gate.stored, biases[0]), (*up.stored, biases[1]), gate.native, gate.transpose, dtype or x.dtype, lhs, rhs,
                                           global_scales, activation, alpha, limit, plan)


def combine(x, weights: Experts, rhs, scores, *, dtype=None, global_scale=None, divisor=1.0, bias=None):
    return _native.ext().cpu_gather_combine(x, *weights.stored, weights.native, weights.transpose, dtype or x.dtype, rhs, scores,
                                            global_scale if global_scale is None else (global_scale, divisor), bias)


def plan(rhs, num_experts: int, block_m: int) -> list[mx.array]:
    return _native.ext().cpu_tile_plan(rhs, num_experts, block_m)[:4]


def ids(rng: np.random.Generator, shape, experts: int, *, outside: bool = False, dtype=np.int32) -> mx.array:
    low, high = (-2, experts + 3) if outside else (0, experts)
    return mx.array(rng.integers(low, high, shape).astype(dtype))
