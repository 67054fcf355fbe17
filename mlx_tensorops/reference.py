"""Oracles in float64 and the error bounds that every engine states and every test asserts.

NumPy only; MLX arrays are read through it. An oracle multiplies the operands as they are stored, so that the
only errors left are those of the engine: its f32 accumulation and its one rounding of the result.
"""

from __future__ import annotations

from . import formats
from .dtypes import element_type

F32_UNIT = 2.0**-24  # half the spacing of f32 around 1
TF32_UNIT = 2.0**-11  # f32 operands cut to 11 significant bits, as MLX documents for NAX with TF32 allowed

# Rounding errors of a length-K sum behave like a random walk: |error| <= ACCUMULATION * sqrt(K) * u * sum |a||b| with
# probability 1 - 2 exp(-ACCUMULATION**2 / 2) per element (Higham & Mary, SIAM J. Sci. Comput. 41(5), 2019); 6: 3e-8.
ACCUMULATION = 6.0


def to_float64(array):
    """A NumPy float64 copy of an MLX or NumPy array, exact for every type a kernel of ours multiplies."""
    import numpy as np

    if isinstance(array, (np.ndarray, np.generic)):
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

    magnitude = np.abs(to_float64(a)) @ np.abs(to_float64(b))
    accumulated = _accumulation(a.shape[-1]) * magnitude
    if relaxed_f32:
        accumulated = accumulated + 2 * TF32_UNIT * magnitude
    return _rounded(gemm(a, b), accumulated, out)


def qgemm(x, w, scales, biases, format, transpose: bool = True, *, global_scale=None, convention: str = "amax", staged: str | None = None):
    """``x`` times quantised weights in float64.

    Args:
        x: activations ``[..., M, K]``.
        w, scales, biases, global_scale, convention: as in :func:`mlx_tensorops.formats.dequantise`.
        format: a :class:`~mlx_tensorops.formats.Format`.
        transpose: the weights are ``[N, K]``, their product is with ``x``'s rows; else ``[K, N]``.
        staged: element type that the weights are rounded to, from float32, before the product; None: the exact weights.
    """
    import numpy as np

    if staged is None:
        weights = formats.dequantise(w, scales, biases, format, global_scale, convention)
    else:
        weights = formats.codec.round_to(formats.codec.weights_f32(w, scales, biases, format), staged).astype(np.float64)
        if global_scale is not None:
            weights = weights * formats.codec.global_factor(global_scale, format, convention, weights.shape)
    return to_float64(x) @ (np.swapaxes(weights, -1, -2) if transpose else weights)


def qgemm_bound(x, w, scales, biases, format, out: str, transpose: bool = True, *, global_scale=None, convention: str = "amax",
                staged: str | None = None, relaxed_f32: bool = False):
    """Elementwise bound on |result - qgemm(exact weights)|: one rounding to ``out``, f32 accumulation over K, f32 weights and global
    scale; and, with ``staged``, what rounding these very weights to that type changes, computed and not estimated.

    Args:
        out: name of the result's element type.
        relaxed_f32: the engine may cut f32 operands to tf32.
        (others): as in :func:`qgemm`.
    """
    import numpy as np

    how = dict(transpose=transpose, global_scale=global_scale, convention=convention)
    exact = qgemm(x, w, scales, biases, format, **how)
    weights = np.abs(formats.dequantise(w, scales, biases, format, global_scale, convention))
    magnitude = np.abs(to_float64(x)) @ (np.swapaxes(weights, -1, -2) if transpose else weights)
    error = _accumulation(x.shape[-1]) * magnitude
    if format.biased or format.codes == "table":
        error = error + F32_UNIT * magnitude  # one f32 rounding per weight; those of the others are exact
    if relaxed_f32:
        error = error + 2 * TF32_UNIT * magnitude
    if staged is not None:
        error = error + np.abs(qgemm(x, w, scales, biases, format, **how, staged=staged) - exact)
    if global_scale is not None:
        error = error + 2 * F32_UNIT * np.abs(exact)  # its division and its product
    return _rounded(exact, error, out)


def _accumulation(k: int) -> float:
    """Error of an f32 sum of ``k`` products, relative to the sum of their magnitudes."""
    return ACCUMULATION * max(k, 1) ** 0.5 * F32_UNIT


def _rounded(exact, error, out: str):
    """Bound on what rounding ``exact``, known up to ``error``, to the result's type leaves."""
    import numpy as np

    unit = element_type(out).epsilon / 2
    subnormal = 2.0**-25 if out == "float16" else 0.0  # half the spacing of half's subnormals
    return unit * (np.abs(exact) + error) + error + subnormal


def frobenius(array) -> float:
    """Square root of the sum of squares."""
    import numpy as np

    return float(np.sqrt(np.sum(np.square(array))))
