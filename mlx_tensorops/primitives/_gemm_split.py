"""Split-K: where C has few tiles and K is long, slices of K go to threadgroups of their own, and a second pass adds them.

Both kernels are ordinary sets: the number of slices is a rule over the shapes and the second pass reads it off its input, so a
graph that was traced with other sizes is still right. Whether two launches pay is asked once, when the graph is built.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Callable

from .. import guards
from ..epilogues import Epilogue
from ..policies import gemm as table
from ..spec import GemmSpec
from ..variant import VariantSet
from . import gemm
from ._gemm_signature import BATCH_AXES, sizes


@dataclass(frozen=True)
class Split:
    """Both sets of a split product, and whether they pay for operands of given shapes (as the kernel sees them)."""

    pays: Callable[[tuple, tuple], bool]
    partials: VariantSet
    accumulate: VariantSet


@lru_cache(maxsize=None)
def of(spec: GemmSpec, engine: str) -> Split:
    """Split-K of a spec on one of our engines."""
    policy = table.SPLIT_K[engine]
    unfinished = replace(spec, out="float32", epilogue=Epilogue(), extras=())
    return Split(
        guards.function(policy.pays(*sizes(spec.batched)), 2),
        VariantSet(unfinished, engine, gemm.rows(unfinished, engine, (policy.entry,))),
        VariantSet(spec, table.ACCUMULATE.engine, gemm.rows(spec, table.ACCUMULATE.engine, (table.ACCUMULATE,))),
    )


def decided(decision, a: tuple, b: tuple):
    """The decision as it runs for operands of these shapes: with the set of partial products where split-K pays."""
    spec = decision.spec
    if decision.variants is None:
        return decision
    a, b = (1, *a) if len(a) == 1 else a, (*b, 1) if len(b) == 1 else b
    if spec.batched:
        axes = 2 + len(BATCH_AXES)
        a, b = (1,) * (axes - len(a)) + a, (1,) * (axes - len(b)) + b
    split = of(spec, decision.engine)
    if not split.pays(a, b):
        return decision
    entry = table.SPLIT_K[decision.engine].entry
    why = f"{decision.why}; K is cut into slices, and {split.accumulate.rows[0].key} adds them"
    return replace(decision, why=why, variants=split.partials, source={(entry.dataflow, entry.tile): entry.why})
