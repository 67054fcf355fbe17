"""Oracles in float64 and the error bounds that every engine states and every test asserts.

NumPy only; MLX arrays are read through it. An oracle multiplies the operands as they are stored, so that the
only errors left are those of the engine: its f32 accumulation and its one rounding of the result.
"""

from __future__ import annotations

from .dtypes import element_type

F32_UNIT = 2.0**-24  # half the spacing of f32 around 1
TF32_UNIT = 2.0**-11  # f32 operands cut to 11 significant bits, as MLX documents for NAX with TF32 allowed

# Rounding errors of a length-K sum behave like a random walk: |error| <= ACCUMULATION * sqrt(K) * u * sum |a||b| with
# probability 1 - 2 exp(-ACCUMULATION**2 / 2) per element (Higham & Mary, SIAM J. Sci. Comput. 41(5), 2019); 6: 3e-8.
ACCUMULATION = 6.0


def to_float64(array):
    """A NumPy float64 copy of an MLX or NumPy array, exact for every type a kernel of ours multiplies."""
    import numpy as np

    if isinstance(array, np.ndarray):
        return array.astype(np.float64)
    import mlx.core as mx

    return np.array(array.astype(mx.float32)).astype(np.float64)


def gemm(a, b):
    """``a @ b`` in float64."""
    return to_float64(a) @ to_float64(b)


def gemm_bound(a, b, out: str, *, relaxed_f32: bool = False):
    """Elementwise bound on |result - gemm(a, b)|: one rounding to ``out`` plus f32 accumulation over K.

    Args:
        a, b: the operands; they set the scale sum |a||b|.
        out: name of the result's element type.
        relaxed_f32: the engine may cut f32 operands to tf32.
    """
    import numpy as np

    exact = np.abs(gemm(a, b))
    k = a.shape[-1]
    unit = element_type(out).epsilon / 2
    magnitude = np.abs(to_float64(a)) @ np.abs(to_float64(b))
    accumulated = ACCUMULATION * np.sqrt(max(k, 1)) * F32_UNIT * magnitude
    if relaxed_f32:
        accumulated = accumulated + 2 * TF32_UNIT * magnitude
    subnormal = 2.0**-25 if out == "float16" else 0.0  # half the spacing of half's subnormals
    return unit * (exact + accumulated) + accumulated + subnormal


def frobenius(array) -> float:
    """Square root of the sum of squares."""
    import numpy as np

    return float(np.sqrt(np.sum(np.square(array))))
