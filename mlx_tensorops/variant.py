"""The one object that says what will run. Everything else is a function of it.

A Variant is one kernel, fully decided: source text, buffer list, guard and manifest follow from it and
from nothing else. A VariantSet holds the variants among which the graph node chooses when it runs,
because layout and alignment exist only then: its rows are tried in order, the first that fits is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .epilogues import Epilogue
from .errors import RuleError, fail

if TYPE_CHECKING:
    from .spec import GemmSpec

SIMD_WIDTH = 32  # threads of a simdgroup on every Apple GPU

LAYOUTS = ("nn", "nt", "tn", "tt", "strided")  # n: rows contiguous, t: columns contiguous; left then right
ALIGNMENTS = ("aligned", "ragged_m", "ragged")  # all sizes multiples of the block; only M is not; any sizes


@dataclass(frozen=True)
class Tile:
    """How a block of the output is divided.

    Attributes:
        m, n: rows and columns of the output that one threadgroup computes.
        simdgroups_m, simdgroups_n: grid of simdgroups that share the block.
        op_m, op_n, op_k: extents of one matmul2d (or simdgroup_matrix) operation; op_k = 0: K is known at run time only.
        cooperating: simdgroups that execute one operation together.
    """

    m: int
    n: int
    simdgroups_m: int
    simdgroups_n: int
    op_m: int
    op_n: int
    op_k: int
    cooperating: int = 1

    def __post_init__(self):
        if self.m % (self.simdgroups_m * self.op_m) or self.n % (self.simdgroups_n * self.op_n):
            fail("tile", f"{self.m}x{self.n} does not divide into {self.simdgroups_m}x{self.simdgroups_n} simdgroups of "
                 f"{self.op_m}x{self.op_n} operations", cls=RuleError)
        if self.threads > 1024:
            fail("tile", f"{self.simdgroups} simdgroups are {self.threads} threads; a threadgroup has at most 1024", cls=RuleError)

    @property
    def simdgroups(self) -> int:
        return self.simdgroups_m * self.simdgroups_n * self.cooperating

    @property
    def threads(self) -> int:
        return self.simdgroups * SIMD_WIDTH

    @property
    def warp_m(self) -> int:
        """Rows of the output that one simdgroup owns."""
        return self.m // self.simdgroups_m

    @property
    def warp_n(self) -> int:
        """Columns of the output that one simdgroup owns."""
        return self.n // self.simdgroups_n

    @property
    def fragments_m(self) -> int:
        """Operations stacked along M in one simdgroup's part."""
        return self.warp_m // self.op_m

    @property
    def fragments_n(self) -> int:
        """Operations side by side along N in one simdgroup's part."""
        return self.warp_n // self.op_n

    @property
    def name(self) -> str:
        together = f"x{self.cooperating}" if self.cooperating > 1 else ""
        return f"bm{self.m}_bn{self.n}_sg{self.simdgroups_m}x{self.simdgroups_n}{together}_op{self.op_m}x{self.op_n}x{self.op_k or 'K'}"


@dataclass(frozen=True)
class Block:
    """How a kernel without matrix operations is divided: threads of a threadgroup."""

    threads: int

    def __post_init__(self):
        if self.threads % SIMD_WIDTH or not 0 < self.threads <= 1024:
            fail("block", f"{self.threads} threads; a threadgroup has whole simdgroups of {SIMD_WIDTH}, at most 1024 threads", cls=RuleError)

    @property
    def simdgroups(self) -> int:
        return self.threads // SIMD_WIDTH

    @property
    def name(self) -> str:
        return f"t{self.threads}"


@dataclass(frozen=True)
class Variant:
    """One kernel, decided.

    Attributes:
        family: name of the kernel family, e.g. "gemm".
        engine: "mpp" (cooperative tensors) or "simdgroup" (simdgroup_matrix).
        dataflow: how operands reach the matrix unit; names the template with family and engine.
        tile: block, simdgroups and operation extents; a Block for a kernel without matrix operations.
        layout: one of LAYOUTS; "" without matrix operations.
        alignment: one of ALIGNMENTS; "" without matrix operations.
        types: element type names of the inputs in order (epilogue operands last), then of the output.
        relaxed: whether f32 operands may lose low bits (descriptor field relaxed_precision).
        batched: whether operands carry three leading batch axes.
        epilogue: what is fused into the store.
        size: name of the size class the row serves, "" for all sizes.
        options: (axis, value) pairs of the dataflow that are not at their default, sorted by axis.
    """

    family: str
    engine: str
    dataflow: str
    tile: Tile | Block
    layout: str
    alignment: str
    types: tuple[str, ...]
    relaxed: bool
    batched: bool = False
    epilogue: Epilogue = Epilogue()
    size: str = ""
    options: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self):
        if self.matrix and (self.layout not in LAYOUTS or self.alignment not in ALIGNMENTS):
            fail("variant", f"layout {self.layout!r}, alignment {self.alignment!r}", cls=RuleError,
                 nearest=f"layouts {', '.join(LAYOUTS)}; alignments {', '.join(ALIGNMENTS)}")

    @property
    def matrix(self) -> bool:
        """Whether the kernel multiplies matrices."""
        return isinstance(self.tile, Tile)

    @property
    def key(self) -> str:
        """Unique, readable name; also the stem of the kernel's name."""
        from .dtypes import element_type

        types = "_".join(element_type(t).short for t in self.types)
        options = "_".join(f"{axis}{value}" for axis, value in self.options)
        precision = ("relaxed" if self.relaxed else "full") if self.matrix else ""
        parts = (self.family, self.engine, self.dataflow, self.layout, self.alignment, types, precision,
                 self.tile.name, "batched" if self.batched else "", self.epilogue.name, options)
        return "_".join(part for part in parts if part)

    @property
    def row(self) -> str:
        """Name of this row inside its set."""
        return "/".join(part for part in (self.size, self.layout, self.alignment) if part) or self.dataflow

    def option(self, axis: str, default: Any) -> Any:
        """Value of an axis of the dataflow."""
        return dict(self.options).get(axis, default)


@dataclass(frozen=True)
class VariantSet:
    """The rows of one (spec, engine, tile), in the order in which they are tried."""

    spec: "GemmSpec"
    engine: str
    rows: tuple[Variant, ...]

    def __post_init__(self):
        names = [v.row for v in self.rows]
        if len(set(names)) != len(names):
            fail("variant", f"rows of a set have distinct names, not {names}", cls=RuleError)
        object.__setattr__(self, "_hash", hash((self.spec, self.engine, self.rows)))  # asked at every launch

    def __hash__(self) -> int:
        return self._hash

    def __getitem__(self, row: str) -> Variant:
        for variant in self.rows:
            if variant.row == row:
                return variant
        fail("variant", f"the set has no row {row!r}", nearest=", ".join(v.row for v in self.rows), cls=RuleError)
