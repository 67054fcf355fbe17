"""Runs a GEMM case through engine mpp in the emulator and holds the result against float64 and the cost rules."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

import mlx_tensorops as mt
from mlx_tensorops import hostmetal, reference, registry
from tests.cases import gemm as cases


def run(choice: dict, case: cases.Case, seed: int, *, layout: str, checked: bool = False, scale: float = 1.0, **adversary):
    """(result, dispatch record) of one case in one emulation; exactly one kernel must have run, the expected row."""
    a, b = cases.operands(case, choice["operand"], seed, scale)
    mx.eval(a, b)
    with hostmetal.active(layout=layout, checked=checked, **adversary), mt.trace() as trace:
        c = mt.matmul(a, b, engine="mpp", out_dtype=getattr(mx, choice["out"]), precision=choice["precision"])
        mx.eval(c)
    (dispatch,) = trace.dispatches
    assert dispatch["row"] == case.row and dispatch["backend"] == "hostmetal"
    assert [call.engine for call in trace.calls] == ["mpp"]
    return a, b, c, dispatch


def errors_over_bound(a, b, c, out: str, relaxed_f32: bool = False) -> float:
    """Largest |error| / bound over all elements; at most 1 for a right kernel."""
    difference = np.abs(reference.to_float64(c) - reference.gemm(a, b))
    bound = reference.gemm_bound(a, b, out, relaxed_f32=relaxed_f32)
    assert np.all(np.isfinite(difference)), "not finite"
    return float(np.max(difference / np.maximum(bound, np.finfo(np.float64).tiny))) if difference.size else 0.0


def counters_as_predicted(choice: dict, case: cases.Case, dispatch: dict, layout: str) -> None:
    """Matrix operations always; operand and output bytes where the checked build counted them and the row is aligned."""
    variant = cases.variant_of(choice)
    cost = registry.family("gemm").cost(variant)
    shapes = ((case.m, case.k), (case.k, case.n))
    counters = dispatch["counters"]
    issued = cost.matmul2d(shapes)
    if variant.alignment == "aligned":
        assert counters["matmul2d"] == issued
        assert counters["macs"] == cost.macs(shapes) == case.m * case.n * case.k
        if counters["device_load"][0] and layout != "padded":  # slots that are no element load one, too
            assert counters["device_load"][:2] == [rule(shapes) for rule in cost.operand_bytes]
            assert counters["device_store"][2] == cost.output_bytes(shapes)
            assert counters["threadgroup_load"] == counters["threadgroup_store"] == 0
    else:
        assert 0 < counters["matmul2d"] <= issued, "simdgroups wholly outside return early"
    assert counters["barriers"] == 0 and counters["threadgroup_bytes"] == 0
