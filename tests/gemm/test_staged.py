"""Dataflow ``staged`` of engine mpp: operands through threadgroup memory, emulated."""

import itertools
import re

import mlx.core as mx
import numpy as np
import pytest

import mlx_tensorops as mt
from mlx_tensorops import hostmetal, signature
from mlx_tensorops.epilogues import Epilogue
from mlx_tensorops.errors import RuleError
from mlx_tensorops.policies import gemm as table
from mlx_tensorops.primitives import gemm
from mlx_tensorops.primitives.gemm_dataflows import EVERY_ROW, staged
from mlx_tensorops.shaders import lint
from mlx_tensorops.shaders.render import render
from mlx_tensorops.variant import Tile
from tests.cases.gemm import LAYOUTS, make
from tests.covering import covering_array
from tests.gemm import blocks, flows, judge
from tests.planted import planted

TILE = Tile(m=64, n=64, simdgroups_m=2, simdgroups_n=2, op_m=32, op_n=32, op_k=32)
AXES = {
    "row": tuple("/".join(row) for row in EVERY_ROW),
    "types": (("float16", "float16"), ("bfloat16", "bfloat16"), ("float32", "float32")),
    "block_k": (32, 64), "skew": (4, 0, 8), "read": ("coordinate", "load"), "store": ("scratch", "direct"),
}
OPTIONS = ("block_k", "skew", "read", "store")


def options_of(choice) -> dict:
    return {axis: choice[axis] for axis in OPTIONS}


def legal(choice) -> bool:
    return not staged.DATAFLOW.legal(flows.spec_of(*choice["types"], "float32"), options_of(choice))


POOL = covering_array(AXES, seed=5, legal=legal)


