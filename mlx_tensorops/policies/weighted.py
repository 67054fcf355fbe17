"""What the tables of products with stored weights share: size classes, and what devices change.

A class ends where the next larger block would not be half empty.
"""

from __future__ import annotations

from dataclasses import replace

from ..rules import rule
from .entries import Entry


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

# Small activations are subnormal in half, and lost where the matrix unit flushes those: at sigma 0.01 an emulated result is off by 2.3
# roundings, at 0.003 by 11 (tests/qgemm/test_scales.py).
_SCALED_WHY = "; matmul2d reads half subnormals as zero here, so that each row of x is multiplied under a power of two of its own"


def scaled(entry: Entry) -> Entry:
    """An entry of engine mpp as it is for float16 activations where half subnormals are flushed."""
    return replace(entry, options=(*entry.options, ("operands", "half_scaled")), why=entry.why + _SCALED_WHY, x="float16")


def all_scaled(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """Those of a table that can be taken there and nowhere else."""
    return tuple(scaled(e) for e in entries if e.engine == "mpp")


def on_device(entries: tuple[Entry, ...], spec, device) -> tuple[Entry, ...]:
    """The entries for a spec on a device; None: on one of which nothing special is known."""
    if device is None or not device.flushes_half or spec.x != "float16":
        return entries
    return tuple(scaled(e) if e.engine == "mpp" else e for e in entries)
