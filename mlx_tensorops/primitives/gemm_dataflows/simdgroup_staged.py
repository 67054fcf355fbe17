"""Dataflow ``staged`` of engine simdgroup: device -> threadgroup memory -> simdgroup_matrix fragments. Every GPU since the M1.

The shape of MLX's steel kernels: all simdgroups of a block share one tile of A and one of B per step of K.
"""

from __future__ import annotations

from ...errors import RuleError, fail
from . import Dataflow, _fragments


def _block_k(v) -> int:
    return v.option("block_k", AXES["block_k"][0])


def _skew(v) -> int:
    """Elements added to each row of a tile."""
    return v.option("skew_bytes", AXES["skew_bytes"][0]) // _fragments.operand_type(v).bytes


def _elements(v) -> int:
    """Elements of both tiles; which of a tile's extents is its row depends on how the operand lies."""
    bk, skew, tile = _block_k(v), _skew(v), v.tile
    a_k_fast, b_k_fast = v.layout in ("nn", "nt", "strided"), v.layout in ("nt", "tt")
    a = tile.m * (bk + skew) if a_k_fast else bk * (tile.m + skew)
    return a + (tile.n * (bk + skew) if b_k_fast else bk * (tile.n + skew))


def _context(v):
    for outer in (v.tile.m, v.tile.n):
        if outer * _block_k(v) % v.tile.threads:
            fail("dataflow", f"staged: {v.tile.threads} threads do not divide a tile of {outer} x {_block_k(v)} elements", cls=RuleError)
    return dict(operand=_fragments.operand_type(v), block_k=_block_k(v), skew=_skew(v))


def _cost(v):
    t, bk, size = v.tile, _block_k(v), _fragments.operand_type(v).bytes
    steps = _fragments.steps_of(v, bk)
    return _fragments.cost(
        v, k_step=bk, loads_m=t.m, loads_n=t.n,
        barriers=steps * 2,
        threadgroup_load=steps * (t.simdgroups * (t.warp_m + t.warp_n) * bk * size),
        threadgroup_store=steps * ((t.m + t.n) * bk * size),
    )


AXES = {"block_k": (16, 32), "skew_bytes": (16, 0), "swizzle": (0, 1, 2, 3), "panel": (0, 4, 8)}

DATAFLOW = Dataflow(
    name="staged",
    engine="simdgroup",
    template="gemm_simdgroup_staged.metal.j2",
    text="A block's threads copy tiles of A and B to threadgroup memory; every simdgroup loads its 8x8 fragments from there.",
    axes=AXES,
    k_step=_block_k,
    threadgroup_bytes=lambda v: _elements(v) * _fragments.operand_type(v).bytes,
    cost=_cost,
    context=_context,
    builtins=("block", "simdgroup", "thread_index"),
)
