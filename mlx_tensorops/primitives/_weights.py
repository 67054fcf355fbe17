"""Stored weights as callers pass them, packed or dense: their types and the shapes that fit."""

from __future__ import annotations

import math
from typing import Any, Callable, NamedTuple

from ..errors import DTypeError, ShapeError, fail
from ..formats import BUILT_IN, Format
from ..spec import WeightSpec
from ._arguments import FLOATS, array, dtype_name


class Group(NamedTuple):
    """One weight tensor as ``mx.quantize`` returns it; dense weights are ``w`` alone."""

    w: Any
    scales: Any = None
    biases: Any = None


def packed_types(mx, op: str, fmt: Format, x, w, scales, biases) -> str:
    """Name of the result's natural type, by MLX's rules.

    Raises:
        DTypeError: what MLX refuses: other words than uint32, scales or biases that the format does not have, a type that is not real
            and floating.
    """
    for name, value in (("x", x), ("w", w), ("scales", scales)):
        array(mx, op, name, value)
    array(mx, op, "biases", biases, optional=True)
    if w.dtype != mx.uint32:
        fail(op, f"w is {dtype_name(w.dtype)}; packed weights are uint32", instead="w.view(mx.uint32), or mx.quantize", cls=DTypeError)
    if fmt.biased != (biases is not None):
        fail(op, f"biases are {'missing' if fmt.biased else 'given'}, and mode {fmt.mode!r} has {'them' if fmt.biased else 'none'}",
             instead=f"pass what mx.quantize returned for this mode{_modes_of_bytes() if fmt.biased and scales.dtype == mx.uint8 else ''}", cls=DTypeError)
    if fmt.scale != "float":
        if scales.dtype != mx.uint8:
            fail(op, f"scales are {dtype_name(scales.dtype)}; mode {fmt.mode!r} has uint8 scales", instead="scales.view(mx.uint8)", cls=DTypeError)
        return _floating(op, "x", x.dtype)
    common = mx.result_type(scales, *(() if biases is None else (biases,)))
    _floating(op, "scales" if biases is None else "the common type of scales and biases", common)
    natural = mx.result_type(x, scales, *(() if biases is None else (biases,)))
    _floating(op, "the common type of x and scales", natural)
    return dtype_name(natural)


def _floating(op: str, name: str, dtype) -> str:
    found = dtype_name(dtype)
    if found not in FLOATS:
        fail(op, f"{name} is {found}; only {', '.join(FLOATS)} can be multiplied", instead="convert it, e.g. to mx.float32", cls=DTypeError)
    return found


def dense_types(mx, op: str, names: tuple[str, str], x, w) -> str:
    """Name of the natural type of ``x @ w`` for dense weights, as ``mx.gather_mm`` has it."""
    for name, value in zip(names, (x, w)):
        array(mx, op, name, value)
    natural = dtype_name(mx.result_type(x, w))
    if natural not in FLOATS:
        fail(op, f"{names[0]} is {dtype_name(x.dtype)} and {names[1]} is {dtype_name(w.dtype)}, whose product is {natural}",
             nearest=", ".join(FLOATS), instead="convert them, e.g. to mx.float32", cls=DTypeError)
    return natural


def multiplied_type(x, out_dtype, natural: str) -> str:
    """Name of the type in which x meets the weights.

    MLX converts x to the result's type: bfloat16 x with float16 scales is a float32 product. A caller who names ``out_dtype`` keeps x as
    it is. Integers are converted always.
    """
    own = dtype_name(x.dtype)
    return own if out_dtype is not None and own in FLOATS else natural


def weight_spec(fmt: Format | None, group: Group, transpose: bool, convention: str, natural: str) -> WeightSpec:
    """The spec's part that describes the weights; dense integers count as the type that they are converted to."""
    stored = dtype_name(group.w.dtype)
    if fmt is None:
        return WeightSpec("", stored if stored in FLOATS else natural, transpose=transpose)
    return WeightSpec(fmt.name, stored, dtype_name(group.scales.dtype), transpose, convention)


