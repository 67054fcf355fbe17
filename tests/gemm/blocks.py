"""Problems and planted bugs for dataflows whose threadgroups work on one block together."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from tests import planted
from tests.cases.gemm import make
from tests.gemm import flows, judge

VIEW = {"n": "rows", "t": "columns"}


def views(layout: str) -> tuple[str, str]:
    """Views of a and b that a row of this layout takes."""
    return ("every_other", "reversed") if layout == "strided" else (VIEW[layout[0]], VIEW[layout[1]])


def operands(layout: str, m: int, n: int, k: int, types: tuple[str, str], seed: int) -> tuple[mx.array, mx.array]:
    """a and b in this layout."""
    a_view, b_view = views(layout)
    rng = np.random.default_rng(seed)
    return make(a_view, m, k, types[0], rng), make(b_view, k, n, types[1], rng)


def sizes(variant, k: int) -> tuple[int, int, int]:
    """M, N, K of two blocks by one and K = ``k``, made ragged where the row is."""
    m, n = 2 * variant.tile.m, variant.tile.n
    if variant.alignment == "ragged_m":
        return m - 5, n, k
    return (m, n, k) if variant.alignment == "aligned" else (m + 3, n + 13, k + 5)


def caught(variants, a, b, **emulation) -> str | None:
    """How the checked emulator or float64 tells that the kernel is wrong; None: it does not."""
    return planted.caught(lambda: flows.run(variants, a, b, checked=True, **emulation)[0], lambda c: judge.errors_over_bound(a, b, c, variants.spec.out),
                          compiles=False)


def right(variants, a, b, **emulation) -> dict:
    """Runs a set on two operands, holds the result against float64, and returns the dispatch record."""
    c, dispatch = flows.run(variants, a, b, **emulation)
    assert judge.errors_over_bound(a, b, c, variants.spec.out) <= 1, (dispatch["row"], emulation)
    return dispatch
