"""Tile plans: which rows belong to which expert, cut into tiles that never straddle two of them.

A plan is arrays and nothing else that changes with the routing: it goes into a compiled graph as inputs
(``plan.arrays``), and one plan serves every projection of a layer.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .errors import DTypeError, ShapeError, TensorOpsError, fail

OP = "tile_plan"
MOST = 2**31 - 1  # a plan counts with int32
ARRAYS = ("tile_expert", "tile_row_start", "tile_row_count", "order", "inverse", "dropped")


@dataclass(frozen=True, eq=False, repr=False)
class TilePlan:
    """Rows grouped by expert, in tiles of at most ``block_m`` rows.

    Sorted positions ``start .. start + count - 1`` of a tile are rows of its expert. Tiles with rows stand first, the rest is
    an inert tail: expert -1, start = rows, count 0. Rows whose id names no expert are the last positions, in tiles of expert -1
    with a count: kernels write zeros there.

    A plan of arrays that the host knows (NumPy, lists) is checked when it is made: ranges, coverage, overlap, and that order and
    inverse are permutations that undo each other. Tiles may then be fewer, smaller and in any order. A plan of MLX arrays is not evaluated;
    ``check()`` does: before a kernel walks one that tile_plan did not make, since the Metal engines leave a row undefined that is in no tile.

    Attributes:
        tile_expert, tile_row_start, tile_row_count: int32 ``(tiles,)``.
        order: int32 ``(rows,)``: sorted position -> row of the flattened ids. Rows of one expert keep their order.
        inverse: int32 ``(rows,)``: row -> sorted position.
        dropped: int32 ``(1,)``: rows whose id names no expert.
        num_experts: ids are 0 .. num_experts - 1.
        block_m: most rows of a tile.
    """

    tile_expert: Any
    tile_row_start: Any
    tile_row_count: Any
    order: Any
    inverse: Any
    dropped: Any
    num_experts: int
    block_m: int

    def __post_init__(self):
        import mlx.core as mx

        num_experts = positive("num_experts", self.num_experts)
        block_m = positive("block_m", self.block_m)
        arrays = {name: getattr(self, name) for name in ARRAYS}
        on_host = not any(isinstance(x, mx.array) for x in arrays.values())
        if on_host:
            arrays = {name: host_integers(name, x) for name, x in arrays.items()}
        else:
            arrays = {name: _int32(mx, name, x) for name, x in arrays.items()}
        _check_shapes({name: tuple(x.shape) for name, x in arrays.items()})
        known = None
        if on_host:
            _check_values(arrays, num_experts, block_m)
            known = _useful_and_walked(arrays)
            arrays = {name: mx.array(x.astype("int32")) for name, x in arrays.items()}
        for name, value in {**arrays, "num_experts": num_experts, "block_m": block_m, "_known": known}.items():
            object.__setattr__(self, name, value)

    @property
    def rows(self) -> int:
        """Number of rows that were sorted."""
        return self.order.shape[0]

    @property
    def tiles(self) -> int:
        """Number of tiles, the inert ones too."""
        return self.tile_expert.shape[0]

    @property
    def arrays(self) -> tuple:
        """The six arrays in order, for a compiled function: ``TilePlan(*arrays, num_experts=..., block_m=...)`` inside it."""
        return tuple(getattr(self, name) for name in ARRAYS)

    @cached_property
    def expert_of_row(self):
        """Expert of each row as a NumPy array, -1 for none, where the host knows the arrays; else None."""
        import numpy as np

        if self._known is None:
            return None
        expert, start, count, order = (np.array(x) for x in self.arrays[:4])
        position = np.arange(order.size) + np.repeat(start - (np.cumsum(count) - count), count)
        found = np.empty_like(order)
        found[order[position]] = np.repeat(expert, count)
        return found

    def check(self) -> None:
        """Evaluate the arrays and raise a TensorOpsError where the plan contradicts itself."""
        _check_values(self._on_host(), self.num_experts, self.block_m)

    def utilisation(self) -> float:
        """Rows of experts / rows that the tiles with rows could hold; 1.0 for no rows. Evaluates the arrays of a device plan."""
        useful, walked = self._known or _useful_and_walked(self._on_host())
        return useful / (walked * self.block_m) if walked else 1.0

    def __repr__(self) -> str:
        text = f"TilePlan({self.rows} rows, {self.num_experts} experts, block_m {self.block_m}, {self.tiles} tiles"
        if self._known:
            text += f", {self._known[1]} of them with rows: {self.utilisation():.0%} useful"
        return text + ")"

    def _on_host(self) -> dict:
        import numpy as np

        return {name: np.array(getattr(self, name)) for name in ARRAYS}


def positive(name: str, value: Any, least: int = 1) -> int:
    """The value as an int of at least ``least``."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        fail(OP, f"{name} is {value!r}", nearest=f"a whole number of at least {least}", cls=DTypeError)
    if not least <= number <= MOST:
        fail(OP, f"{name} = {number}", nearest=str(min(max(number, least), MOST)), cls=ShapeError)
    return number


