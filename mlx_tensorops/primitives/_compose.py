"""Products with stored weights, of MLX operations in f32: engine mlx where MLX lacks the function, and the gradients of our kernels."""

from __future__ import annotations

import contextlib

from .. import formats
from ..epilogues import GATES, Epilogue
from ..formats import GLOBAL_SCALE_DIVISOR, Format
from ._gemm_run import finish as epilogue
from ._weights import Group

DIVISORS = {"amax": GLOBAL_SCALE_DIVISOR, "prescaled": 1.0}


_HERE = contextlib.nullcontext()


def on(mx, stream):
    """Context in which operations without a stream of their own run on this one."""
    return _HERE if stream is None else mx.stream(stream)


def in_mlx(fmt: Format | None) -> bool:
    """Whether MLX itself multiplies weights of this format; None: dense ones."""
    return fmt is None or fmt in formats.BUILT_IN


def mode(fmt: Format, transpose: bool) -> dict:
    """The format as keywords of MLX's operations."""
    return dict(transpose=transpose, group_size=fmt.group, bits=fmt.bits, mode=fmt.mode)


def as_f32(mx, group: Group) -> Group:
    """Float scales and biases as f32; bytes stay bytes."""
    return Group(group.w, *(s if s is None or s.dtype == mx.uint8 else s.astype(mx.float32) for s in group[1:]))


def whole(mx, fmt: Format, transpose: bool, x, group: Group):
    """``x @ weights`` in f32."""
    x = x.astype(mx.float32)
    if in_mlx(fmt):
        return mx.quantized_matmul(x, *as_f32(mx, group), **mode(fmt, transpose))
    weights = decoded(mx, fmt, group)
    return mx.matmul(x, weights.swapaxes(-1, -2) if transpose else weights)


def gathered(mx, fmt: Format | None, transpose: bool, x, group: Group, lhs, rhs, ascending: bool = False):
    """``x[lhs] @ weights[rhs]`` in f32; the indices are in range."""
    x = x.astype(mx.float32)
    if fmt is not None and in_mlx(fmt):
        return gathered_by_mlx(mx, fmt, transpose, x, as_f32(mx, group), lhs, rhs, ascending)
    weights = group.w.astype(mx.float32) if fmt is None else decoded(mx, fmt, group)
    return gathered_by_mlx(mx, None, transpose, x, Group(weights), lhs, rhs, ascending)


def gathered_by_mlx(mx, fmt: Format | None, transpose: bool, x, group: Group, lhs, rhs, ascending: bool = False):
    """The same in MLX's own types."""
    indices = dict(lhs_indices=lhs, rhs_indices=rhs, sorted_indices=ascending)
    if fmt is not None:
        return mx.gather_qmm(x, *group, **indices, **mode(fmt, transpose))
    return mx.gather_mm(x, group.w.swapaxes(-1, -2) if transpose else group.w, **indices)


def scaled(y, scale, convention: str):
    """The f32 sum times the global scale, which broadcasts to it."""
    return y if scale is None else y * (scale / DIVISORS[convention])


def finish(mx, formula: Epilogue, out: str, y, bias=None, residual=None):
    """An f32 sum with its epilogue, rounded once."""
    return epilogue(mx, formula, y, bias, residual, None).astype(getattr(mx, out))


def gated(mx, spec, gate, up):
    """What two f32 sums become, rounded once: one array, or both."""
    out = getattr(mx, spec.out)
    if spec.gate:
        return [GATES[spec.gate].mlx(mx, gate, up).astype(out)]
    return [gate.astype(out), up.astype(out)]


def decoded(mx, fmt: Format, group: Group):
    """The weights in f32, of MLX operations."""
    packed = group.w.view(mx.uint8)
    packs = packed.reshape(*packed.shape[:-1], packed.shape[-1] // fmt.bits, fmt.bits).astype(mx.uint32)
    codes = []
    for code in range(formats.PACK):
        first, shift = divmod(code * fmt.bits, 8)
        bits = packs[..., first] >> shift
        if shift + fmt.bits > 8:
            bits = bits | (packs[..., first + 1] << (8 - shift))
        codes.append(bits & (2**fmt.bits - 1))
    count = packed.shape[-1] * 8 // fmt.bits
    codes = mx.stack(codes, axis=-1).reshape(*packed.shape[:-1], count // fmt.group, fmt.group)
    values = codes.astype(mx.float32) if fmt.codes == "unsigned" else _table(mx, formats.codec.code_values(fmt))[codes]
    scales = group.scales if fmt.scale == "float" else _table(mx, formats.codec.scale_values(fmt.scale))[group.scales]
    weights = values * scales.astype(mx.float32)[..., None]
    if group.biases is not None:
        weights = weights + group.biases.astype(mx.float32)[..., None]
    return weights.reshape(*packed.shape[:-1], count)


def _table(mx, values):
    return mx.array([float(v) for v in values], mx.float32)
