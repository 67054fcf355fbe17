"""The public ``switch_glu``: a layer of experts in one call."""

from __future__ import annotations

import math
from typing import Any

from .. import formats, plans, tracing
from ..epilogues import GATES
from ..errors import DTypeError, ShapeError, fail
from . import _arguments, _combine, _compose, _expert_call, _experts, _gather_run, _products, _replay, _warm, _weights, gated, matmul, quantized_matmul
from ._axes import merged
from ._expert_call import Call, one
from ._tile_plan_build import tile_plan
from ._weights import Group

OP = "switch_glu"

_warm_calls = _warm.Warm()
_recording = tracing.recording


def switch_glu(x, gate, up, down, indices, scores=None, transpose=True, group_size=None, bits=None, mode="affine", *, activation="swiglu",
               bias=None, global_scale=None, weight_scale_2=None, shared=None, shared_scores=None, plan=None, out_dtype=None,
               precision="exact", engine="auto", stream=None):
    """A layer of experts: the tile plan, gate and up with their activation, down, and the weighted sum.

    Args:
        x: array ``[..., H]``: a row per token.
        gate, up, down: weights of all experts, each as for :func:`gather_gateup`: gate and up ``[experts, I, H]``, down ``[experts, H, I]``.
        indices: integers ``[..., k]``: the experts of each token. NumPy arrays and lists are checked at once; in an MLX array, whose
            values are not looked at, an id out of range contributes nothing, whatever its score is.
        scores: array ``[..., k]``: weight of each expert's result; None: the results are not added up. An MLX array, like x, whose type counts.
        transpose, group_size, bits, mode, activation: as for :func:`gather_gateup`; an activation is needed.
        bias, global_scale, weight_scale_2: triples for gate, up and down, as for :func:`gather_gateup`.
        shared: ``(gate, up, down)`` of an expert that every token visits, each like one expert's: ``[I, H]``, ``[I, H]`` and ``[H, I]``.
        shared_scores: array ``[..., 1]``: weight of the shared expert's result; default: 1.
        plan: a ``tile_plan`` of indices.
        out_dtype: element type of the result; default: the common type of x and the weights.
        precision, engine, stream: as for :func:`matmul`.

    Returns:
        ``[..., H]``, added up in the order of k: the same input gives the same bits. Without scores ``[..., k, H]``. Lazy.

    Raises: as :func:`gather_mm`.

    Engine notes: what the activation gives is kept in the common type of x and the weights. Engine cpu adds the experts up in f32 without
    storing their results; the Metal engines store them in the result's type, as MLX does. A shapeless graph that holds indices as constants
    replays a single row of x with each of them, as MLX's operations broadcast.
    """
    arrays = x, gate, up, down, indices, scores
    options = transpose, group_size, bits, mode, activation, out_dtype, precision, engine
    plain = bias is None and global_scale is None and weight_scale_2 is None and shared is None and shared_scores is None and plan is None
    if plain and not _recording:
        y = _warm_calls.call(stream, arrays, options)
        if y is not None:
            return y
    import mlx.core as mx

    down = _weights.as_group(OP, "down", down)
    factors = {"bias": bias, "global_scale": global_scale, "weight_scale_2": weight_scale_2}
    for_two, for_down = zip(*(_triple(name, value) for name, value in factors.items()))
    words = (mode, group_size, bits)
    _check(mx, x, indices, scores, shared, shared_scores, activation)
    first = gated.call(x[..., None, None, :], gate, up, None, indices, transpose, words, activation, *for_two, False, plan, None, precision, engine, stream)
    decision = _expert_call.lookup(first).decision
    if tracing.recording:
        tracing.call(OP, decision, (x.shape, _shape(indices)))
    if decision.variants is not None:
        if isinstance(indices, mx.array):  # once for every kernel
            with _compose.on(mx, stream):
                indices = _experts.to_int32(mx, indices, math.prod(first.groups[0].w.shape[:-2]))
            first = first._replace(rhs=indices)
        plan = _plan(first, decision.variants) if plan is None else plan
    hidden = _expert_call.run(first._replace(plan=plan, engine=decision.engine))[0]  # [..., k, 1, I]
    last = _down(first._replace(plan=plan, engine=decision.engine), down, hidden, words, for_down, out_dtype)
    if plain and isinstance(indices, mx.array):
        _warm_calls.learn(arrays, options, _products.layer(decision, _expert_call.lookup(last).decision))
    if scores is None:
        return _expert_call.run(last)[0].squeeze(-2)
    every = None
    if shared is not None:
        groups = _shared_groups(mx, x, shared, words, transpose, _width(last))
        every = _shared(mx, x, groups, words, first._replace(engine=decision.engine))
    return _combine.run(mx, last, scores, every, shared_scores)


