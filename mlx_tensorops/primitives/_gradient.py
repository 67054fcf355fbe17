"""Gradients of kernels: of the same formula, composed of MLX operations. Parts of it that nobody asks for are never evaluated."""

from __future__ import annotations

from typing import Callable


def of(formula: Callable, primals, cotangents, argnums, *, sliced: bool = False) -> list:
    """Gradients of the inputs ``argnums`` of a kernel.

    Args:
        formula: inputs -> the results, in the precision in which they are computed.
        sliced: whether the kernel's results have one more axis in front, whose parts another pass adds up.
    """
    import mlx.core as mx

    if sliced:  # that pass sends the same cotangent to each part; the maximum of equal values is exact
        cotangents = [c.max(axis=0) for c in cotangents]

    def composed(*wanted):
        arrays = list(primals)
        for i, array in zip(argnums, wanted):
            arrays[i] = array
        return [y.astype(c.dtype) for y, c in zip(formula(*arrays), cotangents)]

    return mx.vjp(composed, [primals[i] for i in argnums], list(cotangents))[1]
