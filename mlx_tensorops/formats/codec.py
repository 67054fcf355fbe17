"""Block-quantised weights in NumPy: exact decoding, and a packer of our own.

The decoder is what every engine's decoder is compared with. The packer rounds to the nearest value, ties to the even
code; MLX's own differ between CPU and Metal, so packed bytes are no reference, decoded values are.

Arrays may be NumPy's or MLX's; NumPy is imported when a function is called.
"""

from __future__ import annotations

from functools import lru_cache

from ..dtypes import element_type
from ..errors import DTypeError, ShapeError, TensorOpsError, fail
from .entry import Format

GLOBAL_SCALE_DIVISOR = 448.0 * 6.0  # largest E4M3 times largest E2M1: a global scale that is the tensor's amax is divided by it

CONVENTIONS = {"amax": GLOBAL_SCALE_DIVISOR, "prescaled": 1.0}  # what a global scale is divided by

SCALE_TYPES = ("float32", "float16", "bfloat16")


def _check_format(op: str, format) -> None:
    """Refuse what is no Format, such as its name."""
    if not isinstance(format, Format):
        fail(op, f"format is {format!r}, a {type(format).__name__}", nearest="a Format", instead="formats.by_name(name)", cls=DTypeError)


def _check_array(op: str, name: str, value) -> str:
    """Element type of an array; what is none of NumPy or MLX, or has no real numbers, is refused."""
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        fail(op, f"{name} is a {type(value).__name__}", nearest="an array of NumPy or MLX", cls=DTypeError)
    found = str(value.dtype).rpartition(".")[2]
    if found.startswith(("complex", "object", "<U", "|S")):
        fail(op, f"{name} holds {found}", nearest="real numbers", cls=DTypeError)
    return found


def _check_stored(op: str, w, scales, biases, format) -> None:
    """Refuse packed weights that are not of the kinds which the format has."""
    _check_format(op, format)
    _check_array(op, "w", w)
    found, as_bytes = _check_array(op, "scales", scales), format.scale != "float"
    if (found == "uint8") != as_bytes:
        fail(op, f"scales are {found}, and those of format {format.name!r} are {'bytes' if as_bytes else 'numbers'}",
             nearest="uint8" if as_bytes else ", ".join(SCALE_TYPES), cls=DTypeError)
    if biases is not None:
        _check_array(op, "biases", biases)


