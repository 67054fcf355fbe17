"""How each engine runs gather_gateup: functions of (x, groups, rows, scales, biases, stream) that give a list of results."""

from __future__ import annotations

from typing import Callable

from ..epilogues import CLAMPED_ALPHA, CLAMPED_LIMIT
from . import _compose, _experts, _gather_run


def runner(decision, natural: str, x, groups) -> Callable:
    """What runs a decision for such operands."""
    if decision.engine == "cpu":
        return _cpu(decision, _gather_run.integers(x, *groups))
    composed = _mlx(decision)
    return composed if decision.engine == "mlx" else _gather_run.variants(decision, natural, composed)


def _cpu(decision, converts: bool) -> Callable:
    """Engine cpu: both products of a block of rows while it is at hand, joined before they are stored."""
    import mlx.core as mx

    from . import _cpu as engine

    spec, fmt = decision.spec, _gather_run.format_of(decision.spec)
    native = fmt.native if fmt else None
    product, transpose, out, activation = engine.gather_gateup(), spec.weights.transpose, spec.out, spec.gate or None
    divisor = _compose.DIVISORS.get(spec.weights.global_scale)

    def run(x, groups, rows, scales, biases, stream):
        if converts:
            x, groups = _gather_run.converted(mx, spec, x, *groups)
        gate, up = groups
        ids = rows.rhs if rows.rhs is not None else _experts.default(mx, gate.w.shape[:-2])
        plan = None if rows.plan is None else _gather_run.cpu_plan(rows, x)
        factors = (None, None) if divisor is None else tuple((scale, divisor) for scale in scales)
        return product(x, (*gate, biases[0]), (*up, biases[1]), native, transpose, out, rows.lhs, ids, factors, activation, CLAMPED_ALPHA,
                       CLAMPED_LIMIT, plan, stream)

    return run


def _mlx(decision) -> Callable:
    """Engine mlx: two products of MLX's in f32, joined and rounded once."""
    import mlx.core as mx

    spec = decision.spec

    def run(x, groups, rows, scales, biases, stream):
        with _compose.on(mx, stream):
            sums, valid = zip(*(_gather_run.sums(mx, spec, x, *one) for one in zip(groups, (rows, rows), scales, biases)))
            return [_gather_run.masked(mx, y, valid[0]) for y in _compose.gated(mx, spec, *sums)]

    return run
