"""Family ``qgemm``: ``activation((x @ dequantised weights) * global_scale + bias) + residual`` for whole weight matrices."""

from __future__ import annotations

from ..policies import qgemm as table
from ..registry import Family
from ..spec import WeightedSpec
from . import _weighted, weighted_dataflows

FAMILY = Family(
    name="qgemm",
    op="quantized_matmul",
    spec=WeightedSpec,
    templates={key: flow.template for key, flow in weighted_dataflows.dataflows().items()},
    legal=_weighted.legal,
    rows=_weighted.rows,
    signature=_weighted.signature,
    context=_weighted.context,
    cost=_weighted.cost,
    variants=lambda: _weighted.matrix_variants(table),
    gradient=_weighted.gradient,
    work=_weighted.work,
    seen=_weighted.seen,
    describe={"quantized_matmul": "primitives.quantized_matmul:describe"},
    fast_route=False,
    public={"quantized_matmul": "primitives.quantized_matmul:quantized_matmul"},
)
