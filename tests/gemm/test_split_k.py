"""Split-K: partial products of slices of K, then one pass that adds them; both engines, emulated, against float64."""

import mlx.core as mx
import numpy as np
import pytest

import mlx_tensorops as mt
from mlx_tensorops import device, guards, hostmetal, reference, signature
from mlx_tensorops.epilogues import Epilogue
from mlx_tensorops.errors import RuleError
from mlx_tensorops.policies import gemm as table
from mlx_tensorops.primitives import _enqueue, _gemm_split, _native, gemm
from mlx_tensorops.primitives import matmul as module
from mlx_tensorops.primitives._gemm_signature import sizes
from mlx_tensorops.shaders import render as renderer
from tests.cases import gemm as cases
from tests.gemm import flows, judge

ENGINES = ("mpp", "simdgroup")
HALF = flows.spec_of("float16")


def operands(m, k, n, dtype="float16", views=("rows", "rows"), lead=((), ())):
    return [cases.make(view, *shape, dtype, np.random.default_rng(sum(shape)), lead=axes)
            for view, shape, axes in zip(views, ((m, k), (k, n)), lead)]


def run(engine, a, b, **options):
    how = {name: options.pop(name) for name in ("layout", "checked", "dialect") if name in options}
    with hostmetal.active(**{"checked": True, **how}), mt.trace() as trace:
        c = mt.matmul(a, b, engine=engine, **options)
        mx.eval(c)
    return c, trace.dispatches


def slices_of(engine, m, n, k) -> int:
    return -(-k // table.SPLIT_K[engine].k_slice(*sizes(False))(((m, k), (k, n))))


def split(dispatches) -> bool:
    names = ["split_k" in d["kernel"] for d in dispatches]
    assert names in ([True, False], [False]) and (len(names) == 1 or "_accumulate_" in dispatches[1]["kernel"])
    return len(names) == 2


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype, m, k, n, views", [
    ("float16", 64, 2048, 64, ("rows", "rows")), ("bfloat16", 33, 1100, 70, ("rows", "columns")), ("float32", 5, 3000, 9, ("columns", "rows")),
    ("float16", 16, 7480, 97, ("columns", "columns")), ("float16", 40, 1025, 31, ("every_other", "reversed")),
])
def test_values(engine, dtype, m, k, n, views):
    a, b = operands(m, k, n, dtype, views)
    for layout in ("nax", "padded"):
        c, dispatches = run(engine, a, b, layout=layout)
        assert split(dispatches) and dispatches[0]["grid"][2] == slices_of(engine, m, n, k) >= 2
        assert judge.errors_over_bound(a, b, c, dtype) <= 1


@pytest.mark.parametrize("engine", ENGINES)
def test_counters_equal_the_cost_rules_of_both_launches(engine):
    a, b = operands(64, 2048, 64)
    _, (first, second) = run(engine, a, b)
    sets = _gemm_split.of(HALF, engine)
    judge.counters_as_predicted(sets.partials["nn/aligned"], (a.shape, b.shape), first, "nax")
    shape = (slices_of(engine, 64, 64, 2048), 64, 64)
    cost = gemm.cost(sets.accumulate.rows[0])
    assert second["counters"]["device_load"][0] == cost.operand_bytes[0]([shape]) == 4 * np.prod(shape)
    assert sum(second["counters"]["device_store"]) == cost.output_bytes([shape]) == 64 * 64 * 2
    assert second["counters"]["macs"] == 0
    whole = gemm.cost(flows.variant_set(engine, {"mpp": "direct", "simdgroup": "staged"}[engine], sets.partials.rows[0].tile, HALF)["nn/aligned"])
    shapes = (a.shape, b.shape)
    assert first["counters"]["macs"] == whole.macs(shapes), "cut, not repeated"


