"""Engine simdgroup: both dataflows over simdgroup_matrix, executed in the emulator as Metal 3.1 against float64."""

import re

import mlx.core as mx
import numpy as np
import pytest

import mlx_tensorops as mt
from mlx_tensorops import device, hostmetal, manifests, reference, signature
from mlx_tensorops.epilogues import Epilogue
from mlx_tensorops.errors import EngineError
from mlx_tensorops.primitives import _enqueue, gemm
from mlx_tensorops.primitives.gemm_dataflows import EVERY_ROW
from mlx_tensorops.shaders import lint
from mlx_tensorops.shaders import render as renderer
from mlx_tensorops.variant import Tile
from tests.cases import gemm as cases
from tests.gemm import flows, judge

TILE = Tile(64, 64, 2, 2, 8, 8, 8)
FLOWS = ("registers", "staged")
ROWS = tuple("/".join(row) for row in EVERY_ROW)
VIEW = {"n": "rows", "t": "columns"}
SIZES = {"aligned": (128, 64, 48), "ragged_m": (70, 128, 32), "ragged": (67, 81, 37)}
# Alike, float, and mixed: mixed operands meet in fragments of float.
TYPES = (("float16", "float16", "float16"), ("bfloat16", "bfloat16", "float32"), ("float32", "float32", "bfloat16"), ("float16", "float32", "float16"),
         ("bfloat16", "float16", "float32"))


def problem(row: str, a_type: str, b_type: str, seed: int = 0):
    """Operands that reach exactly this row."""
    layout, alignment = row.split("/")
    m, n, k = SIZES[alignment]
    views = ("every_other", "reversed") if layout == "strided" else (VIEW[side] for side in layout)
    rng = np.random.default_rng(seed)
    return [cases.make(view, *shape, kind, rng) for view, shape, kind in zip(views, ((m, k), (k, n)), (a_type, b_type))]


def check(flow: str, row: str, types, **how):
    a_type, b_type, out = types
    variants = flows.variant_set("simdgroup", flow, TILE, flows.spec_of(*types))
    a, b = problem(row, a_type, b_type)
    c, dispatch = flows.run(variants, a, b, **how)
    assert dispatch["row"] == row
    assert judge.errors_over_bound(a, b, c, out) <= 1
    judge.counters_as_predicted(variants[row], (a.shape, b.shape), dispatch, how.get("layout", "nax"))
    return dispatch


@pytest.mark.exhaustive
@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("row", ROWS)
def test_every_row_as_metal_3_1(flow, row):
    for layout in ("nax", "padded"):
        check(flow, row, TYPES[0], checked=True, dialect="3.1", layout=layout)


@pytest.mark.exhaustive
@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("types", TYPES[1:], ids="-".join)
def test_every_type(flow, types):
    for row in ("nt/aligned", "tn/ragged"):
        check(flow, row, types, checked=True, dialect="3.1")


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("dialect", ["3.2", "4.0", "4.1"])
def test_every_dialect(flow, dialect):
    check(flow, "nn/ragged", TYPES[0], dialect=dialect)


@pytest.mark.parametrize("options", [{"block_k": 32}, {"skew_bytes": 0}, {"swizzle": 1}, {"panel": 4}], ids=str)
def test_axes_of_staged(options):
    variants = flows.variant_set("simdgroup", "staged", TILE, flows.spec_of("float16"), tuple(options.items()))
    for row in ("nn/aligned", "nt/ragged"):
        rng = np.random.default_rng(5)
        m, n, k = (192, 128, 64) if row == "nn/aligned" else (195, 131, 45)
        a, b = cases.make("rows", m, k, "float16", rng), cases.make(VIEW[row[1]], k, n, "float16", rng)
        c, dispatch = flows.run(variants, a, b, checked=True)
        assert dispatch["row"] == row and judge.errors_over_bound(a, b, c, "float16") <= 1
        judge.counters_as_predicted(variants[row], (a.shape, b.shape), dispatch, "nax")
        assert dispatch["counters"]["threadgroup_bytes"] == signature.of(variants[row]).threadgroup_bytes


