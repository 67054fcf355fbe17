"""Native products of decisions, for warm calls: everything is decided but their arrays. None where another engine answers."""

from __future__ import annotations

from .. import formats
from ..epilogues import CLAMPED_ALPHA, CLAMPED_LIMIT
from . import _compose


def of(decision):
    """The product of a call of quantized_matmul, gather_mm, gather_qmm or gather_gateup."""
    if decision.engine != "cpu":
        return None
    from . import _cpu

    spec = decision.spec
    constants = _format(spec), spec.weights.transpose, spec.out, _compose.DIVISORS.get(spec.weights.global_scale, 1.0)
    if spec.destinations == 2:
        return _cpu.prepared("gateup", *constants, spec.gate or None, CLAMPED_ALPHA, CLAMPED_LIMIT)
    return _cpu.prepared("gather" if spec.op.startswith("gather") else "qmm", *constants, spec.epilogue.activation)


def layer(first, last):
    """The product of a layer of experts, from the decisions of gate and up, and of down."""
    if first.engine != "cpu" or last.engine != "cpu":
        return None
    from . import _cpu

    spec = first.spec
    return _cpu.prepared("layer", _format(spec), _format(last.spec), spec.weights.transpose, spec.out, last.spec.out, spec.gate, CLAMPED_ALPHA,
                         CLAMPED_LIMIT)


def _format(spec):
    return formats.by_name(spec.weights.format).native if spec.weights.format else None
