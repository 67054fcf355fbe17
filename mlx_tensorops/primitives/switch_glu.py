"""The public ``switch_glu``: a layer of experts in one call."""

from __future__ import annotations

import math
from typing import Any

from .. import tracing
from ..epilogues import GATES
from ..errors import DTypeError, ShapeError, fail
from . import _arguments, _combine, _compose, _weights, gated, gather_matmul, matmul, quantized_matmul
from ._tile_plan_build import tile_plan
from ._weights import Group

OP = "switch_glu"


def switch_glu(x, gate, up, down, indices, scores=None, transpose=True, group_size=None, bits=None, mode="affine", *, activation="swiglu",
               bias=None, global_scale=None, weight_scale_2=None, shared=None, shared_scores=None, plan=None, out_dtype=None,
               precision="exact", engine="auto", stream=None):
    """A layer of experts: the tile plan, gate and up with their activation, down, and the weighted sum.

    Args:
        x: array ``[..., H]``: a row per token.
        gate, up, down: weights of all experts, each as for :func:`gather_gateup`: gate and up ``[experts, I, H]``, down ``[experts, H, I]``.
        indices: integers ``[..., k]``: the experts of each token. NumPy arrays and lists are checked at once; in an MLX array, whose
            values are not looked at, an id out of range contributes nothing.
        scores: array ``[..., k]``: weight of each expert's result; None: the results are not added up.
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
    storing their results; the Metal engines store them in the result's type, as MLX does.
    """
    import mlx.core as mx

    gate, up, down = (_weights.as_group(OP, name, value) for name, value in (("gate", gate), ("up", up), ("down", down)))
    bias, amax, prescaled = (_triple(name, value) for name, value in (("bias", bias), ("global_scale", global_scale), ("weight_scale_2", weight_scale_2)))
    _check(mx, x, gate, indices, scores, shared, shared_scores, activation)
    tokens = x[..., None, None, :]
    words = (mode, group_size, bits)
    first = gated.lookup(tokens, gate, up, None, indices, transpose, words, activation, bias[0], amax[0], prescaled[0], plan, None, precision, engine, stream)
    engine = first.decision.engine
    if tracing.recording:
        tracing.call(OP, first.decision, (x.shape, _shape(indices)))
    if plan is None and first.decision.variants is not None:
        plan = tile_plan(indices, num_experts=math.prod(gate.w.shape[:-2]), stream=stream)
    options = dict(transpose=transpose, mode=mode, group_size=group_size, bits=bits, activation=activation, precision=precision, engine=engine,
                   stream=stream)
    hidden = gated.gather_gateup(tokens, gate, up, None, indices, bias=bias[0], global_scale=amax[0], weight_scale_2=prescaled[0], plan=plan,
                                 **options).squeeze(-2)
    last = "gather_mm" if down.scales is None else "gather_qmm"
    found = gather_matmul.lookup(last, hidden[..., None, :], down, None, indices, transpose, None if down.scales is None else words, amax[1], prescaled[1], plan,
                                 bias[1], None, out_dtype, precision, engine, stream)
    rows = gather_matmul.guarded(mx, last, found.guard, hidden[..., None, :], down, None, indices, False, plan)
    scale = addend = None
    if any(value is not None for value in (amax[1], prescaled[1], bias[1])):
        scale, addend = gather_matmul.per_expert(mx, last, found.decision.spec, down, amax[1], prescaled[1], bias[1])
    out = found.decision.spec.out
    if tracing.recording:
        tracing.call(last, found.decision, (hidden.shape, down.w.shape))
    if scores is None:
        return found.run(hidden[..., None, :], down, rows, scale, addend, stream).squeeze(-2)
    every = None if shared is None else _shared(mx, x, shared, options)
    if found.decision.variants is not None:
        return _combine.runner(found, out)(hidden, down, rows, scores, scale, addend, stream, every, shared_scores)
    total = _combine.runner(found, out if every is None else "float32")(hidden, down, rows, scores, scale, addend, stream)
    if every is None:
        return total
    with _compose.on(mx, stream):
        if shared_scores is not None:
            every = every * shared_scores.astype(mx.float32)
        return (total + every).astype(getattr(mx, out))


def describe_switch_glu(x, gate, up, down, indices, scores=None, transpose=True, group_size=None, bits=None, mode="affine", *, activation="swiglu",
                        bias=None, global_scale=None, weight_scale_2=None, shared=None, shared_scores=None, plan=None, out_dtype=None,
                        precision="exact", engine="auto", stream=None):
    """(decision, shapes of the kernel's inputs) of the first product that ``switch_glu`` would make, gate and up."""
    import mlx.core as mx

    groups = [_weights.as_group(OP, name, value) for name, value in (("gate", gate), ("up", up), ("down", down))]
    _check(mx, x, groups[0], indices, scores, shared, shared_scores, activation)
    bias, amax, prescaled = (_triple(name, value)[0] for name, value in (("bias", bias), ("global_scale", global_scale), ("weight_scale_2", weight_scale_2)))
    if plan is None:
        plan = tile_plan(indices, num_experts=math.prod(groups[0].w.shape[:-2]), stream=stream)
    return gated.describe_gather_gateup(x[..., None, None, :], gate, up, None, indices, transpose, group_size, bits, mode, activation=activation, bias=bias,
                                        global_scale=amax, weight_scale_2=prescaled, plan=plan, precision=precision, engine=engine, stream=stream)


def _triple(name: str, value) -> tuple[tuple | None, Any]:
    """(pair for gate and up, value for down) of a triple, each None where it is absent."""
    if value is None:
        return None, None
    if not isinstance(value, (tuple, list)) or len(value) != 3 or (value[0] is None) != (value[1] is None):
        fail(OP, f"{name} is a {type(value).__name__}", nearest="a triple of arrays: for gate, up and down", cls=DTypeError)
    return (None if value[0] is None else tuple(value[:2])), value[2]


def _shape(indices) -> tuple:
    import numpy as np

    return tuple(indices.shape) if hasattr(indices, "shape") else np.shape(indices)


def _check(mx, x, gate: Group, indices, scores, shared, shared_scores, activation) -> None:
    """The guard of what this operation adds to its parts."""
    for name, value, optional in (("x", x, False), ("gate", gate.w, False), ("scores", scores, True), ("shared_scores", shared_scores, True)):
        _arguments.array(mx, OP, name, value, optional=optional)
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


def _shared(mx, x, shared, options: dict):
    """The expert that every token visits, in f32."""
    gate, up, down = (_weights.as_group(OP, f"shared {name}", value) for name, value in zip(("gate", "up", "down"), shared))
    gate, up = (tuple(part[None] for part in group if part is not None) for group in (gate, up))
    if len(gate) == 1:
        gate, up = gate[0], up[0]
    hidden = gated.gather_gateup(x.reshape(1, -1, x.shape[-1]), gate, up, sorted_indices=True, **options)[0]
    last = {name: options[name] for name in ("precision", "engine", "stream")}
    if down.scales is None:
        weights = down.w.swapaxes(-1, -2) if options["transpose"] else down.w
        y = matmul.matmul(hidden, weights, out_dtype=mx.float32, **last)
    else:
        formats = {name: options[name] for name in ("transpose", "mode", "group_size", "bits")}
        y = quantized_matmul.quantized_matmul(hidden, *down, out_dtype=mx.float32, **formats, **last)
    return y.reshape(*x.shape[:-1], y.shape[-1])
