"""Dataflow ``vector``: few rows against a matrix, without matrix operations. Every GPU since the M1.

A simdgroup computes a few columns for all rows of its block; its lanes split K, or the columns where the weights are packed along N. So
every weight is read and decoded once for the block's rows. Sums are f32, one per lane, added across lanes at the end.

With rows of experts and blocks of one row every row is a run of its own: ids may come in any order.
"""

from __future__ import annotations

from ...cost import Cost
from ...dtypes import FLOAT32
from ...formats import PACK
from ...rules import ceildiv, rule
from ...variant import SIMD_WIDTH, Variant
from .._weighted_signature import blocks_m, facts_of, operand_bytes, output_bytes, problem, transposed
from . import Dataflow

COLUMNS_PACKED = SIMD_WIDTH  # of a simdgroup where weights are packed along N: 4 packs, each shared by 8 lanes along K


def _legal(spec, options) -> list[str]:
    tile = options["tile"]
    found = [] if tile.simdgroups_m == 1 else ["simdgroups share rows, not columns"]
    if spec.weights.transpose and tile.m * tile.warp_n > SIMD_WIDTH:
        found.append(f"{tile.m * tile.warp_n} results of a simdgroup; each of its {SIMD_WIDTH} lanes stores one")
    if not spec.weights.transpose and tile.warp_n != COLUMNS_PACKED:
        found.append(f"a simdgroup takes {COLUMNS_PACKED} columns of weights packed along N, not {tile.warp_n}")
    return found


def _cost(v: Variant) -> Cost:
    """Exact for whole matrices of any size; runs of several rows read their weights once each, which no shape tells."""
    t, f, tensors = v.tile, facts_of(v), len(problem(v).suffixes)
    weights = blocks_m(v, f) * f.batch * f.N * f.K  # taken by lanes, per tensor
    sums, x_values, readers = (t.warp_n, PACK, 1) if transposed(v) else (PACK, 1, COLUMNS_PACKED // PACK)
    return Cost(
        macs=f.M * f.N * f.K * f.batch * tensors,
        matmul2d=rule(0),
        operand_bytes=operand_bytes(v, ceildiv(f.N, t.warp_n) * f.batch * f.M * f.K * readers, weights),
        output_bytes=output_bytes(v, f),
        accumulator_words=t.m * sums * tensors,
        operand_words=t.m * x_values + PACK,
    )


DATAFLOW = Dataflow(
    name="vector",
    engine="simdgroup",
    template="weighted_simdgroup_vector.metal.j2",
    text="Lanes split K in packs and add their sums at the end; every weight is read once for all rows of the block.",
    rows=(("nt", "ragged"), ("nn", "ragged"), ("tt", "ragged"), ("tn", "ragged")),
    legal=_legal,
    cost=_cost,
    context=lambda v: {"b": FLOAT32} if problem(v).format else {},
    builtins=("block", "simdgroup", "lane"),
)
