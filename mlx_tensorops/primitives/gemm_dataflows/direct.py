"""Dataflow ``direct``: device memory -> cooperative tensor, no staging, no barrier, C kept in the destination.

The path TileLang calls direct-global, with 4 simdgroups of 32x64.
"""

from __future__ import annotations

from functools import partial

from . import Dataflow, _filled

DATAFLOW = Dataflow(
    name="direct",
    engine="mpp",
    template="gemm_mpp_direct.metal.j2",
    text="Every simdgroup loads its own rows of A and columns of B from device memory into cooperative tensors.",
    axes={"swizzle": (0, 1, 2, 3), "panel": (0, 4, 8), "fill": _filled.FILLS},
    legal=_filled.legal,
    cost=lambda v: _filled.cost(v, lefts=v.tile.fragments_m, rights=1),
    context=partial(_filled.context, left="held", right="streamed"),
    fits=_filled.fits,
    builtins=_filled.builtins,
)
