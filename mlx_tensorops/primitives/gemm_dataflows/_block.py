"""What dataflows share in which the simdgroups of a threadgroup work on one block together."""

from __future__ import annotations

from ...rules import Rule, ceildiv
from ...variant import Variant
from .._gemm_signature import depth, facts_of


def blocks(v: Variant) -> Rule:
    """Blocks of C in one launch."""
    f = facts_of(v)
    return ceildiv(f.M, v.tile.m) * ceildiv(f.N, v.tile.n) * depth(f)
