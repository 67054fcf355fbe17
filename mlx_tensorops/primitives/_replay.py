"""Leading axes of results in graphs that ``mx.compile(shapeless=True)`` replays with other sizes.

MLX's reshape keeps the sizes of the trace: in a replay it raises or, where the number of elements agrees, gives the old sizes in
silence (MLX 0.32.4). The extension's split takes them from the inputs of the replay.
"""

from __future__ import annotations

from functools import lru_cache

from ..errors import lesson
from ..rules import Rule, dim, eq, every
from . import _native


class Axes:
    """How an array's first axis becomes several: rules that count the array as input 0 and those that give their shapes from 1 on.

    Args:
        checks: (rule, what must hold) pairs, looked at when traced and in every replay.
    """

    def __init__(self, op: str, inputs: int, sizes: tuple[Rule, ...], checks: tuple[tuple[Rule, str], ...] = ()):
        self._sizes = sizes
        self._native = None
        if _native.status()[0]:
            said = [(rule.program(), lesson(op, what, instead="trace the graph again for these shapes")) for rule, what in checks]
            self._native = _native.ext().Split(op, inputs, [rule.program() for rule in sizes], said)
            self._split = _native.ext().split

    def of(self, mx, y, *like):
        """y with its first axis as these axes: a view. Nothing of a gradient goes to ``like``."""
        if self._native is None:  # no kernels either: engine mlx alone, whose operations make no promise for replays
            shapes = [x.shape for x in (y, *like)]
            return mx.reshape(y, (*(size(shapes) for size in self._sizes), *y.shape[1:]))
        return self._split(self._native, [y, *(mx.stop_gradient(x) if mx.issubdtype(x.dtype, mx.inexact) else x for x in like)])


@lru_cache(maxsize=None)
def _leading(op: str, axes: int, addends: tuple[int, ...]) -> Axes:
    fits = [every(*(eq(dim(i, -a), 1) | eq(dim(i, -a), dim(1, -a)) for a in range(2, ndim + 1))) for i, ndim in enumerate(addends, 2)]
    return Axes(op, 2 + len(addends), tuple(dim(1, axis) for axis in range(axes)),
                tuple((rule, "bias and residual must broadcast to the result") for rule in fits))


def like(mx, op: str, y, x, keep: int, addends: tuple = ()):
    """y with its first axis as the axes of x but the last ``keep``; a replay raises where the leading axes of ``addends``, which y merged
    before they were added, do not broadcast to those of x."""
    axes = x.ndim - keep
    if axes == 1:
        return y
    return _leading(op, axes, tuple(value.ndim for value in addends)).of(mx, y, x, *addends) if axes else mx.squeeze(y, 0)


@lru_cache(maxsize=256)
def _fixed(op: str, shapes: tuple[tuple[int, ...], ...]) -> Axes:
    same = every(*(eq(dim(i, axis), size) for i, shape in enumerate(shapes, 1) for axis, size in enumerate(shape)))
    return Axes(op, 1 + len(shapes), (dim(0, 0),), ((same, f"a shapeless graph of this form serves the traced shapes alone, {', '.join(map(str, shapes))}"),))


def traced() -> bool:
    """Whether a shapeless graph is being traced, as far as the extension can say."""
    return _native.status()[0] and _native.ext().in_shapeless_trace()


def fixed(mx, op: str, y, *like):
    """y as it is; a replay raises where the shapes of ``like`` are not those of the trace."""
    return _fixed(op, tuple(x.shape for x in like)).of(mx, y, *like)


@lru_cache(maxsize=None)
def _some(op: str, axes: int) -> Axes:
    held = every(*(dim(1, axis) > 0 for axis in range(axes)))
    return Axes(op, 2, (dim(0, 0),), ((held, "MLX's own operation is replayed without rows, which it does not survive"),))


def some(mx, op: str, y, x):
    """y as it is; a replay raises where x has no elements."""
    return _some(op, x.ndim).of(mx, y, x)
