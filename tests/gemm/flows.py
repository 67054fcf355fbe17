"""Runs one dataflow, named, whatever policy would choose: the way tests reach every kernel."""

from __future__ import annotations

from functools import lru_cache

import mlx.core as mx

import mlx_tensorops as mt
from mlx_tensorops import hostmetal
from mlx_tensorops.epilogues import Epilogue
from mlx_tensorops.primitives import _enqueue, gemm
from mlx_tensorops.spec import GemmSpec
from mlx_tensorops.variant import Tile, VariantSet


@lru_cache(maxsize=None)
def variant_set(engine: str, dataflow: str, tile: Tile, spec: GemmSpec, options: tuple = ()) -> VariantSet:
    """All rows of one dataflow and tile."""
    return VariantSet(spec, engine, gemm.rows_of(spec, engine, dataflow, tile, options=dict(options)))


def spec_of(a: str, b: str | None = None, out: str | None = None, *, precision="exact", epilogue=Epilogue(), extras=(), batched=False) -> GemmSpec:
    """A spec by short words: b defaults to a, out to a."""
    rank = 3 if batched else 2
    return GemmSpec(a, b or a, out or a, rank, rank, precision, epilogue, tuple(extras))


def run(variants: VariantSet, *arrays, layout="nax", checked=False, **adversary):
    """(result, dispatch record) of one emulated launch; exactly one kernel must have run."""
    mx.eval(*arrays)
    with hostmetal.active(layout=layout, checked=checked, **adversary), mt.trace() as trace:
        (c,) = _enqueue.launch(variants, arrays)
        mx.eval(c)
    assert len(trace.dispatches) == 1, trace.dispatches
    return c, trace.dispatches[0]
