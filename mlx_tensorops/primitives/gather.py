"""Family ``gather``: rows that each belong to an expert, against that expert's weights (``gather_mm`` dense, ``gather_qmm`` quantised).

Rows come sorted by expert with their ids beside them ("runs"), or through a tile plan, whose order the store undoes ("plan").
"""

from __future__ import annotations

from ..policies import gather as table
from . import _weighted

FAMILY = _weighted.family(
    "gather", "gather_qmm",
    variants=lambda: _weighted.expert_variants(table, ("gather_qmm", "gather_mm")),
    describe={"gather_mm": "primitives.gather_matmul:describe_gather_mm", "gather_qmm": "primitives.gather_matmul:describe_gather_qmm"},
    public={"gather_mm": "primitives.gather_matmul:gather_mm", "gather_qmm": "primitives.gather_matmul:gather_qmm"},
)
