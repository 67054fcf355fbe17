"""What a line of a policy table says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import RuleError, fail
from ..variant import ALIGNMENTS, LAYOUTS, Tile
from .partition import OP_K, can_use_cooperative_tensor


@dataclass(frozen=True)
class Entry:
    """A tile, the dataflow that uses it, the sizes, layouts and alignments it serves, and why it is in the table."""

    engine: str
    dataflow: str
    tile: Tile
    why: str
    size: str = ""
    options: tuple[tuple[str, Any], ...] = ()
    alignments: tuple[str, ...] = ALIGNMENTS
    layouts: tuple[str, ...] = LAYOUTS
    x: str = ""  # the type of x that it is for; "": for all

    def __post_init__(self):
        tile = self.tile
        if self.engine == "mpp" and not can_use_cooperative_tensor(tile.m, tile.n, tile.op_k or OP_K, tile.threads):
            fail("policy", f"{tile.name} does not divide into whole cooperative operations of {tile.simdgroups} simdgroups", cls=RuleError)
