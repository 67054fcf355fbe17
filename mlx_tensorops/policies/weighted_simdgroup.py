"""Blocks of engine simdgroup for products with stored weights: the tables of the three families draw on these.

Nothing here was measured by this project on Metal.
"""

from __future__ import annotations

from dataclasses import replace

from ..variant import Tile
from .entries import Entry

STEEL = Tile(64, 64, 2, 2, 8, 8, 8)
HALF = Tile(32, 64, 1, 2, 8, 8, 8)
NARROW = Tile(16, 128, 1, 4, 8, 8, 8)
TALL = Tile(128, 64, 4, 2, 8, 8, 8)
# Two f32 accumulators beside f32 fragments would not fit a lane: half the columns, so that a decoded weight still meets 32 rows.
TWO = {STEEL: Tile(64, 32, 2, 2, 8, 8, 8), HALF: Tile(32, 32, 1, 2, 8, 8, 8), TALL: Tile(128, 32, 4, 2, 8, 8, 8)}

_STEEL_WHY = "Butter's steel block for NVFP4, whole matrices and expert runs: 64x64, 2x2 simdgroups of 32x32; not measured"
_HALF_WHY = "Half of Butter's block, two simdgroups of 32x32, where 64 rows would be half empty; not measured"
_NARROW_WHY = ("Butter's steel block for few rows per expert, four simdgroups of 16x32; half as many simdgroups read a row of x as in its 16x64; "
               "not measured")
_TWO_WHY = "As for one weight tensor, with half the columns where two accumulators would not fit a lane; not measured"

STEEL_ENTRIES = (
    Entry("simdgroup", "steel", NARROW, _NARROW_WHY, "m16", alignments=("ragged_m", "ragged")),
    Entry("simdgroup", "steel", HALF, _HALF_WHY, "m32", alignments=("ragged_m", "ragged")),
    Entry("simdgroup", "steel", STEEL, _STEEL_WHY),
)
STEEL_TALL = Entry("simdgroup", "steel", TALL, "For plans with tiles of 128 rows: Butter's block twice; not measured", alignments=("ragged_m", "ragged"))
STEEL_UNREACHED = (
    Entry("simdgroup", "steel", Tile(16, 64, 1, 4, 8, 8, 8),
          "Butter's other steel block of 16 rows, four simdgroups of 16x16: nobody has published where it beats 16x128"),
)

_VECTOR_WHY = ("MLX 0.32.4's qmv: two simdgroups of 4 columns, lanes along K; up to 4 rows share a weight that is read once; "
               "not measured")
_VECTOR_N_WHY = "The same for weights packed along N: a lane's pack is 8 columns, so that a simdgroup takes 32; not measured"


def vector(size: str, rows: int) -> tuple[Entry, ...]:
    """The matrix-vector entries for blocks of ``rows`` rows; which one fits follows from how the weights are packed."""
    return (
        Entry("simdgroup", "vector", Tile(rows, 8, 1, 2, rows, 4, 1), _VECTOR_WHY, size, alignments=("ragged",)),
        Entry("simdgroup", "vector", Tile(rows, 64, 1, 2, rows, 32, 1), _VECTOR_N_WHY, size, alignments=("ragged",)),
    )


def serves(entry: Entry, engine: str) -> bool:
    """Whether sets of an engine hold the entry: few rows need no matrix unit, so that engine mpp takes the same kernels for them."""
    return entry.engine == engine or entry.dataflow == "vector"


def for_two(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """The entries of a table with, after each, the block that stands in for it where two accumulators do not fit."""
    return tuple(found for e in entries for found in (e, *([replace(e, tile=TWO[e.tile], why=_TWO_WHY)] if e.tile in TWO else [])))
