"""The public ``matmul``: one dictionary look-up, the guard, the enqueue."""

from __future__ import annotations

import math
from typing import Any, Callable, NamedTuple

from .. import device, guards, resolve, tracing
from ..errors import DTypeError, EngineError, ShapeError, fail
from ..signature import of as signature_of
from ..spec import Epilogue, GemmSpec
from . import _enqueue, _metal_kernel, _native
from .gemm import FAMILY

OP = FAMILY.op


class Plan(NamedTuple):
    """A resolved call: the decision, the shape guard, and what runs."""

    decision: resolve.Decision
    guard: Callable
    run: Callable


_plans: dict[tuple, Plan] = {}
_forced, _emulator = device.forced_here, _enqueue.emulator


def matmul(a, b, *, out_dtype=None, precision="exact", engine="auto", bias=None, activation=None, residual=None, stream=None):
    """Matrix product ``activation(a @ b + bias) + residual`` with f32 accumulation.

    Args:
        a: array ``[..., M, K]``, or ``[K]`` as in ``mx.matmul``.
        b: array ``[..., K, N]``, or ``[K]``; leading axes broadcast.
        out_dtype: element type of the result; default: that of ``mx.matmul``.
        precision: "exact": f32 operands keep their 24 significant bits; "tf32": they may lose low bits where that is
            faster. No meaning for half types.
        engine: "auto", or "mpp", "simdgroup", "cpu", "mlx" to insist.
        bias: array that broadcasts to the result, added before the activation.
        activation: None, "relu", "gelu_tanh", "gelu_erf" or "silu".
        residual: array that broadcasts to the result, added after the activation.
        stream: MLX stream or device; default: the current one.

    Returns:
        Array ``[..., M, N]``; lazy, like every MLX operation.

    Raises:
        ShapeError, DTypeError: what ``mx.matmul`` refuses, before anything is enqueued.
        EngineError: the named engine does not exist or cannot run this here; the text says why.

    Engine notes: ``explain("matmul", a, b)`` tells which engine answers and why. Engine mlx composes the epilogue
    of MLX operations in f32. Engine mpp runs in hostmetal inside ``hostmetal.active()``.
    """
    try:
        key = (
            a.dtype, b.dtype, a.ndim, b.ndim, out_dtype, precision, engine, bias is None, activation, residual is None,
            _on_gpu(stream), _forced(), _emulator(),
        )
        plan = _plans.get(key)
    except (AttributeError, TypeError):
        plan = None
    if plan is None:
        plan = _make_plan(a, b, out_dtype, precision, engine, bias, activation, residual, stream)
        _plans[key] = plan
    plan.guard(a.shape, b.shape)
    if tracing.recording:
        tracing.call(OP, plan.decision, (a.shape, b.shape))
    return plan.run(a, b, bias, residual, stream)


def _on_gpu(stream) -> bool:
    global _on_gpu
    import mlx.core as mx

    if not (mx.metal.is_available() or mx.cuda.is_available()):
        _on_gpu = lambda stream: False  # noqa: E731  a machine does not grow a GPU
    else:
        _on_gpu = device.is_gpu
    return _on_gpu(stream)


def describe(a, b, *, out_dtype=None, precision="exact", engine="auto", bias=None, activation=None, residual=None, stream=None):
    """(decision, shapes) of the call ``matmul`` would make: the part that explain() needs."""
    spec = _spec(a, b, out_dtype, precision, bias, activation, residual)
    decision = resolve.resolve(FAMILY.name, spec, engine, _enqueue.context(stream))
    _guard(decision)(a.shape, b.shape)
    return decision, (a.shape, b.shape)


def _spec(a, b, out_dtype, precision, bias, activation, residual) -> GemmSpec:
    import mlx.core as mx

    for name, value in (("a", a), ("b", b), ("bias", bias), ("residual", residual)):
        if not isinstance(value, mx.array) and (name in "ab" or value is not None):
            fail(OP, f"{name} is a {type(value).__name__}", instead=f"pass mx.array({name})", cls=DTypeError)
    natural = mx.result_type(a, b)
    if not mx.issubdtype(natural, mx.inexact):
        fail(OP, f"a is {_name(a.dtype)} and b is {_name(b.dtype)}, whose product is no floating type",
             instead="convert one of them, e.g. a.astype(mx.float32)", cls=DTypeError)
    if out_dtype is not None and not isinstance(out_dtype, mx.Dtype):
        fail(OP, f"out_dtype {out_dtype!r} is no MLX dtype", nearest="mx.float16, mx.bfloat16, mx.float32", cls=DTypeError)
    if natural == mx.complex64 and out_dtype not in (None, mx.complex64):
        fail(OP, f"out_dtype {_name(out_dtype)} would drop the imaginary part of a complex product", nearest="mx.complex64",
             instead="take mx.real of the result", cls=DTypeError)
    return GemmSpec(
        _name(a.dtype), _name(b.dtype), _name(natural if out_dtype is None else out_dtype), a.ndim, b.ndim, precision,
        Epilogue(bias is not None, activation, residual is not None),
    )


def _name(dtype) -> str:
    return str(dtype).rsplit(".", 1)[-1]