def unpack(w, bits: int):
    """Codes (uint8) of packed words: ``[..., words]`` to ``[..., words * 32 / bits]``."""
    import numpy as np

    w = np.asarray(w)
    if w.dtype != np.uint32 or w.ndim == 0 or w.shape[-1] * 32 % bits:
        fail("formats", f"packed weights of type {w.dtype} and shape {w.shape} hold no whole number of {bits}-bit codes",
             nearest="uint32, its last axis a multiple of the words that 32 codes take", cls=ShapeError)
    stream = np.unpackbits(np.ascontiguousarray(w, "<u4").view(np.uint8), axis=-1, bitorder="little")
    stream = stream.reshape(*w.shape[:-1], w.shape[-1] * 32 // bits, bits)
    return np.packbits(stream, axis=-1, bitorder="little")[..., 0]


def pack(codes, bits: int):
    """Packed words of codes: the inverse of :func:`unpack`."""
    import numpy as np

    codes = np.asarray(codes)
    if codes.size and (codes.min() < 0 or codes.max() >= 2**bits):
        fail("formats", f"codes from {codes.min()} to {codes.max()} do not fit {bits} bits", nearest=f"0 to {2**bits - 1}")
    if codes.ndim == 0 or codes.shape[-1] * bits % 32:
        fail("formats", f"{bits}-bit codes of shape {codes.shape} fill no whole number of uint32 words",
             nearest="a multiple of 32 along the last axis", cls=ShapeError)
    stream = np.unpackbits(codes.astype(np.uint8)[..., None], axis=-1, bitorder="little")[..., :bits]
    stream = stream.reshape(*codes.shape[:-1], codes.shape[-1] * bits)
    return np.packbits(stream, axis=-1, bitorder="little").view("<u4").astype(np.uint32)


@lru_cache(maxsize=None)
def small_float(exponent_bits: int, mantissa_bits: int, nan: bool):
    """Value of every code of a small float with a sign; ``nan``: all ones are NaN (there is no infinity)."""
    import numpy as np

    code = np.arange(2 ** (1 + exponent_bits + mantissa_bits))
    mantissa, exponent = code % 2**mantissa_bits, code >> mantissa_bits & (2**exponent_bits - 1)
    significand = np.where(exponent == 0, mantissa, mantissa + 2**mantissa_bits)
    bias = 2 ** (exponent_bits - 1) - 1
    value = np.ldexp(significand.astype(np.float64), np.maximum(exponent, 1) - bias - mantissa_bits)
    magnitude_bits = exponent_bits + mantissa_bits
    if nan:
        value[code % 2**magnitude_bits == 2**magnitude_bits - 1] = np.nan
    value = np.where(code >> magnitude_bits, -value, value)
    value.flags.writeable = False
    return value


def code_values(format: Format):
    """Unscaled value of every code, float64."""
    import numpy as np

    if format.codes == "e2m1":
        return small_float(2, 1, False)
    if format.codes == "e4m3":
        return small_float(4, 3, True)
    return np.array(format.values if format.codes == "table" else range(2**format.bits), np.float64)


@lru_cache(maxsize=None)
def scale_values(scale: str):
    """Value of every byte of an "e4m3" or "e8m0" scale, float64. E8M0 255 is infinity, as MLX decodes it (OCP: NaN)."""
    import numpy as np

    if scale == "e4m3":
        return small_float(4, 3, True)
    value = np.ldexp(1.0, np.arange(256) - 127)
    value[255] = np.inf
    value.flags.writeable = False
    return value


def decode_scales(scales, format: Format):
    """Scales in float64."""
    import numpy as np

    if format.scale == "float":
        from ..reference import to_float64

        return to_float64(scales)
    return scale_values(format.scale)[np.asarray(scales, np.uint8)]


def dequantise(w, scales, biases, format: Format, global_scale=None, convention: str = "amax"):
    """The weights in float64, exact: what the stored numbers mean, before any engine rounds.

    Args:
        w: uint32 ``[..., K * bits / 32]``.
        scales, biases: ``[..., K / group]``; biases None in formats without.
        format: the format.
        global_scale: float32 factor of the tensor, or one per leading index (``[E]`` for weights ``[E, N, K]``).
        convention: what ``global_scale`` is: "amax", the tensor's largest magnitude, which MLX takes as ``global_scale=`` and
            divides by 2688; or "prescaled", the factor itself, which ModelOpt stores as ``weight_scale_2``.
    """
    import numpy as np

    _check_stored("dequantise", w, scales, biases, format)
    codes = unpack(w, format.bits)
    scale = decode_scales(scales, format)
    _check_blocks(codes.shape, scale.shape, biases, format)
    with np.errstate(invalid="ignore"):  # infinity times 0 is NaN here as in every engine
        weights = _blocks(code_values(format)[codes], format) * scale[..., None]
    if biases is not None:
        from ..reference import to_float64

        weights = weights + to_float64(biases)[..., None]
    weights = weights.reshape(codes.shape)
    return weights if global_scale is None else weights * global_factor(global_scale, format, convention, weights.shape)


def global_factor(global_scale, format: Format, convention: str, shape: tuple):
    """What weights of this shape are multiplied by, in float64, ready to broadcast."""
    import numpy as np

    if not format.global_scale:
        fail("formats", f"global_scale with format {format.name!r}, which has none", nearest="global_scale=None", instead="format nvfp4")
    if convention not in CONVENTIONS:
        fail("formats", f"convention {convention!r} is unknown", nearest=", ".join(map(repr, CONVENTIONS)))
    factor = np.array(global_scale, np.float32).astype(np.float64) / CONVENTIONS[convention]
    if factor.size == 1:
        return factor.reshape(())
    if factor.ndim > len(shape) - 2 or any(own not in (1, size) for own, size in zip(factor.shape[::-1], shape[-3::-1])):
        fail("formats", f"global_scale of shape {factor.shape} for weights of shape {shape}: one, or one per leading index",
             nearest=f"shape {shape[:-2]}" if len(shape) > 2 else "one number", cls=ShapeError)
    return factor[..., None, None]


def _blocks(array, format: Format):
    return array.reshape(*array.shape[:-1], array.shape[-1] // format.group, format.group)


def _check_blocks(weights: tuple, scales: tuple, biases, format: Format) -> None:
    wanted = (*weights[:-1], weights[-1] // format.group)
    if weights[-1] % format.group or scales != wanted:
        fail("formats", f"scales of shape {scales} with {format.name} weights of shape {weights}: one scale per {format.group} weights of the last axis",
             nearest=f"scales of shape {wanted}", cls=ShapeError)
    if biases is None and format.biased:
        fail("formats", f"biases missing: format {format.name} has one per scale", nearest=f"biases of shape {wanted}", cls=ShapeError)
    if biases is not None and not format.biased:
        fail("formats", f"biases given: format {format.name} has none", nearest="biases=None", cls=ShapeError)
    if biases is not None and tuple(biases.shape) != wanted:
        fail("formats", f"biases of shape {tuple(biases.shape)}: one per scale", nearest=f"biases of shape {wanted}", cls=ShapeError)


def weights_f32(w, scales, biases, format: Format):
    """The weights as an engine holds them: one f32 rounding of the exact ones, without a global scale. NumPy float32."""
    import numpy as np

    _check_stored("weights_f32", w, scales, biases, format)
    if not format.biased:
        with np.errstate(over="ignore"):
            return dequantise(w, scales, None, format).astype(np.float32)
    from ..reference import to_float64

    codes = unpack(w, format.bits)
    product = (_blocks(code_values(format)[codes], format) * decode_scales(scales, format)[..., None]).reshape(codes.shape)
    return _fused_add(product, np.repeat(to_float64(biases), format.group, -1))


def _fused_add(a, b):
    """float32(a + b) with one rounding: the float64 sum is rounded to odd before."""
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore"):
        total = a + b
        part = total - a
        error = (a - (total - part)) + (b - part)  # Knuth's two-sum: total + error is exact
        even = (total.view(np.int64) & 1) == 0
        toward = np.where(error > 0, np.inf, -np.inf)
        return np.where(np.isfinite(error) & (error != 0) & even, np.nextafter(total, toward), total).astype(np.float32)


def round_to(values, type: str):
    """float32 values rounded to an element type, ties to even; still float32."""
    import numpy as np

    values = np.asarray(values, np.float32)
    if element_type(type).name == "float16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).astype(np.float32)
    if type == "bfloat16":
        bits = values.view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
        return np.where(np.isnan(values), values, rounded.view(np.float32))
    return values


def quantise(x, format: Format, *, scale_type: str = "float32", global_scale=None, convention: str = "amax"):
    """Packs weights: ``(w, scales, biases)``, biases None in formats without.

    Each weight becomes the nearest value that its block can hold, ties to the even code; what lies outside becomes the
    largest. Blocks are scaled as MLX documents:

    - with a bias: from the block's minimum to its maximum;
    - "e8m0": the smallest power of two with which the block's largest magnitude still fits;
    - "e4m3" and "float": the largest magnitude becomes the largest code, the scale is rounded to nearest.

    A block of zeros decodes to zeros (to the smallest values of a table that holds no 0, under "e8m0", which has none either).

    Args:
        x: weights ``[..., K]``, K a multiple of the group; finite.
        format: any known format, or one of your own.
        scale_type: element type of "float" scales and biases. NumPy has no bfloat16: those are returned as float32 that
            ``mx.array(scales).astype(mx.bfloat16)`` does not change.
        global_scale, convention: as in :func:`dequantise`; blocks are scaled relative to it.
    """
    import numpy as np

    from ..reference import to_float64

    _check_format("quantise", format)
    _check_array("quantise", "x", x)
    x = to_float64(x)
    if x.ndim == 0 or x.shape[-1] % format.group:
        fail("quantise", f"weights of shape {x.shape}: the last axis holds whole groups of {format.group}",
             nearest=f"{max(x.shape[-1] // format.group if x.ndim else 0, 1) * format.group} weights per row, zeros at the end", cls=ShapeError)
    if not np.isfinite(x).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(x))[0])
        fail("quantise", f"weight {x[where]} at {where}: no block could hold it beside others", nearest="finite weights")
    if scale_type not in SCALE_TYPES:
        fail("quantise", f"scale_type {scale_type!r} is no type of scales", nearest=", ".join(SCALE_TYPES))
    if global_scale is not None:
        factor = global_factor(global_scale, format, convention, x.shape)
        if not (np.isfinite(factor) & (factor > 0)).all():
            fail("quantise", f"global_scale {global_scale!r}: it divides the weights", nearest="a positive finite number; None for a tensor of zeros")
        x = x / factor
    blocks = _blocks(x, format)
    scales, biases = _choose_scales(blocks, format, scale_type)
    codes = _nearest_codes(blocks, decode_scales(scales, format)[..., None], 0.0 if biases is None else biases.astype(np.float64)[..., None], format)
    return pack(codes.reshape(x.shape), format.bits), scales, biases


def _choose_scales(blocks, format: Format, scale_type: str):
    """(scales as stored, biases as stored or None) of blocks ``[..., group]``."""
    import numpy as np

    values = code_values(format)
    values = values[np.isfinite(values)]
    if format.biased:
        low, high = blocks.min(-1), blocks.max(-1)
        scale = _stored((high - low) / (values.max() - values.min()), scale_type)
        return scale, _stored(low - values.min() * scale.astype(np.float64), scale_type)
    target = np.abs(blocks).max(-1) / np.abs(values).max()
    if format.scale == "float":
        return _stored(target, scale_type), None
    if format.scale == "e4m3":
        table = scale_values("e4m3")[:127]
        return _nearest_sorted(target, 1.0, table).astype(np.uint8), None
    fraction, exponent = np.frexp(target)  # target = fraction * 2^exponent, fraction in [0.5, 1)
    exponent = exponent - (fraction == 0.5)
    return np.where(target > 0, np.clip(exponent + 127, 0, 254), 0).astype(np.uint8), None


def _stored(values, scale_type: str):
    """Scales or biases in their type; bfloat16 as float32."""
    import numpy as np

    with np.errstate(over="ignore"):
        rounded = round_to(values.astype(np.float32), scale_type)
    if not np.isfinite(rounded).all():
        fail("quantise", f"a scale or bias of {np.abs(values).max():.6g} overflows {scale_type}", nearest="scale_type='float32'",
             instead="smaller weights, and the factor applied to the result", cls=TensorOpsError)
    return rounded.astype(np.float16) if scale_type == "float16" else rounded


def _nearest_codes(blocks, scale, bias, format: Format):
    """Code of the nearest ``value * scale + bias``; where two are as near, the even code (the smaller one if that decides nothing)."""
    import numpy as np

    values = code_values(format)
    order = np.lexsort((np.arange(len(values)), values))
    order = order[np.isfinite(values[order])]
    ascending, first = np.unique(values[order], return_index=True)
    codes = order[first]  # the smallest code of every distinct value: +0, not -0
    return codes[_nearest_sorted(blocks - bias, scale, ascending, codes)]


def _nearest_sorted(x, scale, values, codes=None):
    """Index of the entry of ascending ``values`` whose product with ``scale`` is nearest to ``x``."""
    import numpy as np

    codes = np.arange(len(values)) if codes is None else codes
    if len(values) == 1:
        return np.zeros(x.shape, np.intp)
    middle = (values[:-1] + values[1:]) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(scale == 0, 0.0, x / scale)  # a scale of 0 makes all values one
    lower, upper = np.searchsorted(middle, ratio, "left"), np.searchsorted(middle, ratio, "right")
    # The division rounds, but monotonously: only a ratio that hits a middle is in doubt. Products with it are exact.
    at = np.minimum(lower, len(middle) - 1)
    excess = np.where(lower == upper, 0.0, x - middle[at] * scale)
    even_lower = (codes[at] % 2 < codes[at + 1] % 2) | ((codes[at] % 2 == codes[at + 1] % 2) & (codes[at] < codes[at + 1]))
    return np.where(excess == 0, np.where(even_lower, lower, upper), np.where(excess > 0, upper, lower))
