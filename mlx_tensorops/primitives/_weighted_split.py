"""Split-K of products with stored weights: where the result has few tiles, slices of K go to threadgroups of their own.

The partial products are f32; the dense family's ``accumulate`` adds them and applies the epilogue.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Callable

from .. import guards
from ..epilogues import Epilogue
from ..policies import gemm as dense_table
from ..policies import qgemm as table
from ..policies import weighted
from ..policies.entries import Entry
from ..spec import GemmSpec, WeightedSpec
from ..variant import VariantSet
from . import _enqueue, _weighted, gemm
from . import _weighted_signature as shared


@lru_cache(maxsize=None)
def launcher(variants: VariantSet) -> Callable:
    """(inputs in the kernel's order, stream) -> results: of one kernel, or of two where the shapes say that splitting K pays."""
    spec = variants.spec
    if not _splits(spec, variants.engine):
        return lambda arrays, stream=None: _enqueue.launch(variants, arrays, stream)
    partials, accumulate, extras = _sets(spec, weighted.scaled(table.SPLIT) if _scaled(variants) else table.SPLIT)
    f = shared.facts_of(partials.rows[0])
    pays = guards.function(table.split_pays(f.M, f.N, f.K), len(shared.names(shared.problem_of(partials.spec), partials.spec.epilogue)))

    def launch(arrays, stream=None):
        product = [x for x, name in zip(arrays, names) if name not in extras]
        if not pays(*(x.shape for x in product)):
            return _enqueue.launch(variants, arrays, stream)
        sums = _enqueue.launch(partials, product, stream)
        return _enqueue.launch(accumulate, [*sums, *(x for x, name in zip(arrays, names) if name in extras)], stream)

    names = shared.names(shared.problem_of(spec), spec.epilogue)
    return launch


def _splits(spec: WeightedSpec, engine: str) -> bool:
    return engine == table.SPLIT.engine and spec.rows == "whole" and not spec.batched and spec.destinations == 1


def _scaled(variants: VariantSet) -> bool:
    """Whether the set that is split scales rows of x, as its slices must then, too."""
    return any(v.option("operands", "native") == "half_scaled" for v in variants.rows)


def _sets(spec: WeightedSpec, split: Entry) -> tuple[VariantSet, VariantSet, tuple[str, ...]]:
    """Partial products, what adds them, and the names of the inputs that belong to the second."""
    unfinished = replace(spec, out="float32", epilogue=Epilogue(), extras=())
    finished = GemmSpec("float32", "float32", spec.out, epilogue=spec.epilogue, extras=spec.extras)
    adds = dense_table.ACCUMULATE
    return (VariantSet(unfinished, split.engine, _weighted.rows(unfinished, split.engine, (split,))),
            VariantSet(finished, adds.engine, gemm.rows(finished, adds.engine, (adds,))), spec.epilogue.operands)