def test_threadgroup_bytes_are_those_of_the_tiles():
    variants = flows.variant_set("simdgroup", "staged", TILE, flows.spec_of("float16"))
    assert signature.of(variants["nn/aligned"]).threadgroup_bytes == 2 * (64 * (16 + 8) + 16 * (64 + 8))
    assert signature.of(variants["nt/aligned"]).threadgroup_bytes == 2 * (64 * (16 + 8) + 64 * (16 + 8))
    mixed = flows.variant_set("simdgroup", "staged", TILE, flows.spec_of("float16", "bfloat16", "float32"))
    assert signature.of(mixed["tn/aligned"]).threadgroup_bytes == 4 * (16 * (64 + 4) + 16 * (64 + 4))
    assert signature.of(flows.variant_set("simdgroup", "registers", TILE, flows.spec_of("float16"))["nn/aligned"]).threadgroup_bytes == 0


def test_what_each_dataflow_is_made_of():
    spec = flows.spec_of("float16")
    registers, staged = (flows.variant_set("simdgroup", flow, TILE, spec) for flow in FLOWS)
    for row in ROWS:
        text = renderer.render(registers[row]).text
        assert "threadgroup_barrier" not in text and not re.search(r"\bthreadgroup T\b", text)
        assert ("simdgroup_load(left" in text) is (row.endswith("/aligned")), "whole fragments where no row may be missing"
        assert ("simdgroup_load(right" in text) is (not row.endswith("/ragged"))
        assert ("k_left" in text) is row.endswith("/ragged")
        text = renderer.render(staged[row]).text
        assert "simdgroup_load(left" in text and "simdgroup_load(right" in text
        assert text.count("threadgroup_barrier(mem_flags::mem_threadgroup)") == (3 if row.endswith("/ragged") else 2)
        assert not re.search(r"\breturn;", text), "nobody leaves before a barrier"
    for variants in (registers, staged):
        for variant in variants.rows:
            text = renderer.render(variant).text
            assert text.count("#pragma clang loop unroll(disable)") == 1, "the K loop, and no other"
            assert "simdgroup_matrix<float, 8, 8> Sum" in text and "cooperative_tensor" not in text
            assert lint.lint(variant) == []


def test_mixed_operands_are_fetched_by_lane():
    """simdgroup_load does not convert, so a fragment of float cannot be loaded from half."""
    text = renderer.render(flows.variant_set("simdgroup", "registers", TILE, flows.spec_of("float16", "float32", "float32"))["nn/aligned"]).text
    assert "simdgroup_load(left" not in text and "simdgroup_load(right" in text and "typedef float T;" in text


def test_lint_holds_the_dialect():
    variant = flows.variant_set("simdgroup", "staged", TILE, flows.spec_of("float16"))["nn/ragged"]
    text = renderer.render(variant).text
    planted = {
        "empty kernel": text.replace("simdgroup_multiply_accumulate(", "nothing("),
        "if constexpr": text.replace("    if (k_left", "    if constexpr (k_left").replace("if (k_left", "if constexpr (k_left"),
        "MetalPerformancePrimitives": text.replace("<metal_simdgroup_matrix>", "<MetalPerformancePrimitives/MetalPerformancePrimitives.h>"),
    }
    for expected, wrong in planted.items():
        assert wrong != text and any(expected in finding for finding in lint.lint_text(variant, wrong)), expected


def test_manifest_asks_for_no_more_than_metal_3_1():
    for flow in FLOWS:
        entry = manifests.of(flows.variant_set("simdgroup", flow, TILE, flows.spec_of("bfloat16"))["nn/aligned"])
        assert entry["requires"] == {"metal": "3.1", "os": "14.0", "neural_accelerators": False}


def test_operand_bytes_show_what_staging_saves():
    shapes = ((512, 512), (512, 512))
    costs = {flow: gemm.cost(flows.variant_set("simdgroup", flow, TILE, flows.spec_of("float16"))["nn/aligned"]) for flow in FLOWS}
    total = {flow: sum(rule(shapes) for rule in cost.operand_bytes) for flow, cost in costs.items()}
    # 512 * 512 * 2 bytes, read once per 32 columns or rows by simdgroups, once per 64 by blocks.
    assert total == {"registers": 2 * 512 * 512 * 2 * 16, "staged": 2 * 512 * 512 * 2 * 8}


