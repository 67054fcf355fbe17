"""Dataflow ``steel``: simdgroup_matrix fragments whose lanes fetch their own elements of both operands. Every GPU since the M1.

No threadgroup memory and no barrier: simdgroups walk their rows alone, whole matrices, runs of experts and tiles of a plan alike. A lane
decodes whole packs, each for all rows at once.
"""

from __future__ import annotations

from ...cost import Cost
from ...dtypes import BFLOAT16, FLOAT32, ElementType, element_type
from ...formats import PACK, by_name
from ...rules import ceildiv, rule
from ...variant import SIMD_WIDTH, Variant
from .._weighted_signature import blocks_m, facts_of, operand_bytes, output_bytes, problem, transposed
from . import EVERY_ROW, Dataflow

EDGE = 8  # rows and columns of a simdgroup_matrix, Metal Shading Language Specification section 2.4
PACKED_LANES = 4  # lanes that share a row of a fragment


def _fragment(v: Variant) -> ElementType:
    """Element type of both operands' fragments: the narrowest that holds x and every weight exactly, of one type as the specification names it.

    Weights of the floating formats are exact in bfloat; half, whose subnormals hardware may flush, is taken for half alone.
    """
    p = problem(v)
    x, stored = v.types[:2]
    weight = stored if not p.format else FLOAT32.name if by_name(p.format).scale == "float" else BFLOAT16.name
    return element_type(x) if x == weight and v.option("fragments", "exact") == "exact" else FLOAT32


def _step(v: Variant) -> int:
    return PACKED_LANES * PACK if transposed(v) else EDGE


def _products(v: Variant) -> int:
    """Multiplications of one fragment per step."""
    return _step(v) // EDGE


def _packs_whole(v: Variant) -> bool:
    """Whether a lane uses all of the packs that it decodes. Along N it owns neighbouring columns, a few of each fragment."""
    return transposed(v) or v.tile.warp_n // PACKED_LANES % PACK == 0


def _tail(v: Variant) -> bool:
    """Whether a step can reach past K: packed rows of K end on a group."""
    fmt = problem(v).weights
    return v.alignment == "ragged" and not (fmt and transposed(v) and fmt.group % _step(v) == 0)


def _legal(spec, options) -> list[str]:
    tile = options["tile"]
    found = [] if (tile.op_m, tile.op_n, tile.op_k) == (EDGE,) * 3 else [f"fragments of simdgroup_matrix are {EDGE}x{EDGE}"]
    if not spec.weights.transpose and tile.warp_n // PACKED_LANES not in (PACK // 2, *range(PACK, tile.n + 1, PACK)):
        found.append(f"weights packed along N go to {PACKED_LANES} lanes in packs of {PACK} or halves of one, so that a simdgroup's part "
                     f"has {PACKED_LANES * PACK // 2} columns or a multiple of {PACKED_LANES * PACK}")
    return found


def _cost(v: Variant) -> Cost:
    t, f, step, tensors = v.tile, facts_of(v), _step(v), len(problem(v).suffixes)
    steps = blocks_m(v, f) * ceildiv(f.N, t.n) * f.batch * ceildiv(f.K, step) * t.simdgroups
    operations = steps * (t.fragments_m * t.fragments_n * _products(v) * tensors)
    weights = steps * (t.warp_n * step * (1 if _packs_whole(v) else 2))  # taken by lanes, per tensor

    return Cost(
        macs=operations * EDGE**3,
        matmul2d=rule(0),
        mma8x8=operations,
        operand_bytes=operand_bytes(v, steps * (t.warp_m * step), weights),
        output_bytes=output_bytes(v, f),
        accumulator_words=t.warp_m * t.warp_n // SIMD_WIDTH * tensors,
        operand_words=(t.warp_m * step // SIMD_WIDTH + PACK) * _fragment(v).bytes // 4,
    )


def _context(v: Variant) -> dict:
    operand = _fragment(v)
    return dict(operand=operand, packs_whole=_packs_whole(v), tail=_tail(v), **({"b": operand} if problem(v).format else {}))


DATAFLOW = Dataflow(
    name="steel",
    engine="simdgroup",
    template="weighted_simdgroup_steel.metal.j2",
    text="Every lane fetches its own elements of x's fragments and decodes its own packs of weights, once for all rows; no staging, no barrier.",
    axes={"fragments": ("exact", "float")},
    rows=EVERY_ROW,
    legal=_legal,
    k_step=_step,
    cost=_cost,
    context=_context,
    builtins=("block", "simdgroup", "lane"),
)