def set_of(types=("float16", "float16"), out=None, **options):
    spec = flows.spec_of(*types, out or types[0])
    return flows.variant_set("mpp", "staged", TILE, spec, tuple(options.items()))


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", range(len(POOL)), ids=lambda i: "-".join(map(str, POOL[i].values())).replace(" ", ""))
def test_values_counters_and_memory(number):
    choice = POOL[number]
    variants = set_of(choice["types"], **options_of(choice))
    variant = variants[choice["row"]]
    m, n, k = blocks.sizes(variant, 128)
    checked = number % 2 == 0
    for seed, layout in enumerate(LAYOUTS):
        a, b = blocks.operands(variant.layout, m, n, k, choice["types"], seed)
        dispatch = blocks.right(variants, a, b, layout=layout, checked=checked)
        assert dispatch["row"] == choice["row"]
        judge.counters_as_predicted(variant, [a.shape, b.shape], dispatch, layout)
        assert dispatch["counters"]["threadgroup_bytes"] == signature.of(variant).threadgroup_bytes <= 28 * 1024
        steps, groups = -(-k // choice["block_k"]), -(-m // 64) * -(-n // 64)
        assert dispatch["counters"]["barriers"] == groups * (2 * steps + (choice["store"] == "scratch")), "edges run whole threadgroups"


@pytest.mark.parametrize("m, n, k", [(1, 1, 1), (1, 64, 32), (63, 65, 31), (64, 64, 33), (65, 129, 65), (17, 33, 1), (129, 1, 63), (3, 70, 200)])
def test_edges(m, n, k):
    for layout, options in (("nn", {}), ("tt", dict(read="load", block_k=64, store="direct"))):
        a, b = blocks.operands(layout, m, n, k, ("float16", "float16"), m * n + k)
        blocks.right(set_of(**options), a, b, layout="padded", checked=True)


@pytest.mark.parametrize("a_view", ["offset", "gap", "repeated", "one_column_repeated", "reversed", "every_other"])
def test_any_strides(a_view):
    for b_view in ("rows", "repeated", "reversed"):
        a, b = make(a_view, 70, 40, "bfloat16", np.random.default_rng(1)), make(b_view, 40, 90, "bfloat16", np.random.default_rng(2))
        blocks.right(set_of(("bfloat16", "bfloat16")), a, b, checked=True)


def test_nothing_past_the_matrix_leaks_in():
    wide_a, wide_b = np.full((80, 90), np.nan, np.float32), np.full((90, 150), np.nan, np.float32)
    rng = np.random.default_rng(3)
    wide_a[:70, :67], wide_b[:67, :100] = rng.normal(size=(70, 67)), rng.normal(size=(67, 100))
    a, b = mx.array(wide_a).astype(mx.float16)[:70, :67], mx.array(wide_b).astype(mx.float16)[:67, :100]
    for options in ({}, dict(read="load")):
        blocks.right(set_of(**options), a, b, checked=True)


@pytest.mark.parametrize("raster", [dict(swizzle=1), dict(swizzle=2), dict(panel=4)])
def test_rasters_and_whole_threadgroups_that_leave(raster):
    a, b = blocks.operands("nn", 192, 128, 64, ("float16", "float16"), 1)
    dispatch = blocks.right(set_of(**raster), a, b, checked=True)
    assert dispatch["counters"]["matmul2d"] == 6 * 2 * 4, "padded blocks multiply nothing"
    assert dispatch["counters"]["threadgroups"] == {1: 8, 2: 8}.get(raster.get("swizzle"), 6)


@pytest.mark.parametrize("store", ["scratch", "direct"])
@pytest.mark.parametrize("epilogue", [Epilogue(True, "silu", True), Epilogue(residual=True, scaled=True)], ids=lambda e: e.name)
def test_batches_and_epilogues(store, epilogue):
    rng = np.random.default_rng(4)
    a, b = make("rows", 70, 37, "float16", rng, lead=(1, 2, 3)), make("columns", 37, 50, "float16", rng, lead=(1, 1, 3))
    extra = {"residual": make("rows", 70, 50, "float16", rng, lead=(1, 2, 1))}
    if epilogue.bias:
        extra = {"bias": make("rows", 1, 50, "float32", rng, lead=(1, 1, 1)), **extra}
    scales = [mx.array([0.5, -2.0])] if epilogue.scaled else []
    types = tuple(str(x.dtype).removeprefix("mlx.core.") for x in (*extra.values(), *scales))
    spec = flows.spec_of("float16", epilogue=epilogue, extras=types, batched=True)
    variants = flows.variant_set("mpp", "staged", TILE, spec, (("store", store),))
    for layout in ("nax", "padded"):
        c, dispatch = flows.run(variants, a, b, *extra.values(), *scales, layout=layout, checked=True)
        assert dispatch["row"] == "nt/ragged" and tuple(dispatch["grid"]) == (1, 2, 6)
        a_full = mx.broadcast_to(a, (1, 2, 3, 70, 37))
        b_full = mx.broadcast_to(b, (1, 2, 3, 37, 50))
        factors = dict(alpha=0.5, beta=-2.0) if epilogue.scaled else {}
        assert judge.epilogue_over_bound(a_full, b_full, c, "float16", epilogue, **extra, **factors) <= 1


def test_metal_4_1_compiles():
    a, b = blocks.operands("tn", 70, 90, 50, ("bfloat16", "bfloat16"), 1)
    for options in ({}, dict(read="load", store="direct", block_k=64)):
        blocks.right(set_of(("bfloat16", "bfloat16"), **options), a, b, dialect="4.1")


def test_text():
    """What makes this dataflow: two staged tiles, a barrier on either side of their use, one scratch that aliases them."""
    for block_k, skew, read, store in itertools.product(*(AXES[axis] for axis in OPTIONS)):
        for variant in set_of(block_k=block_k, skew=skew, read=read, store=store).rows:
            text = render(variant).text
            assert lint.lint(variant) == []
            body = text[text.index("[[kernel"):]
            assert body.count("threadgroup_barrier(mem_flags::mem_threadgroup)") == (3 if store == "scratch" else 2)
            assert body.count("stage<") == 2 and body.count("execution_simdgroup>") == 1
            assert (".load(" in body) == (read == "load") and ("tensor_inline" in body) == (read == "load")
            assert ("fill(" in body) == (read == "coordinate") and "tensor<device" not in text
            assert ("scratch" in body) == (store == "scratch")
            assert "early" not in body and "simdgroup) / SIMDGROUPS_N" in body and "return;" not in body.split("storage[")[1]
            (words,) = re.findall(r"threadgroup float4 storage\[(\d+)\];", body)
            assert int(words) * 16 == signature.of(variant).threadgroup_bytes
            assert text.count("threadgroup float4 storage") == len(re.findall(r"threadgroup \w+ \w+\[", text)) == 1


def test_threadgroup_bytes_by_hand():
    """Half operands: 64 rows of 32 + 4, 32 rows of 64 + 4; their scratch, 64 rows of 64 + 4 floats, is larger and takes their place."""
    nn = set_of()["nn/aligned"]
    assert staged._staged(nn) == (64 * 36 * 2, 32 * 68 * 2) and signature.of(nn).threadgroup_bytes == 64 * 68 * 4
    direct = set_of(store="direct")["nt/aligned"]
    assert signature.of(direct).threadgroup_bytes == 2 * 64 * 36 * 2
    wide = set_of(("float32", "float32"), skew=0)["nn/aligned"]
    assert signature.of(wide).threadgroup_bytes == 64 * 32 * 4 * 2 == 64 * 64 * 4, "aliased: not the sum"


def test_what_does_not_fit_is_refused():
    with pytest.raises(RuleError, match="34816 bytes of threadgroup memory; 28672 are free: stage a smaller part of K"):
        set_of(("float32", "float32"), block_k=64)
    with pytest.raises(RuleError, match="staged has no skew = 3"):
        set_of(skew=3)


def test_every_operand_byte_is_loaded_once_per_block():
    """Half of what 2x2 simdgroups load that share nothing; the price stands beside it."""
    a, b = blocks.operands("nn", 128, 128, 128, ("float16", "float16"), 1)
    counters = blocks.right(set_of(), a, b, checked=True)["counters"]
    assert counters["device_load"][:2] == [2 * 128 * 128 * 2] * 2
    assert counters["threadgroup_store"] == sum(counters["device_load"][:2]) + 4 * 64 * 64 * 4
    assert counters["threadgroup_load"] == 2 * sum(counters["device_load"][:2]) + 4 * 64 * 64 * 4
    assert counters["barriers"] == 4 * (2 * 4 + 1)


# Each changes one expression of the emitted text; a comment says which tile or step it wrongs.
PLANTED = (
    ("no barrier after staging", "    threadgroup_barrier(mem_flags::mem_threadgroup);  // both tiles are complete\n", ""),
    ("no barrier before the next step", "    threadgroup_barrier(mem_flags::mem_threadgroup);  // nobody reads the tiles any more\n", ""),
    ("no barrier before scratch is read", "  threadgroup_barrier(mem_flags::mem_threadgroup);  // the whole block lies in scratch\n", ""),
    ("barrier orders no memory", "mem_flags::mem_threadgroup);  // both", "mem_flags::mem_none);  // both"),
    ("barrier of one simdgroup", "threadgroup_barrier(mem_flags::mem_threadgroup);  // both", "simdgroup_barrier(mem_flags::mem_threadgroup);  // both"),
    ("B staged over A", "(storage + 288)", "(storage + 287)"),
    ("storage too small", "storage[1088]", "storage[1086]"),
    ("last K step dropped", "k_left > 0;", "k_left > BK;"),
    ("A stays at its first step", "a += BK * a_k;", ""),
    ("B walks too far", "b += BK * b_k;", "b += BK * b_k + 1;"),
    ("rows past M not masked", "(!MASK_ROWS || first + row < rows)", "true"),
    ("columns past N not masked", "!MASK_COLUMNS || column < columns", "true"),
    ("mask off by one", "first + row < rows", "first + row <= rows"),
    ("edges not zeroed", "*to = value;", "if (inside) *to = value;"),
    ("wrong pitch of A", "A_LD = A_COLUMNS + 4", "A_LD = A_COLUMNS - 4"),
    ("fragment read with another pitch", "left_at, A_LD, 1", "left_at, B_LD, 1"),
    ("operand coordinates swapped", "valid ? int(index[1]) : 0, column = valid ? int(index[0])", "valid ? int(index[0]) : 0, column = valid ? int(index[1])"),
    ("simdgroups share rows of A", "staged_a + warp_row * A_M", "staged_a"),
    ("simdgroups share columns of B", "staged_b + warp_column * B_N", "staged_b"),
    ("simdgroup grid transposed", "int(simdgroup) % SIMDGROUPS_N * WN", "int(simdgroup) / SIMDGROUPS_N * WN"),
    ("wrong transpose flag", "/*transpose_right=*/false", "/*transpose_right=*/true"),
    ("C not zeroed", "  zero(c00);\n", ""),
    ("scratch coordinates swapped", "scratch[int(index[1]) * SCRATCH_LD + int(index[0])]", "scratch[int(index[0]) * SCRATCH_LD + int(index[1])]"),
    ("scratch pitch differs", "scratch[i * SCRATCH_LD + in_block]", "scratch[i * BN + in_block]"),
    ("columns stored past the edge", "if (MASK_COLUMNS && column >= N) return;", ""),
    ("rows stored past the edge", "if (!MASK_ROWS || row < M) c", "c"),
    ("one simdgroup leaves early", "  threadgroup float4 storage", "  if (row0 + int(simdgroup) / 2 * 32 >= p.M) return;\n  threadgroup float4 storage"),
    ("C rounded twice", "apply(scratch[i * SCRATCH_LD + in_block],", "apply(float(bfloat(scratch[i * SCRATCH_LD + in_block])),"),
)


@pytest.mark.parametrize("bug, before, after", PLANTED, ids=[p[0] for p in PLANTED])
def test_planted_bugs_are_caught(bug, before, after):
    a, b = blocks.operands("nn", 83, 90, 101, ("float16", "float16"), 8)
    with planted(before, after):
        assert blocks.caught(set_of(), a, b), f"not caught: {bug}"


PLANTED_ELSEWHERE = (
    ("padded block works on", dict(swizzle=1), (64, 64, 64), "  if (row0 >= p.M) return;\n", ""),
    ("view of A with another pitch", dict(read="load"), (83, 90, 101), "left_strides = {1, A_LD}", "left_strides = {1, OK}"),
    ("view extents swapped and short", dict(read="load"), (83, 90, 101), "extents<int, OK, OM>", "extents<int, OK, 16>"),
    ("second half of a step never loaded", dict(read="load", block_k=64), (83, 90, 101), "k += OK)", "k += BK)"),
    ("no barrier before the next step, direct store", dict(store="direct"), (83, 90, 101),
     "    threadgroup_barrier(mem_flags::mem_threadgroup);  // nobody reads the tiles any more\n", ""),
    ("rows stored past the edge, direct store", dict(store="direct"), (83, 90, 101), "(!MASK_ROWS || row < M)", "true"),
)


@pytest.mark.parametrize("bug, options, size, before, after", PLANTED_ELSEWHERE, ids=[p[0] for p in PLANTED_ELSEWHERE])
def test_planted_bugs_of_other_forms_are_caught(bug, options, size, before, after):
    a, b = blocks.operands("nn", *size, ("float16", "float16"), 9)
    with planted(before, after):
        assert blocks.caught(set_of(**options), a, b), f"not caught: {bug}"


def taken(m, n, k, a_strides=None, b_strides=None, types=("float16", "float16")):
    """The variant that policy takes for these operands."""
    spec = flows.spec_of(*types, types[0])
    rows = gemm.rows(spec, "mpp", table.choose(spec, "mpp"))
    shapes, strides = ((m, k), (k, n)), (a_strides or (k, 1), b_strides or (n, 1))
    return next(v for v in rows if signature.of(v).when(shapes, strides, (0, 0)))


def test_policy_stages_operands_without_a_unit_stride():
    for types in itertools.product(gemm.FLOATS, repeat=2):
        assert taken(100, 400, 70, a_strides=(140, 2), types=types).dataflow == "staged"
        assert taken(128, 256, 64, types=types).dataflow == "direct"
    assert taken(100, 400, 70, a_strides=(0, 0)).dataflow == "staged" and taken(100, 400, 70, a_strides=(0, 1)).dataflow == "direct"


@pytest.mark.parametrize("n, dataflow", [(64, "direct"), (128, "direct"), (129, "staged"), (192, "staged"), (193, "direct"), (256, "direct"),
                                         (257, "staged"), (320, "staged"), (321, "direct"), (4096, "direct")])
def test_policy_stages_where_half_a_wide_block_would_be_empty(n, dataflow):
    for m, k in ((64, 64), (100, 77)):
        variant = taken(m, n, k)
        assert variant.dataflow == dataflow
        assert variant.size == ("edges" if dataflow == "staged" else "n64" if n == 64 else "")
        blocks_of = {v: -(-n // v.tile.n) * v.tile.n for v in (variant, taken(m, 4096, k))}
        assert min(blocks_of.values()) == blocks_of[variant], "fewer columns multiplied than in the default's blocks"


def test_policy_reaches_it_through_matmul():
    a, b = blocks.operands("strided", 40, 90, 50, ("float16", "float16"), 1)
    with hostmetal.active(checked=True), mt.trace() as trace:
        c = mt.matmul(a, b, engine="mpp")
        mx.eval(c)
    assert "_mpp_staged_strided_" in trace.dispatches[0]["kernel"] and judge.errors_over_bound(a, b, c, "float16") <= 1
