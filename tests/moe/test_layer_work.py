"""What one layer of experts costs beside MLX's path: formulas held against the emulator's counters, then evaluated at full size."""

import mlx.core as mx
import numpy as np
import pytest

import mlx_tensorops as mt
from benchmarks import emulated_moe as table
from benchmarks import emulated_moe_check as check
from mlx_tensorops.plans import ARRAYS

CASES = pytest.mark.parametrize("format, tokens", check.CASES)
LAYERS = pytest.mark.parametrize("model", table.MODELS, ids=lambda m: m.name)
SEEDS = (7, 1, 2)  # of the routing


@CASES
def test_ours_costs_what_the_formula_says(format, tokens):
    assert check.ours(format, tokens) == check.predicted(format, tokens)


@CASES
def test_mlx_costs_what_the_formula_says(format, tokens):
    found, formula = check.mlx(format, tokens)
    assert found == formula


def test_a_wrong_formula_is_seen():
    found, formula = check.mlx("affine4_g64", 64)
    model = check.model_of("affine4_g64")
    taller = table.mlx_grouped(model, table.counts_of(model, 64), model.width, model.hidden, block=64)
    assert found.macs != taller.macs and found.x_bytes != taller.x_bytes and formula.macs == found.macs


def test_the_small_cases_reach_every_path():
    reached = {(table.entry_of(check.model_of(f), table.plan_table.block_m(2 * t, 8), n).tile.m, 2 * t // 8 < 4) for f, t in check.CASES for n in (1, 2)}
    assert reached == {(4, True), (64, False), (128, False)}


@LAYERS
@pytest.mark.parametrize("tokens", table.TOKENS)
def test_never_above_mlx_and_below_it_wherever_it_is_above_the_floor(model, tokens):
    for seed in SEEDS:
        counts = table.counts_of(model, tokens, seed)
        ours, theirs, floor = table.our_layer(model, counts), table.mlx_layer(model, counts), table.floor(model, counts)
        assert ours.launches < theirs.launches and ours.intermediate_bytes < theirs.intermediate_bytes
        for name in ("x_bytes", "w_bytes", "macs"):
            own, other, least = (getattr(work, name) for work in (ours, theirs, floor))
            assert least <= own <= other and (own < other or other == least), (name, own, other, least)
        assert ours.wasted_fragments == 0


def test_the_losses_are_those_that_are_known():
    """Blocks of 128 rows have eight simdgroups where MLX's have four, so that more of them wait at each barrier."""
    lost = {(model.name, tokens): table.losses(table.our_layer(model, c), table.mlx_layer(model, c))
            for model in table.MODELS for tokens in table.TOKENS for c in [table.counts_of(model, tokens)]}
    assert {where for where, names in lost.items() if names} == {
        ("Qwen3-30B-A3B", 1024), ("Qwen3-30B-A3B", 2048), ("gpt-oss-20b", 512), ("gpt-oss-20b", 1024), ("gpt-oss-20b", 2048)}
    assert {name for names in lost.values() for name in names} == {"barrier_arrivals"}


@pytest.mark.parametrize("heights, name", [(((0, 16),), "w_bytes"), (((64, 64), (4, 32), (0, 4)), "w_bytes"), (((64, 128), (0, 64)), "macs")],
                         ids=["tiles of 16", "MLX's heights", "no vectors"])
def test_another_choice_of_heights_would_not_hold(heights, name, monkeypatch):
    monkeypatch.setattr(table.plan_table, "BLOCK_M", heights)
    worse = 0
    for model in table.MODELS:
        for tokens in table.TOKENS:
            counts = table.counts_of(model, tokens)
            ours, theirs, floor = (getattr(work(model, counts), name) for work in (table.our_layer, table.mlx_layer, table.floor))
            worse += ours > theirs or (ours == theirs > floor)
    assert worse > 0


def test_the_arrays_between_the_kernels_are_those_that_the_formula_counts():
    model = table.MODELS[0]
    ids = table.routing(model, 64)
    plan = mt.tile_plan(mx.array(ids), num_experts=model.experts)
    rows = ids.size
    plan_bytes = sum(getattr(plan, name).nbytes for name in ARRAYS)
    between = rows * (model.width + model.hidden) * 2
    assert table.our_layer(model, table.counts_of(model, 64)).intermediate_bytes == plan_bytes + between


def test_nothing_else_runs_between_the_kernels():
    """The graph of a layer holds our kernels and views of their arrays: no cast or arithmetic of MLX, and no copy of what is contiguous."""
    import io
    import re

    from mlx_tensorops import hostmetal

    x, scores, ids, stored, _ = check.layer("affine4_g64", 64)
    weights = [tuple(mx.array(part) for part in parts if part is not None) for parts in stored]
    with hostmetal.active():
        y = mt.switch_glu(mx.array(x), *weights, mx.array(ids), mx.array(scores), mode="affine", group_size=64, bits=4, engine="mpp")
        text = io.StringIO()
        mx.export_to_dot(text, y)
    operations = set(re.findall(r'label ?= ?"([A-Za-z]\w*)"', text.getvalue()))
    ours = {"tile_plan", "gather_gateup", "gather_qmm", "switch_glu"}
    assert ours <= operations
    assert operations - ours <= {"TensorOpsSplit", "ExpandDims", "Squeeze", "Flatten", "Broadcast", "StopGradient", "Contiguous"}, operations


def test_routing_is_what_the_text_says():
    for model in table.MODELS:
        ids = table.routing(model, 200)
        assert all(len(set(row)) == model.top_k for row in ids.tolist())
        counts = np.array(table.counts_of(model, 200))
        assert counts.sum() == 200 * model.top_k and counts.max() > 2 * max(np.median(counts), 1)