EPILOGUES = (Epilogue(True, "gelu_tanh", True), Epilogue(residual=True, scaled=True), Epilogue(activation="relu"))


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("epilogue", EPILOGUES, ids=lambda e: e.name)
def test_batches_and_epilogues(flow, epilogue):
    extras = tuple({"bias": "float32", "residual": "float16", "scales": "float32"}[name] for name in epilogue.operands)
    variants = flows.variant_set("simdgroup", flow, TILE, flows.spec_of("float16", epilogue=epilogue, extras=extras, batched=True))
    rng = np.random.default_rng(2)
    a, b = cases.make("rows", 21, 37, "float16", rng, lead=(1, 2, 3)), cases.make("columns", 37, 70, "float16", rng, lead=(1, 1, 3))
    given = {"bias": cases.make("rows", 1, 70, "float32", rng, lead=(1, 1, 1)), "residual": cases.make("rows", 21, 70, "float16", rng, lead=(1, 2, 3)),
             "scales": mx.array([0.5, -2.0], mx.float32)}
    c, dispatch = flows.run(variants, a, b, *(given[name] for name in epilogue.operands), checked=True, dialect="3.1")
    assert dispatch["grid"] == (2, 1, 6)
    shown = {name: given[name] for name in ("bias", "residual") if name in epilogue.operands}
    alpha, beta = (0.5, -2.0) if epilogue.scaled else (1.0, 1.0)
    assert judge.epilogue_over_bound(a, b, c, "float16", epilogue, alpha=alpha, beta=beta, **shown) <= 1


@pytest.mark.parametrize("m, n, k", [(1, 1, 1), (8, 8, 8), (9, 7, 9), (63, 65, 15), (64, 64, 16), (65, 33, 17), (129, 1, 31)])
@pytest.mark.parametrize("flow", FLOWS)
def test_edges(flow, m, n, k):
    variants = flows.variant_set("simdgroup", flow, TILE, flows.spec_of("float16"))
    for b_view in ("rows", "columns"):
        a = cases.make("rows", m, k, "float16", np.random.default_rng(m + n))
        b = cases.make(b_view, k, n, "float16", np.random.default_rng(k))
        c, _ = flows.run(variants, a, b, checked=True)
        assert judge.errors_over_bound(a, b, c, "float16") <= 1


@pytest.mark.parametrize("flow", FLOWS)
def test_nothing_past_the_matrix_leaks_in(flow):
    rng = np.random.default_rng(3)
    wide_a, wide_b = np.full((80, 30), np.nan, np.float32), np.full((30, 90), np.nan, np.float32)
    wide_a[:67, :21], wide_b[:21, :70] = rng.normal(size=(67, 21)), rng.normal(size=(21, 70))
    a, b = (mx.array(x).astype(mx.float16) for x in (wide_a, wide_b))
    a, b = a[:67, :21], b[:21, :70]
    c, _ = flows.run(flows.variant_set("simdgroup", flow, TILE, flows.spec_of("float16")), a, b, checked=True)
    assert judge.errors_over_bound(a, b, c, "float16") <= 1


# Each changes one expression of the emitted shader.
PLANTED = {
    "registers": (
        ("lanes hold other rows", "(quad & 4) + int(lane) / 2 % 4", "int(lane) / 2 % 4"),
        ("lanes hold other columns", "(quad & 2) * 2 + int(lane) % 2 * 2", "int(lane) % 2 * 2"),
        ("last K step dropped", "step < steps;", "step < steps - 1;"),
        ("A walks K too fast", "a_at += OK * a_k;", "a_at += OK * a_k + 1;"),
        ("fragments of A start one row early", "const int row = i * OM + place.y;\n    a_lane", "const int row = i * (OM - 1) + place.y;\n    a_lane"),
        ("rows not clamped", "(RAGGED_M ? min(row, p.M - 1 - row0) : row)", "row"),
        ("second column not clamped", "(RAGGED_N ? min(column + 1, last) : column + 1)", "(column + 1)"),
        ("tail of A not masked", "place.x + 1 < k_left ?", "true ?"),
        ("tail of B not masked", "place.y < k_left ? T(b_at[b_lane[j][1]])", "true ? T(b_at[b_lane[j][1]])"),
        ("sums not zeroed", "make_filled_simdgroup_matrix<float, 8, 8>(0.0f)", "make_filled_simdgroup_matrix<float, 8, 8>(1.0f)"),
        ("product into another sum", "right, sum[i][j]);", "right, sum[0][j]);"),
        ("stored one past the edge", "column + 1 < p.N", "column < p.N"),
    ),
    "staged": (
        ("last K step dropped", "step < steps;", "step < steps - 1;"),
        ("tiles read before they are written", "    threadgroup_barrier(mem_flags::mem_threadgroup);  // the tiles are written\n", ""),
        ("tiles overwritten while read", "    threadgroup_barrier(mem_flags::mem_threadgroup);  // and read: the next step may overwrite them\n", ""),
        ("K tail not masked", "(!MASK_K || k < k_left)", "true"),
        ("outer edge not masked", "(!MASK_OUTER || outer < outer_left)", "true"),
        ("simdgroups share rows of the tile", "a_tile + own_row * A_OUTER", "a_tile"),
        ("fragments of B from one column", "b_part + j * ON * B_OUTER", "b_part + j * B_OUTER"),
        ("A transposed", "ulong2(0), !A_K_FAST)", "ulong2(0), A_K_FAST)"),
        ("K stands still inside a tile", "+ k * B_STEP", ""),
        ("stored at the block's row", "row = row0 + own_row + i * OM", "row = row0 + i * OM"),
    ),
}


