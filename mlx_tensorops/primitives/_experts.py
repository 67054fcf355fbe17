"""Which row of x meets which expert: index arrays, their ranges, and the flat form that kernels take.

Values that the host can see (NumPy arrays, lists) are checked. The values of an MLX array are never asked for, which would wait for
the graph: an id outside the range gives rows of zeros, on every engine.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

from ..errors import DTypeError, ShapeError, fail
from ..plans import TilePlan, numpy_array
from ..rules import dim, eq, every, rule, select
from . import _replay, _shapes
from ._arguments import dtype_name
from ._axes import broadcast, merged
from ._weighted_signature import PLAN


class Rows(NamedTuple):
    """Which rows meet which experts.

    Attributes:
        lhs, rhs: index arrays, or None for MLX's default: all matrices of x, or all experts, in order.
        lhs_known, rhs_known: whether the values are known to be in range.
        sorted: whether the caller promises ascending rhs.
        plan: a tile plan of rhs, or None.
    """

    lhs: Any
    rhs: Any
    lhs_known: bool
    rhs_known: bool
    sorted: bool = False
    plan: Any = None


def on_device(mx, op: str, lhs, rhs, matrices: int, experts: int, ascending: bool, plan) -> Rows:
    """Index arrays of any kind as MLX arrays; the values of those that the host sees are checked."""
    known = not isinstance(lhs, mx.array), not isinstance(rhs, mx.array)
    if not lazy(mx, lhs):
        lhs = checked(mx, op, "lhs_indices", lhs, matrices)
    if not lazy(mx, rhs):
        rhs = checked(mx, op, "rhs_indices", rhs, experts, ascending)
    return Rows(lhs, rhs, *known, bool(ascending), plan)


def checked(mx, op: str, name: str, values, count: int, ascending: bool = False):
    """The values of a NumPy array or a list as an MLX array.

    Raises:
        DTypeError: they are no integers.
        TensorOpsError: one is out of range or, with ``ascending``, out of order.
    """
    import numpy as np

    host = numpy_array(op, name, values)
    if host.size and host.dtype.kind not in "iu":
        fail(op, f"{name} is {host.dtype}; indices are integers", instead="an array or list of integers", cls=DTypeError)
    wrong = np.flatnonzero((host < 0) | (host >= count))
    if wrong.size:
        fail(op, f"{name} holds {host.flat[wrong[0]]} at position {wrong[0]}, which is not one of {count}", nearest=f"0 to {count - 1}",
             instead="an mx.array of ids, whose rows out of range become zeros")
    if ascending and (falls := np.flatnonzero(np.diff(host.ravel()) < 0)).size:
        fail(op, f"sorted_indices=True, but {name} falls from {host.flat[falls[0]]} to {host.flat[falls[0] + 1]} at position {falls[0] + 1}",
             nearest="sorted_indices=False")
    return mx.array(host.astype(np.int32))


def lazy(mx, values) -> bool:
    """Whether the host is not to look at index values: an MLX array's, or none at all."""
    return values is None or isinstance(values, mx.array)


def check_type(mx, op: str, name: str, values) -> None:
    """Refuse an MLX array that holds no integers."""
    if isinstance(values, mx.array) and not mx.issubdtype(values.dtype, mx.integer):
        fail(op, f"{name} is {dtype_name(values.dtype)}; indices are integers", instead=f"{name}.astype(mx.int32)", cls=DTypeError)


def check_pairs(op: str, left: tuple, right: tuple, given: tuple[bool, bool]) -> None:
    """Raise a ShapeError where the index arrays, or the axes that stand for them, do not broadcast."""
    if not _shapes.compatible(left, right):
        names = "lhs_indices" if given[0] else "the leading axes of x", "rhs_indices" if given[1] else "those of the weights"
        fail(op, f"{names[0]} {left} and {names[1]} {right} do not broadcast", instead="reshape or repeat one of them", cls=ShapeError)


def pairs(x_batch: tuple, expert_batch: tuple, lhs, rhs) -> tuple:
    """Leading axes of the result: those of both index arrays, broadcast."""
    return _shapes.broadcast(x_batch if lhs is None else lhs.shape, expert_batch if rhs is None else rhs.shape)


