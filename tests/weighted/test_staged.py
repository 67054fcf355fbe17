"""Dataflow ``staged`` for quantised weights: memory, edges, strides, orders of blocks, half operands, planted bugs. Emulated."""

import re

import mlx.core as mx
import numpy as np
import pytest

from mlx_tensorops import signature
from mlx_tensorops.errors import RuleError
from mlx_tensorops.policies import gather as experts_table
from mlx_tensorops.policies import qgemm as table
from mlx_tensorops.primitives import _weighted
from mlx_tensorops.primitives.weighted_dataflows import staged
from mlx_tensorops.shaders import lint
from mlx_tensorops.shaders.render import render
from mlx_tensorops.spec import WeightedSpec, WeightSpec
from tests.planted import planted
from tests.weighted import cases, experts, flows, judge

TILE = table.SHARED


def spec_of(format="nvfp4", x="bfloat16", transpose=True, global_scale="", **how) -> WeightedSpec:
    """A spec by short words: scales of an affine format are of x's type, so is the result."""
    return WeightedSpec(x, how.pop("out", x), WeightSpec(format, "uint32", x if "affine" in format else "uint8", transpose, global_scale), **how)


def set_of(spec=spec_of(), tile=TILE, **options):
    return flows.variant_set("mpp", "staged", tile, spec, tuple(options.items()))


def right(variants, problem, **emulation) -> dict:
    """Runs a set, holds the result against float64, and returns the dispatch record."""
    (c,), dispatch = flows.run(variants, problem.inputs, checked=True, **emulation)
    assert judge.over_bound(problem, c, staged_as(variants)) <= 1, (dispatch["row"], emulation)
    return dispatch


def staged_as(variants) -> str:
    """Element type in which the set's kernels multiply weights."""
    return staged.DATAFLOW.context(variants.rows[0])["b"].name


def bytes_of(spec=spec_of(), row="nt/ragged", tile=TILE, **options) -> int:
    return signature.of(set_of(spec, tile, **options)[row]).threadgroup_bytes


def test_threadgroup_bytes_by_hand():
    """Rows of 32 + 4 two-byte elements; the scratch of 64 rows of 64 + 4 floats is larger and takes their place."""
    assert staged._staged(set_of()["nt/ragged"]) == (64 * 36 * 2, 64 * 36 * 2)
    assert bytes_of() == 64 * 68 * 4 == 17408, "aliased: not the sum"
    assert bytes_of(store="direct") == 2 * 64 * 36 * 2 == 9216
    assert bytes_of(store="direct", x="device") == 64 * 36 * 2 == 4608
    assert bytes_of(store="direct", x="device", skew=0) == 4096, "decoded weights and nothing else"
    assert bytes_of(spec_of(transpose=False), "nn/ragged", store="direct", x="device", skew=0) == 32 * 64 * 2
    assert bytes_of(store="direct", operands="half_scaled") == 9216 + 4 * 64, "a factor for each row"
    assert bytes_of(spec_of(x="float32"), block_k=64, x="device") == 64 * 68 * 4
    assert bytes_of(spec_of(rows="plan", block_m=64, op="gather_qmm"), store="direct") == 9216 + 2 * 4 * 64, "two numbers for each row"


REFUSED = (
    ("34816 bytes of threadgroup memory; 28672 are free", dict(x="float32"), dict(block_k=64)),
    ("32 threads copy no whole rows of 64", dict(), dict(block_k=64, tile=table.NARROW)),
    ("filled by coordinate", dict(), dict(x="device", read="load")),
    ("rows that are scaled are staged", dict(), dict(x="device", operands="half_scaled")),
    ("one order of blocks", dict(), dict(panel=4, swizzle=1)),
    ("rows that an index names are staged", dict(rows="runs", op="gather_qmm"), dict(x="device")),
    ("the plan's order", dict(rows="runs", op="gather_qmm"), dict(panel=4)),
    ("weights of format mxfp4 may lie outside half's range", dict(format="mxfp4"), dict(operands="half_scaled")),
    ("weights of format affine4_g64 may lie outside", dict(format="affine4_g64"), dict(operands="half_scaled")),
    ("half holds 11 bits", dict(x="float32"), dict(operands="half_scaled")),
    ("the fixed factors are those of bf16", dict(x="float16"), dict(operands="half_fold")),
    ("the last rows of experts leave the matrix unit as they are", dict(rows="runs", op="gather_qmm"), dict(operands="half_fold", tail=4)),
)


