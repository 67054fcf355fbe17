"""The public ``gather_gateup``: two weight tensors against the same rows of x."""

from __future__ import annotations

from typing import Callable, NamedTuple

from .. import device, formats, resolve, tracing
from ..epilogues import GATES, Epilogue
from ..errors import DTypeError, ShapeError, fail
from ..spec import WeightedSpec
from . import _arguments, _enqueue, _experts, _gated_run, _gather_run, _weights, gather_matmul
from ._weighted_signature import names, problem_of
from ._weights import Group

OP, FAMILY_NAME = "gather_gateup", "gateup"


class Plan(NamedTuple):
    """A resolved call: the decision, the shape guard of x and one weight tensor, and what runs."""

    decision: resolve.Decision
    guard: Callable
    run: Callable


_plans: dict[tuple, Plan] = {}
_forced, _is_gpu, _emulator = device.forced_here, device.is_gpu, _enqueue.emulator


def gather_gateup(x, gate, up, lhs_indices=None, rhs_indices=None, transpose=True, group_size=None, bits=None, mode="affine", *,
                  activation="swiglu", bias=None, global_scale=None, weight_scale_2=None, sorted_indices=False, plan=None, out_dtype=None,
                  precision="exact", engine="auto", stream=None):
    """``activation(x[lhs] @ gate[rhs], x[lhs] @ up[rhs])``: two weight tensors, never concatenated, against one load of x.

    Args:
        x: array ``[..., M, K]``.
        gate, up: quantised weights as the tuple that ``mx.quantize`` returns, ``(w, scales)`` or ``(w, scales, biases)``; dense weights as
            an array. Both of one shape, ``[experts..., N, K]``; ``transpose=False``: ``[experts..., K, N]``.
        lhs_indices, rhs_indices, sorted_indices, plan: as for :func:`gather_mm`.
        transpose, group_size, bits, mode: as for :func:`quantized_matmul`; the last three are for quantised weights.
        activation: "swiglu" (``silu(g) * u``), "geglu_tanh", "geglu_erf", "swiglu_clamped" (gpt-oss: ``g`` at most 7, ``u`` within -7 .. 7,
            ``g * sigmoid(1.702 * g) * (u + 1)``), or None for both products.
        bias: pair of arrays ``[experts..., N]``, added before the activation.
        global_scale, weight_scale_2: pair of arrays, each as for :func:`gather_qmm`.
        out_dtype: element type of the result; default: the common type of x and the weights, as for :func:`gather_qmm`.
        precision, engine, stream: as for :func:`matmul`.

    Returns:
        Array ``[*broadcast(lhs_indices, rhs_indices), M, N]``, or a list of two of them; lazy. Products, biases and activation are
        computed in f32 and rounded once, on every engine.

    Raises: as :func:`gather_mm`.
    """
    import mlx.core as mx

    gate, up = _weights.as_group(OP, "gate", gate), _weights.as_group(OP, "up", up)
    mode = (mode, group_size, bits)
    found = lookup(x, gate, up, transpose, mode, activation, bias, global_scale, weight_scale_2, plan, out_dtype, precision, engine, stream)
    rows, scales, biases = _guarded(mx, found, x, gate, up, lhs_indices, rhs_indices, sorted_indices, plan, global_scale, weight_scale_2, bias)
    if tracing.recording:
        tracing.call(OP, found.decision, (x.shape, gate.w.shape, up.w.shape))
    results = found.run(x, (gate, up), rows, scales, biases, stream)
    return results if activation is None else results[0]


def describe_gather_gateup(x, gate, up, lhs_indices=None, rhs_indices=None, transpose=True, group_size=None, bits=None, mode="affine", *,
                           activation="swiglu", bias=None, global_scale=None, weight_scale_2=None, sorted_indices=False, plan=None,
                           out_dtype=None, precision="exact", engine="auto", stream=None):
    """(decision, shapes of the kernel's inputs) of the call ``gather_gateup`` would make: the part that explain() needs."""
    import mlx.core as mx

    gate, up = _weights.as_group(OP, "gate", gate), _weights.as_group(OP, "up", up)
    decision, _ = _decide(x, gate, up, transpose, (mode, group_size, bits), activation, bias, global_scale, weight_scale_2, plan, out_dtype, precision,
                          engine, stream)
    found = Plan(decision, gather_matmul.guard_of(OP, decision.spec), None)
    rows, scales, biases = _guarded(mx, found, x, gate, up, lhs_indices, rhs_indices, sorted_indices, plan, global_scale, weight_scale_2, bias)
    spec, arrays, _, _ = _gather_run.place(mx, decision, x, (gate, up), rows, scales, biases, stream)
    return _gather_run.resolved(decision, spec), tuple(arrays[name].shape for name in names(problem_of(spec), spec.epilogue))