def is_plan(op: str, plan) -> None:
    """Refuse what is no plan."""
    if not isinstance(plan, TilePlan):
        fail(op, f"plan is a {type(plan).__name__}", instead="mlx_tensorops.tile_plan(expert_ids, num_experts=...)", cls=DTypeError)


def check_plan(op: str, plan, experts: int, batch: tuple, m: int) -> None:
    """Refuse what is no plan, or a plan of other rows or experts."""
    is_plan(op, plan)
    if plan.num_experts != experts:
        fail(op, f"plan is for {plan.num_experts} experts, the weights hold {experts}", nearest=f"num_experts={experts}", cls=ShapeError)
    count = math.prod(batch) * m
    if plan.rows != count:
        ids = "rhs_indices" if m == 1 else f"mx.repeat(rhs_indices, {m}): each index stands for {m} rows"
        fail(op, f"plan orders {plan.rows} rows, and this call has {count}", nearest=str(count), instead=f"tile_plan of {ids}", cls=ShapeError)


def check_rows(op: str, plan, rhs, batch: tuple, m: int) -> None:
    """Refuse a plan of other indices, where the host knows both; ``rhs`` is a NumPy array, or an MLX array that was made of one."""
    import numpy as np

    planned = plan.expert_of_row
    if planned is None:
        return
    ids = np.repeat(np.broadcast_to(np.array(rhs), batch).reshape(-1), m)
    if (wrong := np.flatnonzero(ids != planned)).size:
        row = wrong[0]
        fail(op, f"plan is of other indices: it has row {row} with expert {planned[row]}, and rhs_indices name {ids[row]}",
             instead="tile_plan of these rhs_indices")


def plan_arrays(plan) -> dict:
    """The arrays of a plan that kernels read, by name."""
    return {name: getattr(plan, name) for name in PLAN}


def of_plan(mx, plan):
    """Expert of each row, -1 for none, from the arrays of a plan by name; its tiles may stand in any order."""
    rows = plan["order"].shape[0]
    value = plan["tile_expert"] + 1
    steps = mx.zeros(rows + 1, mx.int32).at[plan["tile_row_start"]].add(value)
    steps = steps.at[plan["tile_row_start"] + plan["tile_row_count"]].add(-value)
    return mx.zeros(rows, mx.int32).at[plan["order"]].add(mx.cumsum(steps)[:rows]) - 1


def in_range(mx, ids, count: int):
    """Where ids name one of ``count``."""
    below = ids < count
    return below if ids.dtype in _unsigned(mx) else (ids >= 0) & below


def clamped(mx, ids, count: int):
    """Ids moved into the range; ascending ones stay ascending."""
    return mx.minimum(ids, count - 1) if ids.dtype in _unsigned(mx) else mx.clip(ids, 0, count - 1)


@lru_cache(maxsize=1)
def _unsigned(mx) -> frozenset:
    return frozenset((mx.uint8, mx.uint16, mx.uint32, mx.uint64))


def to_int32(mx, ids, count: int):
    """Ids as int32; those out of range stay so."""
    if ids.dtype in (mx.int64, mx.uint64):
        ids = mx.clip(ids, 0 if ids.dtype == mx.uint64 else -1, count)
    return ids.astype(mx.int32)  # uint32 beyond int32 becomes negative


def default(mx, batch: tuple):
    """MLX's index array where none is given: every matrix of ``batch``, in order."""
    return mx.arange(math.prod(batch), dtype=mx.int32).reshape(batch)


def flat_ids(mx, rhs, m: int, expert_batch: tuple, batch: tuple):
    """Expert id of each row of the flat result, int32 ``(rows,)``; ids out of range stay so."""
    ids = default(mx, expert_batch) if rhs is None else to_int32(mx, rhs, math.prod(expert_batch))
    ids = merged(mx, broadcast(mx, ids, batch), 0)
    return mx.repeat(ids, m) if m > 1 else ids


