"""The public ``gather_mm`` and ``gather_qmm``: one dictionary look-up, the guard, the enqueue."""

from __future__ import annotations

import math
from typing import Callable, NamedTuple

from .. import device, formats, resolve, tracing
from ..epilogues import Epilogue
from ..errors import ShapeError, fail
from ..spec import WeightedSpec
from . import _arguments, _enqueue, _experts, _gather_run, _weights
from ._weighted_signature import names, problem_of
from ._weights import Group

FAMILY_NAME = "gather"


class Plan(NamedTuple):
    """A resolved call: the decision, the shape guard of x and the weights, and what runs."""

    decision: resolve.Decision
    guard: Callable
    run: Callable


_plans: dict[tuple, Plan] = {}
_forced, _is_gpu, _emulator = device.forced_here, device.is_gpu, _enqueue.emulator


def gather_mm(a, b, lhs_indices=None, rhs_indices=None, *, sorted_indices=False, plan=None, bias=None, activation=None, out_dtype=None,
              precision="exact", engine="auto", stream=None):
    """``activation(a[lhs] @ b[rhs] + bias[rhs])``, as ``mx.gather_mm``, with f32 accumulation.

    Args:
        a: array ``[..., M, K]``, or ``[K]``.
        b: array ``[..., K, N]``, or ``[K]``: an expert per index of the leading axes.
        lhs_indices, rhs_indices: integer arrays that broadcast together: flat indices into the leading axes of a and b. NumPy arrays
            and lists are checked at once. In an MLX array, whose values are not looked at, an index out of range gives rows of zeros.
        sorted_indices: the caller's promise that rhs_indices ascend.
        plan: a ``tile_plan`` of rhs_indices, shared between calls. It changes how the rows are walked, not the result.
        bias: array ``[..., N]``, one row for each expert, added before the activation.
        activation: None, "relu", "gelu_tanh", "gelu_erf" or "silu".
        out_dtype: element type of the result; default: that of ``mx.gather_mm``.
        precision, engine, stream: as for :func:`matmul`.

    Returns:
        Array ``[*broadcast(lhs_indices, rhs_indices), M, N]``; lazy.

    Raises:
        ShapeError, DTypeError: what ``mx.gather_mm`` refuses, and a plan of other rows or experts.
        TensorOpsError: an index that the host can see is out of range.
        EngineError: the named engine does not exist or cannot run this here; the text says why.
    """
    import mlx.core as mx

    op = "gather_mm"
    _weights.dense_types(mx, op, ("a", "b"), a, b)
    left, right = a.ndim == 1, b.ndim == 1
    if a.ndim == 0 or b.ndim == 0:
        fail(op, f"a has shape {a.shape} and b has shape {b.shape}: a scalar is no matrix", instead="multiply with *", cls=ShapeError)
    y = _call(op, a[None] if left else a, Group(b[:, None] if right else b), lhs_indices, rhs_indices, False, None, None, None, sorted_indices, plan,
              bias, activation, out_dtype, precision, engine, stream)
    return y.squeeze([axis for axis, vector in ((-2, left), (-1, right)) if vector]) if left or right else y


