"""Family ``gateup``: the same rows of x against two weight tensors, one load of x, optionally joined by a gated activation."""

from __future__ import annotations

from ..policies import gateup as table
from . import _weighted

FAMILY = _weighted.family(
    "gateup", "gather_gateup",
    variants=lambda: _weighted.expert_variants(table, ("gather_gateup",)),
    describe={"gather_gateup": "primitives.gated:describe_gather_gateup", "switch_glu": "primitives.switch_glu:describe_switch_glu"},
    public={"gather_gateup": "primitives.gated:gather_gateup", "switch_glu": "primitives.switch_glu:switch_glu"},
)
