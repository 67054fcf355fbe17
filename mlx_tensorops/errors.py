"""Exceptions, and the one formatter every message goes through.

An error is a small lesson: which operation, which argument and value, the rule, the nearest legal
value, and what would work instead.
"""

from __future__ import annotations

from typing import NoReturn


class TensorOpsError(ValueError):
    """Base of every error this package raises on purpose."""


class ShapeError(TensorOpsError):
    """Ranks, sizes or strides that the operation cannot take."""


class DTypeError(TensorOpsError):
    """Element types that the operation or the named engine cannot take."""


class EngineError(TensorOpsError):
    """An engine that does not exist, or that is not legal here for this call."""


class NativeError(TensorOpsError):
    """The compiled extension is missing, or does not fit the installed MLX."""


class RuleError(TensorOpsError):
    """A description (tile, variant, rule) that contradicts itself."""


def lesson(op: str, what: str, *, nearest: object = None, instead: str | None = None) -> str:
    """``[op] what.`` and, each on a line of its own, the nearest legal value and the way out."""
    lines = [f"[{op}] {what.rstrip('.')}."]
    if nearest is not None:
        lines.append(f"  nearest legal: {nearest}")
    if instead is not None:
        lines.append(f"  instead: {instead}")
    return "\n".join(lines)


def fail(
    op: str,
    what: str,
    *,
    nearest: object = None,
    instead: str | None = None,
    cls: type[TensorOpsError] = TensorOpsError,
) -> NoReturn:
    """Raise ``cls`` with the text of :func:`lesson`."""
    raise cls(lesson(op, what, nearest=nearest, instead=instead))
