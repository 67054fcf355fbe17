"""The last release's kernels for quantised weights: one full file per dataflow and format that stands for its kind."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx

from mlx_tensorops.policies import qgemm as table
from mlx_tensorops.primitives import _weighted
from mlx_tensorops.spec import WeightedSpec, WeightSpec
from mlx_tensorops.variant import Variant
from tests.alone import alone
from tests.released import Released
from tests.weighted import cases, flows

# Format, x, whether the weights are [N, K], convention of the global scale.
STORED = (("nvfp4", "bfloat16", True, "amax"), ("affine4_g64", "float16", False, ""))


def chosen() -> dict[str, Variant]:
    """File name -> variant: each dataflow with its widest tile, its most general row for contiguous x."""
    found: dict[str, Variant] = {}
    for entry in sorted(table.tables(), key=lambda e: -e.tile.m * e.tile.n):
        for format, x, transpose, convention in STORED:
            name = f"{entry.engine}_{entry.dataflow}_{format}.metal"
            stored = WeightSpec(format, "uint32", x if "affine" in format else "uint8", transpose, convention)
            for out in (x, "float32"):
                spec = WeightedSpec(x, out, stored)
                if name in found or _weighted.refusals(spec, entry.engine, entry.dataflow, entry.tile, dict(entry.options)):
                    continue
                rows = _weighted.rows_of(spec, entry.engine, entry.dataflow, entry.tile, options=dict(entry.options))
                found[name] = next(v for v in rows if v.row == ("nt/ragged" if transpose else "nn/ragged"))
    return found


def run(variant: Variant) -> list[mx.array]:
    """One launch on sizes that leave blocks and steps half full."""
    format, x, transpose, convention = next(s for s in STORED if s[0] == variant.option("format", ""))
    spec = WeightedSpec(x, variant.types[-1], WeightSpec(format, "uint32", x if "affine" in format else "uint8", transpose, convention))
    problem = cases.problem(spec, 70, 90 if transpose else 192, 80 if transpose else 77, 3)
    return flows.run(alone(variant), problem.inputs)[0]


RELEASED = Released(Path(__file__).parent, chosen, run)
