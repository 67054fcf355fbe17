"""How each engine runs a decided quantized_matmul: functions of (x, w, scales, biases, scale, bias, residual, stream)."""

from __future__ import annotations

import math
from typing import Callable

from ..errors import ShapeError, fail
from ..formats import Format
from . import _arguments, _compose, _replay, _shapes
from ._axes import broadcast, merged
from ._kernel import Kernel
from ._weighted_signature import INT32_LIMIT
from ._weights import Group, alike, columns, first_matrix, for_kernels

OP = "quantized_matmul"


def runner(decision, fmt: Format, natural: str, x, group: Group) -> Callable:
    """What runs a decision.

    Args:
        natural: name of the type that MLX gives the plain product.
        x, group: operands of such calls, for their ranks and types.
    """
    engine = {"mpp": _variants, "simdgroup": _variants, "cpu": _cpu, "mlx": _mlx}[decision.engine](decision, fmt, natural)
    first = x.ndim <= 2 < group.w.ndim  # MLX multiplies a matrix with the first of a stack of weights
    integers = _arguments.dtype_name(x.dtype) not in _arguments.FLOATS
    mixed = group.biases is not None and group.scales.dtype != group.biases.dtype
    return _adapted(engine, decision.spec.x, x.ndim == 1, first, integers, mixed) if x.ndim == 1 or first or integers or mixed else engine


def _adapted(engine: Callable, multiplied: str, vector: bool, first: bool, integers: bool, mixed: bool) -> Callable:
    """An engine that is given what it does not take itself."""
    import mlx.core as mx

    def run(x, w, scales, biases, *others):
        group = Group(w, scales, biases)
        if mixed:
            (group,) = alike(mx, group)
        if first:
            group = first_matrix(group)
        if integers:
            x = x.astype(getattr(mx, multiplied))
        y = engine(x[None] if vector else x, *group, *others)
        return y.squeeze(-2) if vector else y

    return run


def _result_shape(spec, fmt: Format, x: tuple, w) -> tuple:
    batch = _shapes.broadcast(x[:-2], w.shape[:-2]) if spec.batched else x[:-2]
    return (*batch, x[-2], columns(w, fmt, spec.weights.transpose))


def check_addends(spec, fmt: Format, x, w, bias, residual) -> None:
    """Raise a ShapeError where bias or residual do not broadcast to the result of a matrix x, or a stack of them."""
    if bias is None is residual:
        return
    shape = _result_shape(spec, fmt, x.shape, w)
    for name, addend in (("bias", bias), ("residual", residual)):
        if addend is not None:
            _shapes.broadcasts_to(OP, name, addend.shape, shape)


def _cpu(decision, fmt: Format, natural: str) -> Callable:
    """Engine cpu: the native CPU kernels, exact in any mixture of floating types."""
    from . import _cpu as engine

    spec, native = decision.spec, fmt.native
    product, transpose, out, activation = engine.quantized_matmul(), spec.weights.transpose, spec.out, spec.epilogue.activation
    divisor = _compose.DIVISORS.get(spec.weights.global_scale)
    if divisor is None and not spec.epilogue:
        return lambda x, w, s, b, scale, bias, residual, stream: product(x, w, s, b, native, transpose, out, None, None, None, None, stream)

    def run(x, w, scales, biases, scale, bias, residual, stream):
        check_addends(spec, fmt, x, w, bias, residual)
        return product(x, w, scales, biases, native, transpose, out, None if scale is None else (scale, divisor), bias, activation, residual, stream)

    return run


def _mlx(decision, fmt: Format, natural: str) -> Callable:
    """Engine mlx: MLX's own operation; what it lacks is composed of MLX operations in f32."""
    import mlx.core as mx

    spec = decision.spec
    mode, transpose = _compose.mode(fmt, spec.weights.transpose), spec.weights.transpose
    plain = _compose.in_mlx(fmt) and not spec.epilogue and not spec.weights.global_scale and spec.out == natural
    quantized_matmul = mx.quantized_matmul

    def run(x, w, scales, biases, scale, bias, residual, stream):
        empty = 0 in x.shape or 0 in w.shape  # MLX's CPU kernel divides by the number of rows
        y = whole(x, w, scales, biases, scale, bias, residual, stream, empty)
        return y if empty or not _replay.traced() else _replay.some(mx, OP, y, x)

    def whole(x, w, scales, biases, scale, bias, residual, stream, empty):
        if plain and not empty:
            return quantized_matmul(x, w, scales, biases, **mode, stream=stream)
        check_addends(spec, fmt, x, w, bias, residual)
        group = Group(w, scales, biases)
        with _compose.on(mx, stream):
            if empty:
                y = mx.zeros(_result_shape(spec, fmt, x.shape, w), mx.float32)
            else:
                y = _compose.scaled(_compose.whole(mx, fmt, transpose, x, group), scale, spec.weights.global_scale)
            return _compose.finish(mx, spec.epilogue, spec.out, y, bias, residual)

    return run