def alike(mx, *groups: Group) -> list[Group]:
    """The groups with scales and biases of one type, and dense weights of one type."""
    packed = groups[0].scales is not None
    parts = [part for group in groups for part in (group[1:] if packed else group) if part is not None]
    if all(part.dtype == parts[0].dtype for part in parts):
        return list(groups)
    common = mx.result_type(*parts)
    if packed:
        return [Group(g.w, g.scales.astype(common), None if g.biases is None else g.biases.astype(common)) for g in groups]
    return [Group(g.w.astype(common)) for g in groups]


def for_kernels(mx, group: Group) -> Group:
    """The group with what kernels need: the last axis of scales and biases contiguous, which may repeat along a row (a stride of 0). No work
    where it is. Packed words and dense weights keep their strides.
    """
    w, scales, biases = group
    if scales is None:
        return group
    return Group(w, mx.contiguous(scales), None if biases is None else mx.contiguous(biases))


def as_group(op: str, name: str, value) -> Group:
    """Weights as callers pass them: dense as an array, quantised as the tuple that ``mx.quantize`` returns."""
    import mlx.core as mx

    if not isinstance(value, (tuple, list)):
        array(mx, op, name, value)
        return Group(value)
    if len(value) not in (2, 3):
        fail(op, f"{name} is a {type(value).__name__} of {len(value)}", nearest="(w, scales) or (w, scales, biases)", cls=DTypeError)
    group = Group(*value)
    for part, held in zip(Group._fields, group):
        array(mx, op, f"{name}'s {part}", held, optional=part == "biases")
    return group


def no_mode(op: str, mode: tuple) -> None:
    """Refuse a format that is named for dense weights."""
    if mode != ("affine", None, None):
        fail(op, f"mode {mode[0]!r}, group_size {mode[1]} and bits {mode[2]} with dense weights", instead="pass (w, scales) or (w, scales, biases)")


def convention(amax, prescaled) -> str:
    """Name of the convention of the argument that carries a global scale; "" for none."""
    return "" if amax is None and prescaled is None else "amax" if prescaled is None else "prescaled"


def check_convention(op: str, fmt: Format | None, amax, prescaled) -> None:
    """Refuse a global scale for weights that have none, and two of them."""
    if amax is not None and prescaled is not None:
        fail(op, "global_scale and weight_scale_2 are both given, and each is the whole factor", instead="pass the one your checkpoint has")
    name = "global_scale" if amax is not None else "weight_scale_2"
    if (amax is not None or prescaled is not None) and (fmt is None or not fmt.global_scale):
        fail(op, f"{name} with {f'mode {fmt.mode!r}' if fmt else 'dense weights'}, which has none", nearest='mode="nvfp4"',
             instead="multiply the result", cls=DTypeError)


def global_scale(mx, op: str, fmt: Format | None, amax, prescaled, matrices: int | None):
    """The float32 array of the global scale, or None.

    Args:
        amax: ``global_scale=``, the tensor's largest magnitude, as MLX takes it.
        prescaled: ``weight_scale_2=``, that number divided by 2688, as ModelOpt stores it.
        matrices: number of experts, None for one matrix.
    """
    if amax is None and prescaled is None:
        return None
    check_convention(op, fmt, amax, prescaled)
    name, value = ("global_scale", amax) if amax is not None else ("weight_scale_2", prescaled)
    if matrices is None and isinstance(value, (int, float)):
        return mx.array([value], mx.float32)
    array(mx, op, name, value)
    if value.dtype != mx.float32:
        fail(op, f"{name} is {dtype_name(value.dtype)}; it is float32", instead=f"{name}.astype(mx.float32)", cls=DTypeError)
    if value.shape != (matrices or 1,) and (matrices is not None or value.shape != ()):
        fail(op, f"{name} has shape {value.shape}: it holds one value {'for the tensor' if matrices is None else 'per expert'}",
             nearest=str((1 if matrices is None else matrices,)), cls=ShapeError)
    return value.reshape(1) if value.ndim == 0 else value


def expert_bias(op: str, bias, batch: tuple, n: int):
    """A bias per expert as ``[experts, N]``."""
    if bias is None:
        return None
    if bias.shape != (*batch, n):
        fail(op, f"bias has shape {bias.shape}: it holds N = {n} values for each expert", nearest=str((*batch, n)), cls=ShapeError)
    return bias if len(batch) == 1 else bias.reshape(math.prod(batch), n)


