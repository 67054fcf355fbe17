"""Holds results of weighted kernels against float64, and what the emulator counted against the cost rules."""

from __future__ import annotations

import numpy as np

from mlx_tensorops import formats, reference, registry, signature
from mlx_tensorops.epilogues import ACTIVATIONS, apply_float64
from tests.weighted.cases import Problem


def over_bound(problem: Problem, result, staged: str | None = None) -> float:
    """Largest |error| / bound over all elements; at most 1 for a right kernel.

    Args:
        staged: element type in which the kernel's matrix unit reads the weights.
    """
    want, bound = wanted(problem, staged)
    got = reference.to_float64(result)
    assert got.shape == want.shape, (got.shape, want.shape)
    assert np.all(np.isfinite(got)), "not finite"
    return float(np.max(np.abs(got - want) / np.maximum(bound, np.finfo(np.float64).tiny))) if got.size else 0.0


def wanted(problem: Problem, staged: str | None = None):
    """(the formula in float64, the bound on a right kernel's error), elementwise.

    The accumulation's bound, widened by the activation's slope, a few f32 operations, and one rounding."""
    spec, a = problem.spec, problem.arrays
    operands = (a["x"], a["w"], a["scales"], a.get("biases"), formats.by_name(spec.weights.format))
    how = dict(transpose=spec.weights.transpose)
    if spec.weights.global_scale:
        how |= dict(global_scale=a["global_scale"], convention=spec.weights.global_scale)
    product = reference.qgemm(*operands, **how)
    relaxed = spec.x == "float32" and spec.precision == "tf32"
    if not spec.epilogue:
        return product, reference.qgemm_bound(*operands, spec.out, **how, staged=staged, relaxed_f32=relaxed)
    extra = {name: reference.to_float64(a[name]) for name in spec.epilogue.operands}
    want = apply_float64(np, spec.epilogue, product, **extra)
    slope = ACTIVATIONS[spec.epilogue.activation].slope if spec.epilogue.activation else 1.0
    accumulated = slope * reference.qgemm_bound(*operands, "float32", **how, staged=staged, relaxed_f32=relaxed)
    f32_work = 8 * reference.F32_UNIT * (1 + np.abs(want) + sum(np.abs(x) for x in extra.values()))
    error = accumulated + f32_work
    return want, error + reference.element_type(spec.out).epsilon / 2 * (np.abs(want) + error) + 2.0**-25


def counters_as_predicted(variant, problem: Problem, dispatch: dict, layout: str) -> None:
    """Matrix operations, barriers and threadgroup memory always; bytes where the checked build counted them and the row is aligned."""
    cost = registry.family(variant.family).cost(variant)
    shapes = [x.shape for x in problem.inputs]
    strides = [tuple(int(np.prod(s[i + 1:])) for i in range(len(s))) for s in shapes]
    counters = dispatch["counters"]

    def rule(name):
        return getattr(cost, name)(shapes, strides)

    assert counters["threadgroup_bytes"] == signature.of(variant).threadgroup_bytes
    for name in ("matmul2d", "mma8x8", "barriers"):
        assert counters[name] == rule(name) if variant.engine == "mpp" or variant.alignment == "aligned" else counters[name] <= rule(name), name
    if variant.alignment != "aligned":
        return
    assert counters["macs"] == rule("macs")
    if any(counters["device_load"]) and layout != "padded":  # slots that are no element load one, too
        for name, loaded, bytes_of in zip(problem.names, counters["device_load"], cost.operand_bytes):
            if name in ("x", "w", "scales", "biases"):  # what an epilogue reads is not counted as an operand
                assert loaded == bytes_of(shapes, strides), name
        assert sum(counters["device_store"]) == rule("output_bytes")
        assert counters["threadgroup_load"] == rule("threadgroup_load")
        assert counters["threadgroup_store"] == rule("threadgroup_store")
