"""Which kernels two weight tensors against the same rows take: those of ``gather`` where two accumulators fit a lane's registers."""

from __future__ import annotations

from ..variant import Tile
from . import gather
from .entries import Entry
from .gather import TALL
from .weighted import all_scaled, on_device
from .weighted_simdgroup import for_two, serves

# Two f32 accumulators beside f32 operands would not fit a lane: smaller operations, or half the columns.
_SPLIT_WHY = "As for half types, in smaller operations, the block split among twice as many simdgroups; not measured"
_WHOLE_WHY = "As for half types, without sums beside the matrix unit; not measured"
_HALF_WHY = "As for half types, with half the columns; not measured"
_RAGGED = ("ragged_m", "ragged")
FLOATS = (
    Entry("mpp", "staged", Tile(32, 64, 2, 2, 16, 32, 16), _SPLIT_WHY, "m32", alignments=_RAGGED),
    Entry("mpp", "staged", TALL, _WHOLE_WHY, alignments=_RAGGED),
    Entry("mpp", "staged", Tile(128, 32, 4, 1, 16, 32, 16), _HALF_WHY, options=(("store", "direct"),), alignments=_RAGGED),
)
STAGED = tuple(sorted((*gather.STAGED, *FLOATS), key=lambda e: e.tile.m))  # of one height the first that fits is taken
TILES = (*for_two(tuple(e for e in gather.TILES if e.dataflow != "staged")), *STAGED)
UNREACHED: tuple[Entry, ...] = gather.UNREACHED


def tables() -> tuple[Entry, ...]:
    """Every entry of this module."""
    return (*TILES, *UNREACHED, *all_scaled(TILES))


def choose(spec, engine: str, device=None) -> tuple[Entry, ...]:
    """As ``gather.choose``."""
    return on_device(gather.reached(tuple(e for e in TILES if serves(e, engine)), spec), spec, device)