def tile_count(rows: int, num_experts: int, block_m: int) -> int:
    """As many tiles as any ids can need: each bin (expert, or dropped) ends in at most one tile that is not full."""
    tiles = -(-rows // block_m) + num_experts
    if rows > MOST or tiles > MOST:
        fail(OP, f"{rows} rows in {tiles} tiles; a plan counts with int32", nearest=f"{MOST} of each", instead="split the rows", cls=ShapeError)
    return tiles


def known_ids(ids, num_experts: int):
    """NumPy integers in one row; one that names no expert is an error."""
    import numpy as np

    flat = ids.reshape(-1)
    wrong = (flat < 0) | (flat >= num_experts)
    if wrong.any():
        first = int(wrong.argmax())
        where = ", ".join(map(str, np.unravel_index(first, ids.shape)))
        fail(OP, f"expert_ids[{where}] = {flat[first]}, but num_experts = {num_experts}", nearest=f"0 .. {num_experts - 1}",
             instead="a device plan (an mx.array of ids) drops such rows: they give zeros")
    return flat


def from_ids(ids, num_experts: int, block_m: int) -> TilePlan:
    """The plan of a NumPy array of integers; an id out of range is an error."""
    import numpy as np

    flat = known_ids(ids, num_experts)
    tile_count(flat.size, num_experts, block_m)
    counts = np.bincount(flat.astype(np.int64), minlength=num_experts)
    return _plan(counts, np.argsort(flat, kind="stable"), block_m)


def known_counts(offsets):
    """Rows of each expert, of NumPy integers that must ascend from 0."""
    import numpy as np

    if offsets[0] != 0:
        fail(OP, f"offsets[0] = {offsets[0]}", nearest="0")
    counts = np.diff(offsets.astype(np.int64))
    if (counts < 0).any():
        e = int((counts < 0).argmax())
        fail(OP, f"offsets[{e + 1}] = {offsets[e + 1]} is below offsets[{e}] = {offsets[e]}", nearest=str(offsets[e]))
    return counts


def from_offsets(offsets, block_m: int) -> TilePlan:
    """The plan of sorted rows: of NumPy integers, num_experts + 1 of them; they must ascend from 0."""
    import numpy as np

    counts = known_counts(offsets)
    tile_count(int(offsets[-1]), counts.size, block_m)
    return _plan(counts, np.arange(offsets[-1]), block_m)


def _plan(counts, order, block_m: int) -> TilePlan:
    """The plan of rows per expert and the sorted order."""
    import numpy as np

    rows, experts = order.size, counts.size
    tiles_of = -(-counts // block_m)
    used, total = int(tiles_of.sum()), tile_count(rows, experts, block_m)
    owner = np.repeat(np.arange(experts), tiles_of)
    number = np.arange(used) - np.repeat(np.cumsum(tiles_of) - tiles_of, tiles_of)  # of the tile within its expert
    expert, start, count = np.full(total, -1), np.full(total, rows), np.zeros(total, np.int64)
    expert[:used] = owner
    start[:used] = (np.cumsum(counts) - counts)[owner] + number * block_m
    count[:used] = np.minimum(counts[owner] - number * block_m, block_m)
    inverse = np.empty(rows, np.int64)
    inverse[order] = np.arange(rows)
    return TilePlan(expert, start, count, order, inverse, np.zeros(1, np.int64), experts, block_m)


def _int32(mx, name: str, x: Any):
    """An array of a plan that is not known on the host."""
    x = x if isinstance(x, mx.array) else mx.array(host_integers(name, x).astype("int32"))
    if x.dtype != mx.int32:
        fail(OP, f"{name} is {str(x.dtype).rsplit('.', 1)[-1]}", nearest="int32", instead=f"{name}.astype(mx.int32)", cls=DTypeError)
    return x


def numpy_array(op: str, name: str, x: Any):
    """Lists as a NumPy array, which they must fill."""
    import numpy as np

    try:
        return np.asarray(x)
    except ValueError:
        if not isinstance(x, (list, tuple)):  # an mx.array that is traced has a reason of its own
            raise
        fail(op, f"{name} is a {type(x).__name__} whose rows differ in length", nearest="rows of one length", cls=ShapeError)


def host_integers(name: str, x: Any):
    """A NumPy array of integers; an empty list counts as one. Evaluates an ``mx.array``."""
    import numpy as np

    x = numpy_array(OP, name, x)
    if x.size == 0:
        x = x.astype(np.int64)
    if x.dtype.kind not in "iu":
        fail(OP, f"{name} is {x.dtype}", nearest="an integer type", cls=DTypeError)
    return x


def _check_shapes(shapes: dict[str, tuple]) -> None:
    sizes = {"tile_expert": shapes["tile_expert"], "tile_row_start": shapes["tile_expert"], "tile_row_count": shapes["tile_expert"],
             "order": shapes["order"], "inverse": shapes["order"], "dropped": (1,)}
    for name, shape in shapes.items():
        if len(shape) != 1 or shape != sizes[name]:
            nearest = sizes[name] if len(sizes[name]) == 1 else "one axis"
            fail(OP, f"{name} has shape {shape}", nearest=nearest, cls=ShapeError)


def _check_values(arrays: dict, num_experts: int, block_m: int) -> None:
    """Raise the lesson of the first rule that a plan breaks."""
    import numpy as np

    expert, start, count = (arrays[name].astype(np.int64) for name in ("tile_expert", "tile_row_start", "tile_row_count"))
    order, inverse = arrays["order"], arrays["inverse"]
    rows = order.size
    _every(expert, (expert >= -1) & (expert < num_experts), "tile_expert", f"-1 .. {num_experts - 1}")
    _every(count, (count >= 0) & (count <= block_m), "tile_row_count", f"0 .. block_m = {block_m}")
    _every(start, (start >= 0) & (start + count <= rows), "tile_row_start", f"the tile's rows within 0 .. {rows - 1}")
    _every(order, (order >= 0) & (order < rows), "order", f"0 .. {rows - 1}")
    _every(inverse, (inverse >= 0) & (inverse < rows), "inverse", f"0 .. {rows - 1}")
    _every(order, inverse[order] == np.arange(rows), "order", "a permutation that inverse undoes")
    walked = np.flatnonzero(count)[np.argsort(start[count > 0], kind="stable")]
    ends = np.concatenate([[0], (start + count)[walked]])
    begins = np.concatenate([start[walked], [rows]])
    for before, after in zip(ends[ends != begins][:1], begins[ends != begins][:1]):
        if after > before:
            fail(OP, f"positions {before} .. {after - 1} are in no tile", nearest="every position in exactly one tile")
        fail(OP, f"position {after} is in two tiles", nearest="every position in exactly one tile")
    lost = int(count[expert < 0].sum())
    if lost != arrays["dropped"][0]:
        fail(OP, f"dropped = {arrays['dropped'][0]}, but tiles of expert -1 hold {lost} rows", nearest=str(lost))


def _every(values, holds, name: str, rule: str) -> None:
    if not holds.all():
        i = int((~holds).argmax())
        fail(OP, f"{name}[{i}] = {values[i]}", nearest=rule, cls=TensorOpsError)


def _useful_and_walked(arrays: dict) -> tuple[int, int]:
    """Rows of experts, and tiles with rows."""
    count = arrays["tile_row_count"]
    return int(count[arrays["tile_expert"] >= 0].sum()), int((count > 0).sum())