def packed_guard(op: str, fmt: Format, transpose: bool, least: int = 1) -> Callable:
    """A function of the shapes of x, w, scales and biases that raises a ShapeError where they contradict each other.

    Args:
        least: fewest axes of x.
    """
    bits, group = fmt.bits, fmt.group

    def guard(x, w, scales, biases):
        axes = len(w)
        if len(x) >= least and axes > 1 and len(scales) == axes and (biases is None or biases == scales):
            k, along = x[-1], scales[-1] * group
            if w[-1] * 32 == along * bits and w[-2] == scales[-2] and k == (along if transpose else w[-2]) and (axes == 2 or w[:-2] == scales[:-2]):
                return
        refuse_packed(op, fmt, transpose, x, w, scales, biases, least)

    return guard


def refuse_packed(op: str, fmt: Format, transpose: bool, x, w, scales, biases, least: int) -> None:
    """Raise the lesson of shapes that do not fit a format."""
    if len(x) < least:
        fail(op, f"x has shape {x}", nearest=f"{least} axes or more", instead="x[None]" if x else "multiply with *", cls=ShapeError)
    if len(w) < 2:
        fail(op, f"w has shape {tuple(w)}; a weight matrix has two axes or more", nearest="[N, K * bits / 32]", cls=ShapeError)
    if w[-1] * 32 % fmt.bits:
        fail(op, f"w has shape {tuple(w)}: {w[-1]} words hold no whole number of {fmt.bits}-bit codes", cls=ShapeError)
    along = w[-1] * 32 // fmt.bits
    k, n = (along, w[-2]) if transpose else (w[-2], along)
    if x[-1] != k:
        other = (w[-2], along) if transpose else (along, w[-2])
        fail(op, f"x has shape {tuple(x)}, so K = {x[-1]}, but w has shape {tuple(w)}: K = {k}, N = {n} with {fmt.bits} bits and transpose={transpose}",
             nearest=f"K = {k}", instead=f"transpose={not transpose}" if x[-1] == other[0] else "slice or pad x", cls=ShapeError)
    wanted = (*w[:-1], along // fmt.group)
    if along % fmt.group:
        fail(op, f"w packs {along} weights along its last axis, which is no multiple of the group size {fmt.group}",
             nearest=f"group_size={along // scales[-1]}" if scales and scales[-1] else None, cls=ShapeError)
    for name, shape in (("scales", scales), ("biases", biases)):
        if shape is not None and tuple(shape) != wanted:
            fail(op, f"{name} have shape {tuple(shape)}: one for each {fmt.group} weights of w, whose shape is {tuple(w)}", nearest=str(wanted),
                 instead="pass the group_size and mode that the weights were quantized with", cls=ShapeError)


def dense_guard(op: str, transpose: bool, x: tuple, w: tuple) -> None:
    """Raise a ShapeError where x and dense weights do not agree in K."""
    if len(x) < 2 or len(w) < 2:
        fail(op, f"shapes {x} and {w}: both have two axes or more", instead="x[None]", cls=ShapeError)
    k = w[-1] if transpose else w[-2]
    if x[-1] != k:
        fail(op, f"x has shape {x}, so K = {x[-1]}, but the weights have shape {w}, so K = {k}", nearest=f"K = {k}",
             instead="swap the last two axes of the weights" if x[-1] in w[-2:] else "slice or pad one of them", cls=ShapeError)


def _modes_of_bytes() -> str:
    """What a caller forgot whose scales are bytes, and whose mode is not theirs."""
    return f", or the mode of these uint8 scales: {', '.join(sorted({f.mode for f in BUILT_IN if f.scale != 'float'}))}"


def columns(w, fmt: Format | None, transpose: bool) -> int:
    """N of a weight tensor."""
    shape = w.shape
    if transpose:
        return shape[-2]
    return shape[-1] * 32 // fmt.bits if fmt else shape[-1]


def first_matrix(group: Group) -> Group:
    """The first of a stack of weights."""
    return Group(*(part if part is None else part[(0,) * (part.ndim - 2)] for part in group))
