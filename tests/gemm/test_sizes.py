"""Size classes: which row of a set a problem takes, on both sides of every boundary, as the graph node decides it; and values there."""

import mlx.core as mx
import numpy as np
import pytest

import mlx_tensorops as mt
from mlx_tensorops import hostmetal
from mlx_tensorops.policies import gemm as table
from mlx_tensorops.primitives import _enqueue, gemm
from mlx_tensorops.spec import GemmSpec
from mlx_tensorops.variant import VariantSet
from tests.cases import gemm as cases
from tests.gemm import judge


def variants(engine: str, batched: bool = False) -> VariantSet:
    spec = GemmSpec("float16", "float16", "float16", *((3, 3) if batched else (2, 2)))
    return VariantSet(spec, engine, gemm.rows(spec, engine, table.choose(spec, engine)))


def taken(engine: str, a, b):
    """(size class, threads, grid) of the row that the node takes."""
    batched = a.ndim > 2
    found = _enqueue.record(variants(engine, batched), [a, b])
    return variants(engine, batched)[found["row"]], tuple(found["grid"])


@pytest.mark.parametrize("engine, m, n, size, block", [
    ("mpp", 1, 300, "m16", (16, 128)), ("mpp", 16, 300, "m16", (16, 128)), ("mpp", 17, 300, "m32", (32, 128)), ("mpp", 32, 300, "m32", (32, 128)),
    ("mpp", 33, 500, "", (64, 128)),
    ("mpp", 33, 1, "n32", (64, 32)), ("mpp", 33, 32, "n32", (64, 32)), ("mpp", 33, 33, "n64", (64, 64)), ("mpp", 33, 64, "n64", (64, 64)),
    ("mpp", 33, 65, "", (64, 128)), ("mpp", 16, 32, "m16", (16, 128)), ("mpp", 17, 64, "m32", (32, 128)),
    ("simdgroup", 1, 300, "m32", (32, 64)), ("simdgroup", 32, 300, "m32", (32, 64)), ("simdgroup", 33, 300, "", (64, 64)),
    ("simdgroup", 33, 32, "n32", (64, 32)), ("simdgroup", 33, 33, "", (64, 64)),
])
def test_boundaries(engine, m, n, size, block):
    for k in (16, 21):
        variant, grid = taken(engine, mx.zeros((m, k), mx.float16), mx.zeros((k, n), mx.float16))
        assert variant.size == size and (variant.tile.m, variant.tile.n) == block
        assert grid == (-(-n // block[1]), -(-m // block[0]), 1)


def test_rows_are_counted_after_folding():
    w = mx.zeros((64, 300), mx.float16)[None]
    assert taken("mpp", mx.zeros((1, 1, 4, 4, 64), mx.float16), w[None, None])[0].size == "m16"
    assert taken("mpp", mx.zeros((1, 1, 5, 4, 64), mx.float16), w[None, None])[0].size == "m32"
    assert taken("mpp", mx.zeros((1, 2, 5, 4, 64), mx.float16), w[None, None])[0].size != "m32"
    unfolded = mx.zeros((1, 1, 5, 8, 64), mx.float16)[..., :4, :]
    assert taken("mpp", unfolded, w[None, None])[0].size == "m16", "each product has 4 rows"


def test_few_rows_have_no_row_of_whole_blocks():
    for engine in ("mpp", "simdgroup"):
        for v in variants(engine).rows:
            assert v.alignment != "aligned" or v.size not in ("m16", "m32")
    assert taken("mpp", mx.zeros((16, 32), mx.float16), mx.zeros((32, 128), mx.float16))[0].row == "m16/nn/ragged_m"


def test_every_layout_is_served_in_every_class():
    for engine, sizes in (("mpp", {"m16": (9, 200), "m32": (20, 200), "n32": (70, 20), "n64": (70, 50), "": (70, 500)}),
                          ("simdgroup", {"m32": (9, 200), "n32": (70, 20), "": (70, 200)})):
        for size, (m, n) in sizes.items():
            for a_view, b_view, layout in (("rows", "rows", "nn"), ("rows", "columns", "nt"), ("columns", "rows", "tn"), ("columns", "columns", "tt"),
                                           ("every_other", "rows", "strided")):
                a, b = cases.make(a_view, m, 24, "float16", np.random.default_rng(0)), cases.make(b_view, 24, n, "float16", np.random.default_rng(1))
                variant, _ = taken(engine, a, b)
                assert (variant.size, variant.layout) == (size, layout)


VALUES = (
    ("mpp", "float16", 16, 260, 40), ("mpp", "bfloat16", 17, 128, 32), ("mpp", "float32", 2, 129, 17), ("mpp", "float16", 70, 32, 48),
    ("mpp", "float32", 64, 7, 33), ("mpp", "bfloat16", 100, 64, 21), ("mpp", "float16", 64, 64, 64),
    ("simdgroup", "float16", 2, 300, 40), ("simdgroup", "bfloat16", 31, 64, 16), ("simdgroup", "float32", 70, 31, 25), ("simdgroup", "float16", 128, 32, 24),
)


@pytest.mark.parametrize("engine, dtype, m, n, k", VALUES)
def test_values(engine, dtype, m, n, k):
    for b_view in ("rows", "columns"):
        a, b = cases.make("rows", m, k, dtype, np.random.default_rng(m)), cases.make(b_view, k, n, dtype, np.random.default_rng(n))
        for layout in ("nax", "padded"):
            with hostmetal.active(layout=layout, checked=True), mt.trace() as trace:
                c = mt.matmul(a, b, engine=engine)
                mx.eval(c)
            assert trace.dispatches[0]["row"].partition("/")[0] in ("m16", "m32", "n32", "n64")
            assert judge.errors_over_bound(a, b, c, dtype) <= 1
