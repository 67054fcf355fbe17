"""How each engine runs a decided matmul: functions of (a, b, bias, residual, scales, stream)."""

from __future__ import annotations

from typing import Callable

from .. import device, guards
from ..epilogues import ACTIVATIONS
from ..errors import EngineError, fail
from ..signature import of as signature_of
from . import _enqueue, _gemm_guard, _gemm_split, _metal_kernel, _native
from ._gemm_signature import BATCH_AXES

OP = "matmul"


def runner(decision) -> Callable:
    """What runs a decision."""
    return {"mpp": _variants, "simdgroup": _variants, "cpu": _cpu, "mlx": _mlx}[decision.engine](decision)


def _variants(decision) -> Callable:
    """Engines mpp and simdgroup: the kernel primitive."""
    import mlx.core as mx

    if _enqueue.emulator() is None and not mx.metal.is_available():
        fail(OP, f"engine {decision.engine!r} is legal on the forced device profile, but this machine has no Metal", cls=EngineError,
             instead="read the plan with explain() or dump_source(), or run it inside hostmetal.active()")
    spec = decision.spec
    if spec.a_ndim == spec.b_ndim == 2 and not spec.epilogue:
        return _plain(decision)
    launch = _launcher(decision)
    names = ("a", "b", *spec.epilogue.operands)
    guard = guards.compiled(OP, names, signature_of(decision.variants.rows[0]).checks)

    def run(a, b, bias, residual, scales, stream):
        result = _gemm_guard.result_shape(a.shape, b.shape)
        extras = [x for x in (bias, residual) if x is not None]
        for name, x in zip(spec.epilogue.operands, extras):
            _gemm_guard.broadcasts_to(name, x.shape, result)
        arrays = [_axes(mx, a, spec, vector_axis=0), _axes(mx, b, spec, vector_axis=1)]
        arrays += [_epilogue_axes(mx, x, spec) for x in extras]
        if scales is not None:
            arrays.append(mx.array(scales, mx.float32))
        if a.shape[-1]:
            guard(*(x.shape for x in arrays))
        return _drop_axes(mx, launch(arrays, stream), spec)

    return run


def _launcher(decision) -> Callable:
    """(arrays as the kernel sees them, stream) -> the result: of one kernel, or of split-K where the sizes say so."""
    send = _enqueue.launch if _native.status()[0] else _metal_kernel.launch
    split, finishes = _gemm_split.of(decision.spec, decision.engine), bool(decision.spec.extras)

    def launch(arrays, stream):
        # With K = 0 the product's node is filled with zeros and runs no kernel: its epilogue runs in the second pass.
        if split.pays(arrays[0].shape, arrays[1].shape) or (finishes and not arrays[0].shape[-1]):
            partials = send(split.partials, arrays[:2], stream)
            return send(split.accumulate, [*partials, *arrays[2:]], stream)[0]
        return send(decision.variants, arrays, stream)[0]

    return launch


def _plain(decision) -> Callable:
    """Two matrices and nothing else: the call that must be cheap."""
    launch, pays = _launcher(decision), _gemm_split.of(decision.spec, decision.engine).pays
    if not _native.status()[0]:
        return lambda a, b, bias, residual, scales, stream: launch((a, b), stream)
    whole = _whole(decision)
    return lambda a, b, bias, residual, scales, stream: launch((a, b), stream) if pays(a.shape, b.shape) else whole(a, b, stream)


def _whole(decision) -> Callable:
    variants = _enqueue.native_set(decision.variants)
    launch2, active = _native.ext().launch2, _enqueue.emulator()
    if active is None:
        return lambda a, b, stream: launch2(variants, a, b, None, stream)
    launcher, cpu_stream = active.launcher(), _enqueue.cpu_stream
    if not device.has_gpu():
        return lambda a, b, stream: launch2(variants, a, b, launcher, stream)
    return lambda a, b, stream: launch2(variants, a, b, launcher, cpu_stream(stream))


def _axes(mx, x, spec, vector_axis: int):
    """An operand as the kernel sees it: a vector becomes a matrix, a batched problem gets exactly three batch axes."""
    if x.ndim == 1:
        x = mx.expand_dims(x, vector_axis)
    return _leading(mx, x, spec)


