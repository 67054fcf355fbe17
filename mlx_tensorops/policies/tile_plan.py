"""How tall the tiles of a plan are, and how its device builder divides the work. Retunable; what is legal stands in primitives/.

Nothing here was measured by this project on Metal.
"""

from __future__ import annotations

from ..rules import Rule, ceildiv, maximum
from ..variant import Block
from .entries import Entry

# (rows per expert, rows of a tile from there on). Below 4 MLX 0.32.4 multiplies row by row; kernels without the matrix unit do, too, 4 rows of an
# expert at a time. From 64 it takes blocks of 64 rows, below that of 32. Ours are twice as high, since weights are read and decoded once per
# tile: padding costs nothing there, empty fragments of 16 rows are left out.
BLOCK_M = ((64, 128), (4, 64), (0, 4))


def block_m(rows: int, num_experts: int) -> int:
    """Rows of a tile for so many rows, evenly spread."""
    return next(height for bound, height in BLOCK_M if rows >= bound * num_experts)


COUNT_THREADS = 256  # each thread compares its row with the others of a step: work grows with this, steps shrink
MOST_CHUNKS = 64  # threadgroups that count: a column of counts per expert is added up by one thread


def chunk(rows: Rule) -> Rule:
    """Rows that one threadgroup counts: whole steps, and no more than MOST_CHUNKS chunks for any number of rows."""
    return maximum(ceildiv(rows, COUNT_THREADS * MOST_CHUNKS), 1) * COUNT_THREADS


# One launch serves up to this many rows: 8 steps of one threadgroup, about what two more launches and their barriers cost.
WHOLE_ROWS = 2048
WHOLE_EXPERTS = 1024  # counts and starts of all bins in 12 KiB of threadgroup memory

WHOLE = Entry("simdgroup", "whole", Block(COUNT_THREADS), "One threadgroup does everything: decoding is bound by the number of launches")
STAGES = (
    Entry("simdgroup", "count", Block(COUNT_THREADS), "A chunk of rows per threadgroup, so that the GPU's cores count side by side"),
    Entry("simdgroup", "scan", Block(1024), "One threadgroup adds up the chunks; as many loads in flight as a threadgroup can have"),
    Entry("simdgroup", "scatter", Block(256), "One row per thread; bound by memory, so that any block does"),
)


def in_one_launch(rows: int, num_experts: int) -> bool:
    """Whether one launch builds the plan; asked once, when the graph is built, and right for other sizes, too."""
    return rows <= WHOLE_ROWS and num_experts <= WHOLE_EXPERTS


def choose(spec, engine: str, device=None) -> tuple[Entry, ...]:
    """The entry of a call with few rows; larger ones take the three of STAGES."""
    return (WHOLE,)
