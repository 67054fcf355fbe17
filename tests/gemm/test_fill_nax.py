"""Fill style nax, emulated: right under the lane map of M5-class GPUs, wrong under every other, four elements a load."""

import re

import mlx.core as mx
import numpy as np
import pytest

from mlx_tensorops import hostmetal
from mlx_tensorops.epilogues import Epilogue
from mlx_tensorops.errors import RuleError
from mlx_tensorops.policies import gemm as policy
from mlx_tensorops.shaders.render import render
from mlx_tensorops.variant import Tile
from tests.cases.gemm import make
from tests.gemm import blocks, filled, flows, judge
from tests.planted import planted

TYPE = ("float16", "float16")
VECTOR_ROWS = filled.ROWS[:-1]  # the strided row has no vectors
CASES = [("direct", row) for row in VECTOR_ROWS] + [(flow, row) for flow in ("direct8", "register_direct") for row in ("nn/aligned", "tn/ragged_m", "nt/ragged")]


def fails_elsewhere(variants, a, b) -> None:
    """Wrong under the maps of other GPUs: the reason why a probe must stand before such a kernel."""
    for layout in ("strict", "permuted"):
        c, _ = flows.run(variants, a, b, layout=layout, checked=True)
        assert filled.over_bound(variants, a, b, c) > 100, layout


@pytest.mark.parametrize("dataflow, row", CASES)
def test_right_on_its_map_and_wrong_on_others(dataflow, row):
    types = filled.TYPES[VECTOR_ROWS.index(row) % len(filled.TYPES)] if row != "nn/ragged" else TYPE
    variants = filled.variants(dataflow, "nax", types, out=("float16", "float32", "bfloat16")[VECTOR_ROWS.index(row) % 3])
    a, b = filled.operands(row, types, fill="nax", seed=1)
    filled.holds(variants, row, a, b, ("nax",))
    fails_elsewhere(variants, a, b)


@pytest.mark.parametrize("dataflow", filled.TILES)
def test_structure(dataflow):
    variants = filled.variants(dataflow, "nax")
    for row in VECTOR_ROWS:
        text = render(variants[row]).text
        assert "get_multidimensional_index" not in text and "is_valid_element" not in text, "asks for no coordinate"
        assert "*(const device metal::vec<T, 4>*)from" in text and "*(device metal::vec<T, WIDTH>*)to = x;" in text
        assert re.search(r"uint lane \[\[thread_index_in_simdgroup\]\]", text)
    strided = render(variants["strided/ragged"]).text
    assert "get_multidimensional_index" in strided and "thread_index_in_simdgroup" not in strided and "metal::vec<T, 4>" not in strided


def test_the_strided_row_takes_what_is_not_aligned_and_is_right_on_every_map():
    variants = filled.variants("direct", "nax")
    rng = np.random.default_rng(2)
    a, b = make("vector_rows", 64, 32, "float16", rng), make("vector_rows", 32, 128, "float16", rng)
    cases = (
        (make("offset", 64, 32, "float16", rng), b, "first element not on a vector"),
        (make("gap", 64, 32, "float16", rng), b, "rows of a 37 apart"),
        (a, make("gap", 32, 128, "float16", rng), "rows of b 133 apart"),
    )
    for left, right, why in cases:
        for layout in ("nax", "strict", "permuted"):
            assert blocks.right(variants, left, right, layout=layout, checked=True)["row"] == "strided/ragged", why
    assert blocks.right(variants, a, b)["row"] == "nn/aligned"


def test_batches_must_be_whole_vectors_apart():
    spec = flows.spec_of("float16", batched=True)
    variants = flows.variant_set("mpp", "direct", filled.TILES["direct"], spec, (("fill", "nax"),))
    rng = np.random.default_rng(3)
    a, b = make("vector_rows", 20, 32, "float16", rng, lead=(1, 2, 3)), make("vector_rows", 32, 40, "float16", rng, lead=(1, 2, 3))
    assert blocks.right(variants, a, b, checked=True)["row"] == "nn/ragged"
    wide = make("rows", 1, 3 * 642, "float16", rng).reshape(-1)
    odd = mx.as_strided(wide, (1, 1, 3, 20, 32), (0, 0, 642, 32, 1), 0)  # batches 642 elements apart: no multiple of 4
    assert blocks.right(variants, odd, b, checked=True)["row"] == "strided/ragged"