@pytest.mark.parametrize("engine", ENGINES)
def test_the_same_bits_every_time(engine):
    a, b = operands(24, 3000, 40, "float32")
    results = [run(engine, a, b, checked=checked)[0] for checked in (False, True, False)]
    assert len({np.array(c).tobytes() for c in results}) == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_one_rounding_after_the_epilogue(engine):
    a, b = operands(20, 1500, 30)
    bias, residual = cases.make("rows", 1, 30, "float32", np.random.default_rng(0)), cases.make("columns", 20, 30, "float16", np.random.default_rng(1))
    c, dispatches = run(engine, a, b, bias=bias, activation="silu", residual=residual)
    assert split(dispatches)
    assert judge.epilogue_over_bound(a, b, c, "float16", Epilogue(True, "silu", True), bias=bias, residual=residual) <= 1
    with hostmetal.active(checked=True):
        c = mt.addmm(residual, a, b, 0.5, -2.0, engine=engine)
        mx.eval(c)
    assert judge.epilogue_over_bound(a, b, c, "float16", Epilogue(residual=True, scaled=True), residual=residual, alpha=0.5, beta=-2.0) <= 1


BATCHES = (
    ((3, 2), (3, 2), "true batches"), ((3,), (), "a folds"), ((), (3,), "a broadcasts"), ((2, 1, 3), (2, 2, 1), "both broadcast"),
)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("a_lead, b_lead, why", BATCHES, ids=[b[2] for b in BATCHES])
def test_batches(engine, a_lead, b_lead, why):
    a, b = operands(6, 1400, 30, lead=(a_lead, b_lead))
    result = np.broadcast_shapes(a_lead, b_lead)
    per_batch = cases.make("rows", 1, 30, "float16", np.random.default_rng(5), lead=result)
    c, dispatches = run(engine, a, b, bias=per_batch, activation="relu")
    assert split(dispatches) and dispatches[1]["grid"][2] == np.prod(result)
    assert judge.epilogue_over_bound(a, b, c, "float16", Epilogue(True, "relu"), bias=per_batch) <= 1


@pytest.mark.parametrize("engine", ENGINES)
def test_vectors(engine):
    a, b = operands(1, 1600, 20)
    for x, y in ((a[0], b), (b.T, a[0]), (a[0], b[:, 0])):
        c, dispatches = run(engine, x, y)
        assert split(dispatches) and c.shape == (reference.to_float64(x) @ reference.to_float64(y)).shape
        assert judge.errors_over_bound(x.reshape(1, -1) if x.ndim == 1 else x, y.reshape(-1, 1) if y.ndim == 1 else y,
                                       c.reshape(1 if x.ndim == 1 else -1, 1 if y.ndim == 1 else -1), "float16") <= 1


# Sizes on both sides of each bound of the rules: (engine, M, N, K, whether it splits).
BOUNDARIES = (
    ("mpp", 64, 64, 1023, False), ("mpp", 64, 64, 1024, True),
    ("mpp", 512, 64, 1024, False), ("mpp", 511, 64, 1024, True), ("mpp", 64, 512, 1025, True),
    ("mpp", 1024, 64, 2048, False), ("mpp", 1024, 64, 2049, True), ("mpp", 1025, 64, 3074, False), ("mpp", 1025, 64, 3075, True),
    ("simdgroup", 64, 64, 1023, False), ("simdgroup", 64, 64, 1024, True),
    ("simdgroup", 1024, 64, 1024, True), ("simdgroup", 1025, 64, 1024, False), ("simdgroup", 64, 1025, 1024, False),
    ("simdgroup", 512, 512, 1024, True), ("simdgroup", 512, 513, 1024, False), ("simdgroup", 513, 512, 4096, False),
)


@pytest.mark.parametrize("engine, m, n, k, expected", BOUNDARIES)
def test_boundaries_of_the_size_rule(engine, m, n, k, expected):
    assert bool(_gemm_split.of(HALF, engine).pays((m, k), (k, n))) is expected
    with device.force("m5"):
        told = mt.explain("matmul", mx.zeros((m, k), mx.float16), mx.zeros((k, n), mx.float16), engine=engine)
    assert ("_split_k_" in told.variant) is expected and ("cut into slices" in told.why) is expected


