"""Family ``tile_plan``: rows sorted by expert and cut into tiles, by a stable counting sort on the device.

Three kernels (count, scan, scatter), or one that does all of it for few rows. No result depends on the order in which threads
run: nothing is added up by atomics, and every thread writes places of its own.
"""

from __future__ import annotations

from ..dtypes import element_type
from ..policies import tile_plan as table
from ..registry import Family
from ..spec import TilePlanSpec
from ..variant import Variant
from ._tile_plan_signature import SIGNATURES, WHOLE_BINS, cost, signature

ID_TYPES = ("int32", "uint32")  # what kernels read; MLX's argpartition gives uint32, so that usual ids need no conversion


def legal(spec: TilePlanSpec, engine: str) -> list[str]:
    """Reasons why ``engine`` cannot run ``spec``."""
    return []


def rows(spec: TilePlanSpec, engine: str, entries) -> tuple[Variant, ...]:
    """One variant per entry; each is a set of its own, since their outputs differ."""
    return tuple(Variant("tile_plan", engine, e.dataflow, e.tile, "", "", _types(spec, e.dataflow), False) for e in entries)


def _types(spec: TilePlanSpec, dataflow: str) -> tuple[str, ...]:
    """Only what can differ is named: the ids, for the kernels that read them."""
    return () if dataflow == "scan" else (spec.ids,)


def variants() -> tuple[Variant, ...]:
    """Every kernel."""
    found = [v for ids in ID_TYPES for v in rows(TilePlanSpec(ids), "simdgroup", (table.WHOLE, *table.STAGES))]
    return tuple(dict.fromkeys(found))


def context(v: Variant) -> dict:
    """What the templates may name beside the usual."""
    return {"id": element_type(v.types[0]) if v.types else None, "bins": WHOLE_BINS}


def work(spec: TilePlanSpec, shapes) -> tuple[int, int]:
    """(0, bytes of ids and plan)."""
    (rows,), (experts, block_m) = shapes
    return 0, 4 * (rows + 3 * (-(-rows // block_m) + experts) + 2 * rows + 1)


FAMILY = Family(
    name="tile_plan",
    op="tile_plan",
    spec=TilePlanSpec,
    templates={("simdgroup", dataflow): f"tile_plan_simdgroup_{dataflow}.metal.j2" for dataflow in SIGNATURES},
    legal=legal,
    rows=rows,
    signature=signature,
    context=context,
    cost=cost,
    variants=variants,
    gradient=None,
    describe={"tile_plan": "primitives._tile_plan_build:describe"},
    fast_route=False,
    public={"tile_plan": "primitives._tile_plan_build:tile_plan", "TilePlan": "plans:TilePlan"},
    work=work,
)
