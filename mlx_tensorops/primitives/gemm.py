"""Family ``gemm``: dense ``a @ b`` with f32 accumulation.

Dataflow ``direct`` (engine mpp): operands go from device memory straight into cooperative tensors, C stays
in the destination cooperative tensors until it is stored, there is no threadgroup memory and no barrier.
Operands are filled by coordinate (``get_multidimensional_index``), so no lane layout is assumed.
"""

from __future__ import annotations

from ..cost import Cost
from ..dtypes import element_type, matmul2d_since
from ..policies import gemm as table
from ..registry import Family
from ..rules import ceildiv, dim, eq, every, ndim, rule, stride
from ..signature import Buffer, Check, Output, Scalar, Signature
from ..spec import GemmSpec
from ..variant import SIMD_WIDTH, Variant

FLOATS = ("float16", "bfloat16", "float32")
INT32_LIMIT = 2**31

M, K, N = dim(0, -2), dim(0, -1), dim(1, -1)

# Rows of a set, first fit first. The strided row takes any strides, so it stands last and always fits.
ROWS = (
    ("nn", "aligned"), ("nt", "aligned"),
    ("nn", "ragged_m"), ("nt", "ragged_m"),
    ("nn", "ragged"), ("nt", "ragged"),
    ("strided", "ragged"),
)


def legal(spec: GemmSpec, engine: str) -> list[str]:
    """Reasons why ``engine`` cannot run ``spec``."""
    reasons = []
    for name, value in (("a", spec.a), ("b", spec.b)):
        if value not in FLOATS:
            reasons.append(f"{name} is {value}; this engine multiplies {', '.join(FLOATS)}")
    if spec.out not in FLOATS:
        reasons.append(f"the output is {spec.out}; this engine stores {', '.join(FLOATS)}")
    if engine == "cpu":
        return reasons if min(spec.a_ndim, spec.b_ndim) >= 2 else reasons + ["a vector operand"]
    if (spec.a_ndim, spec.b_ndim) != (2, 2):
        reasons.append(f"operands of {spec.a_ndim} and {spec.b_ndim} axes; this kernel multiplies two matrices")
    if not reasons and spec.a != spec.b:
        reasons.append(f"operands of two types, {spec.a} and {spec.b}")
    elif not reasons and matmul2d_since(spec.a, spec.b, "float32") is None:
        reasons.append(f"matmul2d has no row {spec.a} x {spec.b} -> float32")
    if spec.epilogue:
        reasons.append("this kernel has no fused epilogue")
    return reasons


def rows(spec: GemmSpec, engine: str, entry: table.Entry) -> tuple[Variant, ...]:
    """The variants of one set."""
    # Half and bfloat operands pass relaxed_precision = true: it has no numeric meaning for them, and it is
    # the only setting anyone has measured on an M5. f32 operands keep all bits unless tf32 was asked for.
    relaxed = spec.a != "float32" or spec.precision == "tf32"
    return tuple(
        Variant("gemm", engine, entry.dataflow, entry.tile, layout, alignment, (spec.a, spec.b, spec.out), relaxed)
        for layout, alignment in ROWS
    )


def signature(v: Variant) -> Signature:
    """Arguments, geometry and preconditions of a variant."""
    a, b, out = (element_type(t) for t in v.types)
    return Signature(
        buffers=(Buffer("a", a, 0), Buffer("b", b, 1), Buffer("c", out, 0, output=True)),
        params="GemmParams",
        scalars=(
            Scalar("a_m", "long", stride(0, -2)), Scalar("a_k", "long", stride(0, -1)),
            Scalar("b_k", "long", stride(1, -2)), Scalar("b_n", "long", stride(1, -1)),
            Scalar("c_m", "long", N),
            Scalar("M", "int", M), Scalar("N", "int", N), Scalar("K", "int", K),
        ),
        outputs=(Output(out, (M, N)),),
        checks=CHECKS,
        when=every(_layout_fits(v), _alignment_fits(v)),
        grid=(ceildiv(N, v.tile.n), ceildiv(M, v.tile.m), rule(1)),
        threads=v.tile.threads,
    )


