"""Family ``qgemm``: ``activation((x @ dequantised weights) * global_scale + bias) + residual`` for whole weight matrices."""

from __future__ import annotations

from ..policies import qgemm as table
from . import _weighted

FAMILY = _weighted.family(
    "qgemm", "quantized_matmul",
    variants=lambda: _weighted.matrix_variants(table),
    describe={"quantized_matmul": "primitives.quantized_matmul:describe"},
    public={"quantized_matmul": "primitives.quantized_matmul:quantized_matmul"},
)
