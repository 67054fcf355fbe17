"""The last release's dense kernels: one full file per dataflow for a float and a half C."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np

from mlx_tensorops.policies import gemm as table
from mlx_tensorops.primitives import gemm, gemm_dataflows
from mlx_tensorops.spec import GemmSpec
from mlx_tensorops.variant import Variant
from tests.alone import alone
from tests.cases.gemm import make
from tests.gemm import flows
from tests.released import Released


def chosen() -> dict[str, Variant]:
    """File name -> variant: each dataflow with the tile that serves every size, its most general row, half operands."""
    found: dict[str, Variant] = {}
    for entry in sorted(table.tables(), key=lambda e: e.size != ""):
        for out in ("float16", "float32"):
            name = f"{entry.engine}_{entry.dataflow}_{out}.metal"
            spec = GemmSpec("float16", "float16", out)
            if name in found or gemm.refusals(spec, entry.engine, entry.dataflow, entry.tile, dict(entry.options)):
                continue
            rows = gemm.rows_of(spec, entry.engine, entry.dataflow, entry.tile, options=dict(entry.options))
            found[name] = next((v for v in rows if v.row in ("nn/ragged", "strided/ragged")), rows[-1])
    return found


def run(variant: Variant) -> list[mx.array]:
    """One launch on half operands, or on the f32 sums of three slices."""
    rng = np.random.default_rng(2)
    if gemm_dataflows.of(variant).adds_slices:
        arrays = [mx.array(rng.normal(size=(3, 70, 150)).astype(np.float32))]
    else:
        arrays = [make("rows", 70, 83, "float16", rng), make("rows", 83, 150, "float16", rng)]
    return [flows.run(alone(variant), *arrays)[0]]


RELEASED = Released(Path(__file__).parent, chosen, run)
