"""Which kernels a dense GEMM takes, by size. Retunable; what is legal stands in primitives/.

Each entry names the measurement that put it there. Nothing here was measured by this project on Metal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..rules import rule
from ..variant import ALIGNMENTS, Tile
from .partition import cooperative_tile

# Size classes: name -> rule over the facts of a problem (sizes after batches are folded). "" serves every size.
# A class ends where the next larger block would not be half empty.
SIZES = {
    "m16": lambda f: f.M <= 16,
    "m32": lambda f: f.M <= 32,
    "n32": lambda f: f.N <= 32,
    "n64": lambda f: f.N <= 64,
    "": lambda f: rule(1),
}
# Few rows: the rows that need no predicate along M would serve one size each.
FEW_ROWS = ("ragged_m", "ragged")


@dataclass(frozen=True)
class Entry:
    """A tile, the dataflow that uses it, the sizes and alignments it serves, and why it is in the table."""

    engine: str
    dataflow: str
    tile: Tile
    why: str
    size: str = ""
    options: tuple[tuple[str, Any], ...] = ()
    alignments: tuple[str, ...] = ALIGNMENTS


_NARROW = ("Blocks no taller or wider than C, a simdgroup's part at most 32x32 as in MLX 0.32.4's thin kernels for the M5; "
           "nobody has published a measurement of this dataflow at these sizes")
_STEEL = ("MLX 0.32.4's steel GEMM for medium and large GPUs before the M5: 64x64 blocks, K in steps of 16, 2x2 simdgroups, "
          "rows of a tile padded by 16 bytes")

TILES = (
    Entry("mpp", "direct", cooperative_tile(16, 128, 4), _NARROW, "m16", alignments=FEW_ROWS),
    Entry("mpp", "direct", cooperative_tile(32, 128, 4), _NARROW, "m32", alignments=FEW_ROWS),
    Entry("mpp", "direct", cooperative_tile(64, 32, 4), _NARROW, "n32"),
    Entry("mpp", "direct", cooperative_tile(64, 64, 4), _NARROW, "n64"),
    Entry(
        "mpp", "direct", cooperative_tile(64, 128, 4),
        "TileLang's default direct-global configuration; its authors measured 101-112 % of MLX 0.31.2 on full "
        "f16 tiles of a base M5",
    ),
    Entry("simdgroup", "registers", Tile(32, 64, 1, 2, 8, 8, 8),
          "Each row of A is read by two simdgroups only, so that staging would cost a barrier and save one read; not measured",
          "m32", alignments=FEW_ROWS),
    Entry("simdgroup", "registers", Tile(64, 32, 2, 1, 8, 8, 8), "As for few rows, with A and B exchanged; not measured", "n32"),
    Entry("simdgroup", "staged", Tile(64, 64, 2, 2, 8, 8, 8), _STEEL),
)


_PROBE = "loads by the lane map of M5-class GPUs: behind the layout probe, which no device has answered yet"
_EIGHT = Tile(64, 128, 2, 4, 16, 32, 16)  # 8 simdgroups of 32x32: the block of MLX's NAX kernels and of Butter's nax2

_PROBE = "loads by the lane map of M5-class GPUs: behind the layout probe, which no device has answered yet"
_EIGHT = Tile(64, 128, 2, 4, 16, 32, 16)  # 8 simdgroups of 32x32: the block of MLX's NAX kernels and of Butter's nax2

# Kernels that are right in the emulator and that no size, layout or device reaches yet; ``why`` says what is missing.
UNREACHED: tuple[Entry, ...] = (
    Entry("mpp", "direct8", _EIGHT, "TileLang's roadmap names it as the second policy class; nobody has published a measurement"),
    Entry("mpp", "register_direct", _EIGHT, "Butter's nax2 with fills by coordinate, which nobody has measured"),
    Entry("mpp", "direct", Tile(64, 128, 2, 2, 16, 32, 16), _PROBE, options=(("fill", "nax"),)),
    Entry("mpp", "direct8", _EIGHT, _PROBE, options=(("fill", "nax"),)),
    Entry("mpp", "register_direct", _EIGHT, _PROBE, options=(("fill", "nax"),)),
    Entry("mpp", "direct8", _EIGHT, "TileLang's roadmap names it as the second policy class; nobody has published a measurement"),
    Entry("mpp", "register_direct", _EIGHT, "Butter's nax2 with fills by coordinate, which nobody has measured"),
    Entry("mpp", "direct", Tile(64, 128, 2, 2, 16, 32, 16), _PROBE, options=(("fill", "nax"),)),
    Entry("mpp", "direct8", _EIGHT, _PROBE, options=(("fill", "nax"),)),
    Entry("mpp", "register_direct", _EIGHT, _PROBE, options=(("fill", "nax"),)),
)


def choose(spec, engine: str) -> tuple[Entry, ...]:
    """The entries of a set for a spec on an engine, in the order in which their rows are tried; the last serves every size."""
    return tuple(e for e in TILES if e.engine == engine)
