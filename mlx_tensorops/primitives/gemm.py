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
from ..rules import ceildiv
from ..spec import GemmSpec
from ..variant import ALIGNMENTS, SIMD_WIDTH, Variant
from ._gemm_signature import BATCH_AXES, facts, signature

FLOATS = ("float16", "bfloat16", "float32")

# Rows of a set, first fit first. The strided row takes any strides, so it stands last and always fits.
ROWS = (*((layout, alignment) for alignment in ALIGNMENTS for layout in ("nn", "nt", "tn", "tt")), ("strided", "ragged"))


def legal(spec: GemmSpec, engine: str) -> list[str]:
    """Reasons why ``engine`` cannot run ``spec``."""
    reasons = []
    for name, value in (("a", spec.a), ("b", spec.b)):
        if value not in FLOATS:
            reasons.append(f"{name} is {value}; this engine multiplies {', '.join(FLOATS)}")
    if spec.out not in FLOATS:
        reasons.append(f"the output is {spec.out}; this engine stores {', '.join(FLOATS)}")
    for name, value in zip(spec.epilogue.operands, spec.extras):
        if value not in FLOATS:
            reasons.append(f"{name} is {value}; this engine adds {', '.join(FLOATS)}")
    if engine == "cpu":
        if min(spec.a_ndim, spec.b_ndim) < 2:
            reasons.append("a vector operand")
        if spec.epilogue.scaled:
            reasons.append("alpha and beta")
        return reasons
    axes = max(spec.a_ndim, spec.b_ndim)
    if axes > 2 + len(BATCH_AXES):
        reasons.append(f"{axes - 2} batch axes; this kernel takes {len(BATCH_AXES)}")
    if engine == "mpp" and not reasons and matmul2d_since(spec.a, spec.b, "float32") is None:
        reasons.append(f"matmul2d has no row {spec.a} x {spec.b} -> float32")
    return reasons


def rows(spec: GemmSpec, engine: str, entry: table.Entry) -> tuple[Variant, ...]:
    """The variants of one set."""
    # Half and bfloat operands pass relaxed_precision = true: it has no numeric meaning for them, and it is
    # the only setting anyone has measured on an M5. f32 operands keep all bits unless tf32 was asked for.
    relaxed = "float32" not in (spec.a, spec.b) or spec.precision == "tf32"
    types = (spec.a, spec.b, *spec.extras, spec.out)
    return tuple(
        Variant("gemm", engine, entry.dataflow, entry.tile, layout, alignment, types, relaxed, spec.batched, spec.epilogue)
        for layout, alignment in ROWS
    )


def cost(v: Variant) -> Cost:
    """Every simdgroup loads its own rows of A and columns of B: nothing is shared between them."""
    t = v.tile
    a, b, out = (element_type(x) for x in (v.types[0], v.types[1], v.types[-1]))
    f = facts(v.batched, len([name for name in v.epilogue.operands if name != "scales"]))
    batch = f.batch[0] * f.batch[1] * f.batch[2] if v.batched else 1
    blocks = ceildiv(f.M, t.m) * ceildiv(f.N, t.n) * batch
    steps = ceildiv(f.K, t.op_k)
    operations = blocks * steps * (t.simdgroups * t.fragments_m * t.fragments_n)
    loads = blocks * steps * (t.simdgroups * t.op_k)
    words_a = t.op_m * t.op_k * a.bytes // (4 * SIMD_WIDTH)
    words_b = t.op_k * t.op_n * b.bytes // (4 * SIMD_WIDTH)
    return Cost(
        macs=operations * (t.op_m * t.op_n * t.op_k),
        matmul2d=operations,
        operand_bytes=(loads * (t.warp_m * a.bytes), loads * (t.warp_n * b.bytes)),
        output_bytes=f.M * f.N * batch * out.bytes,
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


def gradient(v: Variant, primals, cotangents, argnums):
    """The formula's gradient, composed of MLX operations; unused parts of it are never evaluated."""
    import mlx.core as mx

    from ._gemm_run import formula

    def composed(*arrays):
        extras = dict(zip(v.epilogue.operands, arrays[2:]))
        scales = extras.pop("scales", (1.0, 1.0))
        return formula(mx, v.epilogue, mx.float32, arrays[0], arrays[1], extras.get("bias"), extras.get("residual"), scales).astype(cotangents[0].dtype)

    _, gradients = mx.vjp(composed, list(primals), list(cotangents))
    return [gradients[i] for i in argnums]


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
    public={"matmul": "primitives.matmul:matmul", "addmm": "primitives.matmul:addmm"},
)
