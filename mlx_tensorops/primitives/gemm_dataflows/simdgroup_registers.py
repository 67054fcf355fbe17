"""Dataflow ``registers``: device memory -> simdgroup_matrix fragments, no staging, no barrier. Every GPU since the M1."""

from __future__ import annotations

from ...dtypes import element_type
from . import Dataflow, _fragments


def _context(v):
    operand = _fragments.operand_type(v)
    by_lane = v.layout == "strided" or v.alignment == "ragged"
    return dict(
        operand=operand,
        lane_left=by_lane or v.alignment == "ragged_m" or element_type(v.types[0]) != operand,
        lane_right=by_lane or element_type(v.types[1]) != operand,
    )


def _cost(v):
    t = v.tile
    return _fragments.cost(v, k_step=t.op_k, loads_m=t.simdgroups * t.warp_m, loads_n=t.simdgroups * t.warp_n)


DATAFLOW = Dataflow(
    name="registers",
    engine="simdgroup",
    template="gemm_simdgroup_registers.metal.j2",
    text="Every simdgroup loads 8x8 fragments of its own rows of A and columns of B straight from device memory.",
    axes={"swizzle": (0, 1, 2, 3), "panel": (0, 4, 8)},
    cost=_cost,
    context=_context,
    builtins=("block", "simdgroup", "lane"),
)
