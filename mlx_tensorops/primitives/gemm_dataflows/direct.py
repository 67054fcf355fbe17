"""Dataflow ``direct``: device memory -> cooperative tensor, no staging, no barrier, C kept in the destination.

The path TileLang calls direct-global. Operands are filled by coordinate, so no lane layout is assumed.
"""

from __future__ import annotations

from .._gemm_signature import matrix_cost
from . import Dataflow

DATAFLOW = Dataflow(
    name="direct",
    engine="mpp",
    template="gemm_mpp_direct.metal.j2",
    text="Every simdgroup loads its own rows of A and columns of B from device memory into cooperative tensors.",
    axes={"swizzle": (0, 1, 2, 3), "panel": (0, 4, 8)},
    cost=matrix_cost,
)