def gather_qmm(x, w, scales, biases=None, lhs_indices=None, rhs_indices=None, transpose=True, group_size=None, bits=None, mode="affine",
               global_scale=None, *, sorted_indices=False, plan=None, weight_scale_2=None, bias=None, activation=None, out_dtype=None,
               precision="exact", engine="auto", stream=None):
    """``activation(x[lhs] @ W[rhs] * factor[rhs] + bias[rhs])`` for quantised weights W, as ``mx.gather_qmm``, with f32 accumulation.

    Args:
        x: array ``[..., M, K]``.
        w, scales, biases, transpose, group_size, bits, mode: as for :func:`quantized_matmul`, with an expert per index of the leading axes.
        lhs_indices, rhs_indices, sorted_indices, plan, bias, activation: as for :func:`gather_mm`.
        global_scale: float32 ``[experts]``: the largest magnitude of each expert's nvfp4 weights, as in ``mx.gather_qmm``.
        weight_scale_2: the same factors already divided by 2688, as ModelOpt stores them. One of the two at most.
        out_dtype: element type of the result; default: that of ``mx.gather_qmm``.
        precision, engine, stream: as for :func:`matmul`.

    Returns, raises: as :func:`gather_mm`.

    Engine notes: MLX itself has no global scale on CPU streams; every engine here has it.
    """
    _arguments.flag("gather_qmm", "transpose", transpose)
    return _call("gather_qmm", x, Group(w, scales, biases), lhs_indices, rhs_indices, transpose, (mode, group_size, bits), global_scale,
                 weight_scale_2, sorted_indices, plan, bias, activation, out_dtype, precision, engine, stream)


def _call(op, x, group, lhs, rhs, transpose, mode, amax, prescaled, sorted_indices, plan, bias, activation, out_dtype, precision, engine, stream):
    import mlx.core as mx

    found = lookup(op, x, group, transpose, mode, amax, prescaled, plan, bias, activation, out_dtype, precision, engine, stream)
    rows = guarded(mx, op, found, x, group, lhs, rhs, sorted_indices, plan)
    if tracing.recording:
        tracing.call(op, found.decision, (x.shape, group.w.shape))
    scale, bias = per_expert(mx, op, found.decision.spec, group, amax, prescaled, bias)
    return found.run(x, group, rows, scale, bias, stream)


def lookup(op, x, group, transpose, mode, amax, prescaled, plan, bias, activation, out_dtype, precision, engine, stream) -> Plan:
    """The plan of a call; ``mode`` is (mode, group_size, bits), None for dense weights."""
    w, scales, biases = group
    try:
        key = (
            op, x.dtype, w.dtype, None if scales is None else scales.dtype, None if biases is None else biases.dtype, x.ndim, w.ndim, transpose, mode,
            amax is None, prescaled is None, None if plan is None else plan.block_m, out_dtype, precision, engine,
            None if bias is None else bias.dtype, activation, _is_gpu(stream), _forced(), id(_emulator()),
        )
        found = _plans.get(key)
    except (AttributeError, TypeError):
        key = found = None
    if found is None:
        decision, natural = _decide(op, x, group, transpose, mode, amax, prescaled, plan, bias, activation, out_dtype, precision, engine, stream)
        found = Plan(decision, guard_of(op, decision.spec), _gather_run.runner(decision, natural))
        if key is not None:
            _plans[key] = found
    return found


def guarded(mx, op: str, found: Plan, x, group: Group, lhs, rhs, sorted_indices, plan) -> _experts.Rows:
    """The guard: shapes of x and the weights, indices, the plan."""
    found.guard(x.shape, group.w.shape, *(None if part is None else part.shape for part in group[1:]))
    own, experts = x.shape[:-2], group.w.shape[:-2]
    rows = _experts.rows(mx, op, lhs, rhs, math.prod(own), math.prod(experts), sorted_indices, plan)
    batch = _experts.pairs(op, own, experts, rows.lhs, rows.rhs)
    if plan is not None:
        _experts.check_plan(op, plan, math.prod(experts), batch, x.shape[-2])
    return rows


def per_expert(mx, op: str, spec, group: Group, amax, prescaled, bias):
    """(global scale, bias) with one flat axis of experts."""
    if amax is None and prescaled is None and bias is None:
        return None, None
    batch = group.w.shape[:-2]
    experts, fmt = math.prod(batch), _gather_run.format_of(spec)
    scale = _weights.global_scale(mx, op, fmt, amax, prescaled, experts)
    return scale, _weights.expert_bias(op, _arguments.floating(mx, bias), batch, _weights.columns(group, fmt, spec.weights.transpose))


