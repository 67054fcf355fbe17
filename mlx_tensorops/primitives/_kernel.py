"""A decided set of kernels, launched with arrays by name."""

from __future__ import annotations

from typing import Any, Mapping

from .. import guards
from ..errors import EngineError, fail
from ..signature import of as signature_of
from . import _enqueue, _weighted_split


class Kernel:
    """The variants of a decision. Checked on the shapes before anything is enqueued."""

    def __init__(self, decision, op: str):
        import mlx.core as mx

        if _enqueue.emulator() is None and not mx.metal.is_available():
            fail(op, f"engine {decision.engine!r} is legal on the forced device profile, but this machine has no Metal", cls=EngineError,
                 instead="read the plan with explain() or dump_source(), or run it inside hostmetal.active()")
        first = signature_of(decision.variants.rows[0])
        self._launch = _weighted_split.launcher(decision.variants)
        self.names = tuple(b.name for b in sorted((b for b in first.buffers if not b.output), key=lambda b: b.operand))
        self._guard = guards.compiled(op, self.names, first.checks)

    def launch(self, arrays: Mapping[str, Any], stream) -> list:
        """Enqueue; one array per output."""
        given = [arrays[name] for name in self.names]
        self._guard(*(a.shape for a in given))
        return self._launch(given, stream)