def _variants(decision, fmt: Format, natural: str) -> Callable:
    """Engines mpp and simdgroup."""
    import mlx.core as mx

    kernel, without_k = Kernel(decision, OP), _mlx(decision, fmt, natural)

    def run(x, w, scales, biases, scale, bias, residual, stream):
        if not x.shape[-1]:
            return _replay.fixed(mx, OP, without_k(x, w, scales, biases, scale, bias, residual, stream), x)
        check_addends(decision.spec, fmt, x, w, bias, residual)
        with _compose.on(mx, stream):
            arrays, unplace = place(mx, decision.spec, fmt, x, Group(w, scales, biases), scale, bias, residual)
            return unplace(kernel.launch(arrays, stream)[0])

    return run


def place(mx, spec, fmt: Format, x, group: Group, scale, bias, residual) -> tuple[dict, Callable]:
    """The arrays as kernels take them, by name: one matrix, or one axis of matrices on both sides; and the way back for the result."""
    shape = _result_shape(spec, fmt, x.shape, group.w)
    if math.prod(shape[:-1]) >= INT32_LIMIT:
        fail(OP, f"x has shape {x.shape}: {math.prod(shape[:-1])} rows, and kernels count fewer than 2**31", instead="split x", cls=ShapeError)
    multiplied = getattr(mx, spec.x)
    x, group, addend, unplace = (_stacked if spec.batched else _flat)(mx, x if x.dtype == multiplied else x.astype(multiplied), for_kernels(mx, group), shape)
    return dict(x=x, global_scale=scale, bias=addend(bias), residual=addend(residual), **group._asdict()), unplace


def _flat(mx, x, group: Group, shape: tuple):
    """x with its leading axes as rows, the weights as they are; how addends follow, and the way back."""
    addends = []

    def addend(value):
        if value is None or x.ndim == value.ndim == 2:
            return value
        if value.shape == shape or math.prod(value.shape[:-1]) == 1:
            addends.extend([value] if value.ndim > 1 else [])
            return _rows(mx, value)
        return merged(mx, broadcast(mx, _replay.fixed(mx, OP, value, x), shape), 1)

    def unplace(y):
        return _replay.like(mx, OP, y, x, 1, tuple(addends))

    return merged(mx, x, 1), group, addend, unplace


def _rows(mx, value):
    """An addend whose leading axes repeat nowhere, or everywhere, as rows."""
    return merged(mx, value, 1) if value.ndim else value.reshape(1, 1)


def _stacked(mx, x, group: Group, shape: tuple):
    """One axis of matrices on both sides. Axes along which the weights repeat become rows of x: the weights are never copied."""
    axes, w = len(shape) - 2, group.w
    own_sizes = (1,) * (axes + 2 - group.w.ndim) + group.w.shape[:-2]
    own = [i for i in range(axes) if own_sizes[i] != 1]
    shared = [i for i in range(axes) if own_sizes[i] == 1]
    order = [*own, *shared, axes, axes + 1]

    def stack(value):
        value = mx.broadcast_to(value, (*shape[:-1], value.shape[-1])).transpose(order)
        return merged(mx, mx.flatten(value, len(own), axes), 2)

    def addend(value):
        if value is None:
            return None
        return _rows(mx, value)[None] if math.prod(value.shape[:-1]) == 1 else stack(value)

    def unplace(y):
        y = y.reshape(*(shape[i] for i in order[:-1]), shape[-1])
        return y.transpose([order.index(i) for i in range(axes + 2)])

    group = Group(*(part if part is None else merged(mx, part, 2) for part in group))
    return stack(_replay.fixed(mx, OP, x, x, w)), group, addend, unplace
