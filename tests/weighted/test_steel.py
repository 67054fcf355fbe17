"""Dataflow steel: structure, what it reads, values against float64 on checked builds as Metal 3.1, and planted bugs."""

import re

import numpy as np
import pytest

from mlx_tensorops import manifests, signature
from mlx_tensorops.epilogues import Epilogue
from mlx_tensorops.errors import RuleError
from mlx_tensorops.policies import weighted_simdgroup as table
from mlx_tensorops.primitives import _weighted
from mlx_tensorops.shaders import lint
from mlx_tensorops.shaders.render import render
from mlx_tensorops.spec import WeightedSpec, WeightSpec
from mlx_tensorops.variant import Tile
from tests.planted import planted
from tests.weighted import cases, experts, flows, judge

LARGE, HALF, NARROW = table.STEEL, table.HALF, table.NARROW
NARROWER = Tile(16, 64, 1, 4, 8, 8, 8)  # Butter's fourth
TILES = (LARGE, HALF, NARROW, NARROWER, *table.TWO.values())
CHECKED = dict(checked=True, dialect="3.1")


def spec_of(name: str, x: str, transpose: bool = True, **how) -> WeightedSpec:
    fmt = "affine" in name
    weights = WeightSpec(name, "uint32" if name else x, (x if fmt else "uint8") if name else "", transpose, how.pop("global_scale", ""))
    op = "gather_gateup" if how.get("destinations", 1) == 2 else "quantized_matmul" if "rows" not in how else "gather_qmm"
    return WeightedSpec(x, how.pop("out", x), weights, op=op, **how)


def steel(tile: Tile, spec: WeightedSpec, **options):
    return flows.variant_set("simdgroup", "steel", tile, spec, tuple(options.items()))


def reached(variants, problem: cases.Problem, results, dispatch, row: str) -> None:
    assert dispatch["row"] == row
    assert judge.over_bound(problem, results[0]) <= 1
    judge.counters_as_predicted(variants[row], problem, dispatch, "nax")


# Tile, format, x, row, M, N, K. Sizes leave blocks, packs and steps of K half full where the row allows it.
WHOLE = (
    (LARGE, "nvfp4", "bfloat16", "nt/aligned", 128, 64, 96),
    (LARGE, "nvfp4", "bfloat16", "nt/ragged", 70, 96, 1040),
    (LARGE, "mxfp8", "float32", "tt/ragged", 67, 37, 64),
    (LARGE, "affine1_g32", "float32", "nn/ragged_m", 70, 128, 88),
    (HALF, "affine2_g128", "bfloat16", "nt/ragged_m", 33, 64, 128),
    (HALF, "affine6_g32", "float16", "nn/ragged", 41, 96, 77),
    (NARROW, "affine3_g32", "bfloat16", "nt/ragged", 21, 200, 160),
    (NARROW, "affine8_g32", "float32", "nn/aligned", 16, 256, 40),
    (NARROWER, "mxfp4", "float16", "nt/aligned", 32, 128, 64),
    (NARROWER, "nvfp4", "float32", "nn/aligned", 32, 128, 24),
    (NARROWER, "affine5_g64", "bfloat16", "tn/ragged", 19, 192, 53),
)


@pytest.mark.parametrize("tile, name, x, row, m, n, k", WHOLE, ids=lambda v: getattr(v, "name", str(v)))
def test_whole_matrices(tile, name, x, row, m, n, k):
    """Rows of x at any strides where the row says so; stored arrays are rows of larger ones."""
    spec = spec_of(name, x, row[1] == "t")
    for seed, x_view in enumerate(("every_other", "reversed") if row[0] == "t" else ("rows", "gap")):
        problem = cases.problem(spec, m, n, k, seed, x_view=x_view, rows_of_more=seed == 1)
        results, dispatch = flows.run(steel(tile, spec), problem.inputs, **CHECKED, order_seed=seed)
        reached(steel(tile, spec), problem, results, dispatch, row)


def test_fragments_of_float_give_the_same_and_read_the_same():
    spec = spec_of("nvfp4", "bfloat16")
    variants = steel(LARGE, spec, fragments="float")
    assert "typedef float T;" in render(variants["nt/aligned"]).text and "typedef bfloat T;" in render(steel(LARGE, spec)["nt/aligned"]).text
    problem = cases.problem(spec, 128, 64, 96, 3)
    results, dispatch = flows.run(variants, problem.inputs, **CHECKED)
    reached(variants, problem, results, dispatch, "nt/aligned")


