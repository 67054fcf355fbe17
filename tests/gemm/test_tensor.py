"""Dataflow ``tensor`` of engine mpp: matmul2d reads its operands through views of device memory, emulated."""

import itertools
import re

import mlx.core as mx
import numpy as np
import pytest

from mlx_tensorops import signature
from mlx_tensorops.epilogues import Epilogue
from mlx_tensorops.primitives.gemm_dataflows import EVERY_ROW, dataflows, tensor
from mlx_tensorops.shaders import lint
from mlx_tensorops.shaders.render import render
from mlx_tensorops.variant import Tile, VariantSet
from tests.cases.gemm import LAYOUTS, make
from tests.covering import covering_array
from tests.gemm import blocks, flows, judge
from tests.planted import planted

TILES = (Tile(64, 128, 1, 1, 64, 128, 0, cooperating=4), Tile(64, 64, 1, 1, 64, 64, 0, cooperating=4))
AXES = {
    "row": tuple("/".join(row) for row in tensor.DATAFLOW.rows),
    "types": (("float16", "float16"), ("bfloat16", "bfloat16"), ("float32", "float32")),
    "k_chunk": (0, 128), "tile": TILES,
}
POOL = covering_array(AXES, seed=6)
HALF = ("float16", "float16")


def set_of(types=HALF, tile=TILES[0], **options):
    return flows.variant_set("mpp", "tensor", tile, flows.spec_of(*types, types[0]), tuple(options.items()))


