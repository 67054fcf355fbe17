"""Which kernels rows of experts take: the block is as high as the plan's tiles. Retunable; what is legal stands in primitives/.

Nothing here was measured by this project on Metal: blocks and steps are those that others ship.
"""

from __future__ import annotations

from dataclasses import replace

from .entries import Entry
from .qgemm import FLOAT_WHY, HALF, NARROW, SHARED, fits_types
from .weighted_simdgroup import STEEL_ENTRIES, STEEL_UNREACHED, serves, vector

_SHARED_WHY = "Butter's default block for NVFP4 experts and MLX 0.32.4's for the M5 from 64 rows per expert"
_HALF_WHY = "MLX 0.32.4's block for fewer than 64 rows per expert has 32 rows"
_NARROW_WHY = "Butter's block for few rows per expert: one simdgroup, 16x32, steps of 16"

TILES = (
    *vector("few", 1),
    *vector("few", 4),  # plans with tiles of 4 rows
    Entry("mpp", "staged", NARROW, _NARROW_WHY, "m16", options=(("block_k", 16),), alignments=("ragged_m", "ragged")),
    Entry("mpp", "staged", HALF, _HALF_WHY, "m32", options=(("block_k", 64),), alignments=("ragged_m", "ragged")),
    Entry("mpp", "staged", SHARED, _SHARED_WHY, options=(("block_k", 64),), alignments=("ragged_m", "ragged")),
    Entry("mpp", "staged", SHARED, FLOAT_WHY, alignments=("ragged_m", "ragged")),
    *STEEL_ENTRIES,
)
UNREACHED: tuple[Entry, ...] = STEEL_UNREACHED


def tables() -> tuple[Entry, ...]:
    """Every entry of this module."""
    return (*TILES, *UNREACHED)


def choose(spec, engine: str) -> tuple[Entry, ...]:
    """The entries of a set for a spec on an engine, in the order in which their rows are tried; the last serves every size."""
    return reached(tuple(e for e in TILES if serves(e, engine) and fits_types(e, spec.x)), spec)


def reached(entries: tuple[Entry, ...], spec) -> tuple[Entry, ...]:
    """The entries that rows of this spec can meet: with a plan those of its height, whatever the number of rows."""
    if spec.rows != "plan":
        return entries
    return tuple(replace(e, size="") for e in entries if e.tile.m == spec.block_m)
