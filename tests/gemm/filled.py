"""The dataflows that fill cooperative tensors straight from device memory: their tiles, problems and structure."""

from __future__ import annotations

import re

import mlx.core as mx
import numpy as np

from mlx_tensorops import registry
from mlx_tensorops.primitives.gemm_dataflows import EVERY_ROW
from mlx_tensorops.shaders.render import render
from mlx_tensorops.variant import Tile
from tests.cases.gemm import make
from tests.gemm import flows, judge

TILES = {
    "direct": Tile(64, 128, 2, 2, 16, 32, 16),
    "direct8": Tile(64, 128, 2, 4, 16, 32, 16),
    "register_direct": Tile(64, 128, 2, 4, 16, 32, 16),
}
ROWS = tuple("/".join(row) for row in EVERY_ROW)
TYPES = (("float16", "float16"), ("bfloat16", "bfloat16"), ("float32", "float32"), ("float16", "bfloat16"), ("float32", "float16"))
VIEWS = {"coordinate": {"n": "rows", "t": "columns"}, "nax": {"n": "vector_rows", "t": "vector_columns"}}


def variants(dataflow: str, fill: str = "coordinate", types=("float16", "float16"), out: str | None = None, **options):
    """A set by short words. Vector fills take f32 operands only where they may lose bits."""
    precision = "tf32" if fill == "nax" and "float32" in types else "exact"
    spec = flows.spec_of(*types, out or types[0], precision=precision)
    return flows.variant_set("mpp", dataflow, TILES[dataflow], spec, tuple(({"fill": fill} | options).items()))


def operands(row: str, types, *, fill: str = "coordinate", size: tuple[int, int, int] | None = None, seed: int = 0) -> tuple[mx.array, mx.array]:
    """a and b that reach a row: three blocks, K beyond one outer block of 256, ragged where the row is."""
    layout, alignment = row.split("/")
    m, n, k = size or {"aligned": (64, 256, 272), "ragged_m": (73, 128, 272), "ragged": (71, 137, 277)}[alignment]
    a_view, b_view = ("every_other", "reversed") if layout == "strided" else (VIEWS[fill][side] for side in layout)
    rng = np.random.default_rng(seed)
    return make(a_view, m, k, types[0], rng), make(b_view, k, n, types[1], rng)


def over_bound(variants, a, b, c) -> float:
    """Largest error over its bound."""
    spec = variants.spec
    return judge.errors_over_bound(a, b, c, spec.out, relaxed_f32=spec.precision == "tf32")


def holds(variants, row: str, a, b, layouts, **emulation) -> None:
    """The row answers on every layout inside its bound, in the checked build, with exact counters."""
    for layout in layouts:
        c, dispatch = flows.run(variants, a, b, layout=layout, checked=True, **emulation)
        assert dispatch["row"] == row
        assert over_bound(variants, a, b, c) <= 1, layout
        judge.counters_as_predicted(variants[row], (a.shape, b.shape), dispatch, layout)
        assert dispatch["counters"]["threadgroup_bytes"] == 0


def body(variants, row: str) -> str:
    """The kernel function of a row, without comments."""
    text = render(variants[row]).text
    return re.sub(r"//[^\n]*", "", text[text.index("[[kernel"):])


def words_per_lane(variant) -> int:
    """Registers for accumulators and live operands."""
    cost = registry.family("gemm").cost(variant)
    return cost.accumulator_words + cost.operand_words
