"""Rows of experts."""

from __future__ import annotations

from tests.weighted import shapes


def example_shapes(variant) -> tuple[tuple[int, ...], ...]:
    """Shapes of inputs that every variant of the table takes."""
    return shapes.of(variant)
