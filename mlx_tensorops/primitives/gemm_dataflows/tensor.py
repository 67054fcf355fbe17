"""Dataflow ``tensor``: matmul2d reads its operands from device memory itself, through views; no fill, no staging of ours.

All simdgroups of a threadgroup execute one operation on the whole block, so ``run`` must be reached by all or by none.
"""

from __future__ import annotations

from ...cost import Cost
from ...dtypes import element_type
from ...rules import Rule, ceildiv, eq, every, minimum, stride
from ...variant import SIMD_WIDTH, Variant
from .._gemm_signature import Facts, depth, facts_of
from . import EVERY_ROW, Dataflow
from ._block import blocks

K_CHUNK = (0, 128, 512)  # part of K per operation; 0: all of it, the form of Apple's own examples
REACH = 2**31  # bytes from a view's origin: offsets inside views have been seen to wrap at 32 bits (llama.cpp issue 28748)


def _fits(v: Variant, f: Facts) -> Rule:
    """Rows of a view do not overlap, and every offset in it fits 32 bits."""
    chunk = v.option("k_chunk", K_CHUNK[0])
    inner = minimum(f.K, chunk) if chunk else f.K
    conditions = []
    for operand, k_is_near, outer, far in (
        (0, v.layout[0] == "n", minimum(f.M, v.tile.m), f.a_m if v.layout[0] == "n" else stride(0, -1)),
        (1, v.layout[1] == "t", minimum(f.N, v.tile.n), stride(1, -1) if v.layout[1] == "t" else stride(1, -2)),
    ):
        row, rows = (inner, outer) if k_is_near else (outer, inner)
        reach = (rows - 1) * far + row
        conditions += [eq(rows, 1) | (far >= row), reach < REACH // element_type(v.types[operand]).bytes]
    return every(*conditions)


def _cost(v: Variant) -> Cost:
    t, f = v.tile, facts_of(v)
    a, b, out = (element_type(x).bytes for x in (v.types[0], v.types[1], v.types[-1]))
    chunk = v.option("k_chunk", K_CHUNK[0])
    count = blocks(v)
    return Cost(
        macs=count * f.K * (t.m * t.n),
        matmul2d=count * ceildiv(f.K, chunk) if chunk else count,
        operand_bytes=(count * f.K * (t.m * a), count * f.K * (t.n * b)),
        output_bytes=f.M * f.N * depth(f) * out,
        accumulator_words=t.m * t.n // (t.simdgroups * SIMD_WIDTH),
        operand_words=0,
        opaque=True,
    )


DATAFLOW = Dataflow(
    name="tensor",
    engine="mpp",
    template="gemm_mpp_tensor.metal.j2",
    text="One operation of all simdgroups reads the block's operands through tensor views of device memory.",
    axes={"k_chunk": K_CHUNK, "swizzle": (0, 1, 2, 3), "panel": (0, 4, 8)},
    rows=EVERY_ROW[:-1],  # a view's innermost stride is 1: a set of these ends with the strided row of another dataflow
    k_step=lambda v: 1,
    cost=_cost,
    fits=_fits,
    builtins=("block",),
    context=lambda v: dict(k_chunk=v.option("k_chunk", K_CHUNK[0])),
)
