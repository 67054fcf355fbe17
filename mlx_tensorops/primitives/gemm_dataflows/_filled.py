"""What the dataflows share that fill cooperative tensors straight from device memory: two fill styles, and their cost.

Fill "coordinate" asks each slot for its coordinates and assumes nothing. Fill "nax" moves four neighbours at a time by the lane
map of M5-class GPUs: a quarter of the loads, but wrong wherever a GPU, operation or descriptor has another map.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Mapping

from ...cost import Cost
from ...dtypes import element_type
from ...errors import RuleError, fail
from ...rules import Rule, address, dim, eq, every, rule, select, stride
from ...variant import SIMD_WIDTH, Variant
from .._gemm_signature import BATCH_AXES, Facts, matrix_cost

FILLS = ("coordinate", "nax")
MAPPED = (16, 32, 16)  # the only operation whose lane map anyone has published
VECTOR = 4  # elements of one load; a lane's run of neighbours in the map


def vectors(v: Variant) -> bool:
    """Whether a row loads vectors. The strided row has no neighbours to load: it fills by coordinate under both styles."""
    return v.option("fill", "coordinate") == "nax" and v.layout != "strided"


def legal(spec, options: Mapping[str, Any]) -> list[str]:
    """The map holds for one descriptor and operands that the matrix unit may read at reduced precision."""
    if options.get("fill") == "nax" and "float32" in (spec.a, spec.b) and spec.precision != "tf32":
        return ["fill nax: exact float32 operands have another lane map"]
    return []


def fits(v: Variant, f: Facts) -> Rule:
    """Vectors need an aligned first element and rows, columns and batches whole vectors apart."""
    if not vectors(v):
        return rule(1)
    conditions = []
    far = (f.a_m if v.layout[0] == "n" else stride(0, -1), stride(1, -2) if v.layout[1] == "n" else stride(1, -1))
    for operand in (0, 1):
        conditions += [eq(address(operand) % (VECTOR * element_type(v.types[operand]).bytes), 0), eq(far[operand] % VECTOR, 0)]
        if v.batched:
            conditions += [eq(select(eq(dim(operand, axis), 1), 0, stride(operand, axis)) % VECTOR, 0) for axis in BATCH_AXES]
    return every(*conditions)


def builtins(v: Variant) -> tuple[str, ...]:
    """Only the lane map needs the lane."""
    return ("block", "simdgroup", "lane") if vectors(v) else ("block", "simdgroup")


def context(v: Variant, *, left: str, right: str) -> dict:
    """Names of the cooperative tensors: one per fragment where it is "held" over a step of K, else one for all ("streamed")."""
    t = v.tile
    if vectors(v) and (t.op_m, t.op_n, t.op_k) != MAPPED:
        fail("gemm", f"fill nax knows the lane map of operations {MAPPED}, not of {(t.op_m, t.op_n, t.op_k)}",
             instead="fill coordinate", cls=RuleError)
    return dict(
        vectors=vectors(v),
        lefts=[f"left{i}" if left == "held" else "left" for i in range(t.fragments_m)],
        rights=[f"right{j}" if right == "held" else "right" for j in range(t.fragments_n)],
    )


def words(v: Variant) -> tuple[int, int]:
    """Registers per lane of one operand fragment: left, right."""
    t = v.tile
    left, right = (element_type(name).bytes for name in v.types[:2])
    return t.op_m * t.op_k * left // (4 * SIMD_WIDTH), t.op_k * t.op_n * right // (4 * SIMD_WIDTH)


def cost(v: Variant, *, lefts: int, rights: int, barriers: Rule = rule(0)) -> Cost:
    """Every simdgroup loads its own operands; ``lefts`` and ``rights`` fragments are live at the same time."""
    left, right = words(v)
    return replace(matrix_cost(v), operand_words=lefts * left + rights * right, barriers=barriers)