CHECKS = (
    Check(every(eq(ndim(0), 2), eq(ndim(1), 2)), "a and b must have 2 axes", 'engine="auto" takes batches and vectors'),
    Check(eq(dim(0, -1), dim(1, -2)), "the last axis of a and the second last of b must be equal (K)", "transpose or slice one of them"),
    Check(every(M < INT32_LIMIT, N < INT32_LIMIT, K < INT32_LIMIT), "M, N and K must be below 2**31", 'split the product, or engine="auto"'),
)


def _layout_fits(v: Variant):
    """Strides the row's index arithmetic can take: 32-bit offsets inside one block, 64-bit bases."""
    if v.layout == "strided":
        return rule(1)
    contiguous_b, row_stride_b = (stride(1, -1), stride(1, -2)) if v.layout == "nn" else (stride(1, -2), stride(1, -1))
    reach = INT32_LIMIT // max(v.tile.m, v.tile.n)
    return every(
        eq(stride(0, -1), 1), eq(contiguous_b, 1),
        stride(0, -2) >= 0, stride(0, -2) < reach,
        row_stride_b >= 0, row_stride_b < reach,
    )


def _alignment_fits(v: Variant):
    if v.alignment == "ragged":
        return rule(1)
    conditions = [eq(N % v.tile.n, 0), eq(K % v.tile.op_k, 0)]
    if v.alignment == "aligned":
        conditions.append(eq(M % v.tile.m, 0))
    return every(*conditions)


def cost(v: Variant) -> Cost:
    """Every simdgroup loads its own rows of A and columns of B: nothing is shared between them."""
    t = v.tile
    a, b, out = (element_type(x) for x in v.types)
    blocks = ceildiv(M, t.m) * ceildiv(N, t.n)
    steps = ceildiv(K, t.op_k)
    operations = blocks * steps * (t.simdgroups * t.fragments_m * t.fragments_n)
    loads = blocks * steps * (t.simdgroups * t.op_k)
    words_a = t.op_m * t.op_k * a.bytes // (4 * SIMD_WIDTH)
    words_b = t.op_k * t.op_n * b.bytes // (4 * SIMD_WIDTH)
    return Cost(
        macs=operations * (t.op_m * t.op_n * t.op_k),
        matmul2d=operations,
        operand_bytes=(loads * (t.warp_m * a.bytes), loads * (t.warp_n * b.bytes)),
        output_bytes=M * N * out.bytes,
        accumulator_words=t.warp_m * t.warp_n // SIMD_WIDTH,
        operand_words=t.fragments_m * words_a + words_b,
    )


def variants() -> tuple[Variant, ...]:
    """Every variant that policy can reach."""
    found = []
    for entry in table.TILES:
        for operand in FLOATS:
            for out in FLOATS:
                for precision in ("exact", "tf32") if operand == "float32" else ("exact",):
                    found += rows(GemmSpec(operand, operand, out, precision=precision), entry.engine, entry)
    return tuple(found)


def gradient(primals, cotangents, argnums):
    """d(a @ b): the cotangent times the other operand, transposed."""
    from .matmul import matmul

    a, b = primals
    (c,) = cotangents
    rule_of = {0: lambda: matmul(c, b.T, out_dtype=a.dtype), 1: lambda: matmul(a.T, c, out_dtype=b.dtype)}
    return [rule_of[i]() for i in argnums]


FAMILY = Family(
    name="gemm",
    op="matmul",
    spec=GemmSpec,
    templates={("mpp", "direct"): "gemm_mpp_direct.metal.j2"},
    legal=legal,
    rows=rows,
    signature=signature,
    cost=cost,
    variants=variants,
    gradient=gradient,
    describe="primitives.matmul:describe",
    fast_route=True,
    public={"matmul": "primitives.matmul:matmul"},
)
