"""Which kernels rows of experts take: the block is as high as the plan's tiles. Retunable; what is legal stands in primitives/.

Nothing here was measured by this project on Metal. ``benchmarks/emulated_moe.py`` counts what a layer loads and multiplies.
"""

from __future__ import annotations

from dataclasses import replace

from ..variant import Tile
from .entries import Entry
from .qgemm import HALF, NARROW, SHARED
from .weighted import all_scaled, on_device
from .weighted_simdgroup import STEEL_ENTRIES, STEEL_TALL, STEEL_UNREACHED, serves, vector

TALL = Tile(64, 64, 2, 2, 16, 32, 16)
TALLER = Tile(128, 64, 4, 2, 16, 32, 16)

_NARROW_WHY = "Butter's block for few rows per expert: one simdgroup, 16x32, steps of 16"
_HALF_WHY = "MLX 0.32.4's block for fewer than 64 rows per expert has 32 rows"
_TALL_WHY = ("Butter's default block for NVFP4 experts, 64x64 and four simdgroups, in operations of 16 rows, so that a tile's empty fragments are "
             "left out: up to 64 rows of an expert share what is decoded, and few rows cost no more than in a lower block")
_TALLER_WHY = ("Weights are read and decoded once for 128 rows of an expert, half as often as in MLX 0.32.4's block of 64; twice the simdgroups, "
               "since MLX measured 128 rows on four of them at 0.73 of its 64")
# The M5's matrix unit does about 4 times as many multiply-adds per clock as its ALUs (15.4 TFLOPS reported for 10 cores): a fragment of
# 16 rows costs what 4 rows cost without it.
_TAIL = ("tail", 4)
_RAGGED = ("ragged_m", "ragged")
_FLOAT = "; in steps of 32, since f32 tiles of 64 would not fit threadgroup memory"

STAGED = (
    Entry("mpp", "staged", NARROW, _NARROW_WHY, "m16", options=(("block_k", 16),), alignments=_RAGGED),
    Entry("mpp", "staged", HALF, _HALF_WHY, "m32", options=(("block_k", 64),), alignments=_RAGGED),
    Entry("mpp", "staged", TALL, _TALL_WHY, options=(("block_k", 64), _TAIL), alignments=_RAGGED),
    Entry("mpp", "staged", TALL, _TALL_WHY + _FLOAT, options=(_TAIL,), alignments=_RAGGED),
    Entry("mpp", "staged", TALLER, _TALLER_WHY, options=(("block_k", 64), ("store", "direct"), _TAIL), alignments=_RAGGED),
    Entry("mpp", "staged", TALLER, _TALLER_WHY + _FLOAT, options=(("store", "direct"), _TAIL), alignments=_RAGGED),
)
TILES = (
    *vector("few", 1),
    *vector("few", 4),  # plans with tiles of 4 rows
    *STAGED,
    *STEEL_ENTRIES,
    STEEL_TALL,
)
_KEPT_WHY = "Butter's block as it is: operations of 32 rows, which pad an expert's last rows to as many"
UNREACHED: tuple[Entry, ...] = (
    Entry("mpp", "staged", SHARED, _KEPT_WHY, options=(("block_k", 64),), alignments=_RAGGED),
    Entry("mpp", "staged", SHARED, _KEPT_WHY, alignments=_RAGGED),
    *STEEL_UNREACHED,
)


def tables() -> tuple[Entry, ...]:
    """Every entry of this module."""
    return (*TILES, *UNREACHED, *all_scaled(TILES))


def choose(spec, engine: str, device=None) -> tuple[Entry, ...]:
    """The entries of a set for a spec on an engine and a device, in the order in which their rows are tried; the last serves every size."""
    return on_device(reached(tuple(e for e in TILES if serves(e, engine)), spec), spec, device)


def reached(entries: tuple[Entry, ...], spec) -> tuple[Entry, ...]:
    """The entries that rows of this spec can meet: with a plan those of its height, whatever the number of rows."""
    if spec.rows != "plan":
        return entries
    return tuple(replace(e, size="") for e in entries if e.tile.m == spec.block_m)
