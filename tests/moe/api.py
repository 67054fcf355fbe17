"""Calls of the operations over experts beside a float64 oracle."""

import mlx.core as mx
import numpy as np

from mlx_tensorops.reference import to_float64

INDEX_TYPES = (mx.int32, mx.uint32, mx.int64, mx.uint8)


def products(x, w, lhs, rhs):
    """(``x[lhs] @ w[rhs]`` in float64 with zero rows for ids out of range, the sum of magnitudes, where both ids are in range).

    Args:
        x: array [..., M, K]; w: float64 [E, K, N]; lhs, rhs: NumPy arrays, or None for MLX's defaults.
    """
    matrices = to_float64(x).reshape(-1, *x.shape[-2:])
    lhs = np.arange(len(matrices)).reshape(x.shape[:-2]) if lhs is None else np.asarray(lhs, np.int64)
    rhs = np.arange(len(w)) if rhs is None else np.asarray(rhs, np.int64)
    lhs, rhs = np.broadcast_arrays(lhs, rhs)
    valid = (lhs >= 0) & (lhs < len(matrices)) & (rhs >= 0) & (rhs < len(w))
    a, b = (values[np.where(valid, ids, 0)] for values, ids in ((matrices, lhs), (w, rhs)))
    mask = valid[..., None, None]
    return np.where(mask, a @ b, 0), np.where(mask, np.abs(a) @ np.abs(b), 0), valid


def ids(shape, experts: int, seed: int, beyond: int = 0):
    """Random expert ids, ``beyond`` of them to either side of the range."""
    return np.random.default_rng(seed).integers(-beyond, experts + beyond, size=shape)
