"""Dataflow ``register_direct``: fragments are loaded into registers first, then handed to the matrix unit in pairs along N.

The structure of MLX's steel_gemm_fused_nax and of Butter's dense_gemm_nax2: 2x4 simdgroups of 32x32, K in outer blocks of 256 whose
barrier orders no memory, no threadgroup memory at all. Unlike those kernels it takes ragged sizes.
"""

from __future__ import annotations

from functools import partial

from ...rules import ceildiv
from ...variant import Variant
from .._gemm_signature import facts_of
from . import Dataflow, _filled

BLOCK_K = 256  # K per outer block: what both kernels use for tiles of this size


def _context(v: Variant) -> dict:
    shared = _filled.context(v, left="streamed", right="streamed")
    return shared | dict(block_k=BLOCK_K, fence=v.option("fence", "volatile") == "volatile", leave_together=True)


def _cost(v: Variant):
    f, t = facts_of(v), v.tile
    blocks = ceildiv(f.M, t.m) * ceildiv(f.N, t.n)
    for size in f.batch:
        blocks = blocks * size
    # All fragments of a step in registers, and one of each side in the cooperative tensors.
    return _filled.cost(v, lefts=t.fragments_m + 1, rights=t.fragments_n + 1, barriers=blocks * ceildiv(f.K, BLOCK_K))


DATAFLOW = Dataflow(
    name="register_direct",
    engine="mpp",
    template="gemm_mpp_register_direct.metal.j2",
    text="Every simdgroup loads all fragments of a step into registers, then multiplies each A fragment with pairs of B fragments.",
    axes={"swizzle": (0, 1, 2, 3), "panel": (0, 4, 8), "fill": _filled.FILLS, "fence": ("volatile", "none")},
    legal=_filled.legal,
    cost=_cost,
    context=_context,
    fits=_filled.fits,
    builtins=_filled.builtins,
)
