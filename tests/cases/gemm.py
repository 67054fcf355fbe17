"""Dense GEMM: how operands are made, which shapes are tried, which variants the pool builds."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from mlx_tensorops import registry
from mlx_tensorops.primitives.gemm import FLOATS
from mlx_tensorops.primitives.gemm_dataflows import EVERY_ROW as ROWS
from tests.covering import covering_array

LAYOUTS = ("nax", "strict", "permuted", "padded")  # lane maps of cooperative tensors that hostmetal knows


@dataclass(frozen=True)
class Case:
    """A problem and the views its operands come as; ``row`` is the row of the set that must answer."""

    row: str
    m: int
    n: int
    k: int
    a: str = "rows"
    b: str = "rows"


# One case per row that serves every size: more rows and columns than the classes of policies/gemm.py for few of them.
# Sizes are no multiples of each other, so that swapped extents show.
ROW_CASES = {
    "nn/aligned": Case("nn/aligned", 128, 256, 48),
    "nt/aligned": Case("nt/aligned", 64, 256, 80, b="columns"),
    "tn/aligned": Case("tn/aligned", 128, 128, 32, a="columns"),
    "tt/aligned": Case("tt/aligned", 64, 256, 48, a="columns", b="columns"),
    "nn/ragged_m": Case("nn/ragged_m", 70, 128, 64),
    "nt/ragged_m": Case("nt/ragged_m", 41, 256, 32, b="columns"),
    "tn/ragged_m": Case("tn/ragged_m", 33, 128, 48, a="columns"),
    "tt/ragged_m": Case("tt/ragged_m", 130, 128, 16, a="columns", b="columns"),
    "nn/ragged": Case("nn/ragged", 67, 200, 37),
    "nt/ragged": Case("nt/ragged", 33, 97, 50, b="columns"),
    "tn/ragged": Case("tn/ragged", 41, 220, 19, a="columns"),
    "tt/ragged": Case("tt/ragged", 100, 71, 45, a="columns", b="columns"),
    "strided/ragged": Case("strided/ragged", 80, 130, 40, a="every_other"),
}

# Where predicates meet: one below, on and above each boundary of block, operation and simdgroup.
EDGE_SIZES = ((1, 1, 1), (1, 128, 16), (16, 32, 16), (63, 127, 15), (64, 128, 16), (65, 129, 17), (17, 33, 1), (32, 64, 31), (127, 1, 33))

VIEWS = ("rows", "columns", "offset", "gap", "every_other", "repeated", "reversed", "one_column_repeated")


def make(view: str, rows: int, columns: int, dtype: str, rng: np.random.Generator, scale: float = 1.0, lead: tuple[int, ...] = ()) -> mx.array:
    """``[*lead, rows, columns]`` normal values that reach a kernel through the named view."""
    kind = getattr(mx, dtype)

    def normal(*shape):
        return mx.array(rng.normal(size=(*lead, *shape), scale=scale).astype(np.float32)).astype(kind)

    if view == "rows":
        return normal(rows, columns)
    if view == "columns":  # stored transposed
        return normal(columns, rows).swapaxes(-1, -2)
    if view == "offset":  # begins one element into its buffer: 2-byte alignment for half types
        return mx.array(rng.normal(size=int(np.prod(lead)) * rows * columns + 1, scale=scale).astype(np.float32)).astype(kind)[1:].reshape(*lead, rows, columns)
    if view == "vector_rows":  # rows whole vectors of 4 apart, the first element aligned to such a vector
        return _aligned(normal(rows, -(-columns // 4) * 4))[..., :columns]
    if view == "vector_columns":  # stored transposed
        return _aligned(normal(columns, -(-rows // 4) * 4))[..., :rows].swapaxes(-1, -2)
    if view == "gap":  # rows further apart than they are long
        return normal(rows, columns + 5)[..., :columns]
    if view == "every_other":  # no unit stride
        return normal(rows, 2 * columns)[..., ::2]
    if view == "repeated":  # row stride 0
        return mx.broadcast_to(normal(1, columns), (*lead, rows, columns))
    if view == "one_column_repeated":  # column stride 0
        return mx.broadcast_to(normal(rows, 1), (*lead, rows, columns))
    if view == "reversed":  # negative strides
        return normal(rows, columns)[..., ::-1, ::-1]
    raise ValueError(view)


def _aligned(x: mx.array, to: int = 16) -> mx.array:
    """The same values where the first element's address is a multiple of ``to``: MLX's CPU allocator gives odd multiples of 8."""
    skipped = (to - 8) // x.itemsize
    y = mx.concatenate([mx.zeros((skipped,), x.dtype), x.reshape(-1)])[skipped:].reshape(x.shape)
    mx.eval(y)
    return y


def operands(case: Case, dtype: str, seed: int, scale: float = 1.0) -> tuple[mx.array, mx.array]:
    """Both operands of a case; the same seed gives the same values."""
    rng = np.random.default_rng(seed)
    return make(case.a, case.m, case.k, dtype, rng, scale), make(case.b, case.k, case.n, dtype, rng, scale)


def _legal(row: dict) -> bool:
    return row["precision"] == "exact" or row["operand"] == "float32"


AXES = {"row": tuple("/".join(r) for r in ROWS), "operand": FLOATS, "out": FLOATS, "precision": ("exact", "tf32")}


def pool(seed: int = 2026) -> list[dict]:
    """Variants the fast suite builds: a pairwise covering array over row, operand, output and precision."""
    return covering_array(AXES, strength=2, seed=seed, legal=_legal)


def everything() -> list[dict]:
    """Every variant, for the sweep."""
    return covering_array(AXES, strength=len(AXES), legal=_legal)


def example_shapes(variant) -> tuple[tuple[int, ...], ...]:
    """Shapes of inputs that every variant of the table takes: operands, or the partial products of two slices."""
    return ((2, 64, 128),) if variant.dataflow == "accumulate" else ((64, 32), (32, 128))


def variant_of(choice: dict):
    """The Variant that a row of the pool names."""
    from mlx_tensorops import resolve
    from mlx_tensorops.spec import GemmSpec

    family = registry.family("gemm")
    spec = GemmSpec(choice["operand"], choice["operand"], choice["out"], precision=choice["precision"])
    rows = family.rows(spec, "mpp", resolve.tile_entries(family, spec, "mpp"))
    return next(v for v in rows if v.row == choice["row"])
