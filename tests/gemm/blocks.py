"""Problems and planted bugs for dataflows whose threadgroups work on one block together."""

from __future__ import annotations

from contextlib import contextmanager

import mlx.core as mx
import numpy as np
import pytest

from mlx_tensorops import reference
from mlx_tensorops.primitives import _enqueue
from mlx_tensorops.shaders import render as renderer
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


@contextmanager
def planted(before: str, after: str, *more: tuple[str, str]):
    """The kernels' emitted text, corrupted; a bug may take several changes."""
    right, changes = renderer.render, ((before, after), *more)
    changed = dict.fromkeys(changes, False)

    def corrupted(variant):
        source = right(variant)
        text = source.text
        for change in changes:
            changed[change] |= change[0] in text
            text = text.replace(*change)
        return renderer.Source(text, source.kernel, source.digest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_enqueue, "render", corrupted)
        _enqueue.native_set.cache_clear()
        try:
            yield
        finally:
            _enqueue.native_set.cache_clear()
    missing = [text for (text, _), found in changed.items() if not found]
    assert not missing, f"the text has no {missing}"


def caught(variants, a, b, **emulation) -> str | None:
    """How the checked emulator or float64 tells that the kernel is wrong; None: it does not."""
    try:
        c, _ = flows.run(variants, a, b, checked=True, **emulation)
    except (RuntimeError, ValueError) as found:
        text = str(found)
        assert "the emulator found" in text or "does not compile" in text, text
        return text
    with np.errstate(all="ignore"):
        difference = np.abs(reference.to_float64(c) - reference.gemm(a, b))
        return None if np.all(difference <= reference.gemm_bound(a, b, variants.spec.out)) else "wrong values"


def right(variants, a, b, **emulation) -> dict:
    """Runs a set on two operands, holds the result against float64, and returns the dispatch record."""
    c, dispatch = flows.run(variants, a, b, **emulation)
    assert judge.errors_over_bound(a, b, c, variants.spec.out) <= 1, (dispatch["row"], emulation)
    return dispatch
