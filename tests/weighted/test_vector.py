"""Dataflow vector: structure, what it reads, values against float64 on checked builds as Metal 3.1, planted bugs, and who takes it."""

import re

import numpy as np
import pytest

from mlx_tensorops import registry, signature
from mlx_tensorops.epilogues import Epilogue
from mlx_tensorops.errors import RuleError
from mlx_tensorops.policies import gateup, gather, qgemm
from mlx_tensorops.policies import weighted_simdgroup as table
from mlx_tensorops.primitives import _weighted
from mlx_tensorops.shaders import lint
from mlx_tensorops.shaders.render import render
from mlx_tensorops.variant import Tile
from tests.planted import planted
from tests.weighted import cases, experts, flows, judge, shapes
from tests.weighted.test_steel import CHECKED, spec_of

FOUR, FOUR_N = (e.tile for e in table.vector("m4", 4))
ONE, ONE_N = (e.tile for e in table.vector("few", 1))


def vector(tile: Tile, spec):
    return flows.variant_set("simdgroup", "vector", tile, spec)


# Tile, format, x, row, N, K. K is no multiple of what a simdgroup takes at once, and N none of its columns.
WHOLE = (
    (FOUR, "nvfp4", "bfloat16", "nt/ragged", 91, 1040),
    (FOUR, "affine3_g32", "float16", "tt/ragged", 45, 288),
    (FOUR_N, "mxfp8", "float32", "nn/ragged", 96, 43),
    (FOUR_N, "affine6_g128", "bfloat16", "tn/ragged", 128, 21),
)


@pytest.mark.parametrize("tile, name, x, row, n, k", WHOLE, ids=lambda v: getattr(v, "name", str(v)))
def test_whole_matrices(tile, name, x, row, n, k):
    """Every number of rows of the size class, and more than a block has; bytes are exact at any size."""
    spec = spec_of(name, x, row[1] == "t")
    views = ("every_other", "reversed", "columns") if row[0] == "t" else ("rows", "gap")
    for m in (1, 2, 3, 4, 6):
        problem = cases.problem(spec, m, n, k, m, x_view=views[m % len(views)] if m > 1 else views[0], rows_of_more=m == 3)
        variants = vector(tile, spec)
        results, dispatch = flows.run(variants, problem.inputs, **CHECKED, order_seed=m)
        assert dispatch["row"] == row and judge.over_bound(problem, results[0]) <= 1
        bytes_as_predicted(variants[row], problem, dispatch)


def bytes_as_predicted(variant, problem, dispatch):
    cost, counters = registry.family(variant.family).cost(variant), dispatch["counters"]
    given = [x.shape for x in problem.inputs]
    assert counters["device_load"][: len(given)] == [rule(given) for rule in cost.operand_bytes]
    assert sum(counters["device_store"]) == cost.output_bytes(given)
    assert counters["barriers"] == counters["threadgroup_bytes"] == counters["mma8x8"] == 0


@pytest.mark.parametrize("m, times", [(1, 1), (4, 1), (6, 2)])
def test_weights_are_read_once_for_four_rows(m, times):
    for tile, name, x, row, n, k in WHOLE[:1] + WHOLE[2:3]:
        spec = spec_of(name, x, row[1] == "t")
        _, dispatch = flows.run(vector(tile, spec), cases.problem(spec, m, n, k, m).inputs, **CHECKED)
        assert dispatch["counters"]["device_load"][1] == times * n * k * (4 if name == "nvfp4" else 8) // 8


EXPERT_RUNS = (
    (ONE, "nvfp4", "bfloat16", True, dict(rows="runs", epilogue=Epilogue(True), extras=("float32",)), 45, 48),
    (FOUR, "affine4_g32", "float32", True, dict(rows="runs", destinations=2, gate="geglu_erf", indirect=True), 37, 96),
    (ONE_N, "", "float16", False, dict(rows="runs", indirect=True), 77, 19),
    (FOUR_N, "nvfp4", "bfloat16", False, dict(rows="plan", destinations=2, gate="swiglu", global_scale="amax"), 48, 27),
    (FOUR, "", "bfloat16", True, dict(rows="plan", destinations=2, out="float32"), 21, 45),
)


