"""Calls that were resolved to a native product: found again, checked and added to the graph inside one native call."""

from __future__ import annotations

from typing import Any

from .. import config
from . import _native


class Warm:
    """The warm calls of one operation.

    Attributes:
        call: ``(stream, arrays, words) -> result``; None where no such call was learned, or its arrays do not fit: the full call follows,
            which knows why. Arrays may be tuples of arrays; words are texts, whole numbers, bools, types and None.
    """

    __slots__ = ("call", "_calls")

    def __init__(self):
        self.clear()

    def clear(self) -> None:
        """Forget all."""
        self._calls, self.call = None, _unknown

    def learn(self, arrays: tuple, words: tuple, product: Any) -> None:
        """Give such calls to a native product from now on; None: to the full call."""
        if product is None:
            return
        if self._calls is None:
            self._calls = _native.ext().WarmCalls(config.contexts)
            self.call = self._calls.call
        self._calls.learn(arrays, words, product)

    def __len__(self) -> int:
        return 0 if self._calls is None else len(self._calls)


def _unknown(stream, arrays, words) -> None:
    return None
