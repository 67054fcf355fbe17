"""How the rows of a token's experts are added up. Retunable; what is legal stands in primitives/.

Nothing here was measured by this project on Metal.
"""

from __future__ import annotations

from ..variant import Block
from .entries import Entry

_WHY = "Bound by memory, so that any block does; a small one spreads the columns of a single token over the GPU's cores"

VECTORS = Entry("simdgroup", "ordered", Block(64), _WHY + "; four neighbours per load", "by4", options=(("width", 4),))
TILES = (VECTORS, Entry("simdgroup", "ordered", Block(64), _WHY))


def choose(spec, engine: str, device=None) -> tuple[Entry, ...]:
    """The entries in the order in which their rows are tried; the last takes any strides."""
    return tuple(e for e in TILES if e.engine == engine)
