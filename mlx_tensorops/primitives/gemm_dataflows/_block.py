"""What dataflows share in which the simdgroups of a threadgroup work on one block together."""

from __future__ import annotations

from ...rules import Rule, ceildiv
from ...variant import Variant
from .._gemm_signature import depth, facts_of

# Apple GPUs have 32 KiB since family 4 (Metal feature set tables). 4 KiB stay free for what matmul2d allocates itself:
# nobody has published how much, and a kernel that filled the limit exactly has been reported to give NaN.
THREADGROUP_BYTES = 32768 - 4096


def blocks(v: Variant) -> Rule:
    """Blocks of C in one launch."""
    f = facts_of(v)
    return ceildiv(f.M, v.tile.m) * ceildiv(f.N, v.tile.n) * depth(f)
