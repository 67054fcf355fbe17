"""Family ``gateup``: the same rows of x against two weight tensors, one load of x, optionally joined by a gated activation."""

from __future__ import annotations

from ..policies import gateup as table
from ..registry import Family
from ..spec import WeightedSpec
from . import _weighted, weighted_dataflows

FAMILY = Family(
    name="gateup",
    op="gather_gateup",
    spec=WeightedSpec,
    templates={key: flow.template for key, flow in weighted_dataflows.dataflows().items()},
    legal=_weighted.legal,
    rows=_weighted.rows,
    signature=_weighted.signature,
    context=_weighted.context,
    cost=_weighted.cost,
    variants=lambda: _weighted.expert_variants(table, ("gather_gateup",)),
    gradient=_weighted.gradient,
    work=_weighted.work,
    seen=_weighted.seen,
    describe={"gather_gateup": "primitives.gated:describe_gather_gateup", "switch_glu": "primitives.switch_glu:describe_switch_glu"},
    fast_route=False,
    public={"gather_gateup": "primitives.gated:gather_gateup", "switch_glu": "primitives.switch_glu:switch_glu"},
)
