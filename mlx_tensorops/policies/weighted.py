"""Size classes that the tables of products with stored weights share. A class ends where the next larger block would not be half empty."""

from __future__ import annotations

from ..rules import rule


def few(rows, experts):
    """Whether so few rows meet so many experts that most share their weights with no other row; for sizes and for rules.

    16 rows are MLX 0.32.4's bound for one matrix-vector product per row. It also takes them below 4 rows per expert, where a block of 16 rows
    reads an expert's weights once, and a product per row reads them for each; so here the bound is 1. Not measured.
    """
    return (rows < 16) | (rows < experts)


SIZES = {
    "few": lambda f: few(f.M, f.experts),
    "m4": lambda f: f.M <= 4,
    "m16": lambda f: f.M <= 16,
    "m32": lambda f: f.M <= 32,
    "": lambda f: rule(1),
}
