"""Which kernels a dense GEMM takes, by size. Retunable; what is legal stands in primitives/.

Each entry names the measurement that put it there. Nothing here was measured by this project on Metal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

from ..rules import Rule, ceildiv, eq, every, maximum, rule, select
from ..variant import LAYOUTS, Tile
from . import entries
from .partition import cooperative_tile

# Size classes: name -> rule over the facts of a problem (sizes after batches are folded). "" serves every size.
# A class ends where the next larger block would not be half empty.
SIZES = {
    "m16": lambda f: f.M <= 16,
    "m32": lambda f: f.M <= 32,
    "n32": lambda f: f.N <= 32,
    "n64": lambda f: f.N <= 64,
    # Blocks of 64 columns end less than half empty where blocks of 128 do not: a quarter or a sixth fewer multiplications.
    "edges": lambda f: eq(ceildiv(f.N, 64), 3) | eq(ceildiv(f.N, 64), 5),
    "": lambda f: rule(1),
}
# Few rows: the rows that need no predicate along M would serve one size each.
FEW_ROWS = ("ragged_m", "ragged")
UNIT_STRIDES = tuple(layout for layout in LAYOUTS if layout != "strided")


class Entry(entries.Entry):
    """An entry that also knows its policy class."""

    @property
    def policy(self) -> str:
        """Name of the first policy class that the entry belongs to."""
        return next(policy.name for policy in POLICIES if policy.holds(self))


@dataclass(frozen=True)
class Policy:
    """A class of entries: what it is for, and which entries belong to it."""

    name: str
    text: str
    holds: Callable[[Entry], bool]


# The classes that TileLang's roadmap tells apart ("TileLang Metal Backend Internals", section 5.5), and three more.
POLICIES = (
    Policy("split-k", "few blocks of C and a long K: slices of K side by side, then one pass that adds them",
           lambda e: e.dataflow in ("split_k", "accumulate")),
    Policy("simdgroup", "every GPU before the M5: simdgroup_matrix", lambda e: e.engine == "simdgroup"),
    Policy("shared", "layout changes, fusion and edges: operands staged in threadgroup memory", lambda e: e.dataflow == "staged"),
    Policy("views", "operands read by the operation itself through tensor views", lambda e: e.dataflow == "tensor"),
    Policy("narrow", "few rows or few columns: blocks no larger than C", lambda e: e.size in ("m16", "m32", "n32", "n64")),
    Policy("8-simdgroup", "MLX's block for the M5: 8 simdgroups of 32x32", lambda e: e.tile.simdgroups == 8),
    Policy("4-simdgroup", "the conservative default: 4 simdgroups, operands straight from device memory", lambda e: True),
)


_NARROW = ("Blocks no taller or wider than C, a simdgroup's part at most 32x32 as in MLX 0.32.4's thin kernels for the M5; "
           "nobody has published a measurement of this dataflow at these sizes")
_STEEL = ("MLX 0.32.4's steel GEMM for medium and large GPUs before the M5: 64x64 blocks, K in steps of 16, 2x2 simdgroups, "
          "rows of a tile padded by 16 bytes")

_SHARED = Tile(64, 64, 2, 2, 32, 32, 32)  # the block of Butter's default dense kernel
_SHARED_WHY = ("TileLang's policy class for layout transforms and edges: operands without a unit stride, and the zeros past both edges, are "
               "handled once per block, not once per simdgroup; not measured")

TILES = (
    Entry("mpp", "direct", cooperative_tile(16, 128, 4), _NARROW, "m16", alignments=FEW_ROWS),
    Entry("mpp", "direct", cooperative_tile(32, 128, 4), _NARROW, "m32", alignments=FEW_ROWS),
    Entry("mpp", "direct", cooperative_tile(64, 32, 4), _NARROW, "n32"),
    Entry("mpp", "direct", cooperative_tile(64, 64, 4), _NARROW, "n64"),
    Entry("mpp", "staged", _SHARED, _SHARED_WHY, "edges", layouts=UNIT_STRIDES),
    Entry(
        "mpp", "direct", cooperative_tile(64, 128, 4),
        "TileLang's default direct-global configuration; its authors measured 101-112 % of MLX 0.31.2 on full "
        "f16 tiles of a base M5",
        layouts=UNIT_STRIDES,
    ),
    Entry("mpp", "staged", _SHARED, _SHARED_WHY, layouts=("strided",)),
    Entry("simdgroup", "registers", Tile(32, 64, 1, 2, 8, 8, 8),
          "Each row of A is read by two simdgroups only, so that staging would cost a barrier and save one read; not measured",
          "m32", alignments=FEW_ROWS),
    Entry("simdgroup", "registers", Tile(64, 32, 2, 1, 8, 8, 8), "As for few rows, with A and B exchanged; not measured", "n32"),
    Entry("simdgroup", "staged", Tile(64, 64, 2, 2, 8, 8, 8), _STEEL),
)


_PROBE = "loads by the lane map of M5-class GPUs: behind the layout probe, which no device has answered yet"
_EIGHT = Tile(64, 128, 2, 4, 16, 32, 16)  # 8 simdgroups of 32x32: the block of MLX's NAX kernels and of Butter's nax2

# Kernels that are right in the emulator and that no size, layout or device reaches yet; ``why`` says what is missing.
UNREACHED: tuple[Entry, ...] = (
    Entry("mpp", "direct8", _EIGHT, "TileLang's roadmap names it as the second policy class; nobody has published a measurement"),
    Entry("mpp", "register_direct", _EIGHT, "Butter's nax2 with fills by coordinate, which nobody has measured"),
    Entry("mpp", "direct", Tile(64, 128, 2, 2, 16, 32, 16), _PROBE, options=(("fill", "nax"),)),
    Entry("mpp", "direct8", _EIGHT, _PROBE, options=(("fill", "nax"),)),
    Entry("mpp", "register_direct", _EIGHT, _PROBE, options=(("fill", "nax"),)),
    Entry("mpp", "tensor", Tile(64, 128, 1, 1, 64, 128, 0, cooperating=4),
          "reports of what inline tensors do at their extents and with offsets contradict each other between GPUs: behind the probe of "
          "tensor views, which no device has answered yet; a set of it needs the strided row of another entry"),
)


@dataclass(frozen=True)
class SplitK:
    """Split-K on one engine; the rules see M (rows of all batches), N and K.

    Attributes:
        entry: what computes the partial products.
        pays: rule: whether two launches are taken for these sizes.
        k_slice: rule: length of a slice, a multiple of 32.
    """

    entry: Entry
    pays: Callable[[Rule, Rule, Rule], Rule]
    k_slice: Callable[[Rule, Rule, Rule], Rule]


# MLX splits smaller K, too. Until a device has measured that our two launches pay there, one launch does it.
SPLIT_FROM_K = 1024


def _few_tiles(M, N, K):
    """MLX 0.32.4 on GPUs before the M5 (base classes): few 16x16 tiles of C, and K the longest extent."""
    return every(ceildiv(M, 16) * ceildiv(N, 16) <= 1024, K >= maximum(M, N), K >= SPLIT_FROM_K)


def _parts_by_tiles(M, N, K):
    """MLX 0.32.4 there: as many parts as K has steps of 16 per 32x32 tile of C, a power of two of 2 to 32."""
    share = K // 16 // maximum(ceildiv(M, 32) * ceildiv(N, 32), 1)
    parts = rule(32)
    for power in (16, 8, 4, 2):
        parts = select(share <= power, power, parts)
    return maximum(ceildiv(ceildiv(K, parts), 32) * 32, 32)


def _long_k(M, N, K):
    """MLX 0.32.4 on the M5: K three times as long as the other extents, or twice where those are small."""
    longest = maximum(M, N)
    return every((K >= longest * 3) | ((longest <= 1024) & (K > longest * 2)), K >= SPLIT_FROM_K)


def _parts_by_k(M, N, K):
    """MLX 0.32.4 there: slices of 512 to 4096, two of them up to K = 8192."""
    return select(K <= 1024, 512, select(K <= 2048, 1024, select(K <= 4096, 2048, 4096)))


SPLIT_K = {
    "mpp": SplitK(
        Entry("mpp", "split_k", cooperative_tile(64, 64, 4), "MLX 0.32.4's split-K for the M5: 64x64 blocks, 2x2 simdgroups, where (M + N) / 2 < 512 or K <= 4096"),
        _long_k, _parts_by_k),
    "simdgroup": SplitK(
        Entry("simdgroup", "split_k", Tile(32, 32, 2, 2, 8, 8, 8), "MLX 0.32.4's steel split-K: 32x32 blocks, K in steps of 16, 2x2 simdgroups"),
        _few_tiles, _parts_by_tiles),
}
ACCUMULATE = Entry("simdgroup", "accumulate", Tile(1, 256, 1, 8, 1, 32, 1), "One element per thread; bound by memory, so that any block does")


def tables() -> tuple[Entry, ...]:
    """Every entry of this module."""
    return (*TILES, *UNREACHED, *(split.entry for split in SPLIT_K.values()), ACCUMULATE)


def policies() -> dict[tuple[str, Tile], str]:
    """(dataflow, tile) -> name of its policy class."""
    return {(e.dataflow, e.tile): e.policy for e in tables()}


def choose(spec, engine: str, device=None) -> tuple[Entry, ...]:
    """The entries of a set for a spec on an engine, in the order in which their rows are tried; the last serves every size."""
    return tuple(e for e in TILES if e.engine == engine)
