"""Which kernels two weight tensors against the same rows take: those of ``gather``, where two accumulators fit."""

from __future__ import annotations

from . import gather
from .gather import Entry

TILES: tuple[Entry, ...] = gather.TILES
UNREACHED: tuple[Entry, ...] = gather.UNREACHED
choose, tables = gather.choose, gather.tables
