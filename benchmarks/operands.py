"""Operands of the benchmarks: activations, and weights as MLX stores them."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from mlx_tensorops import formats


def weights(name: str, n: int, k: int, transpose: bool = True, dtype: str = "bfloat16", batch: tuple[int, ...] = (), seed: int = 0):
    """(w, scales, biases or None), evaluated. Every code is as likely as any other; the weights are of about unit size."""
    form, chance = formats.by_name(name), np.random.default_rng(seed)
    rows, columns = (n, k) if transpose else (k, n)
    codes = chance.integers(0, 256, (*batch, rows, columns * form.bits // 8), np.uint8)
    if form.codes == "e4m3":
        codes[(codes & 0x7F) == 0x7F] = 0  # NaN
    groups, biases = (*batch, rows, columns // form.group), None
    if form.scale == "float":
        scales = mx.array(chance.uniform(0.5, 1.5, groups).astype(np.float32) * 4 / 2**form.bits).astype(getattr(mx, dtype))
        biases = -scales * (2 ** (form.bits - 1) - 0.5)
    else:
        scales = mx.array(chance.integers(0x28, 0x30, groups, np.uint8) if form.scale == "e4m3" else chance.integers(118, 122, groups, np.uint8))
    arrays = mx.array(codes.view(np.uint32)), scales, biases
    mx.eval(*(a for a in arrays if a is not None))
    return arrays


def expert(stored, number: int) -> tuple:
    """One matrix of a stack."""
    return tuple(None if a is None else a[number] for a in stored)


def words(name: str) -> dict[str, object]:
    form = formats.by_name(name)
    return {"mode": form.mode, "group_size": form.group, "bits": form.bits}


def dense(name: str, stored, transpose: bool = True) -> np.ndarray:
    """One matrix as [K, N] in float64."""
    values = formats.codec.weights_f32(*stored, formats.by_name(name)).astype(np.float64)
    return values.T if transpose else values


def normal(shape: tuple[int, ...], dtype: mx.Dtype, seed: int = 1) -> mx.array:
    x = mx.array(np.random.default_rng(seed).standard_normal(shape, np.float32)).astype(dtype)
    mx.eval(x)
    return x