def describe_switch_glu(x, gate, up, down, indices, scores=None, transpose=True, group_size=None, bits=None, mode="affine", *, activation="swiglu",
                        bias=None, global_scale=None, weight_scale_2=None, shared=None, shared_scores=None, plan=None, out_dtype=None,
                        precision="exact", engine="auto", stream=None):
    """(decision, shapes of the kernel's inputs) of the first product that ``switch_glu`` would make, gate and up. The others are checked."""
    import mlx.core as mx

    down = _weights.as_group(OP, "down", down)
    _check(mx, x, indices, scores, shared, shared_scores, activation)
    factors = {"bias": bias, "global_scale": global_scale, "weight_scale_2": weight_scale_2}
    for_two, for_down = zip(*(_triple(name, value) for name, value in factors.items()))
    words = (mode, group_size, bits)
    first = gated.call(x[..., None, None, :], gate, up, None, indices, transpose, words, activation, *for_two, False, plan, None, precision, engine, stream)
    found = _expert_call.lookup(first).decision.variants
    if plan is None and found is not None:
        first = first._replace(plan=_plan(first, found))
    decision, shapes = _expert_call.describe(first)
    inner = _weights.columns(first.groups[0].w, _gather_run.format_of(decision.spec), transpose)
    hidden = mx.zeros((*_shape(indices), 1, inner), getattr(mx, decision.spec.out))
    last = _down(first._replace(engine=decision.engine), down, hidden, words, for_down, out_dtype)
    _expert_call.describe(last)
    if shared is not None:
        _shared_groups(mx, x, shared, words, transpose, _width(last))
    return decision, shapes


def _down(first: Call, down: Group, hidden, words: tuple, factors: tuple, out_dtype) -> Call:
    """The call of the second product, on what the first gave."""
    experts = math.prod(first.groups[0].w.shape[:-2])
    if math.prod(down.w.shape[:-2]) != experts:
        fail(OP, f"down has shape {down.w.shape}, and gate and up have {experts} experts", nearest=f"{experts} experts", cls=ShapeError)
    dense = down.scales is None
    inner, given = hidden.shape[-1], _weights.columns(down.w, None if dense else formats.find(OP, *words), not first.transpose)
    if given != inner:
        fail(OP, f"down has shape {down.w.shape}, so K = {given} with transpose={first.transpose}, and gate and up give {inner} columns",
             nearest=f"K = {inner}", instead="pass gate, up and down in this order, all stored alike", cls=ShapeError)
    bias, amax, prescaled = map(one, factors)
    return first._replace(op="gather_mm" if dense else "gather_qmm", x=hidden, groups=(down,), mode=_weights.no_mode(OP, words) if dense else words,
                          amax=amax, prescaled=prescaled, bias=bias, activation=None, out_dtype=out_dtype)


def _width(last: Call) -> int:
    """Columns of the result."""
    return _weights.columns(last.groups[0].w, None if last.mode is None else formats.find(OP, *last.mode), last.transpose)


def _plan(first: Call, variants):
    """The plan that both steps share, None where the rows are so few that each goes alone."""
    experts = math.prod(first.groups[0].w.shape[:-2])
    if _gather_run.alone(variants, math.prod(_shape(first.rhs)), experts):
        return None
    return tile_plan(first.rhs, num_experts=experts, stream=first.stream)


def _triple(name: str, value) -> tuple[tuple | None, Any]:
    """(pair for gate and up, value for down) of a triple, each None where it is absent."""
    if value is None:
        return None, None
    if not isinstance(value, (tuple, list)) or len(value) != 3 or (value[0] is None) != (value[1] is None):
        fail(OP, f"{name} is a {type(value).__name__}", nearest="a triple of arrays: for gate, up and down", cls=DTypeError)
    return (None if value[0] is None else tuple(value[:2])), value[2]


def _shape(indices) -> tuple:
    return tuple(indices.shape) if hasattr(indices, "shape") else plans.numpy_array(OP, "indices", indices).shape


def _check(mx, x, indices, scores, shared, shared_scores, activation) -> None:
    """The guard of what this operation adds to its parts."""
    _arguments.array(mx, OP, "x", x)
    for name, value in (("scores", scores), ("shared_scores", shared_scores)):
        _arguments.array(mx, OP, name, value, optional=True)
    if activation is None:
        fail(OP, "activation is None, and down takes one array", nearest=", ".join(GATES), instead="gather_gateup gives both products")
    shape, tokens = _shape(indices), x.shape[:-1]
    if x.ndim == 0 or shape[:-1] != tokens or not shape:
        fail(OP, f"x has shape {x.shape} and indices {shape}: x is [..., H] and indices [..., k], with the same leading axes",
             nearest=f"indices of shape {(*tokens, shape[-1] if shape else 'k')}", cls=ShapeError)
    if scores is not None and scores.shape != shape:
        fail(OP, f"scores have shape {scores.shape} and indices {shape}", nearest=str(shape), cls=ShapeError)
    for name, value in (("scores", scores), ("shared_scores", shared_scores)):
        if value is not None and not mx.issubdtype(value.dtype, mx.floating):
            fail(OP, f"{name} are {_arguments.dtype_name(value.dtype)}", instead=f"{name}.astype(mx.float32)", cls=DTypeError)
    if shared is None and shared_scores is not None:
        fail(OP, "shared_scores without a shared expert", instead="shared=(gate, up, down)")
    if shared is not None and (scores is None or not isinstance(shared, (tuple, list)) or len(shared) != 3):
        fail(OP, "shared is added to the sum over k, and is one triple of weights", nearest="shared=(gate, up, down), scores=...", cls=DTypeError)
    if shared_scores is not None and shared_scores.shape != (*tokens, 1):
        fail(OP, f"shared_scores have shape {shared_scores.shape}", nearest=str((*tokens, 1)), cls=ShapeError)


