"""Rows of experts: how their arrays are made, the formula in float64, and the bound on a right kernel's error."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

import mlx_tensorops as mt
from mlx_tensorops import formats, reference
from mlx_tensorops.epilogues import ACTIVATIONS, GATES, apply_float64
from mlx_tensorops.formats import GLOBAL_SCALE_DIVISOR
from mlx_tensorops.primitives import _weighted_signature as shared
from mlx_tensorops.spec import WeightedSpec
from tests.cases.gemm import make
from tests.weighted import cases

EXPERTS = 5


def ids_of(rows: int, seed: int, *, bad: bool = False) -> np.ndarray:
    """Unsorted ids of EXPERTS experts, of which one has no rows; ``bad``: three of them are no expert."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, EXPERTS - 1, rows).astype(np.int32)
    ids[ids == 2] = EXPERTS - 1
    if bad:
        ids[rng.choice(rows, 3, replace=False)] = (-1, EXPERTS, 2**31 - 1)
    return ids


def problem(spec: WeightedSpec, ids, n: int, k: int, seed: int, *, top_k: int = 2, x_view: str = "rows",
            experts: int = EXPERTS) -> tuple[cases.Problem, np.ndarray, np.ndarray]:
    """(the problem, expert of each row of the result, row of x that it multiplies).

    With a plan, row r of the result multiplies row r // top_k of x; otherwise its own row; with an index, any row.
    """
    rng = np.random.default_rng(seed)
    rows, fmt, names = len(ids), formats.by_name(spec.weights.format) if spec.weights.format else None, shared.names(shared.problem_of(spec), spec.epilogue)
    tokens = rows // top_k if spec.rows == "plan" or spec.indirect else rows
    source = rng.integers(0, tokens, rows) if spec.indirect else np.arange(rows) * tokens // rows
    arrays = {"x": make(x_view, tokens, k, spec.x, rng), "experts": mx.array(ids), "x_rows": mx.array(source.astype(np.int32))}
    if spec.rows == "plan":
        plan = mt.tile_plan(mx.array(ids), num_experts=experts, block_m=spec.block_m)
        arrays |= {name: getattr(plan, name) for name in shared.PLAN}
    stored = (experts, *((n, k) if spec.weights.transpose else (k, n)))
    for suffix in shared.problem_of(spec).suffixes:
        found = cases.packed(fmt, stored, spec.weights.scales, rng) if fmt else {"w": make("rows", *stored[1:], spec.weights.stored, rng, lead=stored[:1])}
        arrays |= {name + suffix: x for name, x in found.items()}
        if spec.weights.global_scale:
            unit = GLOBAL_SCALE_DIVISOR if spec.weights.global_scale == "amax" else 1.0
            arrays["global_scale" + suffix] = mx.array((rng.uniform(0.5, 2.0, experts) * unit).astype(np.float32))
        if spec.epilogue.bias:
            arrays["bias" + suffix] = make("rows", experts, n, spec.extras[0], rng)
    if spec.epilogue.residual:
        arrays["residual"] = make("rows", rows, n, spec.extras[-1], rng)
    arrays = {name: arrays[name] for name in names}
    mx.eval(*arrays.values())
    return cases.Problem(spec, arrays), ids, source


def over_bound(problem: cases.Problem, ids, source, results, staged: str | None = None) -> float:
    """Largest |error| / bound over all results; rows whose expert does not exist are exactly zero.

    ``staged``: element type in which the kernel's matrix unit reads the weights.
    """
    worst = 0.0
    there = (ids >= 0) & (ids < len(problem.arrays["w" + shared.problem_of(problem.spec).suffixes[0]]))
    wanted_all = wanted(problem, ids, source, there, staged)
    assert len(results) == len(wanted_all)
    for result, (want, bound) in zip(results, wanted_all):
        got = reference.to_float64(result)
        assert got.shape == want.shape and np.all(np.isfinite(got)) and not got[~there].any()
        worst = max(worst, float(np.max(np.abs(got - want)[there] / bound[there], initial=0.0)))
    return worst


def wanted(problem: cases.Problem, ids, source, there, staged: str | None = None):
    """[(the formula in float64, the bound)] of each result."""
    spec, a = problem.spec, problem.arrays
    out = "float32" if spec.gate else spec.out
    found = [_product(problem, suffix, ids, source, there, out, staged) for suffix in shared.problem_of(spec).suffixes]
    if not spec.gate:
        return found
    (g, g_bound), (u, u_bound) = found
    gate = GATES[spec.gate]
    want = gate.float64(np, g, u)
    widened = gate.slope * (g_bound * np.maximum(1, np.abs(u) + u_bound) + u_bound * np.maximum(1, np.abs(g) + g_bound))
    f32_work = 16 * reference.F32_UNIT * (1 + np.abs(want) + np.abs(g) * np.maximum(1, np.abs(u)))
    return [(want, widened + f32_work + _rounding(spec.out, want))]


def _product(problem: cases.Problem, suffix: str, ids, source, there, out: str, staged: str | None):
    """One destination after its epilogue."""
    spec, a = problem.spec, problem.arrays
    x, n = a["x"], _columns(problem, suffix)
    want, bound = np.zeros((len(ids), n)), np.ones((len(ids), n))
    for e in np.unique(ids[there]):
        mine = np.flatnonzero(ids == e)
        rows = x[mx.array(source[mine])]
        exact = not spec.epilogue
        want[mine], bound[mine] = _multiply(spec, rows, {name: a[name + suffix][int(e)] for name in ("w", "scales", "biases", "global_scale") if name + suffix in a},
                                            out if exact else "float32", staged)
    if not spec.epilogue:
        return want, bound
    extra = {}
    if spec.epilogue.bias:
        extra["bias"] = reference.to_float64(a["bias" + suffix])[np.where(there, ids, 0)]
    if spec.epilogue.residual:
        extra["residual"] = reference.to_float64(a["residual"])
    result = apply_float64(np, spec.epilogue, want, **extra)
    slope = ACTIVATIONS[spec.epilogue.activation].slope if spec.epilogue.activation else 1.0
    f32_work = 8 * reference.F32_UNIT * (1 + np.abs(result) + sum(np.abs(x) for x in extra.values()))
    return result, slope * bound + f32_work + (0 if out == "float32" else _rounding(out, result))


def _multiply(spec: WeightedSpec, x, stored: dict, out: str, staged: str | None):
    """(x times one expert's weights in float64, the bound)."""
    relaxed = spec.x == "float32" and spec.precision == "tf32"
    if not spec.weights.format:
        w = stored["w"].swapaxes(-1, -2) if spec.weights.transpose else stored["w"]
        return reference.gemm(x, w), reference.gemm_bound(x, w, out, relaxed_f32=relaxed)
    how = dict(transpose=spec.weights.transpose)
    if spec.weights.global_scale:
        how |= dict(global_scale=stored["global_scale"], convention=spec.weights.global_scale)
    operands = (x, stored["w"], stored["scales"], stored.get("biases"), formats.by_name(spec.weights.format))
    return reference.qgemm(*operands, **how), reference.qgemm_bound(*operands, out, **how, staged=staged, relaxed_f32=relaxed)


def _columns(problem: cases.Problem, suffix: str) -> int:
    spec, shape = problem.spec, problem.arrays["w" + suffix].shape
    if spec.weights.transpose:
        return shape[-2]
    return shape[-1] * 32 // formats.by_name(spec.weights.format).bits if spec.weights.format else shape[-1]


def _rounding(out: str, want):
    return reference.element_type(out).epsilon / 2 * np.abs(want) + 2.0**-25