@pytest.mark.parametrize("says, spec, options", REFUSED, ids=[r[0] for r in REFUSED])
def test_what_is_refused(says, spec, options):
    with pytest.raises(RuleError, match=says):
        set_of(spec_of(**spec), **options)


def test_steps_of_64_in_f32_where_they_fit():
    spec = spec_of("affine4_g64", "float32")
    fits = {name: not _weighted.refusals(spec, "mpp", "staged", tile, {"block_k": 64, **options})
            for name, tile, options in (("64x64", TILE, {}), ("64x64 of device x", TILE, {"x": "device"}), ("32x64", table.HALF, {}), ("16x32", table.NARROW, {}))}
    assert fits == {"64x64": False, "64x64 of device x": True, "32x64": True, "16x32": False}
    right(set_of(spec, block_k=64, x="device"), cases.problem(spec, 70, 72, 128, 1))


def test_the_fixed_factors_are_taken_by_no_policy():
    assert not [e for e in table.tables() if dict(e.options).get("operands", "native") == "half_fold"]


OPTIONS = [{}, *({axis: value} for axis, values in staged.AXES.items() for value in values[1:] if axis not in ("tail", "block_k")),
           dict(block_k=64), dict(store="direct", x="device"), dict(block_k=64, read="load", store="direct")]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_text(options):
    """Two barriers per step, one memory for tiles and scratch, packs stored as vectors, and lint at every row."""
    for transpose in (True, False):
        for variant in set_of(spec_of(transpose=transpose), **options).rows:
            text = render(variant).text
            assert lint.lint(variant) == []
            code = re.sub(r"//[^\n]*", "", text)
            body = code[code.index("[[kernel"):]
            scaled = options.get("operands") == "half_scaled"
            assert body.count("threadgroup_barrier(mem_flags::mem_threadgroup)") == 2 + (options.get("store") != "direct") + scaled
            assert (".load(" in body) == (options.get("read") == "load") and ("scratch" in body) == (options.get("store") != "direct")
            assert code.count("(threadgroup B4*)") == 1 and not re.search(r"out\[[^\]]*\] = ", code), "no scalar stores of decoded weights"
            assert ("staged_x" in code) == (options.get("x") != "device") and body.count("stage_weights<") == 1
            assert ("half" in re.sub("half_\\w+", "", code)) == ("operands" in options)
            assert body.count("return;") == ("swizzle" in options)
            (words,) = re.findall(r"threadgroup float4 storage\[(\d+)\];", body)
            assert int(words) * 16 + 4 * TILE.m * scaled == signature.of(variant).threadgroup_bytes


def test_packed_offsets_are_64_bit_where_rows_are_far_apart_and_32_bit_inside_a_row():
    code = render(set_of()["nt/ragged"]).text
    assert "(w + outer * w_row) + inner / PACK * BITS" in code and "long w_row" in code
    assert "long(inner" not in code and "int k0 = 0" in code


EDGES = ((1, 1, 16), (1, 64, 32), (63, 65, 48), (64, 64, 1040), (65, 129, 80), (17, 33, 16), (129, 1, 112), (3, 70, 208))


@pytest.mark.parametrize("m, n, k", EDGES)
def test_edges(m, n, k):
    for seed, options in enumerate(({}, dict(x="device", store="direct"), dict(block_k=64, read="load", skew=8), dict(operands="half_scaled", store="direct"))):
        right(set_of(**options), cases.problem(spec_of(), m, n, k, seed, rows_of_more=seed % 2 == 0), layout="padded")