@pytest.mark.parametrize("tile, name, x, transpose, how, n, k", EXPERT_RUNS, ids=lambda v: getattr(v, "name", None) or (str(v) if not isinstance(v, dict) else v["rows"]))
def test_rows_of_experts(tile, name, x, transpose, how, n, k):
    """Ids in any order, sorted or not, and ids that are no expert."""
    spec = spec_of(name, x, transpose, **how, block_m=tile.m if how["rows"] == "plan" else 0)
    for seed, ordered in enumerate((True, False)):
        ids = experts.ids_of(22, seed, bad=True)
        given = experts.problem(spec, np.sort(ids) if ordered else ids, n, k, seed)
        results, dispatch = flows.run(vector(tile, spec), given[0].inputs, **CHECKED, order_seed=seed)
        assert experts.over_bound(*given, results) <= 1
        assert dispatch["counters"]["barriers"] == dispatch["counters"]["threadgroup_bytes"] == 0


def test_a_row_per_run_reads_its_expert_once_in_any_order():
    spec = spec_of("nvfp4", "bfloat16", rows="runs", epilogue=Epilogue(True), extras=("float32",))
    ids = experts.ids_of(22, 1)
    loads = []
    for order in (np.sort(ids), ids):
        problem, *_ = experts.problem(spec, order, 45, 48, 1)
        _, dispatch = flows.run(vector(ONE, spec), problem.inputs, **CHECKED)
        loads.append(dispatch["counters"]["device_load"][:3])
    assert loads[0] == loads[1] and loads[0][1] == 22 * 45 * 48 // 2


def test_batch_epilogue_and_global_scale():
    spec = spec_of("nvfp4", "float16", out="bfloat16", global_scale="prescaled", batched=True, epilogue=Epilogue(True, "gelu_tanh", True),
                   extras=("float32", "float16"))
    for seed, shared in enumerate((True, False)):
        problem = cases.problem(spec, 3, 20, 48, seed, shared_weights=shared)
        results, dispatch = flows.run(vector(FOUR, spec), problem.inputs, **CHECKED)
        assert dispatch["grid"] == (3, 1, 2) and judge.over_bound(problem, results[0]) <= 1


@pytest.mark.parametrize("tile, name, x, transpose", [(FOUR, "nvfp4", "bfloat16", True), (FOUR_N, "mxfp8", "float32", False)], ids=["nt", "nn"])
@pytest.mark.parametrize("n, k", [(1, 1), (2, 2), (3, 16), (4, 17), (5, 33)])
def test_edges(tile, name, x, transpose, n, k):
    """Sizes in groups along the packed axis; the other one, too, where it is cut."""
    spec = spec_of(name, x, transpose)
    problem = cases.problem(spec, 4, n * 3 if transpose else n * 32, k * 16 if transpose else k, n)
    results, _ = flows.run(vector(tile, spec), problem.inputs, **CHECKED)
    assert judge.over_bound(problem, results[0]) <= 1


# ------------------------------------------------------------------------------------------------------------ structure

@pytest.mark.parametrize("tile, transpose", [(FOUR, True), (ONE, True), (FOUR_N, False), (ONE_N, False)])
@pytest.mark.parametrize("rows", ["whole", "runs"])
def test_what_it_is_made_of(tile, transpose, rows):
    spec = spec_of("affine4_g64", "float16", transpose, **({} if rows == "whole" else dict(rows=rows)))
    for v in vector(tile, spec).rows:
        text = render(v).text
        assert not re.search(r"\bthreadgroup \w", text) and "barrier" not in text and "simdgroup_multiply" not in text
        assert signature.of(v).threadgroup_bytes == 0 and lint.lint(v) == []
        assert ("simd_sum(" in text) is transpose and ("simd_shuffle_xor(" in text) is not transpose
        assert text.count("take<") == 1, "one decoding for all rows"


