"""What the dataflows over simdgroup_matrix share: 8x8 fragments, their element type, their cost."""

from __future__ import annotations

from ...cost import Cost
from ...dtypes import FLOAT32, ElementType, element_type
from ...rules import ceildiv, rule
from ...variant import SIMD_WIDTH, Variant
from .._gemm_signature import depth, facts_of

EDGE = 8  # rows and columns of a simdgroup_matrix, Metal Shading Language Specification section 2.4


def operand_type(v: Variant) -> ElementType:
    """Element type of the operands' fragments. The specification names one type for both, so mixed operands widen to float."""
    left, right = (element_type(t) for t in v.types[:2])
    return left if left == right else FLOAT32


def cost(v: Variant, *, k_step: int, loads_m: int, loads_n: int, barriers=rule(0), threadgroup_load=rule(0), threadgroup_store=rule(0)) -> Cost:
    """Cost of a kernel that loads ``loads_m`` rows of A and ``loads_n`` columns of B per block in steps of ``k_step``."""
    t, f = v.tile, facts_of(v)
    a, b, out = (element_type(x) for x in (v.types[0], v.types[1], v.types[-1]))
    steps = steps_of(v, k_step)
    operations = steps * (t.m * t.n * k_step // EDGE**3)
    words = EDGE * EDGE * operand_type(v).bytes // (4 * SIMD_WIDTH)
    return Cost(
        macs=operations * EDGE**3,
        matmul2d=rule(0),
        mma8x8=operations,
        operand_bytes=(steps * (loads_m * k_step * a.bytes), steps * (loads_n * k_step * b.bytes)),
        output_bytes=f.M * f.N * depth(f) * out.bytes,
        accumulator_words=t.warp_m * t.warp_n // SIMD_WIDTH,
        operand_words=(t.fragments_m + 1) * words,
        barriers=barriers, threadgroup_load=threadgroup_load, threadgroup_store=threadgroup_store,
    )


def steps_of(v: Variant, k_step: int):
    """Steps of K of all threadgroups of a launch together, as a rule."""
    f = facts_of(v)
    return ceildiv(f.M, v.tile.m) * ceildiv(f.N, v.tile.n) * depth(f) * ceildiv(f.K, k_step)
