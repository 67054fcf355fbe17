"""Dataflow ``direct8``: as ``direct``, but 8 simdgroups of 32x32, the block partition of MLX's steel_gemm_fused_nax.

Half the accumulator registers of ``direct`` for a third more operand traffic. With one pair of B fragments per simdgroup it is B
that stays for a step of K, and the fragments of A that pass through one cooperative tensor.
"""

from __future__ import annotations

from functools import partial

from . import Dataflow, _filled

DATAFLOW = Dataflow(
    name="direct8",
    engine="mpp",
    template="gemm_mpp_direct8.metal.j2",
    text="8 simdgroups: each holds its columns of B and streams its rows of A through one cooperative tensor, from device memory.",
    axes={"swizzle": (0, 1, 2, 3), "panel": (0, 4, 8), "fill": _filled.FILLS},
    legal=_filled.legal,
    cost=lambda v: _filled.cost(v, lefts=1, rights=v.tile.fragments_n),
    context=partial(_filled.context, left="streamed", right="held"),
    fits=_filled.fits,
    builtins=_filled.builtins,
)