@pytest.mark.parametrize("view", ["offset", "gap", "repeated", "one_column_repeated", "reversed", "every_other", "columns"])
def test_any_strides_of_x(view):
    for seed, options in enumerate(({}, dict(x="device", store="direct"), dict(operands="half_scaled", store="direct"))):
        problem = cases.problem(spec_of(), 70, 90, 80, seed, x_view=view, rows_of_more=True)
        right(set_of(**options), problem)


def test_rows_too_far_apart_for_32_bits_take_the_row_for_any_strides():
    variants = set_of(x="device", store="direct")
    shapes = ((64, 64), (64, 8), (64, 4))
    taken = {step: next(v.row for v in variants.rows if signature.of(v).when(shapes, ((step, 1), (8, 1), (4, 1)), (0, 0, 0)))
             for step in (64, 2**24 - 1, 2**24, 2**40, -64)}
    assert taken == {64: "nt/aligned", 2**24 - 1: "nt/aligned", 2**24: "tt/ragged", 2**40: "tt/ragged", -64: "tt/ragged"}


def test_nothing_past_x_leaks_in():
    """NaN behind every row and below the last one; scales of NaN beside the window of the weights that is asked for."""
    rng = np.random.default_rng(3)
    problem = cases.problem(spec_of(), 70, 90, 80, 4)
    wide = np.full((96, 96), np.nan, np.float32)
    wide[:70, :80] = rng.normal(size=(70, 80))
    problem.arrays["x"] = mx.array(wide).astype(mx.bfloat16)[:70, :80]
    scales = np.full((96, 8), 0x7F, np.uint8)
    scales[:90, :5] = np.array(problem.arrays["scales"])
    problem.arrays["scales"] = mx.array(scales)[:90, :5]
    for options in ({}, dict(x="device", store="direct"), dict(operands="half_scaled", store="direct")):
        right(set_of(**options), problem)


@pytest.mark.parametrize("raster", [dict(swizzle=1), dict(swizzle=2), dict(panel=4)], ids=str)
def test_rasters_and_whole_threadgroups_that_leave(raster):
    problem = cases.problem(spec_of(), 192, 128, 32, 1)
    dispatch = right(set_of(store="direct", **raster), problem)
    assert dispatch["counters"]["matmul2d"] == 6 * 4, "padded blocks multiply nothing"
    assert dispatch["counters"]["threadgroups"] == {1: 8, 2: 8}.get(raster.get("swizzle"), 6)


@pytest.mark.parametrize("options", [{}, dict(store="direct"), dict(x="device", store="direct"), dict(operands="half_scaled"), dict(block_k=64, read="load")], ids=str)
def test_work_is_as_predicted(options):
    problem = cases.problem(spec_of(), 128, 128, 128, 5)
    variants = set_of(**options)
    for layout in ("nax", "strict"):
        dispatch = right(variants, problem, layout=layout)
        assert dispatch["row"] == "nt/aligned"
        judge.counters_as_predicted(variants["nt/aligned"], problem, dispatch, layout)


def test_every_weight_is_decoded_once_per_block_of_rows():
    problem = cases.problem(spec_of(), 128, 128, 128, 5)
    loads = right(set_of(), problem)["counters"]["device_load"]
    x, w, scales = (problem.arrays[name].nbytes for name in ("x", "w", "scales"))
    assert loads[:3] == [2 * x, 2 * w, 2 * scales], "once per block of columns; once per block of rows"
    assert right(set_of(x="device", store="direct"), problem)["counters"]["device_load"][0] == 4 * x, "by both simdgroups that share its rows"


