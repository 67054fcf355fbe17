"""What the engine did: nodes in MLX's graph, work that was counted."""

from __future__ import annotations

import tempfile

import mlx.core as mx

from mlx_tensorops.primitives import _native


def nodes(name: str, f, *arguments) -> int:
    """Nodes of the compiled function whose name begins so."""
    with tempfile.NamedTemporaryFile("r", suffix=".dot") as file:
        mx.export_to_dot(file.name, mx.compile(f)(*arguments))
        return file.read().count(f'"{name}')


def counters(run) -> dict[str, int]:
    """What the engine counted while ``run()`` was evaluated."""
    _native.ext().cpu_counters_reset()
    mx.eval(run())
    return _native.ext().cpu_counters()
