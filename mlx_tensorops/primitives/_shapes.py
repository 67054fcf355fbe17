"""Broadcasting of shapes, and what does not broadcast told as a lesson."""

from __future__ import annotations

from ..errors import ShapeError, fail

def compatible(a: tuple, b: tuple) -> bool:
    """Whether two shapes broadcast together."""
    if a != b:
        for x, y in zip(a[::-1], b[::-1]):
            if x != y and x != 1 and y != 1:
                return False
    return True


def broadcast(a: tuple, b: tuple) -> tuple | None:
    """The shape that two shapes broadcast to, or None."""
    if a == b:
        return a
    if not compatible(a, b):
        return None
    size = max(len(a), len(b))
    a, b = (1,) * (size - len(a)) + tuple(a), (1,) * (size - len(b)) + tuple(b)
    return tuple(y if x == 1 else x for x, y in zip(a, b))


def broadcasts_to(op: str, name: str, shape: tuple, result: tuple) -> None:
    """Raise a ShapeError unless ``shape`` broadcasts to ``result`` without widening it."""
    if len(shape) > len(result) or any(s not in (1, r) for s, r in zip(reversed(shape), reversed(result))):
        fail(op, f"{name} has shape {tuple(shape)}, which does not broadcast to the result's {tuple(result)}",
             nearest=str(tuple(result)), instead=f"reshape {name}", cls=ShapeError)