@pytest.mark.parametrize("m, n, k", [(1, 4, 4), (1, 1, 1), (16, 32, 16), (63, 126, 15), (65, 132, 18), (17, 35, 3), (127, 2, 33)])
def test_edges(m, n, k):
    """Sizes that end inside a vector of A, of B, of both and of C, whose rows may then be unaligned."""
    for row in ("nn/ragged", "tn/ragged", "nt/ragged"):
        a, b = filled.operands(row, TYPE, fill="nax", size=(m, n, k), seed=m + n + k)
        c, _ = flows.run(filled.variants("direct", "nax"), a, b, checked=True)
        assert filled.over_bound(filled.variants("direct", "nax"), a, b, c) <= 1


def test_nothing_past_the_matrix_leaks_in():
    """NaN in the gaps between rows, which whole vectors could reach."""
    rng = np.random.default_rng(4)
    wide_a, wide_b = np.full((40, 32), np.nan, np.float32), np.full((32, 92), np.nan, np.float32)
    wide_a[:35, :21], wide_b[:21, :70] = rng.normal(size=(35, 21)), rng.normal(size=(21, 70))
    a, b = mx.array(wide_a).astype(mx.float16)[:35, :21], mx.array(wide_b).astype(mx.float16)[:21, :70]
    assert blocks.right(filled.variants("direct", "nax"), a, b, checked=True)["row"] == "nn/ragged"


def test_epilogue_reads_only_inside_c():
    epilogue = Epilogue(True, "silu", True)
    spec = flows.spec_of("float16", epilogue=epilogue, extras=("float32", "float16"))
    variants = flows.variant_set("mpp", "register_direct", filled.TILES["register_direct"], spec, (("fill", "nax"),))
    rng = np.random.default_rng(5)
    for n in (70, 72):
        a, b = filled.operands("nn/ragged", TYPE, fill="nax", size=(35, n, 21))
        bias, residual = make("rows", 1, n, "float32", rng), make("rows", 35, n, "float16", rng)
        c, _ = flows.run(variants, a, b, bias, residual, checked=True)
        assert judge.epilogue_over_bound(a, b, c, "float16", epilogue, bias=bias, residual=residual) <= 1


def test_exact_float32_is_refused():
    with pytest.raises(RuleError, match="exact float32 operands have another lane map"):
        flows.variant_set("mpp", "direct", filled.TILES["direct"], flows.spec_of("float32"), (("fill", "nax"),))


def test_operations_without_a_published_map_are_refused():
    with pytest.raises(RuleError, match=r"knows the lane map of operations \(16, 32, 16\), not of \(32, 32, 16\)"):
        render(flows.variant_set("mpp", "direct", Tile(64, 128, 2, 2, 32, 32, 16), flows.spec_of("float16"), (("fill", "nax"),))["nn/aligned"])


def test_policy_takes_none_before_a_probe():
    assert not any(dict(entry.options).get("fill") == "nax" for entry in policy.TILES)
    listed = [entry for entry in policy.UNREACHED if dict(entry.options).get("fill") == "nax"]
    assert {entry.dataflow for entry in listed} == set(filled.TILES) and all("probe" in entry.why for entry in listed)


PLANTED = (
    ("lanes of another map", "(lane >> 2 & 4) | (lane >> 1 & 3)", "(lane >> 1 & 4) | (lane >> 1 & 3)"),
    ("columns of another map", "((lane >> 2 & 2) | (lane & 1)) * 4", "((lane >> 2 & 2) | (lane & 1)) * 2"),
    ("swapped lane halves", "v % 2 * 8", "(1 - v % 2) * 8"),
    ("second fragment on the first", "v / 2 * 16)", "0)"),
    ("elements reversed", "ct[4 * v + i] = values[v][i];", "ct[4 * v + i] = values[v][3 - i];"),
    ("cut vectors read whole", "if (!PARTIAL || inside >= 4)", "if (true)"),
    ("one element too many", "if (i < inside)", "if (i <= inside)"),
    ("tail of K not masked", "K_COORDINATE == 0 ? k_left :", "K_COORDINATE == 0 ? OK :"),
    ("rows not clamped", "if (CLAMP_ROWS) row = min(row, rows - 1);", ""),
    ("stores past the edge", "if (column + e < N) to[e]", "to[e]"),
)


@pytest.mark.parametrize("bug, before, after", PLANTED, ids=[p[0] for p in PLANTED])
def test_planted_bugs_are_caught(bug, before, after):
    a, b = filled.operands("nn/ragged", TYPE, fill="nax", size=(67, 150, 37), seed=6)
    with planted(before, after):
        assert blocks.caught(filled.variants("direct", "nax"), a, b), bug


@pytest.mark.parametrize("dataflow", filled.TILES)
def test_metal_4_1_takes_it(dataflow):
    source = render(filled.variants(dataflow, "nax")["tn/ragged"])
    hostmetal.compile(source.text, source.kernel, dialect="4.1")