def complete(variants):
    """The set with what serves the layouts that have no view: the strided row of dataflow direct."""
    last = flows.variant_set("mpp", "direct", Tile(64, 128, 2, 2, 16, 32, 16), variants.spec).rows[-1]
    return VariantSet(variants.spec, "mpp", (*variants.rows, last))


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", range(len(POOL)), ids=lambda i: "-".join(x.name if isinstance(x, Tile) else str(x).replace(" ", "") for x in POOL[i].values()))
def test_values_and_counters(number):
    choice = POOL[number]
    variants = set_of(choice["types"], choice["tile"], k_chunk=choice["k_chunk"])
    variant = variants[choice["row"]]
    m, n, k = blocks.sizes(variant, 300)
    for seed, layout in enumerate(LAYOUTS):
        a, b = blocks.operands(variant.layout, m, n, k, choice["types"], seed)
        dispatch = blocks.right(variants, a, b, layout=layout, checked=number % 2 == 0)
        assert dispatch["row"] == choice["row"]
        judge.counters_as_predicted(variant, [a.shape, b.shape], dispatch, layout)
        counters, groups = dispatch["counters"], -(-m // variant.tile.m) * -(-n // variant.tile.n)
        assert counters["matmul2d"] == groups * (-(-k // choice["k_chunk"]) if choice["k_chunk"] else 1), "one operation per threadgroup and chunk"
        assert counters["macs"] == groups * variant.tile.m * variant.tile.n * k, "K is never rounded up"
        assert counters["barriers"] == counters["threadgroup_bytes"] == 0


@pytest.mark.parametrize("m, n, k", [(1, 1, 1), (1, 128, 16), (63, 127, 15), (64, 128, 129), (65, 129, 17), (17, 33, 1), (127, 1, 256)])
def test_edges(m, n, k):
    for layout, options in (("nn", {}), ("tt", dict(k_chunk=128))):
        a, b = blocks.operands(layout, m, n, k, HALF, m * n + k)
        blocks.right(set_of(**options), a, b, layout="padded", checked=True)


def test_extents_end_where_the_matrix_ends():
    """NaN around both operands and between their rows: inside a chunk, behind the last one, and past both edges."""
    wide_a, wide_b = np.full((80, 190), np.nan, np.float32), np.full((190, 170), np.nan, np.float32)
    rng = np.random.default_rng(3)
    wide_a[:70, :167], wide_b[:167, :140] = rng.normal(size=(70, 167)), rng.normal(size=(167, 140))
    a, b = mx.array(wide_a).astype(mx.float16)[:70, :167], mx.array(wide_b).astype(mx.float16)[:167, :140]
    for options in ({}, dict(k_chunk=128)):
        counters = blocks.right(set_of(**options), a, b, checked=True)["counters"]
        assert counters["opaque_load"][:2] == [2 * 70 * 167 * 2, 2 * 167 * 140 * 2], "each block reads its own rows and columns, no more"


@pytest.mark.parametrize("a_view, b_view, row", [
    ("rows", "gap", "nn/ragged"), ("offset", "columns", "nt/ragged"), ("every_other", "rows", "strided/ragged"), ("reversed", "rows", "strided/ragged"),
    ("repeated", "rows", "strided/ragged"), ("rows", "repeated", "strided/ragged"), ("one_column_repeated", "rows", "strided/ragged"),
])
def test_what_a_view_cannot_describe_goes_to_the_strided_row_of_another_dataflow(a_view, b_view, row):
    a, b = make(a_view, 35, 20, "float16", np.random.default_rng(1)), make(b_view, 20, 70, "float16", np.random.default_rng(2))
    assert blocks.right(complete(set_of()), a, b, checked=True)["row"] == row


def test_which_rows_offer_themselves():
    """Offsets inside a view stay below 2**31 bytes: whole K where it is short, chunks where it is long."""
    whole, chunked = set_of(), set_of(k_chunk=128)

    def row(variants, m, n, k, a_strides, b_strides):
        fit = [v.row for v in variants.rows if signature.of(v).when([(m, k), (k, n)], [a_strides, b_strides], [0, 0])]
        return fit[0] if fit else None

    assert row(whole, 4096, 4096, 4096, (4096, 1), (4096, 1)) == "nn/aligned"
    assert row(whole, 64, 2**17, 2**14, (2**14, 1), (2**17, 1)) is None, "B of one block: K rows of 2**18 bytes"
    assert row(chunked, 64, 2**17, 2**14, (2**14, 1), (2**17, 1)) == "nn/aligned"
    assert row(whole, 64, 2**17, 2**14, (2**14, 1), (1, 2**14)) == "nt/aligned", "a block of columns is short"
    assert row(whole, 64, 128, 2**14, (2**14 - 1, 1), (128, 1)) is None, "rows of A overlap"
    assert row(whole, 1, 128, 2**14, (1, 1), (128, 1)) == "nn/ragged_m", "one row overlaps with none"
    assert row(whole, 64, 128, 16, (2**23, 1), (128, 1)) == "nn/aligned" and row(whole, 64, 128, 16, (2**24 - 1, 1), (128, 1)) == "nn/aligned"
    assert row(set_of(("float32", "float32")), 64, 128, 16, (2**23, 1), (128, 1)) == "nn/aligned"
    assert row(set_of(("float32", "float32")), 64, 128, 16, (2**24 - 1, 1), (128, 1)) is None, "63 rows of nearly 2**26 bytes"


@pytest.mark.parametrize("raster", [dict(swizzle=1), dict(swizzle=2), dict(panel=4)])
def test_rasters_and_whole_threadgroups_that_leave(raster):
    a, b = blocks.operands("nn", 192, 256, 48, HALF, 1)
    counters = blocks.right(set_of(**raster), a, b, checked=True)["counters"]
    assert counters["matmul2d"] == 6 and counters["threadgroups"] == {1: 8, 2: 8}.get(raster.get("swizzle"), 6)


def test_batches_and_epilogues():
    rng = np.random.default_rng(4)
    a, b = make("columns", 70, 37, "float16", rng, lead=(1, 2, 3)), make("rows", 37, 150, "float16", rng, lead=(1, 1, 3))
    bias, residual = make("rows", 1, 150, "float32", rng, lead=(1, 1, 1)), make("rows", 70, 150, "float16", rng, lead=(1, 2, 1))
    epilogue = Epilogue(True, "gelu_tanh", True, True)
    spec = flows.spec_of("float16", epilogue=epilogue, extras=("float32", "float16", "float32"), batched=True)
    variants = flows.variant_set("mpp", "tensor", TILES[0], spec)
    for layout in ("nax", "padded"):
        c, dispatch = flows.run(variants, a, b, bias, residual, mx.array([0.5, -2.0]), layout=layout, checked=True)
        assert dispatch["row"] == "tn/ragged" and tuple(dispatch["grid"]) == (2, 2, 6)
        full = mx.broadcast_to(a, (1, 2, 3, 70, 37)), mx.broadcast_to(b, (1, 2, 3, 37, 150))
        assert judge.epilogue_over_bound(*full, c, "float16", epilogue, bias=bias, residual=residual, alpha=0.5, beta=-2.0) <= 1


def test_metal_4_1_compiles():
    a, b = blocks.operands("tt", 70, 90, 150, ("bfloat16", "bfloat16"), 1)
    for options in ({}, dict(k_chunk=128)):
        blocks.right(set_of(("bfloat16", "bfloat16"), **options), a, b, dialect="4.1")


def test_text():
    """What makes this dataflow: two views per operation, no fill, no staging, no barrier, one operation of all simdgroups."""
    for tile, k_chunk in itertools.product(TILES, AXES["k_chunk"]):
        for variant in set_of(tile=tile, k_chunk=k_chunk).rows:
            text = render(variant).text
            assert lint.lint(variant) == []
            body = text[text.index("[[kernel"):]
            assert body.count("op.run(") == 1 and "execution_simdgroups<SIMDGROUPS>> op" in body and "SIMDGROUPS = 4;" in text
            assert "static_cast<int>(metal::dynamic_extent)" in body and len(re.findall(r"^ +(Left left|Right right)\(", body, re.M)) == 2
            assert len(re.findall(r"typedef tensor<device [AB], dextents<int, 2>, tensor_inline>", text)) == 2
            assert not re.search(r"input_cooperative_tensor|\bfill|locate|threadgroup \w+ \w+\[|threadgroup_barrier|simdgroup_index|\.slice|return;\n", body)
            assert ("for (int k_left" in body) == bool(k_chunk)


def test_sets_need_another_row():
    assert tensor.DATAFLOW.rows == EVERY_ROW[:-1] and dataflows()["mpp", "direct"].rows[-1] == EVERY_ROW[-1]


# Each changes one expression of the emitted text.
PLANTED = (
    ("last chunk dropped", "k_left > 0;", "k_left > K_CHUNK;"),
    ("chunk reads past K", "min(K_CHUNK, k_left)", "K_CHUNK"),
    ("A stays at its first chunk", "    left_origin += K_CHUNK * a_k;\n", ""),
    ("B walks too far", "K_CHUNK * b_k;", "K_CHUNK * b_k + 1;"),
    ("rows not clipped", "min(BM, p.M - row0)", "BM"),
    ("columns not clipped", "min(BN, p.N - column0)", "BN"),
    ("rows clipped one short", "min(BM, p.M - row0)", "min(BM, p.M - row0 - 1)"),
    ("extents swapped", "dextents<int, 2>(depth, rows)", "dextents<int, 2>(rows, depth)"),
    ("stride of the other operand", "{1, int(a_m)}", "{1, int(b_k)}"),
    ("wrong transpose flag", "/*transpose_right=*/false", "/*transpose_right=*/true"),
    ("operands exchanged", "op.run(left, right, result)", "op.run(right, left, result)"),
    ("block not applied to A", "a + row0 * a_m", "a"),
    ("block not applied to B", "b + column0 * b_n", "b"),
    ("C not zeroed", "  zero(result);\n", ""),
    ("one simdgroup leaves", "[[threadgroup_position_in_grid]]) {\n",
     "[[threadgroup_position_in_grid]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {\n  if (simdgroup == 3) return;\n"),
    ("scope of fewer simdgroups than launched", "SIMDGROUPS = 4", "SIMDGROUPS = 2"),
    ("each simdgroup for itself", "execution_simdgroups<SIMDGROUPS>", "execution_simdgroup"),
    ("static K", "static_cast<int>(metal::dynamic_extent)", "128"),
    ("const elements", "tensor<device A,", "tensor<const device A,"),
    ("result coordinates swapped", "row = row0 + int(index[1]), column = column0 + int(index[0]);", "row = row0 + int(index[0]), column = column0 + int(index[1]);"),
    ("columns stored past the edge", "(!MASK_COLUMNS || column < N)", "true"),
    ("block applied twice", "Left left(left_origin,", "Left left(left_origin + row0 * a_m,"),
)


@pytest.mark.parametrize("bug, before, after", PLANTED, ids=[p[0] for p in PLANTED])
def test_planted_bugs_are_caught(bug, before, after):
    a, b = blocks.operands("nn", 90, 150, 200, HALF, 8)
    with planted(before, after):
        assert blocks.caught(set_of(k_chunk=128), a, b), f"not caught: {bug}"


def test_a_padded_block_that_works_on_is_caught():
    a, b = blocks.operands("nn", 64, 128, 64, HALF, 9)
    with planted("  if (row0 >= p.M) return;\n", ""):
        assert blocks.caught(set_of(swizzle=1), a, b)
