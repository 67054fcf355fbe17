"""How each engine runs gather_gateup: functions of (x, groups, rows, scales, biases, stream) that give a list of results."""

from __future__ import annotations

from typing import Callable

from ..epilogues import CLAMPED_ALPHA, CLAMPED_LIMIT
from . import _compose, _gather_run
from ._kernel import Kernel


def runner(decision) -> Callable:
    """What runs a decision."""
    return {"mpp": _variants, "simdgroup": _variants, "cpu": _cpu, "mlx": _mlx}[decision.engine](decision)


def _cpu(decision) -> Callable:
    """Engine cpu: both products of a block of rows while it is at hand, joined before they are stored."""
    import mlx.core as mx

    from . import _cpu as engine

    spec, fmt = decision.spec, _gather_run.format_of(decision.spec)
    native = fmt.native if fmt else None
    product, transpose, out, gate = engine.gather_gateup(), spec.weights.transpose, spec.out, spec.gate or None
    divisor = _compose.DIVISORS.get(spec.weights.global_scale)

    def run(x, groups, rows, scales, biases, stream):
        x, groups = _gather_run.cpu_types(mx, spec, x, *groups)
        tensors = [(*group, bias) for group, bias in zip(groups, biases)]
        factors = tuple(None if scale is None else (scale, divisor) for scale in scales)
        ids = _gather_run.cpu_ids(mx, rows, groups[0].w)
        return product(x, *tensors, native, transpose, out, rows.lhs, ids, factors, gate, CLAMPED_ALPHA, CLAMPED_LIMIT,
                       _gather_run.cpu_plan(rows, x), stream)

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


def _variants(decision) -> Callable:
    """Engines mpp and simdgroup: one kernel loads x once for both."""
    import mlx.core as mx

    without_rows = _mlx(decision)
    kernels: dict = {}

    def run(x, groups, rows, scales, biases, stream):
        if 0 in x.shape or 0 in groups[0].w.shape:
            return without_rows(x, groups, rows, scales, biases, stream)
        with _compose.on(mx, stream):
            spec, arrays, valid, shape = _gather_run.place(mx, decision, x, groups, rows, scales, biases, stream)
            if 0 in shape:
                return without_rows(x, groups, rows, scales, biases, stream)
            kernel = kernels.get(spec)
            if kernel is None:
                kernel = kernels[spec] = Kernel(_gather_run.resolved(decision, spec), spec.op)
            return [_gather_run.masked(mx, y.reshape(shape), valid) for y in kernel.launch(arrays, stream)]

    return run
