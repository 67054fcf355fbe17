"""Which tile a dense GEMM takes. Retunable; what is legal stands in primitives/gemm.py.

Each entry names the measurement that put it there. Nothing here was measured by this project on Metal.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..variant import Tile


@dataclass(frozen=True)
class Entry:
    """A tile, the dataflow that uses it, and why it is in the table."""

    engine: str
    dataflow: str
    tile: Tile
    why: str


TILES = (
    Entry(
        "mpp", "direct", Tile(m=64, n=128, simdgroups_m=2, simdgroups_n=2, op_m=16, op_n=32, op_k=16),
        "TileLang's default direct-global configuration; its authors measured 101-112 % of MLX 0.31.2 on full "
        "f16 tiles of a base M5",
    ),
)


def choose(spec, engine: str) -> Entry:
    """The entry for a spec on an engine."""
    return next(e for e in TILES if e.engine == engine)
