"""VariantSet + arrays -> a node of MLX's graph, through the compiled extension."""

from __future__ import annotations

import sys
from functools import lru_cache, partial
from typing import Sequence

from .. import device, registry, signature
from ..errors import lesson
from ..select import Context, Verdict
from ..shaders.render import render
from ..variant import VariantSet
from . import _native

_HOSTMETAL = "mlx_tensorops.hostmetal"
_modules = sys.modules


def emulator():
    """The active emulation of this thread, or None. Costs one dictionary look-up when hostmetal is not imported."""
    hostmetal = _modules.get(_HOSTMETAL)
    return hostmetal.current() if hostmetal is not None else None


def context(stream=None) -> Context:
    """Where a call on this stream would run."""
    return Context(device.of_stream(stream), emulator() is not None, Verdict(*_native.status()))


@lru_cache(maxsize=None)
def native_set(variants: VariantSet):
    """The set in the extension's form. One object per set: MLX merges equal nodes by its identity."""
    first, op = variants.rows[0], variants.spec.op
    family = registry.family(first.family)
    shared = signature.of(first)

    def told(rules):
        return [(r.rule.program(), lesson(op, r.message, instead=r.instead)) for r in rules]

    return _native.ext().VariantSet(
        op,
        shared.inputs,
        [(o.element.name, [r.program() for r in o.shape]) for o in shared.outputs],
        told(shared.checks),
        [_row(v) for v in variants.rows],
        partial(family.gradient, first) if family.gradient else None,
        told(shared.layouts),
    )


def _row(variant) -> dict:
    sign = signature.of(variant)
    source = render(variant)
    return dict(
        key=variant.row, when=sign.when.program(), kernel=source.kernel, source=source.text,
        bindings=sign.bindings(), grid=[r.program() for r in sign.grid], threads=[sign.threads, 1, 1], threadgroup_args=[],
    )


def launch(variants: VariantSet, arrays: Sequence, stream=None) -> list:
    """Enqueue the set on these inputs; one array per output. Nothing is evaluated."""
    active = emulator()
    if active is None:
        return _native.ext().launch(native_set(variants), list(arrays), None, stream)
    return _native.ext().launch(native_set(variants), list(arrays), active.launcher(), cpu_stream(stream))


def cpu_stream(stream):
    """The stream an emulated kernel runs on: the given one, or the default CPU stream in place of a GPU's."""
    import mlx.core as mx

    return mx.cpu if device.is_gpu(stream) else stream


def record(variants: VariantSet, arrays: Sequence) -> dict:
    """What the node would bind and launch for these arrays: row, bindings, scalars, grid. Evaluates the inputs."""
    return _native.ext().record(native_set(variants), list(arrays))