def _decide(op, x, group, transpose, mode, amax, prescaled, plan, bias, activation, out_dtype, precision, engine, stream):
    """(decision, natural type)."""
    import mlx.core as mx

    _arguments.words(op, engine, precision, activation)
    fmt = None
    if mode is None:
        natural = _weights.dense_types(mx, op, ("a", "b"), x, group.w)
    else:
        fmt = formats.find(op, *mode)
        natural = _weights.packed_types(mx, op, fmt, x, *group)
        (group,) = _weights.alike(mx, group)
    extras = _arguments.addend(mx, op, "bias", bias)
    spec = WeightedSpec(
        _weights.multiplied_type(x, out_dtype, natural), _arguments.result_type(mx, op, out_dtype, natural),
        _weights.weight_spec(fmt, group, transpose, _weights.convention(amax, prescaled), natural), rows="runs" if plan is None else "plan", block_m=getattr(plan, "block_m", 0),
        precision=precision, epilogue=Epilogue(bias is not None, activation), extras=extras, op=op)
    return resolve.resolve(FAMILY_NAME, spec, engine, _enqueue.context(stream)), natural


def guard_of(op: str, spec: WeightedSpec) -> Callable:
    """Raises a ShapeError where MLX would refuse these shapes of x and the weights, or read beyond the scales."""
    fmt = _gather_run.format_of(spec)
    if fmt is None:
        return lambda x, w, scales, biases: _weights.dense_guard(op, spec.weights.transpose, x, w)
    packed = _weights.packed_guard(op, fmt, spec.weights.transpose)

    def guard(x, w, scales, biases):
        if len(x) < 2:
            fail(op, f"x has shape {x}; it has two axes or more", instead="x[None]", cls=ShapeError)
        packed(x, w, scales, biases)

    return guard


def describe_gather_mm(a, b, lhs_indices=None, rhs_indices=None, *, sorted_indices=False, plan=None, bias=None, activation=None, out_dtype=None,
                       precision="exact", engine="auto", stream=None):
    """(decision, shapes of the kernel's inputs) of the call ``gather_mm`` would make: the part that explain() needs."""
    import mlx.core as mx

    _weights.dense_types(mx, "gather_mm", ("a", "b"), a, b)
    a, b = a[None] if a.ndim == 1 else a, b[:, None] if b.ndim == 1 else b
    return _describe("gather_mm", a, Group(b), lhs_indices, rhs_indices, False, None, None, None, sorted_indices, plan, bias, activation, out_dtype,
                     precision, engine, stream)


def describe_gather_qmm(x, w, scales, biases=None, lhs_indices=None, rhs_indices=None, transpose=True, group_size=None, bits=None, mode="affine",
                        global_scale=None, *, sorted_indices=False, plan=None, weight_scale_2=None, bias=None, activation=None, out_dtype=None,
                        precision="exact", engine="auto", stream=None):
    """The same for ``gather_qmm``."""
    return _describe("gather_qmm", x, Group(w, scales, biases), lhs_indices, rhs_indices, transpose, (mode, group_size, bits), global_scale,
                     weight_scale_2, sorted_indices, plan, bias, activation, out_dtype, precision, engine, stream)


def _describe(op, x, group, lhs, rhs, transpose, mode, amax, prescaled, sorted_indices, plan, bias, activation, out_dtype, precision, engine, stream):
    import mlx.core as mx

    decision, natural = _decide(op, x, group, transpose, mode, amax, prescaled, plan, bias, activation, out_dtype, precision, engine, stream)
    rows = guarded(mx, op, Plan(decision, guard_of(op, decision.spec), None), x, group, lhs, rhs, sorted_indices, plan)
    scale, bias = per_expert(mx, op, decision.spec, group, amax, prescaled, bias)
    spec, arrays, _, _ = _gather_run.place(mx, decision, x, (group,), rows, (scale,), (bias,), stream)
    return _gather_run.resolved(decision, spec), tuple(arrays[name].shape for name in names(problem_of(spec), spec.epilogue))
