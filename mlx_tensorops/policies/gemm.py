"""Which kernels a dense GEMM takes, by size. Retunable; what is legal stands in primitives/.

Each entry names the measurement that put it there. Nothing here was measured by this project on Metal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..rules import rule
from ..variant import Tile

# Size classes: name -> rule over the facts of a problem (sizes after batches are folded). "" serves every size.
SIZES = {
    "": lambda f: rule(1),
}


@dataclass(frozen=True)
class Entry:
    """A tile, the dataflow that uses it, the sizes it serves, and why it is in the table."""

    engine: str
    dataflow: str
    tile: Tile
    why: str
    size: str = ""
    options: tuple[tuple[str, Any], ...] = ()


TILES = (
    Entry(
        "mpp", "direct", Tile(m=64, n=128, simdgroups_m=2, simdgroups_n=2, op_m=16, op_n=32, op_k=16),
        "TileLang's default direct-global configuration; its authors measured 101-112 % of MLX 0.31.2 on full "
        "f16 tiles of a base M5",
    ),
)


# Kernels that are right in the emulator and that no size, layout or device reaches yet; ``why`` says what is missing.
UNREACHED: tuple[Entry, ...] = ()


def choose(spec, engine: str) -> tuple[Entry, ...]:
    """The entries of a set for a spec on an engine, in the order in which their rows are tried; the last serves every size."""
    return tuple(e for e in TILES if e.engine == engine)
