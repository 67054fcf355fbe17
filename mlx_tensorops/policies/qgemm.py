"""Which kernels a product with quantised weights takes, by number of rows. Retunable; what is legal stands in primitives/.

Nothing here was measured by this project on Metal: blocks and steps are those that others ship.
"""

from __future__ import annotations

from ..rules import ceildiv, maximum, minimum, rule
from ..variant import Tile
from .entries import Entry
from .weighted import all_scaled, on_device
from .weighted_simdgroup import STEEL_ENTRIES, STEEL_UNREACHED, serves, vector

SHARED = Tile(64, 64, 2, 2, 32, 32, 32)
NARROW = Tile(16, 32, 1, 1, 16, 32, 16)
HALF = Tile(32, 64, 1, 2, 32, 32, 32)

_SHARED_WHY = "MLX 0.32.4's block for the M5, and Butter's for NVFP4 prefill: 64x64, four simdgroups, steps of 64"
_FLOAT_WHY = "MLX 0.32.4's block and Butter's, 64x64, in steps of 32, since f32 tiles of 64 would not fit threadgroup memory"
_NARROW_WHY = "Butter's block for few rows per expert: one simdgroup, 16x32, steps of 16"
_HALF_WHY = "MLX 0.32.4 halves its block where rows are few; two simdgroups of 32x32"

TILES = (
    *vector("m4", 4),
    Entry("mpp", "staged", NARROW, _NARROW_WHY, "m16", options=(("block_k", 16),), alignments=("ragged_m", "ragged")),
    Entry("mpp", "staged", HALF, _HALF_WHY, "m32", options=(("block_k", 64),), alignments=("ragged_m", "ragged")),
    Entry("mpp", "staged", SHARED, _SHARED_WHY, options=(("block_k", 64),)),
    Entry("mpp", "staged", SHARED, _FLOAT_WHY),
    *STEEL_ENTRIES,
)
UNREACHED: tuple[Entry, ...] = STEEL_UNREACHED


# MLX 0.32.4 before the M5's own tiles: parts of K until 512 tiles of 32x32 are at work. Slices shorter than this would cost more in
# partial sums than they bring; not measured.
SPLIT_TILES, SHORTEST_SLICE = 512, 512
SPLIT = Entry("mpp", "split_k", SHARED, "MLX 0.32.4 splits K of quantised products whose tiles are few; 64x64 blocks as without the split")


def parts(M, N, K):
    """Slices of K that are taken: at least 1."""
    tiles = maximum(ceildiv(M, 32) * ceildiv(N, 32), 1)
    return maximum(minimum(rule(SPLIT_TILES) // tiles, K // SHORTEST_SLICE), 1)


def split_pays(M, N, K):
    """Whether two launches are taken: more rows than the narrow blocks serve, and more than one slice."""
    return (M > 16) & (parts(M, N, K) > 1)


def k_slice(M, N, K):
    """Length of a slice: a multiple of every step that staged takes."""
    return ceildiv(ceildiv(K, parts(M, N, K)), 64) * 64


def tables() -> tuple[Entry, ...]:
    """Every entry of this module."""
    return (*TILES, *UNREACHED, SPLIT, *all_scaled((*TILES, SPLIT)))


def choose(spec, engine: str, device=None) -> tuple[Entry, ...]:
    """The entries of a set for a spec on an engine and a device, in the order in which their rows are tried; the last serves every size."""
    return on_device(tuple(e for e in TILES if serves(e, engine)), spec, device)