def _shared_groups(mx, x, shared, words: tuple, transpose: bool, width: int) -> list[Group]:
    """Gate, up and down of the expert that every token visits, checked.

    Args:
        width: columns of the result.
    """
    names = [f"the shared expert's {name}" for name in ("gate", "up", "down")]
    groups = [_weights.as_group(OP, name, value) for name, value in zip(names, shared)]
    for name, group in zip(names, groups):
        if group.w.ndim != 2:
            fail(OP, f"{name} has shape {group.w.shape}", nearest=str(group.w.shape[-2:]), instead="pass one expert's weights", cls=ShapeError)
    gate, up, down = groups
    if (gate.scales is None) != (up.scales is None):
        fail(OP, "the shared expert's gate and up are stored unlike each other", instead="quantize both, or neither", cls=DTypeError)
    inner = _shared_columns(mx, names[0], gate, x, x.shape[-1], words, transpose)
    given = _shared_columns(mx, names[1], up, x, x.shape[-1], words, transpose)
    if given != inner:
        fail(OP, f"{names[1]} gives {given} columns and gate {inner}", nearest=f"{inner} columns", cls=ShapeError)
    given = _shared_columns(mx, names[2], down, x, inner, words, transpose)
    if given != width:
        fail(OP, f"{names[2]} gives {given} columns, and down {width}", nearest=f"{width} columns", cls=ShapeError)
    return groups


def _shared_columns(mx, name: str, group: Group, x, k: int, words: tuple, transpose: bool) -> int:
    """N of one of the shared expert's weights, which must take K = k."""
    if group.scales is None:
        _weights.dense_types(mx, OP, ("x", name), x, group.w)
        fmt = None
    else:
        fmt = formats.find(OP, *words)
        _weights.packed_types(mx, OP, fmt, x, *group)
    shapes = tuple(part if part is None else part.shape for part in group)
    taken = _weights.columns(group.w, fmt, not transpose)
    if taken != k:
        fail(OP, f"{name} has shape {group.w.shape}, so K = {taken} with transpose={transpose}", nearest=f"K = {k}",
             instead="pass gate, up and down in this order, stored as the experts are", cls=ShapeError)
    if fmt is not None:
        _weights.packed_guard(OP, fmt, transpose)((k,), *shapes)
    return _weights.columns(group.w, fmt, transpose)


def _shared(mx, x, groups: list[Group], words: tuple, of_experts: Call):
    """The expert that every token visits, in f32."""
    first, down = [Group(*(part if part is None else part[None] for part in group)) for group in groups[:2]], groups[2]
    if of_experts.engine == "cpu":  # in the form of the routed rows, which a shapeless graph replays with any number of them
        first_expert = mx.array(of_experts.rhs) * 0
        if first_expert.shape[-1] != 1:  # MLX 0.32.4 crashes on a compiled shapeless sum of one element
            first_expert = first_expert.sum(axis=-1, keepdims=True)
        hidden = _expert_call.run(of_experts._replace(
            groups=tuple(first), rhs=first_expert, mode=words if first[0].scales is not None else None, amax=None, prescaled=None,
            bias=None, sorted_indices=False, plan=None))[0]
        last = of_experts._replace(
            op="gather_mm" if down.scales is None else "gather_qmm", x=hidden, groups=(Group(*(part if part is None else part[None] for part in down)),),
            rhs=first_expert, mode=None if down.scales is None else words, amax=None, prescaled=None, bias=None, activation=None,
            sorted_indices=False, plan=None, out_dtype=mx.float32)
        return _expert_call.run(last)[0].squeeze((-3, -2))
    hidden = _expert_call.run(of_experts._replace(
        x=mx.expand_dims(merged(mx, x, 1), 0), groups=tuple(first), rhs=None, mode=words if first[0].scales is not None else None, amax=None,
        prescaled=None, bias=None, sorted_indices=True, plan=None))[0][0]
    options = dict(out_dtype=mx.float32, precision=of_experts.precision, engine=of_experts.engine, stream=of_experts.stream)
    if down.scales is None:
        y = matmul.matmul(hidden, down.w.swapaxes(-1, -2) if of_experts.transpose else down.w, **options)
    else:
        mode, group_size, bits = words
        y = quantized_matmul.quantized_matmul(hidden, *down, of_experts.transpose, group_size, bits, mode, **options)
    return _replay.like(mx, OP, y, x, 1)
