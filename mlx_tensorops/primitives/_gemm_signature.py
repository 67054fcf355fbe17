"""Dense GEMM: what a kernel gets and when a row fits, as rules over the strides and sizes at run time.

Batched kernels see operands with exactly three leading axes (the caller adds axes of size 1). Where b has no batch and the
rows of all batches of a lie at one distance, as in ``x[batch, tokens, K] @ w[K, N]``, the batches fold into M: one tall
product instead of many short ones. Whether they do is itself a rule, so a compiled graph folds whenever it can.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ..cost import Cost
from ..dtypes import element_type
from ..policies.gemm import SIZES
from ..rules import Rule, ceildiv, dim, eq, every, maximum, ndim, rule, select, stride
from ..signature import Buffer, Check, Output, Scalar, Signature
from ..variant import SIMD_WIDTH, Variant
from . import gemm_dataflows

BATCH_AXES = (-5, -4, -3)
INT32_LIMIT = 2**31
# Row strides below this keep every offset inside one operation (at most 32 rows) in 32 bits, with room to spare.
STRIDE_LIMIT = INT32_LIMIT // 128


@dataclass(frozen=True)
class Facts:
    """Sizes and strides of one problem as the kernel sees them, after folding."""

    M: Rule
    N: Rule
    K: Rule
    a_m: Rule
    batch: tuple[Rule, ...]
    folded: Rule


@lru_cache(maxsize=None)
def facts(batched: bool, extras: int) -> Facts:
    """The facts for 2 + ``extras`` operands with or without batch axes."""
    M, K, N = dim(0, -2), dim(0, -1), dim(1, -1)
    if not batched:
        return Facts(M, N, K, stride(0, -2), (), rule(0))
    unbatched_b = every(*(eq(dim(1, axis), 1) for axis in BATCH_AXES))
    folded = every(unbatched_b, _rows_at_one_distance(0), *(_folds_along(2 + i) for i in range(extras)))
    sizes = tuple(select(eq(dim(0, axis), 1), dim(1, axis), dim(0, axis)) for axis in BATCH_AXES)
    rows = dim(0, -5) * dim(0, -4) * dim(0, -3) * M
    return Facts(
        select(folded, rows, M), N, K, _row_stride(0), tuple(select(folded, 1, size) for size in sizes), folded)


def _row_stride(operand: int) -> Rule:
    """Distance between rows: the stride of the innermost axis above the last that has more than one element."""
    result = stride(operand, -5)
    for axis in (-4, -3, -2):
        result = select(eq(dim(operand, axis), 1), result, stride(operand, axis))
    return result


def _rows_at_one_distance(operand: int) -> Rule:
    """Whether the rows of all batches lie at one distance from each other."""
    conditions, step = [], _row_stride(operand) * dim(operand, -2)
    for axis in reversed(BATCH_AXES):
        conditions.append(eq(dim(operand, axis), 1) | eq(stride(operand, axis), step))
        step = step * dim(operand, axis)
    return every(*conditions)


def _folds_along(operand: int) -> Rule:
    """Whether an epilogue operand folds with a: one row for all, or a full set of rows at one distance."""
    one_row = every(*(eq(dim(operand, axis), 1) for axis in (*BATCH_AXES, -2)))
    full = every(*(eq(dim(operand, axis), dim(0, axis)) for axis in (*BATCH_AXES, -2)))
    return one_row | every(full, _rows_at_one_distance(operand))


def signature(v: Variant) -> Signature:
    """Arguments, geometry and preconditions of a variant."""
    flow = gemm_dataflows.of(v)
    if flow.signature is not None:
        return flow.signature(v)
    types = tuple(element_type(t) for t in v.types)
    names = v.epilogue.operands
    matrices = [(2 + i, name) for i, name in enumerate(names) if name != "scales"]
    f = facts(v.batched, len(matrices))
    buffers = [Buffer("a", types[0], 0), Buffer("b", types[1], 1)]
    buffers += [Buffer(name, types[2 + i], 2 + i) for i, name in enumerate(names)]
    buffers.append(Buffer("c", types[-1], 0, output=True))
    leading = (slices(v),) if flow.k_slice else ()
    leading += tuple(select(eq(dim(0, axis), 1), dim(1, axis), dim(0, axis)) for axis in BATCH_AXES) if v.batched else ()
    return Signature(
        buffers=tuple(buffers),
        params="GemmParams",
        scalars=tuple(_scalars(v, f, matrices)),
        outputs=(Output(types[-1], (*leading, dim(0, -2), dim(1, -1))),),
        checks=checks(v.batched, tuple(matrices)),
        when=every(SIZES[v.size](f), layout_fits(v, f), alignment_fits(v, f), flow.fits(v, f)),
        grid=grid(v, f),
        threads=v.tile.threads,
        threadgroup_bytes=flow.threadgroup_bytes(v),
        builtins=flow.builtins(v) if callable(flow.builtins) else flow.builtins,
    )


def _scalars(v: Variant, f: Facts, matrices):
    yield Scalar("a_m", "long", f.a_m)
    yield Scalar("a_k", "long", stride(0, -1))
    yield Scalar("b_k", "long", stride(1, -2))
    yield Scalar("b_n", "long", stride(1, -1))
    yield Scalar("c_m", "long", f.N)
    for operand, name in matrices:
        row = select(eq(dim(operand, -2), 1), 0, stride(operand, -2))
        if v.batched:
            one_row = every(*(eq(dim(operand, axis), 1) for axis in (*BATCH_AXES, -2)))
            row = select(f.folded, select(one_row, 0, _row_stride(operand)), row)
        yield Scalar(f"{name}_m", "long", row)
        yield Scalar(f"{name}_n", "long", select(eq(dim(operand, -1), 1), 0, stride(operand, -1)))
    if v.batched:
        for operand, name in [(0, "a"), (1, "b"), *matrices]:
            for number, axis in enumerate(BATCH_AXES):
                yield Scalar(f"{name}_b{number}", "long", select(eq(dim(operand, axis), 1), 0, stride(operand, axis)))
        if gemm_dataflows.of(v).k_slice:
            yield Scalar("batch0", "int", f.batch[0])
        yield Scalar("batch1", "int", f.batch[1])
        yield Scalar("batch2", "int", f.batch[2])
    yield Scalar("M", "int", f.M)
    yield Scalar("N", "int", f.N)
    yield Scalar("K", "int", f.K)
    if gemm_dataflows.of(v).k_slice:
        yield Scalar("k_slice", "int", gemm_dataflows.of(v).k_slice(v))


@lru_cache(maxsize=None)
def checks(batched: bool, matrices: tuple[tuple[int, str], ...]) -> tuple[Check, ...]:
    """Preconditions on shapes; the same for every row of a set."""
    axes = 5 if batched else 2
    M, K, N = dim(0, -2), dim(0, -1), dim(1, -1)
    found = [
        Check(every(eq(ndim(0), axes), eq(ndim(1), axes)), f"a and b must have {axes} axes", 'engine="auto" takes every rank'),
        Check(eq(dim(0, -1), dim(1, -2)), "the last axis of a and the second last of b must be equal (K)", "transpose or slice one of them"),
        Check(every(M < INT32_LIMIT, N < INT32_LIMIT, K < INT32_LIMIT), "M, N and K must be below 2**31", 'split the product, or engine="auto"'),
    ]
    if batched:
        rows = dim(0, -5) * dim(0, -4) * dim(0, -3) * M
        found += [
            Check(every(*(eq(dim(0, x), dim(1, x)) | eq(dim(0, x), 1) | eq(dim(1, x), 1) for x in BATCH_AXES)),
                  "batch axes of a and b must be equal or 1", "reshape or repeat one of them"),
            Check(rows < INT32_LIMIT, "rows of all batches of a must be fewer than 2**31", "split the batch"),
        ]
    if matrices:  # a node without K is filled with zeros; a call with K = 0 takes the second pass of split-K
        found.append(Check(K > 0, "K must be at least 1 where bias or residual are added in the same kernel", "trace the graph again where K = 0"))
    for operand, name in matrices:
        result = {-2: M, -1: N}
        if batched:
            result |= {x: select(eq(dim(0, x), 1), dim(1, x), dim(0, x)) for x in BATCH_AXES}
        found.append(Check(
            every(eq(ndim(operand), axes), *(eq(dim(operand, x), 1) | eq(dim(operand, x), size) for x, size in result.items())),
            f"{name} must broadcast to the result", f"reshape {name}"))
    return tuple(found)


def layout_fits(v: Variant, f: Facts) -> Rule:
    """Strides the row's index arithmetic can take: 32-bit offsets inside one operation, 64-bit bases."""
    if v.layout == "strided":
        return rule(1)
    left, right = v.layout
    a_unit, a_far = (stride(0, -1), f.a_m) if left == "n" else (f.a_m, stride(0, -1))
    b_unit, b_far = (stride(1, -1), stride(1, -2)) if right == "n" else (stride(1, -2), stride(1, -1))
    return every(eq(a_unit, 1), eq(b_unit, 1), a_far >= 0, a_far < STRIDE_LIMIT, b_far >= 0, b_far < STRIDE_LIMIT)


