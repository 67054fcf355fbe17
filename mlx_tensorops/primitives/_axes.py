"""Leading axes merged into one, and back."""

from __future__ import annotations

import math


def merged(mx, x, keep: int):
    """x with all axes but the last ``keep`` as one; ``flatten``, because a shapeless graph replays it with other sizes."""
    if x.ndim == keep + 1:
        return x
    return mx.expand_dims(x, 0) if x.ndim == keep else mx.flatten(x, 0, x.ndim - keep - 1)


def split(mx, x, sizes: tuple):
    """x with its first axis as axes of these sizes.

    A shapeless graph replays it with other sizes where only the first is not 1. Elsewhere it raises: ``unflatten`` would give the
    old sizes and drop rows in silence (MLX 0.32.4).
    """
    if len(sizes) == 1:
        return x
    if sizes and math.prod(sizes[1:]) == 1:
        return mx.expand_dims(x, tuple(range(1, len(sizes))))
    return mx.reshape(x, (*sizes, *x.shape[1:]))


def broadcast(mx, x, shape: tuple):
    """x broadcast to a shape that it may have already."""
    return x if x.shape == tuple(shape) else mx.broadcast_to(x, shape)
