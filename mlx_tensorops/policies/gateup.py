"""Which kernels two weight tensors against the same rows take: those of ``gather`` where two accumulators fit a lane's registers."""

from __future__ import annotations

from dataclasses import replace

from ..variant import Tile
from . import gather
from .entries import Entry
from .qgemm import HALF, SHARED
from .weighted_simdgroup import for_two, serves

# Two f32 accumulators beside f32 operands would not fit a lane: smaller operations, the block split among twice as many simdgroups.
_SPLIT = {HALF: Tile(32, 64, 2, 2, 16, 32, 16), SHARED: Tile(64, 64, 4, 2, 16, 32, 16)}
_SPLIT_WHY = "As for half types, the block split among twice as many simdgroups; not measured"


def _split(e: Entry) -> Entry:
    return replace(e, tile=_SPLIT[e.tile], why=_SPLIT_WHY, options=())


_STAGED = [e for e in gather.TILES if e.dataflow == "staged"]
FLOATS = (*(e for e in _STAGED if e.tile not in _SPLIT), *(_split(e) for e in _STAGED if e.tile == HALF), *(_split(e) for e in _STAGED if e.tile == SHARED and not e.options))
HALVES = tuple(e for e in _STAGED if e.tile != SHARED or e.options)
OTHERS = for_two(tuple(e for e in gather.TILES if e.dataflow != "staged"))
UNREACHED: tuple[Entry, ...] = gather.UNREACHED


def tables() -> tuple[Entry, ...]:
    """Every entry of this module."""
    return (*OTHERS, *dict.fromkeys((*HALVES, *FLOATS)), *UNREACHED)


def choose(spec, engine: str) -> tuple[Entry, ...]:
    """As ``gather.choose``."""
    found = (*OTHERS, *(FLOATS if spec.x == "float32" else HALVES))
    return gather.reached(tuple(e for e in found if serves(e, engine)), spec)
