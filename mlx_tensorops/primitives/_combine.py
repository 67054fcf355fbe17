"""How each engine adds up the down projections of a token's experts. The products are those of gather_mm and gather_qmm."""

from __future__ import annotations

import math

from . import _combine_run, _compose, _expert_call, _gather_run
from ._expert_call import Call
from .combine import composed


def run(mx, c: Call, scores, addend=None, addend_scores=None):
    """``sum_j scores[..., j] products[..., j, :] (+ addend_scores[..., 0] addend)``, rounded once. Where an expert does not exist, its score
    is not looked at.

    Args:
        c: the products: x is ``[..., k, 1, K]``, rhs ``[..., k]``.
        scores: ``[..., k]``.
        addend, addend_scores: ``[..., N]`` and ``[..., 1]``, or None.

    Returns:
        ``[..., N]``.
    """
    found = _expert_call.lookup(c)
    out = found.decision.spec.out
    if found.decision.variants is not None:
        y, ids = _expert_call.run(c)[0], c.rhs if isinstance(c.rhs, mx.array) else mx.array(c.rhs)
        with _compose.on(mx, c.stream):
            return _combine_run.combine(mx, y.squeeze(-2), scores, ids, math.prod(c.groups[0].w.shape[:-2]), addend, addend_scores, out=out,
                                        stream=c.stream)
    rows, ((scale, *_), (bias, *_)) = _expert_call.guarded(mx, found, c), _expert_call.per_expert(mx, found, c)
    if found.decision.engine == "cpu":
        total = _cpu(mx, found.decision.spec, c, rows, scores, scale, bias, out if addend is None else "float32")
        if addend is None:
            return total
        with _compose.on(mx, c.stream):
            return (total + (addend if addend_scores is None else addend * addend_scores.astype(mx.float32))).astype(getattr(mx, out))
    with _compose.on(mx, c.stream):
        y, valid = _gather_run.sums(mx, found.decision.spec, c.x, c.groups[0], rows, scale, bias)
        every = None if addend_scores is None else addend_scores.squeeze(-1)
        return composed(mx, _gather_run.masked(mx, y, valid).squeeze(-2), scores, addend, every, valid).astype(getattr(mx, out))


def _cpu(mx, spec, c: Call, rows, scores, scale, bias, out: str):
    """Engine cpu: no expert's result is stored."""
    from . import _cpu as engine

    fmt, x, groups = _gather_run.format_of(spec), c.x, c.groups
    if _gather_run.integers(x, *groups):
        x, groups = _gather_run.converted(mx, spec, x, *groups)
    factor = None if scale is None else (scale, _compose.DIVISORS[spec.weights.global_scale])
    return engine.gather_combine()(x.squeeze(-2), *groups[0], fmt.native if fmt else None, spec.weights.transpose, out, rows.rhs, scores, factor, bias,
                                   c.stream)