@pytest.mark.parametrize("engine, m, n, k, count", [
    ("mpp", 64, 64, 1024, 2), ("mpp", 64, 64, 2048, 2), ("mpp", 64, 64, 2049, 2), ("mpp", 64, 64, 4096, 2), ("mpp", 64, 64, 4097, 2), ("mpp", 64, 64, 8193, 3),
    ("simdgroup", 32, 32, 1024, 32), ("simdgroup", 512, 512, 1024, 2), ("simdgroup", 64, 64, 1024, 16), ("simdgroup", 96, 64, 1024, 16), ("simdgroup", 128, 64, 1024, 8),
    ("simdgroup", 32, 32, 1 << 20, 32),
])
def test_number_of_slices(engine, m, n, k, count):
    assert slices_of(engine, m, n, k) == count


def test_slices_are_whole_steps_of_every_dataflow():
    for engine in ENGINES:
        rule = guards.function(table.SPLIT_K[engine].k_slice(*sizes(False)), 2)
        for k in (1, 31, 1024, 1025, 4097, 9999, 123457):
            for m, n in ((1, 1), (100, 7), (4096, 4096)):
                length = rule((m, k), (k, n))
                assert length % 32 == 0 and length > 0


REPLAYS = ((64, 2048, 64), (20, 1500, 30), (64, 33, 128), (7, 5, 9), (3, 0, 4), (0, 8, 4), (130, 4100, 40))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("traced", [(32, 1024, 32), (64, 64, 64)], ids=["traced split", "traced whole"])
def test_a_shapeless_graph_is_right_at_other_sizes(engine, traced):
    with hostmetal.active(checked=True):
        compiled = mx.compile(lambda a, b, bias: mt.matmul(a, b, bias=bias, engine=engine), shapeless=True)
        m, k, n = traced
        mx.eval(compiled(*operands(m, k, n), mx.zeros((1, n), mx.float16)))
        for m, k, n in REPLAYS:
            a, b = operands(m, k, n) if 0 not in (m, k) else (mx.zeros((m, k), mx.float16), mx.zeros((k, n), mx.float16))
            bias = cases.make("rows", 1, n, "float16", np.random.default_rng(n))
            if k == 0 and traced[1] != 1024:
                with pytest.raises(ValueError, match="K must be at least 1.*\n.*trace the graph again"):
                    mx.eval(compiled(a, b, bias))
                continue
            with mt.trace() as trace:
                c = compiled(a, b, bias)
                mx.eval(c)
            assert c.shape == (m, n)
            if m == 0:
                continue
            assert judge.epilogue_over_bound(a, b, c, "float16", Epilogue(True), bias=bias) <= 1
            assert len(trace.dispatches) == (2 if traced[1] == 1024 and k else 1)


@pytest.mark.parametrize("engine", ENGINES)
def test_gradient_through_both_launches(engine):
    a, b = operands(6, 1200, 10, "float32")
    bias = cases.make("rows", 1, 10, "float32", np.random.default_rng(4))
    with hostmetal.active():
        got = mx.grad(lambda a, b, bias: (mt.matmul(a, b, bias=bias, activation="silu", engine=engine) ** 2).sum(), argnums=(0, 1, 2))(a, b, bias)
        mx.eval(got)
    want = mx.grad(lambda a, b, bias: ((lambda y: y * mx.sigmoid(y))(mx.matmul(a, b) + bias) ** 2).sum(), argnums=(0, 1, 2))(a, b, bias)
    for x, y in zip(got, want):
        assert x.shape == y.shape and np.allclose(np.array(x), np.array(y), rtol=1e-3, atol=1e-3 * np.abs(np.array(y)).max())


@pytest.mark.parametrize("engine", ENGINES)
def test_without_the_extension(engine, monkeypatch):
    monkeypatch.setattr(_native, "_verdict", "[native] the extension was built for another mlx")
    monkeypatch.setattr(module, "_plans", {})
    monkeypatch.setattr(module, "_by_decision", {})
    a, b = operands(20, 1500, 30, views=("columns", "rows"))
    bias = cases.make("rows", 1, 30, "float32", np.random.default_rng(0))
    with hostmetal.active(dialect="3.1" if engine == "simdgroup" else "4.0"):
        c = mt.matmul(a, b, engine=engine, bias=bias)
        mx.eval(c)
        small = mt.matmul(a[:, :40], b[:40], engine=engine)
        mx.eval(small)
    assert judge.epilogue_over_bound(a, b, c, "float16", Epilogue(True), bias=bias) <= 1
    assert judge.errors_over_bound(a[:, :40], b[:40], small, "float16") <= 1


