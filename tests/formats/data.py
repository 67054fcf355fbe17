"""Packed weights made code by code, so that every code, byte and seam occurs."""

from __future__ import annotations

import numpy as np

from mlx_tensorops.formats import Format, codec


def every_code(format: Format, rows: int = 3, seed: int = 0):
    """(codes, w): each row holds every code, in an order of its own, and whole groups."""
    rng = np.random.default_rng(seed)
    row = np.lcm(2**format.bits, format.group)
    codes = np.stack([rng.permutation(np.arange(row) % 2**format.bits) for _ in range(rows)]).astype(np.uint8)
    return codes, codec.pack(codes, format.bits)


def random_weights(format: Format, shape, seed: int = 0, scale_type: str = "float32"):
    """(w, scales, biases) of random codes; scales of many magnitudes, both signs where the format allows, none NaN."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 2**format.bits, shape, np.uint8)
    if format.codes == "e4m3":
        codes[codes % 128 == 127] = 3
    blocks = (*shape[:-1], shape[-1] // format.group)
    if format.scale == "e4m3":
        scales = rng.integers(1, 127, blocks, np.uint8)
    elif format.scale == "e8m0":
        scales = rng.integers(110, 140, blocks, np.uint8)
    else:
        scales = (rng.standard_normal(blocks) * 2.0 ** rng.integers(-6, 3, blocks)).astype(np.float32)
        scales = stored(scales, scale_type)
    biases = stored(rng.standard_normal(blocks).astype(np.float32), scale_type) if format.biased else None
    return codec.pack(codes, format.bits), scales, biases


def stored(values, scale_type: str):
    """In the type; bfloat16 as float32 that it holds exactly."""
    rounded = codec.round_to(values, scale_type)
    return rounded.astype(np.float16) if scale_type == "float16" else rounded


def metal_bytes(values, scale_type: str):
    """What Metal reads as half, bfloat or float."""
    if values is None or values.dtype == np.uint8:
        return values
    if scale_type == "bfloat16":
        return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values


def same(a, b) -> bool:
    """Equal values, NaN in the same places, zeros of the same sign."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    nan = np.isnan(a) & np.isnan(b)
    return a.shape == b.shape and bool((nan | ((a == b) & (np.signbit(a) == np.signbit(b)))).all())