@pytest.mark.parametrize("transpose", [True, False])
def test_fragments_hold_every_weight(transpose):
    """bfloat for bfloat x and a floating format, half for half weights; float wherever a weight would be rounded."""
    def of(name, x):
        return re.search(r"typedef (\w+) T;", render(steel(NARROW, spec_of(name, x, transpose, **({} if name else dict(rows="runs")))).rows[0]).text)[1]

    assert [of(name, "bfloat16") for name in ("nvfp4", "mxfp4", "mxfp8", "")] == ["bfloat"] * 4
    assert of("", "float16") == "half"
    assert [of("affine4_g64", x) for x in ("bfloat16", "float16", "float32")] + [of("nvfp4", "float16"), of("mxfp8", "float32")] == ["float"] * 5


EXPERT_RUNS = (
    (LARGE, "nvfp4", "bfloat16", True, dict(rows="plan", destinations=2, gate="swiglu"), 96, 80),
    (LARGE, "nvfp4", "bfloat16", True, dict(rows="runs", epilogue=Epilogue(True), extras=("float32",)), 64, 64),
    (LARGE, "", "bfloat16", False, dict(rows="runs", indirect=True), 77, 45),
    (HALF, "", "float16", True, dict(rows="plan"), 67, 45),
    (NARROW, "nvfp4", "bfloat16", True, dict(rows="runs", destinations=2, out="float32"), 160, 48),
    (NARROWER, "affine4_g32", "float16", True, dict(rows="plan", indirect=True, epilogue=Epilogue(True, "relu"), extras=("float16",)), 96, 64),
    (table.TWO[LARGE], "affine4_g32", "float32", True, dict(rows="plan", destinations=2, gate="geglu_tanh"), 40, 96),
    (table.TWO[HALF], "nvfp4", "float32", False, dict(rows="runs", destinations=2, gate="swiglu_clamped", global_scale="amax"), 48, 27),
)


@pytest.mark.parametrize("tile, name, x, transpose, how, n, k", EXPERT_RUNS, ids=lambda v: getattr(v, "name", None) or (str(v) if not isinstance(v, dict) else v["rows"]))
def test_rows_of_experts(tile, name, x, transpose, how, n, k):
    """Ids that are no expert, an expert without rows, runs longer and shorter than a block, and runs in any order."""
    spec = spec_of(name, x, transpose, **how, block_m=tile.m if how["rows"] == "plan" else 0)
    for seed, rows in enumerate((150, 14)):
        ids = experts.ids_of(rows, seed, bad=True)
        given = experts.problem(spec, np.sort(ids) if how["rows"] == "runs" and seed == 0 else ids, n, k, seed)
        results, dispatch = flows.run(steel(tile, spec), given[0].inputs, **CHECKED, order_seed=seed)
        assert experts.over_bound(*given, results) <= 1
        assert dispatch["counters"]["barriers"] == dispatch["counters"]["threadgroup_bytes"] == 0
        if how["rows"] == "plan" and transpose:
            work_of_a_plan(tile, given[0], dispatch["counters"], n, k)