def test_partial_sums_are_float32_and_carry_no_epilogue():
    tile = table.SPLIT_K["mpp"].entry.tile
    with pytest.raises(RuleError, match="partial sums are float32, not float16"):
        flows.variant_set("mpp", "split_k", tile, HALF)
    with pytest.raises(RuleError, match="the epilogue belongs to the pass that adds the slices"):
        flows.variant_set("mpp", "split_k", tile, flows.spec_of("float16", out="float32", epilogue=Epilogue(activation="relu")))


def test_what_both_kernels_are_made_of():
    for engine in ENGINES:
        sets = _gemm_split.of(HALF, engine)
        for variant in sets.partials.rows:
            text = renderer.render(variant).text
            assert "device float* __restrict c" in text and "p.k_slice" in text and "slice * p.k_slice" in text
            assert "slices" not in {s.name for s in signature.of(variant).scalars}
        (last,) = sets.accumulate.rows
        text = renderer.render(last).text
        assert "const device float* __restrict partials" in text and "simdgroup_" not in text.split("[[kernel")[1].split("{", 1)[1]
        assert text.count("C(finish.apply(") == 1, "one rounding"


PLANTED = (
    ("a slice dropped", "slice < p.slices;", "slice < p.slices - 1;"),
    ("slices of other elements", "slice * p.slice_elements", "slice"),
    ("row and column swapped", "finish.apply(sum, row, column)", "finish.apply(sum, column, row)"),
    ("rounded before the epilogue", "finish.apply(sum, row", "finish.apply(float(C(sum)), row"),
    ("past the last element", "if (element >= p.elements) return;", ""),
    ("every slice the first", "first_k = slice * p.k_slice", "first_k = 0"),
    ("slices to the end of K", "K = min(p.k_slice, p.K - first_k)", "K = p.K - first_k"),
    ("last slice not cut", "K = min(p.k_slice, p.K - first_k)", "K = p.k_slice"),
    ("B not advanced", "  b += first_k * b_k;\n", ""),
    ("slices into one place", "c += long(block.z) * p.M * p.N;", ""),
)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("bug, before, after", PLANTED, ids=[p[0] for p in PLANTED])
def test_planted_bugs_are_caught(engine, bug, before, after, monkeypatch):
    right, hits = renderer.render, []

    def corrupted(variant):
        source = right(variant)
        text = source.text.replace(before, after)
        hits.append(text != source.text)
        return renderer.Source(text, source.kernel, source.digest)

    monkeypatch.setattr(_enqueue, "render", corrupted)
    monkeypatch.setattr(module, "_plans", {})
    monkeypatch.setattr(module, "_by_decision", {})
    _enqueue.native_set.cache_clear()
    try:
        a, b = operands(7, 1500, 41)
        residual = cases.make("rows", 7, 41, "float16", np.random.default_rng(3))
        try:
            c, dispatches = run(engine, a, b, residual=residual)
        except (RuntimeError, ValueError) as found:
            assert "the emulator found" in str(found) or "does not compile" in str(found)
        else:
            assert split(dispatches)
            assert judge_fails(a, b, c, residual), f"not caught: {bug}"
        assert any(hits), bug
    finally:
        _enqueue.native_set.cache_clear()


def judge_fails(a, b, c, residual) -> bool:
    values = reference.to_float64(c)
    return not np.all(np.isfinite(values)) or judge.epilogue_over_bound(a, b, c, "float16", Epilogue(residual=True), residual=residual) > 1


@pytest.mark.parametrize("engine", (*ENGINES, "mlx"))
def test_an_epilogue_on_a_sum_of_nothing(engine):
    bias, residual = mx.array([1.0, -2.0, 3.0]), mx.full((2, 3), 0.5)
    c, _ = run(engine, mx.zeros((2, 0)), mx.zeros((0, 3)), bias=bias, activation="relu", residual=residual)
    assert c.tolist() == [[1.5, 0.5, 3.5]] * 2
