"""The public ``matmul`` and ``addmm``: one dictionary look-up, the guard, the enqueue."""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, NamedTuple

from .. import device, resolve, tracing
from ..epilogues import Epilogue
from ..errors import DTypeError, fail
from ..policies import gemm as table
from ..spec import GemmSpec
from . import _arguments, _enqueue, _gemm_guard, _gemm_run, _gemm_split
from ._arguments import dtype_name
from .gemm import FAMILY

OP = FAMILY.op


class Plan(NamedTuple):
    """A resolved call: the decision, the shape guard, and what runs."""

    decision: resolve.Decision
    guard: Callable
    run: Callable


_plans: dict[tuple, Plan] = {}
_forced, _is_gpu, _emulator = device.forced_here, device.is_gpu, _enqueue.emulator


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

    Engine notes: ``explain("matmul", a, b)`` tells which engine answers and why. The whole formula is computed in f32 and
    rounded once, on every engine. Engines mpp and simdgroup run emulated inside ``hostmetal.active()``;
    they have gradients, but no vmap and no jvp. Engine cpu takes no vector operands.
    """
    try:
        key = (
            a.dtype, b.dtype, a.ndim, b.ndim, out_dtype, precision, engine, bias is None, activation, residual is None,
            _is_gpu(stream), _forced(), id(_emulator()),  # hostmetal keeps equal choices as one object, for good
        )
        plan = _plans.get(key)
    except (AttributeError, TypeError):
        plan = None
    if plan is None or not (bias is None and residual is None):
        plan = _make_plan(a, b, out_dtype, precision, engine, bias, activation, residual, False, stream)
        if bias is None and residual is None:
            _plans[key] = plan
    plan.guard(a.shape, b.shape)
    if tracing.recording:
        tracing.call(OP, plan.decision, (a.shape, b.shape))
    return plan.run(a, b, bias, residual, None, stream)


def addmm(c, a, b, alpha=1.0, beta=1.0, *, out_dtype=None, precision="exact", engine="auto", bias=None, activation=None, stream=None):
    """``activation(alpha * (a @ b) + bias) + beta * c``, as ``mx.addmm`` with a fused epilogue.

    Args:
        c: array that broadcasts to the result.
        a, b: as for :func:`matmul`.
        alpha, beta: Python floats.
        out_dtype: element type of the result; default: that of ``mx.addmm``, the common type of all three arrays.
        precision, engine, bias, activation, stream: as for :func:`matmul`.

    Returns, raises: as :func:`matmul`.
    """
    c, scales, out_dtype = _addition(c, a, b, alpha, beta, out_dtype)
    plan = _make_plan(a, b, out_dtype, precision, engine, bias, activation, c, scales is not None, stream)
    plan.guard(a.shape, b.shape)
    if tracing.recording:
        tracing.call("addmm", plan.decision, (a.shape, b.shape))
    return plan.run(a, b, bias, c, scales, stream)


def describe(a, b, *, out_dtype=None, precision="exact", engine="auto", bias=None, activation=None, residual=None, stream=None):
    """(decision, shapes) of the call ``matmul`` would make: the part that explain() needs."""
    return _described(a, b, out_dtype, precision, engine, bias, activation, residual, False, stream)


def describe_addmm(c, a, b, alpha=1.0, beta=1.0, *, out_dtype=None, precision="exact", engine="auto", bias=None, activation=None, stream=None):
    """The same for ``addmm``."""
    c, scales, out_dtype = _addition(c, a, b, alpha, beta, out_dtype)
    return _described(a, b, out_dtype, precision, engine, bias, activation, c, scales is not None, stream)


def _described(a, b, out_dtype, precision, engine, bias, activation, residual, scaled, stream) -> tuple:
    spec = _spec(a, b, out_dtype, precision, engine, bias, activation, residual, scaled)
    decision = resolve.resolve(FAMILY.name, spec, engine, _enqueue.context(stream))
    _gemm_guard.as_mlx(a.shape, b.shape)
    result = _gemm_guard.result_shape(a.shape, b.shape)
    for name, value in (("bias", bias), ("residual", residual)):
        if value is not None:
            _gemm_guard.broadcasts_to(name, value.shape, result)
    decision = _gemm_split.decided(decision, a.shape, b.shape)
    named = {key: f"{policy}: {decision.source[key]}" for key, policy in table.policies().items() if key in decision.source}
    return replace(decision, source=named), (a.shape, b.shape)


def _addition(c, a, b, alpha, beta, out_dtype) -> tuple:
    """(c or None where it is ignored, (alpha, beta) or None where both are 1, the result's type) of ``addmm``, checked."""
    import mlx.core as mx

    for name, value in (("alpha", alpha), ("beta", beta)):
        if isinstance(value, mx.array) or not isinstance(value, (int, float)):
            fail("addmm", f"{name} is a {type(value).__name__}", instead=f"pass float({name})", cls=DTypeError)
    if not isinstance(c, mx.array):
        fail("addmm", f"c is a {type(c).__name__}", instead="pass mx.array(c)", cls=DTypeError)
    out_dtype = _common(out_dtype, a, b, c)
    try:
        scales = None if alpha == 1 == beta else (float(alpha), float(beta))
    except OverflowError:
        fail("addmm", "alpha or beta is beyond what a float can hold", instead="scale an operand")
    if beta == 0:  # c is ignored, as by mx.addmm and BLAS, whatever NaN it holds
        if all(isinstance(x, mx.array) for x in (a, b)):
            _gemm_guard.as_mlx(a.shape, b.shape)
            _gemm_guard.broadcasts_to("c", c.shape, _gemm_guard.result_shape(a.shape, b.shape))
        c, scales = None, scales if alpha != 1 else None
    return c, scales, out_dtype


def _common(out_dtype, *arrays):
    """The result's type: the one asked for, else that of ``mx.addmm``."""
    import mlx.core as mx

    return mx.result_type(*arrays) if out_dtype is None and all(isinstance(x, mx.array) for x in arrays) else out_dtype


def _make_plan(a, b, out_dtype, precision, engine, bias, activation, residual, scaled, stream) -> Plan:
    spec = _spec(a, b, out_dtype, precision, engine, bias, activation, residual, scaled)
    decision = resolve.resolve(FAMILY.name, spec, engine, _enqueue.context(stream))
    return _plan(decision, _emulator())


def _plan(decision, emulation) -> Plan:
    key = id(decision), id(emulation)
    if key not in _by_decision:
        _by_decision[key] = Plan(decision, _gemm_guard.of(decision), _gemm_run.runner(decision))
    return _by_decision[key]


_by_decision: dict[tuple[int, int], Plan] = {}  # a plan keeps its decision alive, so no id is used twice


def _spec(a, b, out_dtype, precision, engine, bias, activation, residual, scaled) -> GemmSpec:
    import mlx.core as mx

    _arguments.words(OP, engine, precision, activation)
    for name, value in (("a", a), ("b", b), ("bias", bias), ("residual", residual)):
        _arguments.array(mx, OP, name, value, optional=name not in "ab")
    natural = mx.result_type(a, b)
    if not mx.issubdtype(natural, mx.inexact):
        fail(OP, f"a is {dtype_name(a.dtype)} and b is {dtype_name(b.dtype)}, whose product is no floating type",
             instead="convert one of them, e.g. a.astype(mx.float32)", cls=DTypeError)
    if out_dtype is not None and not isinstance(out_dtype, mx.Dtype):
        fail(OP, f"out_dtype {out_dtype!r} is no MLX dtype", nearest="mx.float16, mx.bfloat16, mx.float32", cls=DTypeError)
    out = natural if out_dtype is None else out_dtype
    if out != mx.complex64:
        for name, value in (("the product", natural), ("bias", getattr(bias, "dtype", natural)), ("residual", getattr(residual, "dtype", natural))):
            if value == mx.complex64:
                fail(OP, f"{name} is complex, and a {dtype_name(out)} result would drop its imaginary part", nearest="out_dtype=mx.complex64",
                     instead="take mx.real of it", cls=DTypeError)
    elif activation is not None:
        fail(OP, f"activation {activation!r} of a complex result", instead="apply it to the real and imaginary parts", cls=DTypeError)
    extras = [dtype_name(x.dtype) for x in (bias, residual) if x is not None] + ["float32"] * scaled
    return GemmSpec(
        dtype_name(a.dtype), dtype_name(b.dtype), dtype_name(out), a.ndim, b.ndim, precision,
        Epilogue(bias is not None, activation, residual is not None, scaled), tuple(extras),
    )
