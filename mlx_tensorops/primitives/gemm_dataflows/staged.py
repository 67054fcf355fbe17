"""Dataflow ``staged``: device memory -> threadgroup memory -> cooperative tensor, for operands that are costly to reach.

Every element of a block's operands is loaded from device memory once, in stored order, whatever its strides and edges; the
four simdgroups then share it. On contiguous full tiles that is an extra copy and two barriers per step.
"""

from __future__ import annotations

from ...cost import Cost
from ...dtypes import element_type
from ...rules import ceildiv
from ...variant import SIMD_WIDTH, Variant
from .._dataflow import too_much_memory
from .._gemm_signature import depth, facts_of
from . import Dataflow
from ._block import blocks

BLOCK = 64  # rows and columns of the only block size policy uses
BLOCK_K = (32, 64)  # parts of K staged at a time that others ship for 64x64 blocks
SKEW = (4, 0, 8)  # elements; 4 and 8 are the pitches (36, 40) of shipped kernels with 32-element rows


def _staged(v: Variant) -> tuple[int, int]:
    """Bytes of the staged tiles of A and B, each a multiple of 16."""
    skew, step = v.option("skew", SKEW[0]), v.option("block_k", BLOCK_K[0])
    left, right = ("n", "n") if v.layout == "strided" else v.layout
    rows_a, columns_a = (step, v.tile.m) if left == "t" else (v.tile.m, step)
    rows_b, columns_b = (v.tile.n, step) if right == "t" else (step, v.tile.n)
    a, b = (element_type(t).bytes for t in v.types[:2])
    return tuple(-(-rows * (columns + skew) * size // 16) * 16 for rows, columns, size in ((rows_a, columns_a, a), (rows_b, columns_b, b)))


def _scratch(v: Variant) -> int:
    """Bytes of the accumulators on their way out; they lie where the operands were."""
    return v.tile.m * (v.tile.n + v.option("skew", SKEW[0])) * 4 if v.option("store", "scratch") == "scratch" else 0


def _threadgroup_bytes(v: Variant) -> int:
    return max(sum(_staged(v)), _scratch(v))


def _legal(spec, options) -> list[str]:
    """Both tiles fit, in the layout that needs most: rows of K, whose skew comes once for each of the block's rows."""
    pitch = options.get("block_k", BLOCK_K[0]) + options.get("skew", SKEW[0])
    return too_much_memory(BLOCK * pitch * sum(element_type(t).bytes for t in (spec.a, spec.b)))


def _cost(v: Variant) -> Cost:
    t, f = v.tile, facts_of(v)
    a, b, out = (element_type(x) for x in (v.types[0], v.types[1], v.types[-1]))
    step = v.option("block_k", BLOCK_K[0])
    count, steps = blocks(v), ceildiv(f.K, step)
    staged = count * steps * step  # rows of A and columns of B times this: elements staged
    scratch = count * (t.m * t.n * 4 if _scratch(v) else 0)
    operations = count * steps * (step // t.op_k * t.simdgroups * t.fragments_m * t.fragments_n)
    return Cost(
        macs=operations * (t.op_m * t.op_n * t.op_k),
        matmul2d=operations,
        operand_bytes=(staged * (t.m * a.bytes), staged * (t.n * b.bytes)),
        output_bytes=f.M * f.N * depth(f) * out.bytes,
        accumulator_words=t.warp_m * t.warp_n // SIMD_WIDTH,
        operand_words=(t.warp_m * a.bytes + t.op_n * b.bytes) * t.op_k // (4 * SIMD_WIDTH),
        barriers=count * (2 * steps + (1 if _scratch(v) else 0)),
        threadgroup_load=staged * (t.simdgroups * (t.warp_m * a.bytes + t.warp_n * b.bytes)) + scratch,
        threadgroup_store=staged * (t.m * a.bytes + t.n * b.bytes) + scratch,
    )


DATAFLOW = Dataflow(
    name="staged",
    engine="mpp",
    template="gemm_mpp_staged.metal.j2",
    text="All threads copy a block's operands to threadgroup memory; every simdgroup fills its cooperative tensors from there.",
    axes={"block_k": BLOCK_K, "skew": SKEW, "read": ("coordinate", "load"), "store": ("scratch", "direct"),
          "swizzle": (0, 1, 2, 3), "panel": (0, 4, 8)},
    legal=_legal,
    k_step=lambda v: v.option("block_k", BLOCK_K[0]),
    cost=_cost,
    threadgroup_bytes=_threadgroup_bytes,
    builtins=("block", "simdgroup", "thread_index"),
    context=lambda v: dict(
        block_k=v.option("block_k", BLOCK_K[0]), skew=v.option("skew", SKEW[0]), threadgroup_bytes=_threadgroup_bytes(v), staged_a_bytes=_staged(v)[0],
        coordinates=v.option("read", "coordinate") == "coordinate", scratch=bool(_scratch(v))),
)