@pytest.mark.parametrize("tile, options", [(TILE, {}), (experts_table.TALL, dict(operands="half_scaled", tail=4))], ids=["", "scaled"])
@pytest.mark.parametrize("rows", ["runs", "plan"])
def test_two_destinations_share_one_load_of_x(rows, tile, options):
    """All rows belong to one expert, and fill their blocks: the general row does what its rules say."""
    spec = spec_of(rows=rows, block_m=64 if rows == "plan" else 0, destinations=2, op="gather_gateup")
    problem, ids, source = experts.problem(spec, np.full(128, 3, np.int32), 64, 64, 7, top_k=1)
    variants = set_of(spec, tile, **options)
    results, dispatch = flows.run(variants, problem.inputs, checked=True)
    assert dispatch["row"] == "nt/ragged_m" and experts.over_bound(problem, ids, source, results) <= 1
    shapes = [x.shape for x in problem.inputs]
    cost, counters = staged.cost(variants["nt/ragged_m"]), dispatch["counters"]
    blocks_here, predicted = 2, 2 + (experts.EXPERTS if rows == "plan" else 0)  # a plan has room for more tiles
    for name in ("x", "w_gate", "scales_gate", "w_up", "scales_up"):
        at = problem.names.index(name)
        assert counters["device_load"][at] * predicted == cost.operand_bytes[at](shapes) * blocks_here, name
    assert counters["matmul2d"] * predicted == cost.matmul2d(shapes) * blocks_here
    around = {"runs": 2, "plan": 1}[rows]  # barriers for the rows' numbers, and before another run takes the scratch
    assert (counters["barriers"] - around * blocks_here) * predicted == cost.barriers(shapes) * blocks_here
    assert sum(counters["device_store"]) == cost.output_bytes(shapes)


@pytest.mark.parametrize("rows", ["runs", "plan"])
def test_rows_of_experts_each_have_their_factor(rows):
    spec = spec_of(rows=rows, block_m=64 if rows == "plan" else 0, op="gather_qmm")
    ids = experts.ids_of(150, 0, bad=True)
    problem, ids, source = experts.problem(spec, ids if rows == "plan" else np.sort(ids), 70, 80, 2)
    scale = mx.array(2.0 ** np.random.default_rng(1).integers(-18, 18, problem.arrays["x"].shape[0])).astype(mx.bfloat16)
    problem.arrays["x"] = problem.arrays["x"] * scale[:, None]
    results, _ = flows.run(set_of(spec, operands="half_scaled", store="direct"), problem.inputs, checked=True)
    assert experts.over_bound(problem, ids, source, results, "float16") <= 1


@pytest.mark.parametrize("dialect", ["4.0", "4.1"])
def test_both_dialects_compile(dialect):
    for options in (dict(block_k=64, read="load", store="direct"), dict(x="device", store="direct"), dict(operands="half_scaled", store="direct")):
        right(set_of(**options), cases.problem(spec_of(), 70, 90, 80, 1), dialect=dialect)


# --------------------------------------------------------------------------------------------------------- planted bugs