def work_of_a_plan(tile: Tile, problem: cases.Problem, counters: dict, n: int, k: int) -> None:
    """Every simdgroup with rows reads its columns of the expert once, and multiplies no fragment without a row."""
    parts = [min(count - first, tile.warp_m) for expert, count in zip(*(np.array(problem.arrays[name]) for name in ("tile_expert", "tile_row_count")))
             if expert >= 0 for first in range(0, count, tile.warp_m)]
    spec = problem.spec
    if spec.weights.format:
        first = list(problem.arrays).index("w" if spec.destinations == 1 else "w_gate")
        assert counters["device_load"][first] == len(parts) * n * k * 4 // 8
    steps = -(-n // tile.warp_n) * tile.fragments_n * -(-k // 32) * 4
    assert counters["mma8x8"] == sum(-(-rows // 8) for rows in parts) * steps * spec.destinations


def test_one_matrix_with_two_destinations():
    spec = spec_of("nvfp4", "bfloat16", destinations=2, gate="swiglu")
    one = cases.problem(spec_of("nvfp4", "bfloat16"), 70, 96, 80, 1)
    other = cases.problem(spec_of("nvfp4", "bfloat16"), 70, 96, 80, 2)
    arrays = [one.arrays["x"], one.arrays["w"], one.arrays["scales"], other.arrays["w"], other.arrays["scales"]]
    (c,), _ = flows.run(steel(LARGE, spec), arrays, **CHECKED)
    both = cases.Problem(spec, dict(zip(("x", "w_gate", "scales_gate", "w_up", "scales_up"), (a[None] if i else a for i, a in enumerate(arrays)))))
    nobody = np.zeros(70, np.int32)
    assert experts.over_bound(both, nobody, np.arange(70), [c]) <= 1


def test_batch_epilogue_and_global_scale():
    """All at once, on weights that repeat along the batch and on weights of their own."""
    spec = spec_of("nvfp4", "float16", out="float32", global_scale="prescaled", batched=True, epilogue=Epilogue(True, "silu", True),
                   extras=("float32", "float16"))
    for seed, shared in enumerate((True, False)):
        problem = cases.problem(spec, 35, 72, 48, seed, shared_weights=shared)
        results, dispatch = flows.run(steel(HALF, spec), problem.inputs, **CHECKED)
        assert dispatch["grid"] == (2, 2, 2) and judge.over_bound(problem, results[0]) <= 1


@pytest.mark.parametrize("tile, name, x, transpose", [(LARGE, "nvfp4", "bfloat16", True), (HALF, "affine6_g32", "float16", False)], ids=["nt", "nn"])
@pytest.mark.parametrize("m, n, k", [(1, 1, 1), (8, 1, 2), (9, 2, 3), (31, 3, 2), (33, 2, 1), (64, 4, 4), (65, 5, 7)])
def test_edges(tile, name, x, transpose, m, n, k):
    """Sizes in rows, and in groups along the packed axis."""
    group = int(name.split("_g")[1]) if "_g" in name else 16
    spec = spec_of(name, x, transpose)
    problem = cases.problem(spec, m, n * 7 if transpose else n * group, k * group if transpose else k * 5, m)
    results, _ = flows.run(steel(tile, spec), problem.inputs, **CHECKED)
    assert judge.over_bound(problem, results[0]) <= 1


# ------------------------------------------------------------------------------------------------------------ structure

@pytest.mark.parametrize("tile", TILES, ids=lambda t: t.name)
@pytest.mark.parametrize("rows", ["whole", "runs", "plan"])
def test_what_it_is_made_of(tile, rows):
    for transpose in (True, False):
        spec = spec_of("affine4_g64", "float16", transpose, **({} if rows == "whole" else dict(rows=rows, block_m=tile.m)))
        variants = steel(tile, spec)
        assert {v.row for v in variants.rows} >= {"nt/ragged_m", "nt/ragged", "tt/ragged"} if transpose else {"nn/ragged_m", "nn/ragged", "tn/ragged"}
        for v in variants.rows:
            text = render(v).text
            assert not re.search(r"\bthreadgroup \w", text) and "barrier" not in text
            assert signature.of(v).threadgroup_bytes == 0 and "simdgroup_load" not in text
            assert text.count("#pragma clang loop unroll(disable)") == 1, "the K loop, and no other"
            assert "simdgroup_matrix<float, 8, 8> Sum" in text and lint.lint(v) == []


def test_a_pack_is_taken_outside_the_loop_over_rows():
    text = render(steel(LARGE, spec_of("nvfp4", "bfloat16"))["nt/aligned"]).text
    loop = text[text.index("unroll(disable)"):text.index("Epilogue finish;")]
    order = [m[0] for m in re.finditer(r"for \(int j = 0|take<|for \(int t = 0|for \(int i = 0|simdgroup_multiply_accumulate", loop[loop.index("for (int j = 0"):])]
    assert order == ["for (int j = 0", "take<", "for (int t = 0", "for (int i = 0", "simdgroup_multiply_accumulate"]


def weight_bytes(variants, problem) -> int:
    _, dispatch = flows.run(variants, problem.inputs, **CHECKED)
    return dispatch["counters"]["device_load"][1]


def test_every_weight_is_read_once_per_simdgroup_and_step():
    """Rows of weights lie under each other in registers: only simdgroups that share columns read the same ones."""
    for tile, name, x, row, m, n, k in WHOLE:
        if row.endswith("/aligned"):
            spec = spec_of(name, x, row[1] == "t")
            halves = 2 if (tile, row) == (NARROWER, "nn/aligned") else 1  # 16 columns of packs along N: two lanes share each
            bits = int(re.search(r"\d", name)[0])
            assert weight_bytes(steel(tile, spec), cases.problem(spec, m, n, k, 0)) == n * k * bits // 8 * (m // tile.warp_m) * halves


def test_the_other_loop_order_reads_four_times_as_much():
    """Rows outside, columns inside: the same values, and every weight read and decoded once per fragment of rows. Counters tell."""
    spec = spec_of("nvfp4", "bfloat16")
    problem = cases.problem(spec, 128, 64, 96, 0)
    right = weight_bytes(steel(LARGE, spec), problem)
    columns, rows, one = ("for (int j = 0; j < FRAGMENTS_N; ++j) {\n      T values", "for (int i = 0; i < FRAGMENTS_M; ++i) {\n          simdgroup_mul",
                          "for (int once = 0; once < 1; ++once) {\n          simdgroup_mul")
    with planted(columns, "for (int i = 0; i < FRAGMENTS_M; ++i) " + columns, (rows, one)):
        (c,), dispatch = flows.run(steel(LARGE, spec), problem.inputs, **CHECKED)
    assert judge.over_bound(problem, c) <= 1 and dispatch["counters"]["device_load"][1] == LARGE.fragments_m * right
    with pytest.raises(AssertionError):
        judge.counters_as_predicted(steel(LARGE, spec)["nt/aligned"], problem, dispatch, "nax")


def test_what_does_not_fit_says_so():
    two = spec_of("affine4_g64", "float16", destinations=2, rows="runs")
    with pytest.raises(RuleError, match="104 words per lane"):
        steel(LARGE, two)
    with pytest.raises(RuleError, match="the plan's tiles have 32 rows, this block 64"):
        steel(LARGE, spec_of("nvfp4", "bfloat16", rows="plan", block_m=32))
    with pytest.raises(RuleError, match="16 columns or a multiple of 32"):
        steel(Tile(64, 96, 2, 2, 8, 8, 8), spec_of("nvfp4", "bfloat16", False))
    with pytest.raises(RuleError, match="8x8"):
        steel(Tile(64, 64, 2, 2, 16, 16, 8), spec_of("nvfp4", "bfloat16"))


def test_manifest_asks_for_no_more_than_metal_3_1():
    entry = manifests.of(steel(LARGE, spec_of("nvfp4", "bfloat16"))["nt/aligned"])
    assert entry["requires"]["metal"] == "3.1" and not entry["requires"]["neural_accelerators"]


# --------------------------------------------------------------------------------------------------------- planted bugs

NT = dict(name="nvfp4", x="bfloat16", m=70, n=90, k=80)
NN = dict(name="affine4_g32", x="float16", m=70, n=96, k=37, transpose=False)
BUGS = (
    ("x in another order of K than the weights", NT, "place.y * PRODUCTS + t", "place.y + t * 8"),
    ("columns not masked", NT, "(MASK_N && column >= N)", "(MASK_N && column > N)"),
    ("K not masked", NT, "(MASK_K && k >= K) ? T(0.0f)", "(MASK_K && k > K + 100) ? T(0.0f)"),
    ("the scale of the group before", NT, "inner / GROUP]);", "max(inner - 1, 0) / GROUP]);"),
    ("rows of x by the block's first row", NT, "int(simdgroup) / SIMDGROUPS_N * WM", "0"),
    ("fragments of columns exchanged", NN, "const int j = (owned + e) / 2;", "const int j = FRAGMENTS_N - 1 - (owned + e) / 2;"),
    ("columns a lane does not own", NN, "column0 + place.x / 2 * OWNED + owned, k0", "column0 + place.x / 2 * PACK + owned + PACK, k0"),
    ("last step of K dropped", NN, "if (whole_steps < p.K)", "if (whole_steps < p.K - STEP)"),
)


@pytest.mark.parametrize("bug, given, before, after", BUGS, ids=lambda v: v if isinstance(v, str) and len(v) < 45 else "")
def test_planted_bugs_are_caught(bug, given, before, after):
    sizes = dict(given)
    name, x, m, n, k = (sizes.pop(key) for key in ("name", "x", "m", "n", "k"))
    spec = spec_of(name, x, **sizes)
    problem = cases.problem(spec, m, n, k, 4)
    with planted(before, after):
        assert flows.caught(steel(LARGE, spec), problem, lambda results: judge.over_bound(problem, results[0]), dialect="3.1"), bug


EXPERT_BUGS = (
    ("rows not followed through the plan", "plan", "order[at * order_step]", "at"),
    ("the run's end not seen", "runs", "&& experts[end * p.experts_step] == expert", ""),
    ("a lane's second row is its first", "plan", "lane_row + e;\n      numbers", "lane_row;\n      numbers"),
    ("fragments beyond the run's first left out", "runs", "if (i * OM >= count) continue;", "if (i * OM >= count - OM) continue;"),
)


@pytest.mark.parametrize("bug, rows, before, after", EXPERT_BUGS, ids=lambda v: v if len(v) < 45 else "")
def test_planted_bugs_of_rows_are_caught(bug, rows, before, after):
    spec = spec_of("nvfp4", "bfloat16", rows=rows, block_m=64 if rows == "plan" else 0)
    ids = experts.ids_of(150, 0, bad=True)
    given = experts.problem(spec, ids if rows == "plan" else np.sort(ids), 64, 64, 0)
    with planted(before, after):
        assert flows.caught(steel(LARGE, spec), given[0], lambda results: experts.over_bound(*given, results), dialect="3.1"), bug