def lookup(x, gate: Group, up: Group, transpose, mode, activation, bias, amax, prescaled, plan, out_dtype, precision, engine, stream) -> Plan:
    """The plan of a call; ``mode`` is (mode, group_size, bits)."""
    try:
        key = (
            x.dtype, *(None if part is None else part.dtype for part in (*gate, *up)), x.ndim, gate.w.ndim, transpose, mode, activation,
            None if bias is None else tuple(b.dtype for b in bias), amax is None, prescaled is None, None if plan is None else plan.block_m,
            out_dtype, precision, engine, _is_gpu(stream), _forced(), id(_emulator()),
        )
        found = _plans.get(key)
    except (AttributeError, TypeError):
        key = found = None
    if found is None:
        decision = _decide(x, gate, up, transpose, mode, activation, bias, amax, prescaled, plan, out_dtype, precision, engine, stream)[0]
        found = Plan(decision, gather_matmul.guard_of(OP, decision.spec), _gated_run.runner(decision))
        if key is not None:
            _plans[key] = found
    return found


def _decide(x, gate, up, transpose, mode, activation, bias, amax, prescaled, plan, out_dtype, precision, engine, stream):
    """(decision, natural type)."""
    import mlx.core as mx

    _arguments.words(OP, engine, precision, activation, GATES)
    _arguments.flag(OP, "transpose", transpose)
    if (gate.scales is None) != (up.scales is None):
        fail(OP, "one of gate and up is quantised, the other dense", instead="pass both alike", cls=DTypeError)
    fmt = None if gate.scales is None else formats.find(OP, *mode)
    if fmt is None:
        if mode != ("affine", None, None):
            fail(OP, f"mode {mode[0]!r}, group_size {mode[1]} and bits {mode[2]} with dense weights", instead="gate=(w, scales), up=(w, scales)")
        natural = [_weights.dense_types(mx, OP, ("x", name), x, group.w) for name, group in (("gate", gate), ("up", up))]
    else:
        natural = [_weights.packed_types(mx, OP, fmt, x, *group) for group in (gate, up)]
    natural = _arguments.dtype_name(mx.result_type(*(mx.zeros((), getattr(mx, name)) for name in natural)))
    extras = ()
    if bias is not None:
        pair = [_arguments.addend(mx, OP, "bias", b)[0] for b in as_pair("bias", bias)]
        extras = (pair[0] if pair[0] == pair[1] else "float32",)
    gate, _ = _weights.alike(mx, gate, up)
    spec = WeightedSpec(
        _weights.multiplied_type(x, out_dtype, natural), _arguments.result_type(mx, OP, out_dtype, natural),
        _weights.weight_spec(fmt, gate, transpose, _weights.convention(amax, prescaled), natural), rows="runs" if plan is None else "plan",
        destinations=2, gate=activation or "", block_m=getattr(plan, "block_m", 0), precision=precision, epilogue=Epilogue(bias is not None),
        extras=extras, op=OP)
    return resolve.resolve(FAMILY_NAME, spec, engine, _enqueue.context(stream)), natural


def _guarded(mx, found: Plan, x, gate: Group, up: Group, lhs, rhs, sorted_indices, plan, amax, prescaled, bias):
    """(rows, global scales, biases): the guard."""
    if gate.w.shape != up.w.shape:
        fail(OP, f"gate has shape {gate.w.shape} and up {up.w.shape}", instead="gather_mm or gather_qmm, one by one", cls=ShapeError)
    rows = gather_matmul.guarded(mx, OP, found, x, gate, lhs, rhs, sorted_indices, plan)
    if up.scales is not None:
        found.guard(x.shape, up.w.shape, up.scales.shape, None if up.biases is None else up.biases.shape)
    none = (None, None)
    amax, prescaled, bias = (none if value is None else as_pair(name, value) for name, value in
                             (("global_scale", amax), ("weight_scale_2", prescaled), ("bias", bias)))
    spec = found.decision.spec
    if bias is not none and bias[0].dtype != bias[1].dtype:
        bias = [b.astype(mx.float32) for b in bias]
    both = [gather_matmul.per_expert(mx, OP, spec, group, *one) for group, one in zip((gate, up), zip(amax, prescaled, bias))]
    return rows, tuple(scale for scale, _ in both), tuple(b for _, b in both)


def as_pair(name: str, value) -> tuple:
    """A pair of arrays, one for gate and one for up."""
    if not isinstance(value, (tuple, list)) or len(value) != 2 or any(part is None for part in value):
        fail(OP, f"{name} is a {type(value).__name__}", nearest="a pair of arrays: for gate and for up", cls=DTypeError)
    return tuple(value)
