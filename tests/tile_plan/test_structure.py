"""What the kernels' text and counters must be, and that the checks of this folder can fail."""

import mlx.core as mx
import numpy as np
import pytest

import mlx_tensorops as mt
from mlx_tensorops import device, hostmetal, manifests, registry, signature
from mlx_tensorops.primitives import _enqueue
from mlx_tensorops.shaders import lint
from mlx_tensorops.shaders import render as renderer
from tests.cases import tile_plan as cases
from tests.tile_plan import judge

FAMILY = registry.family("tile_plan")
VARIANTS = FAMILY.variants()


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.key)
def test_text(variant):
    """No atomics, and nothing of Metal 4."""
    assert "atomic" not in renderer.render(variant).text and lint.lint(variant) == []
    entry = manifests.of(variant)
    assert entry["requires"]["metal"] == "3.1" and entry["family"] == "tile_plan" and entry["accumulate"] is None
    # What threads read after others wrote it must not be restrict: the compiler may then keep a value across a barrier.
    read_back = {"count": {"counts"}, "scan": {"row_start", "tile_start"}}
    assert {b.name for b in signature.of(variant).buffers if b.read_back} == read_back.get(variant.dataflow, set())


DIALECTS = (("3.1", "26.4"), ("4.0", "26.4"), ("4.1", "27"))


@pytest.mark.parametrize("dialect, sdk", DIALECTS)
def test_lint_of_the_kernel_that_has_every_part(dialect, sdk):
    assert hostmetal.lint(renderer.render(VARIANTS[0]).text, dialect=dialect, sdk=sdk) == ()


@pytest.mark.exhaustive
@pytest.mark.parametrize("variant", VARIANTS[1:], ids=lambda v: v.key)
def test_lint_of_the_others(variant):
    for dialect, sdk in DIALECTS:
        assert hostmetal.lint(renderer.render(variant).text, dialect=dialect, sdk=sdk) == ()


