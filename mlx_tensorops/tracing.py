"""Which engine answered, and what was really dispatched: a context manager for tests and for the curious."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field
from typing import Any

recording: list["Trace"] = []  # traces that are open; empty almost always, so that the warm path pays one truth test
_lock = threading.Lock()
CAPACITY = 65536  # records one trace keeps; the oldest go first


@dataclass
class Call:
    """One call of a public operation, when its graph node was built."""

    op: str
    engine: str
    why: str
    shapes: tuple


@dataclass(eq=False)
class Trace:
    """What happened inside a ``trace()`` block.

    Attributes:
        calls: public operations, in order.
        dispatches: kernels that ran: dictionaries with op, row, kernel, backend ("hostmetal" or "metal"), grid, threads
            and, where they were emulated, counters. Filled when the block ends.
    """

    calls: list[Call] = field(default_factory=list)
    dispatches: list[dict[str, Any]] = field(default_factory=list)

    def total(self, counter: str) -> int:
        """Sum of a counter over all dispatches, e.g. ``total("matmul2d")``; emulated dispatches only."""
        return sum(d.get("counters", {}).get(counter, 0) for d in self.dispatches)


def call(op: str, decision, shapes: tuple) -> None:
    """Note a call in every open trace."""
    for trace in recording:
        if len(trace.calls) < CAPACITY:
            trace.calls.append(Call(op, decision.engine, decision.why, shapes))


@contextlib.contextmanager
def trace():
    """Record calls and dispatches of the block, of all threads. Evaluate inside it: MLX is lazy, and what runs later is not seen.

    Traces nest: an outer one also has what an inner one has.
    """
    from .primitives import _native

    ok, _ = _native.status()
    opened = Trace()
    with _lock:
        _collect(ok)
        recording.append(opened)
        if ok:
            _native.ext().trace_start(CAPACITY)
    try:
        yield opened
    finally:
        with _lock:
            _collect(ok)
            recording.remove(opened)
            if ok and recording:
                _native.ext().trace_start(CAPACITY)


def _collect(native: bool) -> None:
    """Hand what ran since the last time to every open trace."""
    from .primitives import _native

    if native and recording:
        ran = _native.ext().trace_stop()
        for trace in recording:
            trace.dispatches += ran
