"""A call of an operation over experts: resolved once per kind of call, guarded each time, and run."""

from __future__ import annotations

import math
from typing import Any, Callable, NamedTuple

from .. import device, formats, resolve, tracing
from ..epilogues import ACTIVATIONS, GATES, Epilogue
from ..errors import DTypeError, ShapeError, fail
from ..spec import WeightedSpec
from . import _arguments, _enqueue, _experts, _gated_run, _gather_run, _products, _weights
from ._experts import Rows
from ._weighted import FAMILY_OF
from ._weighted_signature import names, problem_of
from ._weights import Group


class Call(NamedTuple):
    """What a caller asked.

    Attributes:
        groups: the weights: one tensor, or gate and up.
        mode: (mode, group_size, bits), None for dense weights.
        amax, prescaled, bias: one value for each tensor, or None.
        activation: of ACTIVATIONS for one tensor, of GATES for two.
    """

    op: str
    x: Any
    groups: tuple[Group, ...]
    lhs: Any
    rhs: Any
    transpose: bool
    mode: tuple | None
    amax: tuple | None
    prescaled: tuple | None
    bias: tuple | None
    activation: str | None
    sorted_indices: bool
    plan: Any
    out_dtype: Any
    precision: str
    engine: str
    stream: Any


class Plan(NamedTuple):
    """A resolved kind of call: the decision, the shape guard of x and one weight tensor, what runs, and the native product that runs the
    next one."""

    decision: resolve.Decision
    guard: Callable
    run: Callable
    product: Any


_plans: dict[tuple, Plan] = {}
_forced, _is_gpu, _emulator = device.forced_here, device.is_gpu, _enqueue.emulator


def run(c: Call, warm: tuple | None = None) -> list:
    """The results: one, or one for each tensor where nothing joins them.

    Args:
        warm: (warm calls that learn this one, its arrays, its words).
    """
    import mlx.core as mx

    found = lookup(c)
    rows = guarded(mx, found, c)
    if tracing.recording:
        tracing.call(c.op, found.decision, (c.x.shape, *(group.w.shape for group in c.groups)))
    results = found.run(c.x, c.groups, rows, *per_expert(mx, found, c), c.stream)
    if warm is not None and found.product is not None and c.plan is None and _experts.lazy(mx, c.lhs) and _experts.lazy(mx, c.rhs):
        calls, arrays, words = warm
        calls.learn(arrays, words, found.product)
    return results


def describe(c: Call) -> tuple[resolve.Decision, tuple]:
    """(decision, shapes of the kernel's inputs) of a call: what explain() shows."""
    import mlx.core as mx

    _flags(c)
    if c.plan is not None:
        _experts.is_plan(c.op, c.plan)
    decision, _ = _decide(c)
    found = Plan(decision, _guard(c.op, decision.spec), None, None)
    rows = guarded(mx, found, c)
    form, arrays, _ = _gather_run.place(mx, decision, c.x, c.groups, rows, *per_expert(mx, found, c), c.stream)
    decision = _gather_run.resolved(decision, form)
    spec = decision.spec
    return decision, tuple(arrays[name].shape for name in names(problem_of(spec), spec.epilogue))


def lookup(c: Call) -> Plan:
    """The plan of a call. Nothing in it depends on sizes."""
    _flags(c)
    if c.mode is not None:
        formats.check_words(c.op, *c.mode)
    try:
        key = (
            c.op, c.x.dtype, tuple(map(_types, c.groups)), None if c.lhs is None else c.lhs.dtype, None if c.rhs is None else c.rhs.dtype, c.transpose,
            c.mode, c.amax is None, c.prescaled is None, None if c.bias is None else tuple(b.dtype for b in c.bias), c.activation,
            None if c.plan is None else c.plan.block_m, c.out_dtype, c.precision, c.engine, _is_gpu(c.stream), _forced(), id(_emulator()),
        )
        found = _plans.get(key)
    except (AttributeError, TypeError):  # a list of ids has no dtype: such calls are resolved every time
        key = found = None
    if found is None:
        if c.plan is not None:
            _experts.is_plan(c.op, c.plan)
        decision, natural = _decide(c)
        make = _gather_run.runner if len(c.groups) == 1 else _gated_run.runner
        found = Plan(decision, _guard(c.op, decision.spec), make(decision, natural, c.x, c.groups), _products.of(decision))
        if key is not None:
            _plans[key] = found
    return found


def _flags(c: Call) -> None:
    _arguments.flag(c.op, "transpose", c.transpose)  # 1 would find the plan of True
    _arguments.flag(c.op, "sorted_indices", c.sorted_indices)


def _types(group: Group) -> tuple:
    w, scales, biases = group
    return w.dtype, None if scales is None else scales.dtype, None if biases is None else biases.dtype


