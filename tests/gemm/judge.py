"""Runs a GEMM case through engine mpp in the emulator and holds the result against float64 and the cost rules."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

import mlx_tensorops as mt
from mlx_tensorops import hostmetal, reference, registry
from mlx_tensorops.epilogues import ACTIVATIONS, apply_float64
from tests.cases import gemm as cases


def run(choice: dict, case: cases.Case, seed: int, *, layout: str, checked: bool = False, scale: float = 1.0, **adversary):
    """(a, b, result, dispatch record) of one case through ``matmul``; exactly one kernel must have run, the expected row."""
    a, b = cases.operands(case, choice["operand"], seed, scale)
    mx.eval(a, b)
    with hostmetal.active(layout=layout, checked=checked, **adversary), mt.trace() as trace:
        c = mt.matmul(a, b, engine="mpp", out_dtype=getattr(mx, choice["out"]), precision=choice["precision"])
        mx.eval(c)
    (dispatch,) = trace.dispatches
    assert dispatch["row"].endswith(case.row) and dispatch["backend"] == "hostmetal"
    assert [call.engine for call in trace.calls] == ["mpp"]
    return a, b, c, dispatch


def errors_over_bound(a, b, c, out: str, relaxed_f32: bool = False) -> float:
    """Largest |error| / bound over all elements; at most 1 for a right kernel."""
    difference = np.abs(reference.to_float64(c) - reference.gemm(a, b))
    return _ratio(difference, reference.gemm_bound(a, b, out, relaxed_f32=relaxed_f32))


def epilogue_over_bound(a, b, c, out: str, epilogue, *, bias=None, residual=None, alpha=1.0, beta=1.0) -> float:
    """The same for ``activation(alpha a b + bias) + beta residual``: the accumulation's bound, widened by the activation's
    slope, a few f32 operations, and one rounding."""
    extra = {n: reference.to_float64(x) for n, x in (("bias", bias), ("residual", residual)) if x is not None}
    want = apply_float64(np, epilogue, reference.gemm(a, b), alpha=alpha, beta=beta, **extra)
    slope = ACTIVATIONS[epilogue.activation].slope if epilogue.activation else 1.0
    accumulated = abs(alpha) * slope * reference.gemm_bound(a, b, "float32")
    f32_work = 8 * reference.F32_UNIT * (1 + np.abs(want) + sum(np.abs(x) for x in extra.values()))
    rounding = reference.element_type(out).epsilon / 2 * np.abs(want) + 2.0**-25
    assert c.shape == want.shape
    return _ratio(np.abs(reference.to_float64(c) - want), accumulated + f32_work + rounding)


def _ratio(difference, bound) -> float:
    assert np.all(np.isfinite(difference)), "not finite"
    return float(np.max(difference / np.maximum(bound, np.finfo(np.float64).tiny))) if difference.size else 0.0


def counters_as_predicted(variant, shapes, dispatch: dict, layout: str) -> None:
    """Matrix operations always; bytes where the checked build counted them and the row is aligned."""
    cost = registry.family("gemm").cost(variant)
    strides = [tuple(int(np.prod(s[i + 1:])) for i in range(len(s))) for s in shapes]
    counters = dispatch["counters"]
    name = "matmul2d" if variant.engine == "mpp" else "mma8x8"
    issued = getattr(cost, name)(shapes, strides)
    if variant.alignment != "aligned":
        assert 0 < counters[name] <= issued, "simdgroups wholly outside return early"
        return
    assert counters[name] == issued
    assert counters["macs"] == cost.macs(shapes, strides)
    assert counters["barriers"] == cost.barriers(shapes, strides)
    loads, others = ("opaque_load", "device_load") if cost.opaque else ("device_load", "opaque_load")
    if any(counters[loads]) and layout != "padded":  # slots that are no element load one, too
        assert counters[loads][: len(cost.operand_bytes)] == [rule(shapes, strides) for rule in cost.operand_bytes]
        assert not any(counters[others][: len(cost.operand_bytes)])
        assert sum(counters["device_store"]) == cost.output_bytes(shapes, strides)
        assert counters["threadgroup_load"] == cost.threadgroup_load(shapes, strides)
        assert counters["threadgroup_store"] == cost.threadgroup_store(shapes, strides)
