"""Family ``gemm``: dense ``activation(alpha * (a @ b) + bias) + beta * residual`` with f32 accumulation.

What differs between its kernels is how operands reach the matrix unit: one module of ``gemm_dataflows`` each.
"""

from __future__ import annotations

from typing import Any, Mapping

from ..dtypes import matmul2d_since
from ..errors import RuleError, fail
from ..policies import gemm as table
from ..registry import Family
from ..spec import GemmSpec
from ..variant import ALIGNMENTS, Variant
from . import gemm_dataflows
from ._gemm_signature import BATCH_AXES, signature

FLOATS = ("float16", "bfloat16", "float32")

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


def rows(spec: GemmSpec, engine: str, entries) -> tuple[Variant, ...]:
    """The variants of one set: all rows of each policy entry, in the entries' order."""
    return tuple(v for entry in entries for v in rows_of(
        spec, engine, entry.dataflow, entry.tile, size=entry.size, options=dict(entry.options), alignments=entry.alignments))


def rows_of(spec: GemmSpec, engine: str, dataflow: str, tile, *, size: str = "", options: Mapping[str, Any] = {},
            alignments: tuple[str, ...] = ALIGNMENTS) -> tuple[Variant, ...]:
    """The variants of one dataflow and tile, one per layout and alignment it serves."""
    flow = gemm_dataflows.dataflows()[engine, dataflow]
    reasons = flow.legal(spec, options)
    if reasons:
        fail("gemm", f"dataflow {dataflow}: {'; '.join(reasons)}", cls=RuleError)
    # Half and bfloat operands pass relaxed_precision = true: it has no numeric meaning for them, and it is
    # the only setting anyone has measured on an M5. f32 operands keep all bits unless tf32 was asked for.
    # simdgroup_matrix has no such setting: it multiplies what it is given.
    relaxed = engine == "mpp" and ("float32" not in (spec.a, spec.b) or spec.precision == "tf32")
    types = (spec.a, spec.b, *spec.extras, spec.out)
    return tuple(
        Variant("gemm", engine, dataflow, tile, layout, alignment, types, relaxed, spec.batched, spec.epilogue, size, flow.options(options))
        for layout, alignment in flow.rows if alignment in alignments
    )


def cost(v: Variant):
    """What one launch does."""
    return gemm_dataflows.of(v).cost(v)


def variants() -> tuple[Variant, ...]:
    """Every kernel of the policy table for plain products; epilogues, batches and mixed types multiply these."""
    found: dict[str, Variant] = {}
    for entry in (*table.TILES, *table.UNREACHED):
        for operand in FLOATS:
            for out in FLOATS:
                for precision in ("exact", "tf32") if operand == "float32" else ("exact",):
                    spec = GemmSpec(operand, operand, out, precision=precision)
                    if gemm_dataflows.dataflows()[entry.engine, entry.dataflow].legal(spec, dict(entry.options)):
                        continue
                    for v in rows(spec, entry.engine, (entry,)):
                        found.setdefault(v.key, v)
    return tuple(found.values())


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
    templates={key: flow.template for key, flow in gemm_dataflows.dataflows().items()},
    legal=legal,
    rows=rows,
    signature=signature,
    context=lambda v: {"slices": gemm_dataflows.of(v).k_slice is not None, **gemm_dataflows.of(v).context(v)},
    cost=cost,
    variants=variants,
    gradient=gradient,
    describe="primitives.matmul:describe",
    fast_route=True,
    public={"matmul": "primitives.matmul:matmul", "addmm": "primitives.matmul:addmm"},
)