NT, NN, AFFINE = spec_of(global_scale="amax"), spec_of(transpose=False), spec_of("affine6_g32", "float16")
BUGS = (
    ("one scale per window", NT, {}, "scales[outer * scales_row + inner / GROUP]", "scales[outer * scales_row + k0 / GROUP]"),
    ("the scale of the group before, at its seam", NT, {}, "scales_row + inner / GROUP]", "scales_row + max(inner - 1, 0) / GROUP]"),
    ("scale of the neighbouring row", NT, {}, "scales[outer * scales_row", "scales[min(outer + 1, N - 1) * scales_row"),
    ("second pack of a run decoded as the first", NT, {}, "packed + pack * BITS", "packed"),
    ("nibbles in another order", NT, {}, "values[i] = code_value(low >> i * BITS", "values[i] = code_value(low >> (3 - i) * BITS"),
    ("columns past N not masked", NT, {}, "(!MASK_N || outer < N)", "true"),
    ("a column too many", NT, {}, "outer < N)", "outer <= N)"),
    ("K not masked", NT, {}, "(!MASK_K || inner < K)", "true"),
    ("global scale left out", NT, {}, "x *= factor;", ""),
    ("global scale not divided", NT, {}, " / 2688.0f", ""),
    ("vector stored past its pack", NT, {}, "out + pack * PACK + j) =", "out + pack * PACK + 2 * j) ="),
    ("last step of K dropped", NT, {}, "k0 < p.K; k0 += BK", "k0 + BK < p.K; k0 += BK"),
    ("no barrier after staging", NT, {}, "    threadgroup_barrier(mem_flags::mem_threadgroup);  // the tiles are complete\n", ""),
    ("no barrier before the next step", NT, {}, "    threadgroup_barrier(mem_flags::mem_threadgroup);  // nobody reads the tiles any more\n", ""),
    ("weights staged over x", NT, {}, "(storage + 288)", "(storage + 284)"),
    ("rows stored past M", NT, {}, "RAGGED_M && row0 + r >= M ? -1 : row0 + r", "row0 + r"),
    ("columns stored past N", NT, {}, "(!RAGGED_N || column < N)) c[", "true) c["),
    ("bias left out", AFFINE, {}, "fma(code, scale, bias)", "code * scale"),
    ("bias of another group", AFFINE, {}, "biases[outer * biases_row + inner / GROUP]", "biases[outer * biases_row]"),
    ("codes across bytes cut off", AFFINE, {}, "uint(words[2]) << 8", "uint(words[2]) << 16"),
    ("groups along K of weights packed along N", NN, {}, "scales_row + inner / GROUP]", "scales_row + outer / GROUP % (N / GROUP)]"),
    ("rows past K not masked", NN, {}, "(!MASK_K || outer < K)", "true"),
    ("device rows not clamped", NT, dict(x="device", store="direct"), "locate<RAGGED_M, false>(left0", "locate<false, false>(left0"),
    ("device K not masked", NT, dict(x="device", store="direct"), "if (RAGGED_K && p.K - k0 - k < OK)", "if (false)"),
    ("direct columns stored past N", NT, dict(x="device", store="direct"), "(!RAGGED_N || column < N)) {", "true) {"),
    ("factor of another row", NT, dict(operands="half_scaled", store="direct"), "undo(factors[int(index[1])])", "undo(factors[int(index[0])])"),
    ("no barrier after the factors", NT, dict(operands="half_scaled", store="direct"), "  threadgroup_barrier(mem_flags::mem_threadgroup);  // the factors are written\n", ""),
    ("largest of one lane only", NT, dict(operands="half_scaled", store="direct"), "largest = simd_max(largest);", ""),
)


@pytest.mark.parametrize("bug, spec, options, before, after", BUGS, ids=[b[0] for b in BUGS])
def test_planted_bugs_are_caught(bug, spec, options, before, after):
    problem = cases.problem(spec, 83, 96 if spec is NN else 90, 101 if spec is NN else 208 if spec is NT else 224, 8)
    if options.get("operands"):  # rows of unlike magnitude, one element of each far larger than the others
        x = np.random.default_rng(9).normal(size=problem.arrays["x"].shape) * 2.0 ** (np.arange(83) % 24)[:, None]
        x[np.arange(83), np.arange(83) % 31] *= 2.0**12
        problem.arrays["x"] = mx.array(x.astype(np.float32)).astype(mx.bfloat16)
    with planted(before, after):
        variants = set_of(spec, **options)
        assert flows.caught(variants, problem, lambda results: judge.over_bound(problem, results[0], staged_as(variants))), f"not caught: {bug}"


GATEUP_BUGS = (
    ("destinations exchanged", "op.run(left0, right, c_gate00);", "op.run(left0, right, c_up00);"),
    ("up staged over gate", "stage_weights<RAGGED_N, RAGGED_K>(staged_w_up", "stage_weights<RAGGED_N, RAGGED_K>(staged_w_gate"),
    ("up with gate's scales", "scales_up_at = scales_up", "scales_up_at = scales_gate"),
)


@pytest.mark.parametrize("bug, before, after", GATEUP_BUGS, ids=[b[0] for b in GATEUP_BUGS])
def test_planted_bugs_of_two_destinations_are_caught(bug, before, after):
    spec = spec_of(rows="runs", destinations=2, op="gather_gateup")
    problem, ids, source = experts.problem(spec, np.sort(experts.ids_of(90, 1)), 70, 80, 3)
    with planted(before, after):
        assert flows.caught(set_of(spec), problem, lambda results: experts.over_bound(problem, ids, source, results)), f"not caught: {bug}"
