"""Which kernels a product with quantised weights takes, by number of rows. Retunable; what is legal stands in primitives/.

Nothing here was measured by this project on Metal: blocks and steps are those that others ship.
"""

from __future__ import annotations

from ..variant import Tile
from .entries import Entry

SHARED = Tile(64, 64, 2, 2, 32, 32, 32)
NARROW = Tile(16, 32, 1, 1, 16, 32, 16)
HALF = Tile(32, 64, 1, 2, 32, 32, 32)

_SHARED_WHY = "Butter's block for NVFP4 prefill and MLX 0.32.4's for the M5: 64x64, four simdgroups"
_NARROW_WHY = "Butter's block for few rows per expert: one simdgroup, 16x32, steps of 16"
_HALF_WHY = "MLX 0.32.4 halves its block where rows are few; two simdgroups of 32x32"

TILES = (
    Entry("mpp", "staged", NARROW, _NARROW_WHY, "m16", options=(("block_k", 16),), alignments=("ragged_m", "ragged")),
    Entry("mpp", "staged", HALF, _HALF_WHY, "m32", alignments=("ragged_m", "ragged")),
    Entry("mpp", "staged", SHARED, _SHARED_WHY),
)
UNREACHED: tuple[Entry, ...] = ()


def tables() -> tuple[Entry, ...]:
    """Every entry of this module."""
    return (*TILES, *UNREACHED)


def choose(spec, engine: str) -> tuple[Entry, ...]:
    """The entries of a set for a spec on an engine, in the order in which their rows are tried; the last serves every size."""
    return tuple(e for e in TILES if e.engine == engine)
