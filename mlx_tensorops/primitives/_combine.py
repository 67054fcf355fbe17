"""How each engine adds up the down projections of a token's experts: (hidden ``[..., k, I]``, group, rows, scores, scale, bias, stream) -> ``[..., N]``."""

from __future__ import annotations

from typing import Callable

from . import _combine_run, _compose, _gather_run


def runner(found, out: str) -> Callable:
    """What runs a plan of gather_mm or gather_qmm with the weighted sum over the last index axis; the sum is rounded once, to ``out``."""
    make = {"cpu": _cpu, "mlx": _mlx}.get(found.decision.engine, _variants)
    return make(found, out)


def _cpu(found, out: str) -> Callable:
    """Engine cpu: no expert's result is stored."""
    import mlx.core as mx

    from . import _cpu as engine

    spec, fmt = found.decision.spec, _gather_run.format_of(found.decision.spec)
    product, native, transpose = engine.gather_combine(), fmt.native if fmt else None, spec.weights.transpose
    divisor = _compose.DIVISORS.get(spec.weights.global_scale)

    def run(hidden, group, rows, scores, scale, bias, stream):
        if group.scales is None and not mx.issubdtype(group.w.dtype, mx.floating):
            hidden, (group,) = _gather_run.converted(mx, spec, hidden, group)
        w, scales, biases = group
        return product(hidden, w, scales, biases, native, transpose, out, rows.rhs, scores, None if scale is None else (scale, divisor), bias, stream)

    return run


def _mlx(found, out: str) -> Callable:
    """Engine mlx: products and their sum in f32."""
    import mlx.core as mx

    spec = found.decision.spec

    def run(hidden, group, rows, scores, scale, bias, stream):
        with _compose.on(mx, stream):
            y, valid = _gather_run.sums(mx, spec, hidden[..., None, :], group, rows, scale, bias)
            return _summed(mx, _gather_run.masked(mx, y, valid), scores, out)

    return run


def _variants(found, out: str) -> Callable:
    """Engines mpp and simdgroup: the results of all experts, then one kernel that adds them up, and the shared expert's to them."""
    import mlx.core as mx

    def run(hidden, group, rows, scores, scale, bias, stream, shared=None, shared_scores=None):
        y = found.run(hidden[..., None, :], group, rows, scale, bias, stream)
        with _compose.on(mx, stream):
            return _combine_run.combine(mx, y.squeeze(-2), scores, shared, shared_scores, out=out, stream=stream)

    return run


def _summed(mx, y, scores, out: str):
    """The weighted sum of ``[..., k, 1, N]`` over k, in f32."""
    return (y.squeeze(-2).astype(mx.float32) * scores.astype(mx.float32)[..., None]).sum(axis=-2).astype(getattr(mx, out))
