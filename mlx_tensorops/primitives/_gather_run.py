"""How each engine runs gather_mm and gather_qmm: functions of (x, groups, rows, scales, biases, stream) that give a list."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Callable

from .. import device, formats, resolve
from ..errors import ShapeError, fail
from ..policies import weighted
from ..spec import WeightedSpec
from ..variant import VariantSet
from . import _compose, _experts, _replay
from ._arguments import FLOATS, dtype_name
from ._axes import merged
from ._experts import Rows
from ._kernel import Kernel
from ._tile_plan_build import tile_plan
from ._weighted import FAMILY_OF
from ._weighted_signature import INT32_LIMIT
from ._weights import Group, alike, columns, for_kernels


def runner(decision, natural: str, x, groups: tuple[Group, ...]) -> Callable:
    """What runs a decision; ``natural`` is the type that MLX gives the plain product of such operands."""
    if decision.engine == "cpu":
        return _cpu(decision, integers(x, *groups))
    return {"mpp": variants, "simdgroup": variants, "mlx": _mlx}[decision.engine](decision, natural)


def integers(x, *groups: Group) -> bool:
    """Whether x or dense weights are no floating type: engine cpu is given them as the type that they are multiplied in."""
    dense = [group.w for group in groups if group.scales is None]
    return any(dtype_name(array.dtype) not in FLOATS for array in (x, *dense))


def format_of(spec: WeightedSpec):
    """The weights' format, None for dense ones."""
    return formats.by_name(spec.weights.format) if spec.weights.format else None


def _cpu(decision, converts: bool) -> Callable:
    """Engine cpu: grouped by expert, nothing gathered, exact in any mixture of floating types."""
    import mlx.core as mx

    from . import _cpu as engine

    spec, fmt = decision.spec, format_of(decision.spec)
    native = fmt.native if fmt else None
    product, transpose, out, activation = engine.gather_mm(), spec.weights.transpose, spec.out, spec.epilogue.activation
    divisor = _compose.DIVISORS.get(spec.weights.global_scale)

    def run(x, groups, rows, factors, addends, stream):
        if converts:
            x, groups = converted(mx, spec, x, *groups)
        (w, scales, biases), scale, bias = groups[0], factors[0], addends[0]
        ids = rows.rhs if rows.rhs is not None else _experts.default(mx, w.shape[:-2])
        plan = None if rows.plan is None else cpu_plan(rows, x)
        return [product(x, w, scales, biases, native, transpose, out, rows.lhs, ids, None if scale is None else (scale, divisor), bias, activation,
                        plan, stream)]

    return run


def converted(mx, spec, x, *groups: Group):
    """x and dense weights as the types that they are multiplied in."""
    x = x.astype(getattr(mx, spec.x))
    if not spec.weights.format:
        groups = [Group(group.w.astype(getattr(mx, spec.weights.stored))) for group in groups]
    return x, groups


def cpu_plan(rows: Rows, x):
    """The plan as the engine takes it. A plan of the rows of larger matrices is no plan of the matrices: the engine groups these itself."""
    return None if rows.plan is None or x.shape[-2] != 1 else tuple(_experts.plan_arrays(rows.plan).values())


def _mlx(decision, natural: str) -> Callable:
    """Engine mlx: MLX's own operation on ids moved into the range; what it lacks is composed of MLX operations in f32."""
    import mlx.core as mx

    spec, fmt = decision.spec, format_of(decision.spec)
    plain = _compose.in_mlx(fmt) and not spec.epilogue and not spec.weights.global_scale and spec.out == natural

    def run(x, groups, rows, scales, biases, stream):
        own = plain and (fmt is not None or natural == "float32" or device.is_gpu(stream))  # dense on CPU, MLX has f32 only
        with _compose.on(mx, stream):
            y, valid = sums(mx, spec, x, groups[0], rows, scales[0], biases[0], own)
            return [masked(mx, _compose.finish(mx, replace(spec.epilogue, bias=False), spec.out, y), valid)]

    return run


def sums(mx, spec: WeightedSpec, x, group: Group, rows: Rows, scale, bias, own: bool = False):
    """(the products of MLX operations with scale and bias, where the ids are in range). f32, but for ``own``: MLX's own operation."""
    fmt, transpose = format_of(spec), spec.weights.transpose
    batch = _experts.pairs(x.shape[:-2], group.w.shape[:-2], rows.lhs, rows.rhs)
    shape = (*batch, x.shape[-2], columns(group.w, fmt, transpose))
    lhs, rhs, valid = in_range(mx, rows, math.prod(x.shape[:-2]), math.prod(group.w.shape[:-2]))
    if 0 in (*shape, x.shape[-1]) or valid is False:
        y = mx.zeros(shape, mx.float32)
    else:
        product = _compose.gathered_by_mlx if own else _compose.gathered
        y = product(mx, fmt, transpose, x, group, lhs, rhs, rows.sorted and sorted_form(x, lhs, batch))
    if _replay.traced():  # MLX's nodes hold the row numbers that they made of the trace's shapes
        y = _replay.fixed(mx, spec.op, y, *(array for array in (x, rows.lhs, rows.rhs, group.w) if array is not None))
    if valid is not False and (scale is not None or bias is not None):
        ids = _experts.default(mx, group.w.shape[:-2]) if rhs is None else rhs
        y = _compose.scaled(y, None if scale is None else scale[ids][..., None, None], spec.weights.global_scale)
        y = y if bias is None else y + bias[ids][..., None, :].astype(mx.float32)
    return y, valid