def _epilogue_axes(mx, x, spec):
    """An epilogue operand, which broadcasts to the result as the caller sees it."""
    if spec.b_ndim == 1:
        x = mx.expand_dims(x, -1)
    if spec.a_ndim == 1 and x.ndim > 1 - (spec.b_ndim == 1):
        x = mx.expand_dims(x, -2)
    return _leading(mx, x, spec)


def _leading(mx, x, spec):
    missing = (2 + len(BATCH_AXES) * spec.batched) - x.ndim
    return mx.expand_dims(x, tuple(range(missing))) if missing > 0 else x


def _drop_axes(mx, c, spec):
    """The result with the axes that were added taken away again."""
    added = list(range(2 + len(BATCH_AXES) - max(spec.a_ndim, spec.b_ndim, 2))) if spec.batched else []
    added += [c.ndim - 2] * (spec.a_ndim == 1) + [c.ndim - 1] * (spec.b_ndim == 1)
    return mx.squeeze(c, tuple(added)) if added else c


def _cpu(decision) -> Callable:
    """Engine cpu: the native CPU kernels."""
    from . import _cpu as engine

    product, spec = engine.matmul(), decision.spec
    activation = spec.epilogue.activation
    if not spec.epilogue:
        return lambda a, b, bias, residual, scales, stream: product(a, b, spec.out, None, None, None, stream)

    def run(a, b, bias, residual, scales, stream):
        result = _gemm_guard.result_shape(a.shape, b.shape)
        for name, x in zip(spec.epilogue.operands, [x for x in (bias, residual) if x is not None]):
            _gemm_guard.broadcasts_to(name, x.shape, result)
        return product(a, b, spec.out, bias, activation, residual, stream)

    return run


def _mlx(decision) -> Callable:
    """Engine mlx: MLX's own operation, with the epilogue composed in f32."""
    import mlx.core as mx

    spec = decision.spec
    epilogue = spec.epilogue
    natural, out = mx.result_type(_dtype(mx, spec.a), _dtype(mx, spec.b)), _dtype(mx, spec.out)
    if out == natural and not epilogue:
        matmul = mx.matmul
        return lambda a, b, bias, residual, scales, stream: matmul(a, b, stream=stream)
    # One rounding, at the end: MLX's own half result would be rounded before the epilogue or the cast.
    work = mx.result_type(natural, mx.float32, *(_dtype(mx, name) for name in spec.extras))
    plain_addmm = epilogue.operands[:1] == ("residual",) and epilogue.activation is None and out == mx.result_type(natural, _dtype(mx, spec.extras[0]))

    def run(a, b, bias, residual, scales, stream):
        result = _gemm_guard.result_shape(a.shape, b.shape)
        for name, x in (("bias", bias), ("residual", residual)):
            if x is not None:
                _gemm_guard.broadcasts_to(name, x.shape, result)
        if plain_addmm and len(result) == max(a.ndim, b.ndim) and a.shape[-1]:  # mx.addmm 0.32.4 was seen wrong for K = 0 where c is a slice
            return mx.addmm(residual, a, b, *(scales or (1.0, 1.0)), stream=stream)
        with mx.stream(mx.default_device() if stream is None else stream):
            return finish(mx, epilogue, product(mx, work, a, b), bias, residual, scales).astype(out)

    return run


def _dtype(mx, name: str):
    """MLX's dtype of a name; bool is the one whose attribute is called otherwise."""
    return getattr(mx, "bool_" if name == "bool" else name)


def product(mx, work, a, b):
    """``a @ b`` of MLX operations, in the type ``work``."""
    return mx.matmul(a.astype(work), b.astype(work))


def finish(mx, epilogue, y, bias, residual, scales):
    """``activation(alpha * y + bias) + beta * residual`` of MLX operations, in the type of ``y``."""
    work = y.dtype
    if epilogue.scaled:
        y = scales[0] * y
    if bias is not None:
        y = y + bias.astype(work)
    if epilogue.activation is not None:
        y = ACTIVATIONS[epilogue.activation].mlx(mx, y)
    if residual is not None:
        y = y + (scales[1] * residual.astype(work) if epilogue.scaled else residual.astype(work))
    return y