def test_what_does_not_fit_says_so():
    with pytest.raises(RuleError, match="64 results of a simdgroup; each of its 32 lanes stores one"):
        vector(Tile(16, 8, 1, 2, 16, 4, 1), spec_of("nvfp4", "bfloat16"))
    with pytest.raises(RuleError, match="takes 32 columns of weights packed along N, not 4"):
        vector(FOUR, spec_of("nvfp4", "bfloat16", False))
    with pytest.raises(RuleError, match="share rows"):
        vector(Tile(8, 8, 2, 2, 4, 4, 1), spec_of("nvfp4", "bfloat16"))


# --------------------------------------------------------------------------------------------------------------- policy

def taken(family, engine: str, spec, m: int, count: int = 3) -> tuple[str, int]:
    """(dataflow, rows of a block) that policy takes for m rows, of ``count`` experts."""
    variants = _weighted.rows(spec, engine, family.choose(spec, engine))
    for v in variants:
        given = shapes.of(v, m=m, n=192, k=256, experts=count)
        strides = [tuple(int(np.prod(s[i + 1:])) for i in range(len(s))) for s in given]
        if signature.of(v).when(given, strides, (0,) * len(given)):
            return v.dataflow, v.tile.m
    raise AssertionError("no row fits")


@pytest.mark.parametrize("engine, matrix", [("mpp", "staged"), ("simdgroup", "steel")])
@pytest.mark.parametrize("transpose", [True, False])
def test_few_rows_take_it_on_both_engines(engine, matrix, transpose):
    whole = spec_of("nvfp4", "bfloat16", transpose)
    assert [taken(qgemm, engine, whole, m) for m in (1, 4, 5, 16, 17, 33)] == [("vector", 4)] * 2 + [(matrix, 16)] * 2 + [(matrix, 32), (matrix, 64)]
    runs = spec_of("nvfp4", "bfloat16", transpose, rows="runs")
    assert [taken(gather, engine, runs, m) for m in (1, 15, 16, 40)] == [("vector", 1)] * 2 + [(matrix, 16), (matrix, 64)]
    assert [taken(gather, engine, runs, m, count=40) for m in (16, 39, 40)] == [("vector", 1)] * 2 + [(matrix, 64)]
    two = spec_of("nvfp4", "bfloat16", transpose, rows="runs", destinations=2, gate="swiglu")
    assert [taken(gateup, engine, two, m) for m in (8, 64)] == [("vector", 1), (matrix, 64)]


@pytest.mark.parametrize("engine, matrix", [("mpp", "staged"), ("simdgroup", "steel")])
@pytest.mark.parametrize("x", ["bfloat16", "float32"])
def test_a_plan_takes_blocks_of_its_own_height(engine, matrix, x):
    for block_m in (1, 4, 16, 32, 64):
        for family, how in ((gather, {}), (gateup, dict(destinations=2, gate="swiglu"))):
            spec = spec_of("nvfp4", x, rows="plan", block_m=block_m, **how)
            assert taken(family, engine, spec, 200) == ("vector" if block_m < 16 else matrix, block_m)


# --------------------------------------------------------------------------------------------------------- planted bugs

BUGS = (
    ("a lane's last pack dropped", FOUR, True, "k < p.K; k += 32 * PACK", "k + PACK < p.K; k += 32 * PACK"),
    ("columns past the matrix stored", FOUR, True, "|| column >= p.N) continue;", ") continue;"),
    ("every lane the first result", FOUR, True, "int(lane) == r * SUMS + j", "r + j == 0"),
    ("lanes along K not added", FOUR_N, False, "apart < 32; apart *= 2", "apart < 16; apart *= 2"),
    ("one row for all", FOUR_N, False, "fma(x_values[r]", "fma(x_values[0]"),
)


@pytest.mark.parametrize("bug, tile, transpose, before, after", BUGS, ids=lambda v: v if isinstance(v, str) and len(v) < 45 else "")
def test_planted_bugs_are_caught(bug, tile, transpose, before, after):
    spec = spec_of("nvfp4", "bfloat16", transpose)
    problem = cases.problem(spec, 4, 83 if transpose else 80, 320 if transpose else 45, 4)
    with planted(before, after):
        assert flows.caught(vector(tile, spec), problem, lambda results: judge.over_bound(problem, results[0]), dialect="3.1"), bug
