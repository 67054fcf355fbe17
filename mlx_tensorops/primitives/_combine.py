"""How each engine adds up the down projections of a token's experts. The products are those of gather_mm and gather_qmm."""

from __future__ import annotations

from . import _compose, _expert_call, _gather_run
from ._expert_call import Call


def run(mx, c: Call, scores, wide: bool) -> tuple:
    """(``[..., N]``, name of the result's type).

    Args:
        c: the products: x is ``[..., k, 1, K]``, rhs ``[..., k]``.
        scores: ``[..., k]``.
        wide: leave the sum in f32.
    """
    found = _expert_call.lookup(c)
    out = found.decision.spec.out
    engine = {"cpu": _cpu, "mlx": _mlx}.get(found.decision.engine, _variants)
    return engine(mx, found, c, scores, "float32" if wide else out), out


def _cpu(mx, found, c: Call, scores, out: str):
    """Engine cpu: no expert's result is stored."""
    from . import _cpu as engine

    spec, fmt = found.decision.spec, _gather_run.format_of(found.decision.spec)
    rows = _expert_call.guarded(mx, found, c)
    (scale, *_), (bias, *_) = _expert_call.per_expert(mx, found, c)
    x, groups = c.x, c.groups
    if _gather_run.integers(x, *groups):
        x, groups = _gather_run.converted(mx, spec, x, *groups)
    factor = None if scale is None else (scale, _compose.DIVISORS[spec.weights.global_scale])
    return engine.gather_combine()(x.squeeze(-2), *groups[0], fmt.native if fmt else None, spec.weights.transpose, out, rows.rhs, scores, factor, bias,
                                   c.stream)


def _mlx(mx, found, c: Call, scores, out: str):
    """Engine mlx: products and their sum in f32."""
    rows = _expert_call.guarded(mx, found, c)
    (scale, *_), (bias, *_) = _expert_call.per_expert(mx, found, c)
    with _compose.on(mx, c.stream):
        y, valid = _gather_run.sums(mx, found.decision.spec, c.x, c.groups[0], rows, scale, bias)
        return _summed(mx, _gather_run.masked(mx, y, valid), scores, out)


def _variants(mx, found, c: Call, scores, out: str):
    """Engines mpp and simdgroup: the results of all experts, then their sum."""
    y = _expert_call.run(c)[0]
    with _compose.on(mx, c.stream):
        return _summed(mx, y, scores, out)


def _summed(mx, y, scores, out: str):
    """The weighted sum of ``[..., k, 1, N]`` over k, in f32."""
    return (y.squeeze(-2).astype(mx.float32) * scores.astype(mx.float32)[..., None]).sum(axis=-2).astype(getattr(mx, out))