def masked(mx, y, valid):
    """y with zeros where the ids are out of range; y itself where the host knows that they are not, or where y is zero."""
    return y if valid is None or valid is False else mx.where(mx.expand_dims(valid, (-2, -1)), y, 0)


def sorted_form(x, lhs, batch: tuple) -> bool:
    """Whether MLX's grouped kernels do ascending ids right: one row of x for each id, none of them by index."""
    return lhs is None and x.shape[-2] == 1 and math.prod(x.shape[:-2]) == math.prod(batch)


def in_range(mx, rows: Rows, matrices: int, experts: int):
    """(lhs, rhs, where both are in range). The last is None where the host knows that they are, False where nothing can be."""
    lhs, rhs, valid = rows.lhs, rows.rhs, None
    for values, known, count, name in ((lhs, rows.lhs_known, matrices, "lhs"), (rhs, rows.rhs_known, experts, "rhs")):
        if values is None or known:
            continue
        if count == 0:
            return lhs, rhs, False
        own = _experts.in_range(mx, values, count)
        valid = own if valid is None else valid & own
        if name == "lhs":
            lhs = _experts.clamped(mx, values, count)
        else:
            rhs = _experts.clamped(mx, values, count)
    return lhs, rhs, valid


def variants(decision, natural: str, without_rows: Callable | None = None) -> Callable:
    """Engines mpp and simdgroup: rows sorted by expert, rows so few that each stands alone, or a tile plan; the caller's, or one made here."""
    import mlx.core as mx

    without_rows = without_rows or _mlx(decision, natural)
    kernels: dict[tuple, Kernel] = {}

    def run(x, groups, rows, scales, biases, stream):
        with _compose.on(mx, stream):
            if x.shape[-2] == 0 or 0 in groups[0].w.shape:
                return without_rows(x, groups, rows, scales, biases, stream)
            form, arrays, finish = place(mx, decision, x, groups, rows, scales, biases, stream)
            kernel = kernels.get(form)
            if kernel is None:
                kernel = kernels[form] = Kernel(resolved(decision, form), decision.spec.op)
            return [finish(y) for y in kernel.launch(arrays, stream)]

    return run


def resolved(decision, form: tuple):
    """The decision for rows of that form, by the same engine."""
    spec = replace(decision.spec, **dict(zip(("rows", "indirect", "block_m"), form)))
    if spec == decision.spec:
        return decision
    if decision.variants is None:
        return replace(decision, spec=spec)
    return replace(resolve.resolve(FAMILY_OF[spec.op], spec, decision.engine, decision.context), why=decision.why)


def alone(variants: VariantSet | None, rows: int, experts: int) -> bool:
    """Whether so few rows meet so many experts that each is a run of its own to the kernels that policy takes for them: no plan, in any order."""
    return variants is not None and weighted.few(rows, experts) and _has_single_rows(variants)


@lru_cache(maxsize=None)
def _has_single_rows(variants: VariantSet) -> bool:
    return any(v.size == "few" and v.tile.m == 1 for v in variants.rows)


def place(mx, decision, x, groups, rows: Rows, scales, biases, stream):
    """((row source, whether rows of x are named, the plan's block_m), arrays as kernels take them, what makes the caller's result of theirs)."""
    spec, fmt = decision.spec, format_of(decision.spec)
    expert_batch = groups[0].w.shape[:-2]
    experts = math.prod(expert_batch)
    batch = _experts.pairs(x.shape[:-2], expert_batch, rows.lhs, rows.rhs)
    if (count := max(math.prod(batch) * x.shape[-2], math.prod(x.shape[:-1]))) >= INT32_LIMIT:
        fail(spec.op, f"{count} rows, and kernels count fewer than 2**31", instead="split the indices", cls=ShapeError)
    source = _experts.flat_rows(mx, rows.lhs, x.shape, batch)
    valid = None if rows.lhs is None or rows.lhs_known else _experts.in_range(mx, rows.lhs, math.prod(x.shape[:-2]))
    as_result = _experts.as_result(mx, spec.op, x, groups[0].w, rows, source is None)
    multiplied = getattr(mx, spec.x)
    arrays = dict(x=merged(mx, x if x.dtype == multiplied else x.astype(multiplied), 1), x_rows=source)
    stored = getattr(mx, spec.weights.stored)
    for suffix, group, scale, bias in zip(("",) if len(groups) == 1 else ("_gate", "_up"), alike(mx, *groups), scales, biases):
        if fmt is None and group.w.dtype != stored:
            group = Group(group.w.astype(stored))
        for name, part in for_kernels(mx, group)._asdict().items():
            if part is not None:
                arrays[name + suffix] = part if part.ndim == 3 else part.reshape(experts, *part.shape[-2:])
        arrays["global_scale" + suffix] = scale
        arrays["bias" + suffix] = bias
    plan = rows.plan
    if plan is None:
        ids = _experts.flat_ids(mx, rows.rhs, x.shape[-2], expert_batch, batch)
        if not rows.sorted and not alone(decision.variants, ids.size, experts):
            plan = tile_plan(ids, num_experts=experts, stream=stream)
    if plan is not None:
        arrays |= _experts.plan_arrays(plan)
    else:
        arrays["experts"] = ids
    form = "runs" if plan is None else "plan", source is not None, 0 if plan is None else plan.block_m
    return form, arrays, lambda y: masked(mx, as_result(y), valid)
