"""Leading axes merged into one."""

from __future__ import annotations


def merged(mx, x, keep: int):
    """x with all axes but the last ``keep`` as one; ``flatten``, because a shapeless graph replays it with other sizes."""
    if x.ndim == keep + 1:
        return x
    return mx.expand_dims(x, 0) if x.ndim == keep else mx.flatten(x, 0, x.ndim - keep - 1)


def broadcast(mx, x, shape: tuple):
    """x broadcast to a shape that it may have already."""
    return x if x.shape == tuple(shape) else mx.broadcast_to(x, shape)
