"""What ``mx.matmul`` refuses, told before anything is enqueued."""

from __future__ import annotations

from typing import Callable

from .. import guards
from ..errors import ShapeError, fail
from ..signature import of as signature_of
from . import _shapes
from ._shapes import broadcast

OP = "matmul"


def of(decision) -> Callable:
    """The guard of a decision: a function of both operands' shapes."""
    spec = decision.spec
    if decision.variants is not None and spec.a_ndim == spec.b_ndim == 2 and not spec.epilogue:
        return guards.compiled(OP, ("a", "b"), signature_of(decision.variants.rows[0]).checks)
    return as_mlx


def as_mlx(a: tuple, b: tuple) -> None:
    """Raise a ShapeError where ``mx.matmul`` would refuse these shapes."""
    if len(a) == 2 == len(b):  # the usual case, in one comparison
        if a[1] == b[0]:
            return
    elif a and b:
        if a[-1] == b[-2 if len(b) > 1 else 0] and broadcast(a[:-2], b[:-2]) is not None:
            return
    if not a or not b:
        fail(OP, f"a has shape {a} and b has shape {b}: a scalar is no matrix", instead="multiply with *", cls=ShapeError)
    rows = b[-2 if len(b) > 1 else 0]
    if a[-1] != rows:
        hint = "b.swapaxes(-1, -2)" if a[-1] == b[-1] else "slice or pad one of them"
        fail(OP, f"a has shape {a}, so K = {a[-1]}, but b has shape {b}, so K = {rows}", nearest=f"K = {min(a[-1], rows)}",
             instead=hint, cls=ShapeError)
    fail(OP, f"leading axes {a[:-2]} of a and {b[:-2]} of b do not broadcast", instead="reshape or repeat one of them", cls=ShapeError)


def result_shape(a: tuple, b: tuple) -> tuple:
    """Shape of ``a @ b``."""
    return broadcast(a[:-2], b[:-2]) + (a[-2:-1] if len(a) > 1 else ()) + (b[-1:] if len(b) > 1 else ())


def broadcasts_to(name: str, shape: tuple, result: tuple) -> None:
    """Raise a ShapeError unless ``shape`` broadcasts to ``result`` without widening it."""
    _shapes.broadcasts_to(OP, name, shape, result)