def flat_rows(mx, lhs, x: tuple, batch: tuple):
    """Row of x that each row of the flat result multiplies, int32 ``(rows,)``, moved into the range.

    None where row r of R multiplies row r // (R / X) of x's X rows, which kernels know by themselves.
    """
    m, own = x[-2], x[:-2]
    if lhs is not None:
        source = clamped(mx, to_int32(mx, lhs, math.prod(own)), math.prod(own))
    elif _leads(own, batch) and (m == 1 or _aligned(own, batch) == tuple(batch)):  # counts agree for no rows, too
        return None
    else:
        source = default(mx, own)
    source = merged(mx, broadcast(mx, source, batch), 0)
    return (source[:, None] * m + mx.arange(m, dtype=mx.int32)).reshape(-1) if m > 1 else source


@lru_cache(maxsize=1024)
def _result_axes(op: str, axes: tuple, leads: bool, m: int, fixed: tuple) -> _replay.Axes:
    """Axes of the result from the shapes of x, of lhs if there is one, and of rhs, or the weights in its place.

    Args:
        axes: number of axes of each, of x and the weights without their matrices'; None for no lhs.
        leads: whether row r of R multiplies row r // (R / X) of x's X rows, as ``flat_rows`` found.
        m: rows of a matrix of x where ids stand for several, else 0.
        fixed: (number of the array, sizes) whose leading axes must be those of the trace.
    """
    x, lhs, rhs = axes
    left = [dim(1 if lhs is None else 2, axis) for axis in range(x if lhs is None else lhs)]
    right = [dim(2 if lhs is None else 3, axis) for axis in range(rhs)]
    count = max(len(left), len(right))
    left, right = ([rule(1)] * (count - len(side)) + side for side in (left, right))
    sizes = [select(eq(a, 1), b, a) for a, b in zip(left, right)]
    checks = [(every(*(eq(a, 1) | eq(b, 1) | eq(a, b) for a, b in zip(left, right))), "the leading axes of x and the indices must broadcast")]
    if leads:
        one = [eq(a, 1) for a in left]
        checks.append((every(*(eq(a, size) | every(*one[i:]) for i, (a, size) in enumerate(zip(left, sizes)))),
                       "traced where x repeats along the last axes of the indices alone"))
    if m:
        checks.append((eq(dim(1, -2), m), f"traced for {m} rows of x to an index"))
        whole = rule(1)
        for a, b in zip(left, right):
            whole = every(whole, eq(a, b))
        checks += [(whole, "traced for one index to each matrix of x")] if leads else []
    for number, shape in fixed:
        checks.append((every(*(eq(dim(number, axis), size) for axis, size in enumerate(shape))), f"traced for leading axes {shape}"))
    return _replay.Axes(op, 3 if lhs is None else 4, (*sizes, dim(1, -2)), tuple(checks))


def as_result(mx, op: str, x, w, rows: Rows, leads: bool):
    """A function that gives a flat result ``[rows, N]`` its leading axes, those of the indices and the rows of x's matrices."""
    lhs, rhs = rows.lhs, rows.rhs
    fixed = ()
    if lhs is not None or not leads:
        fixed += ((1, x.shape[:-2]),)  # the range of lhs, or the row numbers made here
    if lhs is None and not leads and rhs is not None:
        fixed += ((2, rhs.shape),)
    if rhs is None:
        fixed += ((2 if lhs is None else 3, w.shape[:-2]),)
    axes = x.ndim - 2, None if lhs is None else lhs.ndim, w.ndim - 2 if rhs is None else rhs.ndim
    how = _result_axes(op, axes, leads, x.shape[-2] if x.shape[-2] != 1 else 0, fixed)
    like = (x, *(() if lhs is None else (lhs,)), w if rhs is None else rhs)
    return lambda y: how.of(mx, y, *like)


def _aligned(own: tuple, batch: tuple) -> tuple:
    """``own`` with as many axes as ``batch``."""
    return (1,) * (len(batch) - len(own)) + tuple(own)


def _leads(own: tuple, batch: tuple) -> bool:
    """Whether ``own`` is ``batch`` with all axes from some point on set to 1."""
    own = _aligned(own, batch)
    equal = 0
    while equal < len(batch) and own[equal] == batch[equal]:
        equal += 1
    return all(size == 1 for size in own[equal:])
