"""Rows of experts in the kernels: a permuted plan, plans that a caller made, ids that name nobody, planted bugs."""

import mlx.core as mx
import numpy as np
import pytest

import mlx_tensorops as mt
from mlx_tensorops import plans
from mlx_tensorops.policies import gateup, gather
from mlx_tensorops.primitives import _weighted
from mlx_tensorops.spec import WeightedSpec, WeightSpec
from mlx_tensorops.variant import Tile, VariantSet
from tests.planted import planted
from tests.weighted import experts, flows
from tests.weighted.cases import Problem

NVFP4 = WeightSpec("nvfp4", "uint32", "uint8")


def spec_of(rows: str, block_m: int = 0, two: bool = False, x: str = "bfloat16", **how) -> WeightedSpec:
    """gather_qmm, or gate and up, with nvfp4 weights."""
    joined = dict(destinations=2, gate="swiglu", op="gather_gateup") if two else dict(op="gather_qmm")
    return WeightedSpec(x, x, NVFP4, rows=rows, block_m=block_m, **{**joined, **how})


def kernel(spec: WeightedSpec, engine: str = "mpp", height: int | None = None) -> VariantSet:
    """What policy takes for the spec, the block of ``height`` rows without a plan."""
    table = gateup if spec.destinations == 2 else gather
    found = [e for e in table.choose(spec, engine) if height in (None, e.tile.m)]
    return VariantSet(spec, engine, _weighted.rows(spec, engine, found))


KERNELS = [("mpp", 4), ("mpp", 64), ("mpp", 128), ("simdgroup", 64)]


