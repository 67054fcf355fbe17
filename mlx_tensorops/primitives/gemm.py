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
from ..variant import ALIGNMENTS, LAYOUTS, Variant
from . import gemm_dataflows
from ._dataflow import too_many_words
from ._gemm_signature import BATCH_AXES, signature
from ._gemm_sizes import seen, work

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
    """The variants of one set: all rows of each policy entry, in the entries' order. Entries that refuse the spec fall out."""
    taken = [e for e in entries if not refusals(spec, engine, e.dataflow, e.tile, dict(e.options))] or entries
    return tuple(v for e in taken for v in rows_of(
        spec, engine, e.dataflow, e.tile, size=e.size, options=dict(e.options), alignments=e.alignments, layouts=e.layouts))


def rows_of(spec: GemmSpec, engine: str, dataflow: str, tile, *, size: str = "", options: Mapping[str, Any] = {},
            alignments: tuple[str, ...] = ALIGNMENTS, layouts: tuple[str, ...] = LAYOUTS) -> tuple[Variant, ...]:
    """The variants of one dataflow and tile, one per layout and alignment it serves."""
    flow = gemm_dataflows.dataflows()[engine, dataflow]
    reasons = refusals(spec, engine, dataflow, tile, options)
    if reasons:
        fail("gemm", f"dataflow {dataflow}: {'; '.join(reasons)}", cls=RuleError)
    return tuple(_variant(spec, flow, tile, row, size, options) for row in flow.rows if row[0] in layouts and row[1] in alignments)


def refusals(spec: GemmSpec, engine: str, dataflow: str, tile, options: Mapping[str, Any]) -> list[str]:
    """Reasons why a tile of a dataflow is not registered for a spec."""
    flow = gemm_dataflows.dataflows()[engine, dataflow]
    return [*flow.legal(spec, options), *too_many_words(flow.cost(_variant(spec, flow, tile, flow.rows[0], "", options)))]


def _variant(spec: GemmSpec, flow, tile, row: tuple[str, str], size: str, options: Mapping[str, Any]) -> Variant:
    # Half and bfloat operands pass relaxed_precision = true: it has no numeric meaning for them, and it is
    # the only setting anyone has measured on an M5. f32 operands keep all bits unless tf32 was asked for.
    # simdgroup_matrix has no such setting: it multiplies what it is given.
    relaxed = flow.engine == "mpp" and ("float32" not in (spec.a, spec.b) or spec.precision == "tf32")
    return Variant("gemm", flow.engine, flow.name, tile, *row, flow.types(spec), relaxed, spec.batched, spec.epilogue, size, flow.options(options))


def cost(v: Variant):
    """What one launch does."""
    return gemm_dataflows.of(v).cost(v)


def variants() -> tuple[Variant, ...]:
    """Every kernel of the policy table for plain products; epilogues, batches and mixed types multiply these."""
    found: dict[str, Variant] = {}
    for entry in table.tables():
        for operand in FLOATS:
            for out in FLOATS:
                for precision in ("exact", "tf32") if operand == "float32" else ("exact",):
                    spec = GemmSpec(operand, operand, out, precision=precision)
                    if refusals(spec, entry.engine, entry.dataflow, entry.tile, dict(entry.options)):
                        continue
                    for v in rows(spec, entry.engine, (entry,)):
                        found.setdefault(v.key, v)
    return tuple(found.values())


def gradient(v: Variant, primals, cotangents, argnums):
    """The formula's gradient, composed of MLX operations."""
    import mlx.core as mx

    from . import _gradient
    from ._gemm_run import finish, product

    flow = gemm_dataflows.of(v)

    def formula(*arrays):
        y = arrays[0].sum(axis=0) if flow.adds_slices else product(mx, mx.float32, arrays[0], arrays[1])
        extras = dict(zip(v.epilogue.operands, arrays[1 if flow.adds_slices else 2:]))
        scales = extras.pop("scales", (1.0, 1.0))
        return [finish(mx, v.epilogue, y, extras.get("bias"), extras.get("residual"), scales)]

    return _gradient.of(formula, primals, cotangents, argnums, sliced=flow.k_slice is not None)


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
    work=work,
    seen=seen,
    describe={"matmul": "primitives.matmul:describe", "addmm": "primitives.matmul:describe_addmm"},
    fast_route=True,
    public={"matmul": "primitives.matmul:matmul", "addmm": "primitives.matmul:addmm"},
)
