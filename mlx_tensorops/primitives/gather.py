"""Family ``gather``: rows that each belong to an expert, against that expert's weights (``gather_mm`` dense, ``gather_qmm`` quantised).

Rows come sorted by expert with their ids beside them ("runs"), or through a tile plan, whose order the store undoes ("plan").
"""

from __future__ import annotations

from ..policies import gather as table
from ..registry import Family
from ..spec import WeightedSpec
from . import _weighted, weighted_dataflows

FAMILY = Family(
    name="gather",
    op="gather_qmm",
    spec=WeightedSpec,
    templates={key: flow.template for key, flow in weighted_dataflows.dataflows().items()},
    legal=_weighted.legal,
    rows=_weighted.rows,
    signature=_weighted.signature,
    context=_weighted.context,
    cost=_weighted.cost,
    variants=lambda: _weighted.expert_variants(table, ("gather_qmm", "gather_mm")),
    gradient=_weighted.gradient,
    work=_weighted.work,
    seen=_weighted.seen,
    describe={"gather_mm": "primitives.gather_matmul:describe_gather_mm", "gather_qmm": "primitives.gather_matmul:describe_gather_qmm"},
    fast_route=False,
    public={"gather_mm": "primitives.gather_matmul:gather_mm", "gather_qmm": "primitives.gather_matmul:gather_qmm"},
)
