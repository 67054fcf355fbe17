"""Bugs planted into the text of kernels, and how they show: a check must be able to fail."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Callable

import numpy as np
import pytest

from mlx_tensorops.primitives import _enqueue
from mlx_tensorops.shaders import render as renderer


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


def caught(run: Callable[[], object], over_bound: Callable[[object], float], *, compiles: bool = True) -> str | None:
    """How a kernel shows that it is wrong; None: it does not.

    Args:
        run: one launch in the checked emulator, whose findings count.
        over_bound: |error| / bound of what the launch gave; results that it refuses count.
        compiles: whether the text must compile; otherwise an error of the compiler counts, too.
    """
    try:
        result = run()
    except (RuntimeError, ValueError) as found:
        text = str(found)
        assert "the emulator found" in text or not compiles and "does not compile" in text, text
        return text
    try:
        with np.errstate(all="ignore"):
            return None if over_bound(result) <= 1 else "wrong values"
    except AssertionError as found:
        return f"wrong values: {found}"
