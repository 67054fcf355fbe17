"""Runs one dataflow of the weighted families, named, whatever policy would choose: the way tests reach every kernel."""

from __future__ import annotations

from functools import lru_cache

import mlx.core as mx

import mlx_tensorops as mt
from mlx_tensorops import hostmetal
from mlx_tensorops.primitives import _enqueue, _weighted
from mlx_tensorops.variant import Tile, VariantSet
from tests import planted


@lru_cache(maxsize=None)
def variant_set(engine: str, dataflow: str, tile: Tile, spec, options: tuple = ()) -> VariantSet:
    """All rows of one dataflow and tile."""
    return VariantSet(spec, engine, _weighted.rows_of(spec, engine, dataflow, tile, options=dict(options)))


def run(variants: VariantSet, arrays, layout="nax", checked=False, **adversary):
    """(results, dispatch record) of one emulated launch; exactly one kernel must have run."""
    mx.eval(*arrays)
    with hostmetal.active(layout=layout, checked=checked, **adversary), mt.trace() as trace:
        results = _enqueue.launch(variants, arrays)
        mx.eval(*results)
    assert len(trace.dispatches) == 1, trace.dispatches
    return results, trace.dispatches[0]


def caught(variants: VariantSet, problem, over_bound, **emulation) -> str | None:
    """How the checked emulator or ``over_bound`` of the results tells that the kernel is wrong; None: it does not."""
    return planted.caught(lambda: run(variants, problem.inputs, checked=True, **emulation)[0], over_bound)