@pytest.mark.parametrize("rows, experts, block_m", [(300, 100, 16), (2048, 1024, 16), (3000, 60, 16), (20_000, 1025, 64)])
def test_counters_are_the_cost_rules(rows, experts, block_m):
    ids = cases.routing("uniform", rows, experts, np.random.default_rng(0))
    _, dispatches = judge.emulated(ids, experts, block_m, checked=True)
    by_name = {v.dataflow: v for v in VARIANTS if v.types in ((), ("int32",))}
    chunks = -(-rows // next(s for s in range(256, 10**6, 256) if rows <= s * 64))
    counts = (chunks, experts + 1)
    shapes = {"count": ((rows,), (experts, block_m)), "scan": (counts, (rows,), (experts, block_m)), "scatter": ((rows,), (rows,), counts)}
    shapes["whole"] = shapes["count"]
    for dispatch in dispatches:
        v, counters = by_name[dispatch["row"]], dispatch["counters"]
        sign, cost, sizes = signature.of(v), FAMILY.cost(v), shapes[v.dataflow]
        assert dispatch["grid"] == tuple(axis(sizes) for axis in sign.grid)
        assert counters["threadgroup_bytes"] == sign.threadgroup_bytes
        assert counters["barriers"] == cost.barriers(sizes)
        assert tuple(counters["device_load"][:len(cost.operand_bytes)]) == tuple(r(sizes) for r in cost.operand_bytes)
        stored = sum(counters["device_store"])
        if v.dataflow == "count":  # and the counts that steps add to
            assert cost.output_bytes(sizes) < stored <= cost.output_bytes(sizes) + 4 * rows
        else:
            assert stored == cost.output_bytes(sizes)
        if v.dataflow != "whole":  # which keeps counts and starts in threadgroup memory
            assert (counters["threadgroup_load"], counters["threadgroup_store"]) == (cost.threadgroup_load(sizes), cost.threadgroup_store(sizes))
        else:
            assert counters["threadgroup_load"] > cost.threadgroup_load(sizes)
    assert [d["row"] for d in dispatches] == (["whole"] if rows <= 2048 else ["count", "scan", "scatter"])


def test_explain():
    few, many = mx.zeros((64, 8), mx.uint32), mx.zeros((2048, 8), mx.int64)
    told = mt.explain("tile_plan", few, num_experts=128, block_m=16)
    assert told.engine == "cpu" and told.variant == "" and told.bytes == 4 * (512 * 3 + 3 * (32 + 128) + 1)
    with device.force("m4"):
        told = mt.explain("tile_plan", few, num_experts=128)
        assert (told.engine, told.variant) == ("simdgroup", "tile_plan_simdgroup_whole_u32_t256") and "MLX has no" in told.why
        assert "tile_plan_simdgroup_whole_u32_t256" in mt.dump_source("tile_plan", few, num_experts=128)
        told = mt.explain("tile_plan", many, num_experts=128)
    assert told.variant == "tile_plan_simdgroup_count_i32_t256"
    assert "tile_plan_simdgroup_scan_t1024 and tile_plan_simdgroup_scatter_i32_t256 follow" in told.why
    assert told.predicted["operand_bytes"] == (4 * 16384,) and told.predicted["barriers"] == 128
    with device.force("cuda"):
        assert mt.explain("tile_plan", few, num_experts=128).engine == "mlx"
    told = mt.explain("tile_plan", [[1, 2]], num_experts=4)
    assert told.engine == "host" and "NumPy" in told.why
    with hostmetal.active():
        assert mt.explain("tile_plan", few, num_experts=128).engine == "simdgroup"


def test_without_the_extension(monkeypatch):
    from mlx_tensorops.primitives import _native

    monkeypatch.setattr(_native, "_verdict", "[native] the extension was built for another mlx")
    ids = cases.routing("out_of_range", 400, 30, np.random.default_rng(1))
    plan = mt.tile_plan(mx.array(ids), num_experts=30, block_m=16)
    judge.assert_same(plan.arrays, cases.definition(ids, 30, 16))
    assert mt.explain("tile_plan", mx.array(ids), num_experts=30).engine == "mlx"


# A wrong text for each thing the kernels must get right -> what sees it: "values" (under some order), "order" (they also differ
# between orders), or the kind of a finding.
BARRIER = "    threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);\n"
PLANTED = {
    "ranks count the row itself": ("whole", "< uint4(index)", "<= uint4(index)", "values"),
    "ranks as threads come": (
        "whole", "rank[row] = counts[bin] + mine;", "rank[row] = atomic_fetch_add_explicit((threadgroup atomic_int*)&counts[bin], 1, memory_order_relaxed);",
        "counts[bin] += all;", ";", "order"),
    "a step's bins are used at once": ("whole", "[index] = bin;\n" + BARRIER, "[index] = bin;\n", "race"),
    "counts change while they are read": ("count", BARRIER + "    if (row < end && mine", "    if (row < end && mine", "race"),
    "a barrier that does not name device memory": ("scan", "threadgroup_barrier(mem_flags::mem_device);", "threadgroup_barrier(mem_flags::mem_threadgroup);", "barrier_flags"),
    "negative ids compared as signed": ("whole", "min(uint(id), uint(experts))", "uint(min(int(id), experts))", "out_of_bounds|crash"),
    "dropped rows belong to an expert": ("whole", "low == experts ? -1", "low == experts ? 0", "values"),
    "a tile at the start of a bin belongs to the one before": ("scan", "tile_start[middle] <= tile", "tile_start[middle] < tile", "values"),
    "the inert tail has rows": ("whole", "inert ? 0 :", "inert ? 1 :", "values"),
    "full bins get a tile more": ("scan", "(rows % block_m != 0 ? 1 : 0)", "1", "values"),
    "the last bin ends a row too far": ("scan", "row_start[bins] = placed.x;", "row_start[bins] = placed.x + 1;", "values"),
    "chunks share one base": ("scatter", "row / p.chunk * bins", "0 * bins", "values"),
    "rows past the end are stored": ("scatter", "if (row >= p.rows) return;", "", "out_of_bounds"),
    "counts are not cleared": ("whole", "counts[bin] = 0;", ";", "uninitialised"),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_planted_bugs_are_caught(bug, monkeypatch):
    dataflow, *changes, seen = PLANTED[bug]
    right = renderer.render

    def planted(variant):
        source = right(variant)
        if variant.dataflow != dataflow:
            return source
        text = source.text
        for before, after in zip(changes[::2], changes[1::2]):
            assert text.count(before) == 1
            text = text.replace(before, after)
        return renderer.Source(text.replace(source.kernel, "tile_plan_simdgroup_planted"), "tile_plan_simdgroup_planted", "")

    monkeypatch.setattr(_enqueue, "render", planted)
    _enqueue.native_set.cache_clear()
    try:
        problem = (300 if dataflow == "whole" else 2500, 20, 16)
        ids = cases.routing("out_of_range", *problem[:2], np.random.default_rng(0))
        want = cases.definition(ids, *problem[1:])
        if seen in ("values", "order"):
            plans = [judge.emulated(ids, *problem[1:], order_seed=seed)[0] for seed in cases.ORDERS]
            with pytest.raises(AssertionError, match="differ"):
                for plan in plans:
                    judge.assert_same(plan.arrays, want)
            assert seen == "values" or len({bytes(plan.order) for plan in plans}) > 1
        else:
            with pytest.raises(RuntimeError, match=f'"kind":"({seen})"'):
                judge.emulated(ids, *problem[1:], checked=True, order_seed=1)
    finally:
        _enqueue.native_set.cache_clear()