def guarded(mx, found: Plan, c: Call) -> Rows:
    """The guard: shapes of x and the weights, indices, the plan."""
    x, lhs, rhs, plan = c.x.shape, c.lhs, c.rhs, c.plan
    for w, scales, biases in c.groups:
        found.guard(x, w.shape, None if scales is None else scales.shape, None if biases is None else biases.shape)
    left, right = x[:-2], c.groups[0].w.shape[:-2]
    if len(c.groups) == 2 and c.groups[0].w.shape != c.groups[1].w.shape:
        fail(c.op, f"gate has shape {c.groups[0].w.shape} and up {c.groups[1].w.shape}", instead="gather_mm or gather_qmm, one by one", cls=ShapeError)
    array = mx.array
    if (lhs is None or type(lhs) is array) and type(rhs) is array:
        rows = Rows(lhs, rhs, lhs is None, False, c.sorted_indices, plan)
    else:
        rows = _experts.on_device(mx, c.op, lhs, rhs, math.prod(left), math.prod(right), c.sorted_indices, plan)
        lhs, rhs = rows.lhs, rows.rhs
    _experts.check_pairs(c.op, left if lhs is None else lhs.shape, right if rhs is None else rhs.shape, (lhs is not None, rhs is not None))
    if plan is not None:
        batch = _experts.pairs(left, right, lhs, rhs)
        _experts.check_plan(c.op, plan, math.prod(right), batch, x[-2])
        if rows.rhs_known:
            _experts.check_rows(c.op, plan, _experts.default(mx, right) if rhs is None else rhs, batch, x[-2])
    return rows


_NONE = (None, None)


def per_expert(mx, found: Plan, c: Call) -> tuple[tuple, tuple]:
    """(global scales, biases), each with one flat axis of experts, for every tensor."""
    if c.amax is None and c.prescaled is None and c.bias is None:
        return _NONE, _NONE
    spec, fmt = found.decision.spec, _gather_run.format_of(found.decision.spec)
    batch = c.groups[0].w.shape[:-2]
    experts, n = math.prod(batch), _weights.columns(c.groups[0].w, fmt, spec.weights.transpose)
    scales = tuple(_weights.global_scale(mx, c.op, fmt, amax, prescaled, experts) for amax, prescaled in zip(c.amax or _NONE, c.prescaled or _NONE))
    biases = tuple(_weights.expert_bias(c.op, _arguments.floating(mx, bias), batch, n) for bias in c.bias or _NONE)
    if c.bias is not None and len({bias.dtype for bias in biases}) > 1:
        biases = tuple(bias.astype(mx.float32) for bias in biases)
    return scales, biases


def _decide(c: Call) -> tuple[resolve.Decision, str]:
    """(decision, the type that MLX gives the plain product)."""
    import mlx.core as mx

    _arguments.words(c.op, c.engine, c.precision, c.activation, ACTIVATIONS if len(c.groups) == 1 else GATES)
    for name, values in (("lhs_indices", c.lhs), ("rhs_indices", c.rhs)):
        _experts.check_type(mx, c.op, name, values)
    fmt = None if c.mode is None else formats.find(c.op, *c.mode)
    natural = _natural(mx, c, fmt)
    for amax, prescaled in zip(c.amax or _NONE, c.prescaled or _NONE):
        _weights.check_convention(c.op, fmt, amax, prescaled)
    extras: tuple[str, ...] = ()
    if c.bias is not None:
        types = {name for bias in c.bias for name in _arguments.addend(mx, c.op, "bias", bias)}
        extras = (types.pop() if len(types) == 1 else "float32",)
    one, *_ = _weights.alike(mx, *c.groups)
    gate = c.activation or "" if len(c.groups) == 2 else ""
    spec = WeightedSpec(
        x=_weights.multiplied_type(c.x, c.out_dtype, natural), out=_arguments.result_type(mx, c.op, c.out_dtype, natural),
        weights=_weights.weight_spec(fmt, one, c.transpose, _weights.convention(c.amax, c.prescaled), natural),
        rows="runs" if c.plan is None else "plan", destinations=len(c.groups), gate=gate, block_m=getattr(c.plan, "block_m", 0),
        precision=c.precision, epilogue=Epilogue(c.bias is not None, c.activation if len(c.groups) == 1 else None), extras=extras, op=c.op)
    return resolve.resolve(FAMILY_OF[c.op], spec, c.engine, _enqueue.context(c.stream)), natural


def _natural(mx, c: Call, fmt) -> str:
    """Name of the common type of x and all weights."""
    if fmt is not None:
        found = [_weights.packed_types(mx, c.op, fmt, c.x, *group) for group in c.groups]
    else:
        labels = (("a", "b"),) if len(c.groups) == 1 else (("x", "gate"), ("x", "up"))
        found = [_weights.dense_types(mx, c.op, label, c.x, group.w) for label, group in zip(labels, c.groups)]
    return found[0] if len(set(found)) == 1 else "float32"  # two different types of the three have no other common one


def _guard(op: str, spec: WeightedSpec) -> Callable:
    """Raises a ShapeError where MLX would refuse these shapes of x and the weights, or read beyond the scales."""
    fmt = _gather_run.format_of(spec)
    if fmt is None:
        return lambda x, w, scales, biases: _weights.dense_guard(op, spec.weights.transpose, x, w)
    return _weights.packed_guard(op, fmt, spec.weights.transpose, least=2)


def as_tuple(op: str, name: str, value, count: int) -> tuple | None:
    """One array for each weight tensor, as callers pass them."""
    if value is None:
        return None
    if not isinstance(value, (tuple, list)) or len(value) != count or any(part is None for part in value):
        fail(op, f"{name} is a {type(value).__name__}", nearest=f"{count} arrays, one for each weight tensor", cls=DTypeError)
    return tuple(value)


def one(value) -> tuple | None:
    """The same for a single weight tensor."""
    return None if value is None else (value,)