@pytest.mark.parametrize("flow, bug, before, after", [(f, *p) for f in FLOWS for p in PLANTED[f]], ids=lambda x: x if len(x) < 40 else "")
def test_planted_bugs_are_caught(flow, bug, before, after, monkeypatch):
    """The emitted text is corrupted: the result is wrong, or the emulator finds the fault."""
    right = renderer.render

    def corrupted(variant):
        source = right(variant)
        text = source.text.replace(before, after)
        assert text != source.text or variant.row != "nn/ragged", bug
        return renderer.Source(text, source.kernel, source.digest)

    monkeypatch.setattr(_enqueue, "render", corrupted)
    _enqueue.native_set.cache_clear()
    try:
        a = cases.make("rows", 67, 53, "float16", np.random.default_rng(8))
        b = cases.make("gap", 53, 81, "float16", np.random.default_rng(9))
        variants = flows.variant_set("simdgroup", flow, TILE, flows.spec_of("float16"))
        try:
            c, _ = flows.run(variants, a, b, checked=True)
        except (RuntimeError, ValueError) as found:
            assert "the emulator found" in str(found) or "does not compile" in str(found)
            return
        difference = np.abs(reference.to_float64(c) - reference.gemm(a, b))
        assert not np.all(difference <= reference.gemm_bound(a, b, "float16")), f"not caught: {bug}"
    finally:
        _enqueue.native_set.cache_clear()


def test_the_engine_answers_by_name():
    a, b = mx.ones((70, 40), mx.float16), mx.ones((40, 90), mx.float16)
    with hostmetal.active(dialect="3.1"), mt.trace() as trace:
        c = mt.matmul(a, b, engine="simdgroup")
        mx.eval(c)
    assert np.all(np.array(c) == 40) and trace.calls[0].engine == "simdgroup"
    assert trace.total("mma8x8") > 0 and trace.total("matmul2d") == 0
    with pytest.raises(EngineError, match="runs on cpu, not on Metal"):
        mt.matmul(a, b, engine="simdgroup")


def test_before_the_m5_it_serves_what_mlx_has_not_and_tf32_is_no_other_kernel():
    a, bias = mx.ones((8, 8)), mx.ones((8,))
    with device.force("m3"):
        told = mt.explain("matmul", a, a, bias=bias, activation="silu")
        assert told.engine == "simdgroup" and "no fused form" in told.why
        keys = {mt.explain("matmul", a, a, engine="simdgroup", precision=p).variant for p in ("exact", "tf32")}
    assert len(keys) == 1


def test_gradient():
    a = cases.make("rows", 20, 33, "float32", np.random.default_rng(1))
    b = cases.make("rows", 33, 40, "float32", np.random.default_rng(2))
    with hostmetal.active():
        da, db = mx.grad(lambda x, y: (mt.matmul(x, y, engine="simdgroup") ** 2).sum(), argnums=(0, 1))(a, b)
        mx.eval(da, db)
    c = 2 * reference.gemm(a, b)
    assert np.allclose(np.array(da), c @ reference.to_float64(b).T, rtol=1e-4, atol=1e-3)
    assert np.allclose(np.array(db), reference.to_float64(a).T @ c, rtol=1e-4, atol=1e-3)