def alignment_fits(v: Variant, f: Facts) -> Rule:
    """Sizes that need no predicate where the row has none."""
    if v.alignment == "ragged":
        return rule(1)
    conditions = [eq(f.N % v.tile.n, 0), eq(f.K % gemm_dataflows.of(v).k_step(v), 0)]
    if v.alignment == "aligned":
        conditions.append(eq(f.M % v.tile.m, 0))
    return every(*conditions)


def grid(v: Variant, f: Facts) -> tuple[Rule, Rule, Rule]:
    """Threadgroups along x, y, z; a swizzle of 2**s rows widens x and pads y (raster.metal.j2 undoes it)."""
    tiles_m, tiles_n = ceildiv(f.M, v.tile.m), ceildiv(f.N, v.tile.n)
    swizzle = v.option("swizzle", 0)
    return tiles_n * 2**swizzle, ceildiv(tiles_m, 2**swizzle), depth(f) * slices(v)


def slices(v: Variant) -> Rule:
    """Number of slices of K, from shapes alone: it is a size of a sliced variant's output."""
    k_slice = gemm_dataflows.of(v).k_slice
    return maximum(ceildiv(dim(0, -1), k_slice(v)), 1) if k_slice else rule(1)


@lru_cache(maxsize=None)
def sizes(batched: bool) -> tuple[Rule, Rule, Rule]:
    """M, N and K from shapes alone; M counts the rows of all batches."""
    rows = dim(0, -2)
    for axis in BATCH_AXES if batched else ():
        rows = rows * select(eq(dim(0, axis), 1), dim(1, axis), dim(0, axis))
    return rows, dim(1, -1), dim(0, -1)


