"""Dataflow direct8, emulated: 8 simdgroups of 32x32, B held and A streamed through one cooperative tensor."""

import pytest

from mlx_tensorops import hostmetal
from mlx_tensorops.shaders.render import render
from tests.cases import gemm as cases
from tests.gemm import blocks, filled, flows
from tests.planted import planted

HALF = filled.variants("direct8")


def test_structure():
    variant, text = HALF["nn/aligned"], filled.body(HALF, "nn/aligned")
    assert (variant.tile.threads, variant.tile.warp_m, variant.tile.warp_n) == (256, 32, 32)
    assert "max_total_threads_per_threadgroup(256)" in text
    assert text.count("get_left_input_cooperative_tensor") == text.count("get_right_input_cooperative_tensor") == 1
    assert text.count("get_destination_cooperative_tensor") == 2 and text.count("op.run(left, right0, ") == 4, "two fragments; loop and tail"
    assert text.index("fill(right0") < text.index("fill(left, a0") < text.index("op.run") < text.index("fill(left, a1"), "A streams"
    assert not any(word in text for word in ("barrier", "threadgroup half", "volatile", "lane"))
    direct = filled.variants("direct")["nn/aligned"]
    assert filled.words_per_lane(variant) == 44 < filled.words_per_lane(direct) == 80


@pytest.mark.exhaustive
@pytest.mark.parametrize("number, row", tuple(enumerate(filled.ROWS)), ids=filled.ROWS)
def test_every_row(number, row):
    types = filled.TYPES[number % len(filled.TYPES)] if row != "nn/ragged" and row != "nt/ragged" else ("float16", "float16")
    variants = filled.variants("direct8", types=types, out=("float16", "bfloat16", "float32")[number % 3])
    a, b = filled.operands(row, types, seed=number)
    filled.holds(variants, row, a, b, ("nax", "permuted"))


@pytest.mark.parametrize("m, n, k", cases.EDGE_SIZES)
def test_edges(m, n, k):
    for row in ("nn/ragged", "nt/ragged"):
        a, b = filled.operands(row, ("float16", "float16"), size=(m, n, k), seed=m + n + k)
        blocks.right(HALF, a, b, layout="padded", checked=True)


PLANTED = (
    ("B held too long", "    fill(right0, b0, b0_at);\n", "    if (step == 0) fill(right0, b0, b0_at);\n"),
    ("A's second fragment never loaded", "    fill(left, a1, a1_at);\n", ""),
    ("simdgroups as in 4 of 32x64", "SIMDGROUPS_N = 4;", "SIMDGROUPS_N = 2;"),
    ("stale pointer", "    a1 += OK * a_k;\n", ""),
    ("last step dropped", "step < steps;", "step < steps - 1;"),
    ("tail of B not masked", "fill_tail<1>(right0, b0, b0_at, k_left)", "fill_tail<1>(right0, b0, b0_at, OK)"),
    ("C not zeroed", "  zero(c10);\n", ""),
)


@pytest.mark.parametrize("bug, before, after", PLANTED, ids=[p[0] for p in PLANTED])
def test_planted_bugs_are_caught(bug, before, after):
    a, b = filled.operands("nn/ragged", ("float16", "float16"), seed=1)
    with planted(before, after):
        assert blocks.caught(HALF, a, b), bug


@pytest.mark.parametrize("row", ["nt/aligned", "tn/ragged"])
def test_metal_4_1_takes_it(row):
    source = render(HALF[row])
    hostmetal.compile(source.text, source.kernel, dialect="4.1")


def test_it_repeats_bit_for_bit():
    a, b = filled.operands("nn/aligned", ("float16", "float16"), seed=2)
    first, _ = flows.run(HALF, a, b, checked=True)
    again, _ = flows.run(HALF, a, b, checked=True, layout="permuted", order_seed=7)
    assert (first == again).all()