@pytest.mark.parametrize("engine, block_m", KERNELS)
def test_a_permuted_plan_changes_the_walk_and_not_the_result(engine, block_m):
    """Tiles in any order, smaller ones, and an expert's rows in any order."""
    rng = np.random.default_rng(block_m)
    spec = spec_of("plan", block_m, two=True)
    ids = experts.ids_of(150, 3)
    given = experts.problem(spec, ids, 72, 96, 1)
    variants = kernel(spec, engine)
    (first,), _ = flows.run(variants, given[0].inputs, checked=True)
    plan = mt.tile_plan(ids, num_experts=experts.EXPERTS, block_m=block_m)
    expert, start, count, order = (np.array(getattr(plan, name)) for name in ("tile_expert", "tile_row_start", "tile_row_count", "order"))
    for e in range(experts.EXPERTS):
        own = np.flatnonzero(ids[order] == e)
        order[own] = rng.permutation(order[own])
    tiles = rng.permutation([tile for e, s, c in zip(expert, start, count) for tile in ([(e, s, c // 2), (e, s + c // 2, c - c // 2)] if c > 1 else [(e, s, c)])])
    inverse = np.empty_like(order)
    inverse[order] = np.arange(len(order))
    other = mt.TilePlan(*tiles.T, order, inverse, np.zeros(1, int), experts.EXPERTS, block_m)
    arrays = given[0].arrays | {name: getattr(other, name) for name in ("tile_expert", "tile_row_start", "tile_row_count", "order")}
    assert not mx.array_equal(arrays["order"], given[0].arrays["order"])
    (second,), dispatch = flows.run(variants, Problem(spec, arrays).inputs, checked=True)
    assert dispatch["grid"][1] == len(tiles) > plan.tiles - experts.EXPERTS
    assert mx.array_equal(first, second) and experts.over_bound(*given, [second]) <= 1


@pytest.mark.parametrize("engine, block_m", KERNELS)
def test_orders_of_threadgroups_give_the_same_bits(engine, block_m):
    spec = spec_of("plan", block_m, two=True)
    given = experts.problem(spec, experts.ids_of(150, 5, bad=True), 72, 96, 2)
    first = None
    for order in (0, 1, 2, 3, 5, 8):
        (c,), _ = flows.run(kernel(spec, engine), given[0].inputs, order_seed=order, checked=True)
        first = c if first is None else first
        assert mx.array_equal(c, first)
    assert experts.over_bound(*given, [first]) <= 1


def test_ids_and_plans_of_any_stride():
    """A broadcast id, and a plan whose arrays are columns of one matrix."""
    runs = spec_of("runs", indirect=True)
    given, ids, source = experts.problem(runs, np.full(40, 2, np.int32), 72, 96, 3)
    arrays = given.arrays | {"experts": mx.broadcast_to(mx.array([2], mx.int32), (40,)), "x_rows": mx.repeat(given.arrays["x_rows"], 2)[::2]}
    results, _ = flows.run(kernel(runs, height=64), Problem(runs, arrays).inputs, checked=True)
    assert experts.over_bound(given, ids, source, results) <= 1
    for block_m in (4, 64):
        spec = spec_of("plan", block_m, two=True)
        given, ids, source = experts.problem(spec, experts.ids_of(60, 1), 72, 96, 3)
        tiles = mx.stack([given.arrays[name] for name in ("tile_expert", "tile_row_start", "tile_row_count")], axis=1)
        order = mx.stack([given.arrays["order"], mx.zeros_like(given.arrays["order"])], axis=1)
        arrays = given.arrays | {"tile_expert": tiles[:, 0], "tile_row_start": tiles[:, 1], "tile_row_count": tiles[:, 2], "order": order[:, 0]}
        results, _ = flows.run(kernel(spec), Problem(spec, arrays).inputs, checked=True)
        assert experts.over_bound(given, ids, source, results) <= 1


@pytest.mark.parametrize("last", range(1, 18))
def test_every_number_of_rows_at_the_end_of_an_expert(last):
    """Up to 4 of them leave the matrix unit, as do all rows of the second expert."""
    spec = spec_of("plan", 64, two=True)
    ids = np.repeat([0, 1], [16 + last, 1 if last % 2 else 2]).astype(np.int32)
    given = experts.problem(spec, ids, 64, 64, last)
    results, dispatch = flows.run(kernel(spec), given[0].inputs, checked=True)
    assert experts.over_bound(*given, results) <= 1
    fragments = -(-(16 + last) // 16) - (1 <= (16 + last) % 16 <= 4)
    assert dispatch["counters"]["macs"] == fragments * 16 * 64 * 64 * 2


PLANS = {
    "another expert's weights": ("* p.w_gate_matrix", "* 0"),
    "the order not undone": ("order[(start + r) * p.order_step]", "(start + r)"),
    "the last row left out": ("r < rows_here ? order", "r + 1 < rows_here ? order"),
    "one row too many": ("r < rows_here ? order", "r <= rows_here ? order"),
    "rows past the tile stored": ("r >= first && r < end ? results[r]", "r >= first ? results[max(r % 32, 0)]"),
    "no wait for the tiles": ("threadgroup_barrier(mem_flags::mem_threadgroup);  // the tiles are complete", ""),
    "no wait for the row numbers": ("threadgroup_barrier(mem_flags::mem_threadgroup);  // the numbers are written", ""),
    "gate and up swapped": ("op.run(left0, right, c_gate00);", "op.run(left0, right, c_up00);"),
    "the last rows stored one too early": ("const int r = begin + thread_index / BN", "const int r = begin - 1 + thread_index / BN"),
    "the last rows' weights not theirs": ("w[column * B_N + k * B_K]", "w[column * B_N]"),
}


def caught(variants, given, **emulation) -> str | None:
    """How the checked emulator or float64 tells that a kernel is wrong; None: it does not."""
    return flows.caught(variants, given[0], lambda results: experts.over_bound(*given, results), **emulation)


@pytest.mark.parametrize("bug", PLANS)
def test_planted_bugs_of_plans_are_caught(bug):
    spec = spec_of("plan", 64, two=True)
    ids = np.concatenate([np.repeat([0, 1, 3], [35, 2, 20]), [4, -1, 4]]).astype(np.int32)
    given = experts.problem(spec, np.random.default_rng(2).permutation(ids), 72, 96, 4)
    with planted(*PLANS[bug]):
        assert caught(kernel(spec), given), f"not caught: {bug}"


RUNS = {
    "a run one row too long": ("end < rows_here && experts[(row0 + end) * p.experts_step] == expert", "end < rows_here && experts[(row0 + end - 1) * p.experts_step] == expert"),
    "the first row's expert for all": ("experts[(row0 + first) * p.experts_step]", "experts[row0 * p.experts_step]"),
    "ids that name nobody": ("if (expert < 0 || expert >= p.experts_count) {", "if (false) {"),
    "x by row and not by index": ("x_rows[result * p.x_rows_step]", "result"),
}


@pytest.mark.parametrize("bug", RUNS)
def test_planted_bugs_of_runs_are_caught(bug):
    spec = spec_of("runs", indirect=True)
    given = experts.problem(spec, np.sort(experts.ids_of(90, 4, bad=True)), 72, 96, 4)
    with planted(*RUNS[bug]):
        assert caught(kernel(spec, height=64), given), f"not caught: {bug}"


def test_nothing_is_planted_and_nothing_is_caught():
    plan, runs = spec_of("plan", 64, two=True), spec_of("runs", indirect=True)
    assert caught(kernel(plan), experts.problem(plan, experts.ids_of(60, 2, bad=True), 72, 96, 4)) is None
    assert caught(kernel(runs, height=64), experts.problem(runs, np.sort(experts.ids_of(90, 4, bad=True)), 72, 96, 4)) is None