def depth(f: Facts) -> Rule:
    """Number of products that do not fold into one."""
    return f.batch[0] * f.batch[1] * f.batch[2] if f.batch else rule(1)


def facts_of(v: Variant) -> Facts:
    """The facts of a variant's problem."""
    return facts(v.batched, len([name for name in v.epilogue.operands if name != "scales"]))


def matrix_cost(v: Variant) -> Cost:
    """Cost of dataflows in which every simdgroup loads its own operands: nothing is shared between simdgroups."""
    t = v.tile
    a, b, out = (element_type(x) for x in (v.types[0], v.types[1], v.types[-1]))
    f = facts_of(v)
    blocks = ceildiv(f.M, t.m) * ceildiv(f.N, t.n) * depth(f)
    steps = ceildiv(f.K, t.op_k)
    operations = blocks * steps * (t.simdgroups * t.fragments_m * t.fragments_n)
    loads = blocks * steps * (t.simdgroups * t.op_k)
    words_a = t.op_m * t.op_k * a.bytes // (4 * SIMD_WIDTH)
    words_b = t.op_k * t.op_n * b.bytes // (4 * SIMD_WIDTH)
    return Cost(
        macs=operations * (t.op_m * t.op_n * t.op_k),
        matmul2d=operations,
        operand_bytes=(loads * (t.warp_m * a.bytes), loads * (t.warp_n * b.bytes)),
        output_bytes=f.M * f.N * depth(f) * out.bytes,
        accumulator_words=t.warp_m * t.warp_n // SIMD_WIDTH,
        operand_words=t.fragments_m * words_a + words_b,
    )
