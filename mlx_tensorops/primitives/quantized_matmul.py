"""The public ``quantized_matmul``: a warm call, or one dictionary look-up, the guard, the enqueue."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

from .. import device, formats, resolve, tracing
from ..epilogues import Epilogue
from ..errors import ShapeError, fail
from ..spec import WeightedSpec
from . import _arguments, _enqueue, _products, _qgemm_run, _shapes, _warm, _weights
from ._weighted_signature import names, problem_of
from ._weights import Group

OP, FAMILY_NAME = "quantized_matmul", "qgemm"


class Plan(NamedTuple):
    """A resolved call: the decision, the shape guard, what runs, and the native product that runs the next one."""

    decision: resolve.Decision
    guard: Callable
    run: Callable
    product: Any


_plans: dict[tuple, Plan] = {}
_warm_calls = _warm.Warm()
_recording = tracing.recording
_forced, _is_gpu, _emulator = device.forced_here, device.is_gpu, _enqueue.emulator


def quantized_matmul(x, w, scales, biases=None, transpose=True, group_size=None, bits=None, mode="affine", *, global_scale=None,
                     weight_scale_2=None, out_dtype=None, precision="exact", engine="auto", bias=None, activation=None, residual=None,
                     stream=None):
    """``activation(x @ W * factor + bias) + residual`` for quantised weights W, with f32 accumulation.

    Args:
        x: array ``[..., M, K]`` or ``[K]``.
        w: uint32 ``[..., N, K * bits / 32]`` as ``mx.quantize`` packs it; ``transpose=False``: ``[..., K, N * bits / 32]``. Leading axes
            broadcast with those of an x that has any; otherwise, as in MLX, the first matrix is taken.
        scales, biases: one for each group of weights; biases for mode "affine" only.
        group_size, bits, mode: the format, a mode of MLX or one that was registered with ``formats.register_format``; None takes the
            mode's default. A combination that the mode does not have is an error.
        global_scale: float32, the largest magnitude of an nvfp4 tensor, as in ``mx.quantize``; the f32 sums are multiplied by it / 2688.
        weight_scale_2: the same factor already divided by 2688, as ModelOpt stores it. One of the two at most.
        out_dtype: element type of the result; default: that of ``mx.quantized_matmul``, the common type of x, scales and biases (of x alone
            where scales are bytes). bfloat16 x with float16 scales therefore gives float32; ``out_dtype=mx.bfloat16`` keeps x as it is.
        precision, engine, stream: as for :func:`matmul`.
        bias: array that broadcasts to the result, added before the activation.
        activation: None, "relu", "gelu_tanh", "gelu_erf" or "silu".
        residual: array that broadcasts to the result, added after the activation.

    Returns:
        Array ``[..., M, N]``; lazy, like every MLX operation.

    Raises:
        ShapeError, DTypeError: what ``mx.quantized_matmul`` refuses, and shapes of scales that it would read beyond their end.
        EngineError: the named engine does not exist or cannot run this here; the text says why.

    Engine notes: engine cpu decodes exactly and rounds once. Engines mpp and simdgroup decode floating formats exactly and round affine
    weights to x's type once. Engine mlx is MLX's own operation, whose CPU kernels accumulate in x's type; where it lacks something the
    whole formula is computed in f32 and rounded once.
    """
    arrays = x, w, scales, biases, global_scale, weight_scale_2, bias, residual
    words = transpose, group_size, bits, mode, out_dtype, precision, engine, activation
    if not _recording:
        y = _warm_calls.call(stream, arrays, words)
        if y is not None:
            return y
    if transpose is not True and transpose is not False:  # 1 would find the plan of True
        _arguments.flag(OP, "transpose", transpose)
    formats.check_words(OP, mode, group_size, bits)
    try:
        key = (
            x.dtype, w.dtype, scales.dtype, None if biases is None else biases.dtype, x.ndim, w.ndim, transpose, group_size, bits, mode,
            global_scale is None, weight_scale_2 is None, out_dtype, precision, engine, None if bias is None else bias.dtype, activation,
            None if residual is None else residual.dtype, _is_gpu(stream), _forced(), id(_emulator()),
        )
        plan = _plans.get(key)
    except (AttributeError, TypeError):
        key = plan = None
    if plan is None:
        plan = _make_plan(x, w, scales, biases, transpose, group_size, bits, mode, global_scale, weight_scale_2, out_dtype, precision, engine,
                          bias, activation, residual, stream)
        if key is not None:
            _plans[key] = plan
    plan.guard(x.shape, w.shape, scales.shape, None if biases is None else biases.shape)
    if tracing.recording:
        tracing.call(OP, plan.decision, (x.shape, w.shape))
    if global_scale is not None or weight_scale_2 is not None:
        global_scale = _factor(global_scale, weight_scale_2, group_size, bits, mode)
    if bias is not None or residual is not None:
        bias, residual = _floating(bias, residual)
    y = plan.run(x, w, scales, biases, global_scale, bias, residual, stream)
    _warm_calls.learn(arrays, words, plan.product)
    return y


def describe(x, w, scales, biases=None, transpose=True, group_size=None, bits=None, mode="affine", *, global_scale=None, weight_scale_2=None,
             out_dtype=None, precision="exact", engine="auto", bias=None, activation=None, residual=None, stream=None):
    """(decision, shapes of the kernel's inputs) of the call ``quantized_matmul`` would make: the part that explain() needs."""
    import mlx.core as mx

    _arguments.flag(OP, "transpose", transpose)
    decision, fmt, _ = _decide(x, w, scales, biases, transpose, group_size, bits, mode, global_scale, weight_scale_2, out_dtype, precision, engine,
                               bias, activation, residual, stream)
    _guard(fmt, transpose, decision.spec.batched)(x.shape, w.shape, scales.shape, None if biases is None else biases.shape)
    spec, (group,) = decision.spec, _weights.alike(mx, Group(w, scales, biases))
    if not spec.batched:
        group = _weights.first_matrix(group)
    x = x[None] if x.ndim == 1 else x
    _qgemm_run.check_addends(spec, fmt, x, group.w, bias, residual)
    scale = _factor(global_scale, weight_scale_2, group_size, bits, mode)
    arrays, _ = _qgemm_run.place(mx, spec, fmt, x, group, scale, *_floating(bias, residual))
    return decision, tuple(arrays[name].shape for name in names(problem_of(spec), spec.epilogue))


def _factor(amax, prescaled, group_size, bits, mode):
    import mlx.core as mx

    return _weights.global_scale(mx, OP, formats.find(OP, mode, group_size, bits), amax, prescaled, None)


def _floating(*addends):
    import mlx.core as mx

    return [_arguments.floating(mx, value) for value in addends]


def _make_plan(x, w, scales, biases, transpose, group_size, bits, mode, global_scale, weight_scale_2, out_dtype, precision, engine, bias,
               activation, residual, stream) -> Plan:
    decision, fmt, natural = _decide(x, w, scales, biases, transpose, group_size, bits, mode, global_scale, weight_scale_2, out_dtype, precision,
                                     engine, bias, activation, residual, stream)
    return Plan(decision, _guard(fmt, transpose, decision.spec.batched), _qgemm_run.runner(decision, fmt, natural, x, Group(w, scales, biases)),
                _products.of(decision))


def _decide(x, w, scales, biases, transpose, group_size, bits, mode, global_scale, weight_scale_2, out_dtype, precision, engine, bias,
            activation, residual, stream) -> tuple[resolve.Decision, formats.Format, str]:
    import mlx.core as mx

    _arguments.words(OP, engine, precision, activation)
    fmt = formats.find(OP, mode, group_size, bits)
    natural = _weights.packed_types(mx, OP, fmt, x, w, scales, biases)
    extras = _arguments.addend(mx, OP, "bias", bias) + _arguments.addend(mx, OP, "residual", residual)
    out = _arguments.result_type(mx, OP, out_dtype, natural)
    _weights.global_scale(mx, OP, fmt, global_scale, weight_scale_2, None)
    convention = _weights.convention(global_scale, weight_scale_2)
    (group,) = _weights.alike(mx, Group(w, scales, biases))
    spec = WeightedSpec(
        _weights.multiplied_type(x, out_dtype, natural), out, _weights.weight_spec(fmt, group, transpose, convention, natural),
        batched=x.ndim > 2 and w.ndim > 2, precision=precision, epilogue=Epilogue(bias is not None, activation, residual is not None),
        extras=extras, op=OP)
    return resolve.resolve(FAMILY_NAME, spec, engine, _enqueue.context(stream)), fmt, natural


def _guard(fmt: formats.Format, transpose: bool, batched: bool) -> Callable:
    """Raises a ShapeError where ``mx.quantized_matmul`` would refuse these shapes, or read beyond the scales."""
    packed = _weights.packed_guard(OP, fmt, transpose)

    def stacked(x, w, scales, biases):
        packed(x, w, scales, biases)
        if not _shapes.compatible(x[:-2], w[:-2]):
            fail(OP, f"leading axes {x[:-2]} of x and {w[:-2]} of w do not broadcast", instead="reshape or repeat one of them", cls=ShapeError)

    return stacked if batched else packed