def _make_plan(a, b, out_dtype, precision, engine, bias, activation, residual, stream) -> Plan:
    spec = _spec(a, b, out_dtype, precision, bias, activation, residual)
    decision = resolve.resolve(FAMILY.name, spec, engine, _enqueue.context(stream))
    return Plan(decision, _guard(decision), _RUNNERS[decision.engine](decision))


def _guard(decision) -> Callable:
    if decision.variants is not None:
        return guards.compiled(OP, ("a", "b"), signature_of(decision.variants.rows[0]).checks)
    return _guard_as_mlx


def _guard_as_mlx(a: tuple, b: tuple) -> None:
    """What ``mx.matmul`` refuses, told before it is asked."""
    if len(a) == 2 == len(b):  # the usual case, in one comparison
        if a[1] == b[0]:
            return
    elif a and b:
        if a[-1] == b[-2 if len(b) > 1 else 0] and _broadcasts(a[:-2], b[:-2]):
            return
    if not a or not b:
        fail(OP, f"a has shape {a} and b has shape {b}: a scalar is no matrix", instead="multiply with *", cls=ShapeError)
    rows = b[-2 if len(b) > 1 else 0]
    if a[-1] != rows:
        hint = "b.swapaxes(-1, -2)" if a[-1] == b[-1] else "slice or pad one of them"
        fail(OP, f"a has shape {a}, so K = {a[-1]}, but b has shape {b}, so K = {rows}", nearest=f"K = {min(a[-1], rows)}",
             instead=hint, cls=ShapeError)
    fail(OP, f"leading axes {a[:-2]} of a and {b[:-2]} of b do not broadcast", instead="reshape or repeat one of them", cls=ShapeError)


def _broadcasts(a: tuple, b: tuple) -> bool:
    return all(x == y or x == 1 or y == 1 for x, y in zip(reversed(a), reversed(b)))


def _run_variants(decision) -> Callable:
    """Engines mpp and simdgroup: the kernel primitive."""
    import mlx.core as mx

    if _enqueue.emulator() is None and not mx.metal.is_available():
        fail(OP, f"engine {decision.engine!r} is legal on the forced device profile, but this machine has no Metal", cls=EngineError,
             instead="read the plan with explain() or dump_source(), or run it inside hostmetal.active()")
    if not _native.status()[0]:
        return lambda a, b, bias, residual, stream: _metal_kernel.launch(decision.variants, (a, b), stream)[0]
    variants = _enqueue.native_set(decision.variants)
    launch2, active = _native.ext().launch2, _enqueue.emulator()
    if active is None:
        return lambda a, b, bias, residual, stream: launch2(variants, a, b, None, stream)
    launcher, cpu_stream = active.launcher(), _enqueue.cpu_stream
    return lambda a, b, bias, residual, stream: launch2(variants, a, b, launcher, cpu_stream(stream))


def _run_cpu(decision) -> Callable:
    """Engine cpu: the native CPU kernels."""
    from . import _cpu

    product = _cpu.matmul()
    spec = decision.spec
    return lambda a, b, bias, residual, stream: product(a, b, spec.out, bias, spec.epilogue.activation, residual, stream)


def _run_mlx(decision) -> Callable:
    """Engine mlx: MLX's own operation, with the epilogue composed in f32."""
    import mlx.core as mx

    spec, product = decision.spec, mx.matmul
    operands = (getattr(mx, spec.a), getattr(mx, spec.b))
    natural, out = mx.result_type(*operands), getattr(mx, spec.out)
    if out == natural and not spec.epilogue:
        return lambda a, b, bias, residual, stream: product(a, b, stream=stream)
    # One rounding, at the end: MLX's own half result would be rounded before the epilogue or the cast.
    work = mx.complex64 if natural == mx.complex64 else mx.float32
    activation = _ACTIVATIONS[spec.epilogue.activation]

    def run(a, b, bias, residual, stream):
        shape = None
        with mx.stream(mx.default_device() if stream is None else stream):
            y = product(a.astype(work), b.astype(work))
            shape = y.shape
            if bias is not None:
                y = y + bias.astype(work)
            y = activation(y)
            if residual is not None:
                y = y + residual.astype(work)
            if y.shape != shape:
                fail(OP, f"bias or residual widens the result from {shape} to {y.shape}", nearest=f"shapes that broadcast to {shape}", cls=ShapeError)
            return y.astype(out)

    return run


def _gelu_tanh(x):
    import mlx.core as mx

    return 0.5 * x * (1 + mx.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))  # Hendrycks & Gimpel 2016


def _gelu_erf(x):
    import mlx.core as mx

    return 0.5 * x * (1 + mx.erf(x * math.sqrt(0.5)))


def _silu(x):
    import mlx.core as mx

    return x * mx.sigmoid(x)


def _relu(x):
    import mlx.core as mx

    return mx.maximum(x, 0)


_ACTIVATIONS: dict[Any, Callable] = {None: lambda x: x, "relu": _relu, "gelu_tanh": _gelu_tanh, "gelu_erf": _gelu_erf, "silu": _silu}
_RUNNERS = {"mpp": _run_variants, "simdgroup": _run_variants, "cpu": _run_cpu, "mlx": _run_mlx}
