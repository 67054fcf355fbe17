"""Dataflow register_direct, emulated: fragments through registers, pairs along N, a barrier that orders no memory."""

import numpy as np
import pytest

from mlx_tensorops import hostmetal, registry
from mlx_tensorops.shaders.render import render
from tests.cases import gemm as cases
from tests.gemm import blocks, filled, flows
from tests.planted import planted

TYPE = ("float16", "float16")
HALF = filled.variants("register_direct")
SWIZZLED = filled.variants("register_direct", swizzle=2)


def test_structure():
    variant, text = HALF["nn/aligned"], filled.body(HALF, "nn/aligned")
    assert (variant.tile.m, variant.tile.n, variant.tile.simdgroups_m, variant.tile.simdgroups_n) == (64, 128, 2, 4)
    assert "BK = 256;" in render(variant).text and "16, 32, 16," in text, "a 16x16 fragment of A, a pair of 16x16 fragments of B"
    outer, inner = text.index("first += BK"), text.index("step < steps")
    assert outer < text.index("threadgroup_barrier(mem_flags::mem_none)") < inner, "once per outer block"
    assert text.count("barrier(") == 1 and text.count("#pragma clang loop unroll(disable)") == 2
    assert text.index("read(right") < text.index("volatile int fence") < text.index("put(right"), "all loads, the fence, the products"
    assert text.count("op.run(left, right, ") == 4 and "threadgroup half" not in text
    assert "return" not in text, "full blocks: nobody leaves early"
    assert filled.words_per_lane(variant) <= 96
    without = filled.body(filled.variants("register_direct", fence="none"), "nn/aligned")
    assert "volatile" not in without and len(without) < len(text)


def test_only_whole_threadgroups_leave():
    assert "return" not in filled.body(HALF, "nn/ragged")
    leaving = [line.strip() for line in filled.body(SWIZZLED, "nn/ragged").splitlines() if "return" in line]
    assert leaving == ["if (int(tile.y) * BM >= p.M) return;"], "the same answer in every simdgroup of a threadgroup"


@pytest.mark.exhaustive
@pytest.mark.parametrize("number, row", tuple(enumerate(filled.ROWS)), ids=filled.ROWS)
def test_every_row(number, row):
    types = filled.TYPES[number % len(filled.TYPES)] if row != "nn/ragged" and row != "nt/ragged" else TYPE
    variants = filled.variants("register_direct", types=types, out=("bfloat16", "float32", "float16")[number % 3])
    a, b = filled.operands(row, types, seed=number)
    filled.holds(variants, row, a, b, ("nax", "permuted"))


@pytest.mark.parametrize("m, n, k", [*cases.EDGE_SIZES, (5, 9, 256), (70, 200, 257), (33, 40, 511), (64, 128, 529)])
def test_edges_and_ragged_outer_blocks(m, n, k):
    for row in ("nn/ragged", "nt/ragged"):
        a, b = filled.operands(row, TYPE, size=(m, n, k), seed=m + n + k)
        dispatch = blocks.right(HALF, a, b, layout="padded", checked=True)
        predicted = registry.family("gemm").cost(HALF[dispatch["row"]]).barriers((a.shape, b.shape))
        assert dispatch["counters"]["barriers"] == predicted == -(-m // 64) * -(-n // 128) * -(-k // 256)


def test_padded_grid_leaves_early():
    """Three rows of blocks, walked four at a time: the fourth threadgroup of each group has nothing to do."""
    a, b = filled.operands("nn/ragged", TYPE, size=(150, 130, 300), seed=3)
    dispatch = blocks.right(SWIZZLED, a, b, checked=True, order_seed=5)
    assert tuple(dispatch["grid"]) == (8, 1, 1) and dispatch["counters"]["barriers"] == 3 * 2 * 2


def test_fence_changes_no_value():
    a, b = filled.operands("nn/ragged", TYPE, seed=4)
    with_fence, _ = flows.run(HALF, a, b, checked=True)
    without, _ = flows.run(filled.variants("register_direct", fence="none"), a, b, checked=True)
    assert (with_fence == without).all()


def test_batches_share_the_barrier_rule():
    spec = flows.spec_of("float16", batched=True)
    variants = flows.variant_set("mpp", "register_direct", filled.TILES["register_direct"], spec, ())
    rng = np.random.default_rng(5)
    a = cases.make("rows", 40, 260, "float16", rng, lead=(1, 2, 3))
    b = cases.make("rows", 260, 50, "float16", rng, lead=(1, 1, 3))
    dispatch = blocks.right(variants, a, b, checked=True)
    assert dispatch["grid"][2] == 6 and dispatch["counters"]["barriers"] == 6 * 2


PLANTED = (
    ("a simdgroup leaves alone", "if (int(tile.y) * BM >= p.M) return;", "if (row0 >= p.M) return;"),
    ("missing early exit", "if (int(tile.y) * BM >= p.M) return;", ""),
    ("wrong swizzle", "(block.y << 2)", "(block.y << 1)"),
    ("fragments of A swapped", "op.run(left, right, c10);", "op.run(left, right, c00);"),
    ("half of the pair dropped", "      put(right, b0_values);\n", "      put(right, b0_values);\n      for (ushort i = 0; i < right.get_capacity() / 2; ++i) right[i] = half(0.0f);\n"),
    ("last step of an outer block dropped", "step < steps;", "step < steps - 1;"),
    ("last outer block dropped", "first < p.K;", "first + BK < p.K;"),
    ("outer blocks overlap", "first += BK", "first += BK / 2"),
    ("stale pointer", "      b0 += OK * b_k;\n", ""),
    ("tail of K in the wrong place", "const int k_left = p.K % OK;", "const int k_left = 0;"),
)


@pytest.mark.parametrize("bug, before, after", PLANTED, ids=[p[0] for p in PLANTED])
def test_planted_bugs_are_caught(bug, before, after):
    # Five rows of blocks walked by four. Where nothing but work is lost at a ragged edge, full blocks show the bug.
    row, size = ("nn/aligned", (320, 128, 272)) if bug == "missing early exit" else ("nn/ragged", (270, 130, 277))
    a, b = filled.operands(row, TYPE, size=size, seed=6)
    with planted(before, after):
        found = blocks.caught(SWIZZLED, a, b)
    assert found, bug
    assert bug != "a simdgroup leaves alone" or "barrier" in found


@pytest.mark.parametrize("row", ["nn/aligned", "tt/ragged"])
def test_metal_4_1_takes_it(row):
    source = render(SWIZZLED[row])
    hostmetal.compile(source.text, source.kernel, dialect="4.1")
