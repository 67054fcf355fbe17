"""float16 activations of any magnitude, by the kernels that policy takes: where half subnormals are flushed, and where they count. Emulated.

Yardstick: each row of a result against one rounding, norms over the row. Affine weights reach the matrix unit rounded to half, as by MLX; the
oracle multiplies those.
"""

from dataclasses import replace
from functools import lru_cache
from itertools import cycle

import mlx.core as mx
import numpy as np
import pytest

import mlx_tensorops as mt
from mlx_tensorops import device, formats, hostmetal, reference, resolve
from mlx_tensorops.errors import TensorOpsError
from mlx_tensorops.formats import codec
from mlx_tensorops.primitives import _gather_run, quantized_matmul, weighted_dataflows
from mlx_tensorops.select import Context, Verdict
from mlx_tensorops.spec import WeightedSpec, WeightSpec
from tests.planted import planted
from tests.weighted import judge
from tests.weighted.cases import Problem

M5 = device.profile("m5")
FLUSHES = replace(M5, flushes_half=True)
SIGMAS = (10.0, 1.0, 0.1, 0.01, 0.003)
N, K, SPLIT_K = 64, 512, 1024
EXPERTS = 3
FORMATS = {f.name: f for f in map(formats.by_name, ("nvfp4", "mxfp4", "mxfp8", "affine4_g64"))}


@lru_cache(maxsize=None)
def stored(name: str, k: int = K, matrices: int = 1, unit: bool = True):
    """(normal weights as the operations take them, the same in float64): [matrices, N, k].

    Args:
        name: of a format; "": dense.
        unit: whether they meet x in the matrix unit.
    """
    rng = np.random.default_rng(1)
    if not name:
        w = mx.array(rng.normal(size=(matrices, N, k)).astype(np.float16))
        return (w,), reference.to_float64(w)
    fmt = FORMATS[name]
    parts = formats.quantise(rng.normal(size=(matrices, N, k)).astype(np.float32), fmt)
    group = [part if i == 0 or fmt.scale != "float" else part.astype(np.float16) for i, part in enumerate(parts) if part is not None]
    exact = codec.weights_f32(*(*group, None)[:3], fmt)
    return tuple(map(mx.array, group)), codec.round_to(exact, "float16" if fmt.biased and unit else "float32").astype(np.float64)


def activations(m: int, k: int, sigma) -> mx.array:
    """Normal, half; sigma is one number, or one for each row."""
    return mx.array((np.random.default_rng(2).normal(size=(m, k)) * sigma).astype(np.float16))


def roundings(y, want) -> float:
    """Largest error of a row, in those of one rounding to half."""
    once = np.linalg.norm(want.astype(np.float16).astype(np.float64) - want, axis=-1)
    return float(np.max(np.linalg.norm(reference.to_float64(y) - want, axis=-1) / once))


def run(call, flushes: bool, flush_half: bool | None = None, layout: str = "nax"):
    """(results of a call, the products that were dispatched) on a device whose profile says whether it flushes.

    Args:
        flush_half: whether it does; None: as it says.
    """
    flush_half = flushes if flush_half is None else flush_half
    with device.force(FLUSHES if flushes else M5), hostmetal.active(checked=True, flush_half=flush_half, layout=layout), mt.trace() as trace:
        results = call()
        mx.eval(results)
    return results, [d for d in trace.dispatches if d["kernel"].startswith(("qgemm", "gather", "gateup"))]


def scaled(dispatches) -> set[bool]:
    """Whether the kernels of engine mpp's dataflows scale rows of x."""
    return {"half_scaled" in d["kernel"] for d in dispatches if "_vector_" not in d["kernel"]}


def multiplied(name: str, m: int, sigma: float, flushes: bool, k: int = K, **emulation):
    """(roundings of one product, its dispatches, its arrays)."""
    group, w = stored(name, k, unit=m > 4)
    group, x, fmt = [part[0] for part in group], activations(m, k, sigma), FORMATS[name]
    y, dispatches = run(lambda: mt.quantized_matmul(x, *group, mode=fmt.mode, group_size=fmt.group, bits=fmt.bits, engine="mpp"), flushes, **emulation)
    return roundings(y, reference.to_float64(x) @ w[0].T), dispatches, [x, *group]


@pytest.mark.parametrize("flushes", [True, False])
@pytest.mark.parametrize("m", [4, 16, 32, 64])
@pytest.mark.parametrize("name", FORMATS)
def test_whole_matrices(name, m, flushes):
    """Each size class has a kernel of its own; that for up to 4 rows needs no matrix unit."""
    found = {sigma: multiplied(name, m, sigma, flushes) for sigma in SIGMAS}
    assert all(ratio <= 1.5 for ratio, *_ in found.values()), {sigma: ratio for sigma, (ratio, *_) in found.items()}
    assert scaled([d for _, dispatches, _ in found.values() for d in dispatches]) == (set() if m == 4 else {flushes})


@pytest.mark.parametrize("flushes", [True, False])
@pytest.mark.parametrize("name", ["nvfp4", "affine4_g64"])
def test_slices_of_k(name, flushes):
    found = {sigma: multiplied(name, 64, sigma, flushes, SPLIT_K) for sigma in SIGMAS}
    assert all(ratio <= 1.5 for ratio, *_ in found.values()), {sigma: ratio for sigma, (ratio, *_) in found.items()}
    assert all("_split_k_" in d["kernel"] and ("half_scaled" in d["kernel"]) == flushes for _, dispatches, _ in found.values() for d in dispatches)


def test_a_profile_that_does_not_know_is_seen():
    """What is flushed and not said is lost: the check above can fail."""
    for m, k in ((16, K), (32, K), (64, K), (64, SPLIT_K)):
        assert multiplied("nvfp4", m, 0.01, False, k, flush_half=True)[0] > 1.5


@pytest.mark.parametrize("name", FORMATS)
def test_work_is_as_predicted(name):
    fmt, (_, (dispatch,), arrays) = FORMATS[name], multiplied(name, 64, 0.01, True)
    with device.force(FLUSHES), hostmetal.active():
        decision, _ = quantized_matmul.describe(*arrays, mode=fmt.mode, group_size=fmt.group, bits=fmt.bits, engine="mpp")
    variant = decision.variants[dispatch["row"]]
    assert variant.alignment == "aligned" and variant.option("operands", "") == "half_scaled"
    problem = Problem(decision.spec, dict(zip(("x", "w", "scales", "biases"), arrays)))
    judge.counters_as_predicted(variant, problem, dispatch, "nax")


# Rows of experts: some fill a fragment of 16 rows, and 2 or 3 leave the matrix unit.
IDS = {"plan": np.random.default_rng(3).permutation(np.repeat([0, 2], [35, 18])), "runs": np.repeat([0, 2], [35, 18]), "few runs": np.repeat([0, 2], [13, 11])}
IDS = {rows: ids.astype(np.int32) for rows, ids in IDS.items()}
UNLIKE = 0.003 * 2.0 ** (np.arange(53) % 11)[:, None]  # rows of unlike magnitude


def products(x, w, ids):
    return np.einsum("mk,mnk->mn", reference.to_float64(x), w[ids])


@pytest.mark.parametrize("flushes", [True, False])
@pytest.mark.parametrize("rows, name", [("plan", "nvfp4"), ("runs", "mxfp8"), ("few runs", "nvfp4"), ("plan", "")])
def test_rows_of_experts(rows, name, flushes):
    group, w = stored(name, matrices=EXPERTS)
    ids, how = IDS[rows], dict(rhs_indices=mx.array(IDS[rows]), sorted_indices=rows != "plan", engine="mpp")
    for sigma, layout in zip(SIGMAS, cycle(("nax", "permuted"))):
        x = activations(len(ids), K, sigma)
        if name:
            y, dispatches = run(lambda: mt.gather_qmm(x[:, None], *group, mode=FORMATS[name].mode, **how), flushes, layout=layout)
        else:
            y, dispatches = run(lambda: mt.gather_mm(x[:, None], group[0].swapaxes(-1, -2), **how), flushes, layout=layout)
        assert roundings(y[:, 0], products(x, w, ids)) <= 1.5, sigma
        assert scaled(dispatches) == {flushes} and all(f"rows{rows.split()[-1]}" in d["kernel"] for d in dispatches)


def gate_and_up(sigma, flushes: bool, layout: str = "nax"):
    """(roundings of the worse result, dispatches)."""
    group, w = stored("nvfp4", matrices=EXPERTS)
    ids, x = IDS["plan"], activations(len(IDS["plan"]), K, sigma)
    up = tuple(part[::-1] for part in group)
    results, dispatches = run(lambda: mt.gather_gateup(x[:, None], group, up, rhs_indices=mx.array(ids), mode="nvfp4", activation=None, engine="mpp"),
                              flushes, layout=layout)
    return max(roundings(y[:, 0], products(x, weights, ids)) for y, weights in zip(results, (w, w[::-1]))), dispatches


@pytest.mark.parametrize("flushes", [True, False])
def test_gate_and_up(flushes):
    for sigma, layout in zip((*SIGMAS, UNLIKE), cycle(("nax", "permuted"))):
        ratio, dispatches = gate_and_up(sigma, flushes, layout)
        assert ratio <= 1.5 and scaled(dispatches) == {flushes}, sigma


@pytest.mark.parametrize("before, after", [
    ("unscale_tail(tail_up, factors, matrix_end, rows.end, int(thread_index));", ""), ("undo(factors[r])", "undo(factors[begin])")], ids=["not undone", "factor of another row"])
def test_planted_bugs_of_the_last_rows_are_caught(before, after):
    with planted(before, after):
        assert gate_and_up(UNLIKE, True)[0] > 1.5


# ------------------------------------------------------------------------------------------- what policy takes, without a launch

ROWS = [("qgemm", {}), *((family, dict(rows=rows, block_m=block_m, **how)) for family, how in (
    ("gather", dict(op="gather_qmm")), ("gateup", dict(op="gather_gateup", destinations=2, gate="swiglu"))) for rows, block_m in (("runs", 0), ("plan", 4), ("plan", 64), ("plan", 128)))]
WEIGHTS = [WeightSpec(f.name, "uint32", "float16" if f.scale == "float" else "uint8", t) for f in formats.BUILT_IN for t in (True, False)]


def decided(family: str, spec, profile):
    return resolve.resolve(family, spec, "mpp", Context(profile, True, Verdict(True, "")))


@pytest.mark.parametrize("family, how", ROWS, ids=str)
def test_every_row_of_half_is_scaled_and_nothing_else_changes(family, how):
    dense = [WeightSpec("", "float16", transpose=t) for t in (True, False)] if family != "qgemm" else []
    for weights in (*WEIGHTS, *dense):
        for x in ("float16", "bfloat16", "float32"):
            stored_as = replace(weights, scales=weights.scales.replace("float16", x), stored=weights.stored.replace("float16", x))
            spec = WeightedSpec(x, x, stored_as, **{**how, **({"op": "gather_mm"} if family == "gather" and not weights.format else {})})
            there, here = (decided(family, spec, profile).variants.rows for profile in (FLUSHES, M5))
            if x != "float16":
                assert there == here
                continue
            assert [(v.dataflow, v.tile, v.row) for v in there] == [(v.dataflow, v.tile, v.row) for v in here]
            for a, b in zip(there, here):
                more = {("operands", "half_scaled")} if a.engine == "mpp" else set()
                assert set(a.options) == set(b.options) | more and weighted_dataflows.of(a).context(a).get("b") == weighted_dataflows.of(b).context(b).get("b")


def test_devices_take_turns():
    """Plans, decisions and kernels of one call on two devices stay apart; so do those for other rows of experts."""
    for flushes in (True, False, True, False):
        _, dispatches, _ = multiplied("nvfp4", 64, 1.0, flushes)
        assert scaled(dispatches) == {flushes}
    spec = WeightedSpec("float16", "float16", WeightSpec("nvfp4", "uint32", "uint8"), rows="runs", op="gather_qmm")
    for profile in (FLUSHES, M5):
        rows = _gather_run.resolved(decided("gather", spec, profile), ("plan", False, 64)).variants.rows
        assert {v.option("operands", "native") for v in rows} == {"half_scaled" if profile.flushes_half else "native"}


def test_explain_says_why_and_the_switch_does_the_same(monkeypatch):
    (w, scales), _ = stored("nvfp4")
    call = "quantized_matmul", activations(64, K, 1.0), w[0], scales[0]
    with device.force(FLUSHES):
        said = str(mt.explain(*call, mode="nvfp4", engine="mpp"))
    assert "reads half subnormals as zero" in said and "half_scaled" in said
    with device.force(M5):
        assert "subnormals" not in str(mt.explain(*call, mode="nvfp4", engine="mpp"))
        monkeypatch.setenv("MLX_TENSOROPS_FLUSHES_HALF", "1")
        assert str(mt.explain(*call, mode="nvfp4", engine="mpp")) == said and "MLX_TENSOROPS_FLUSHES_HALF" in str(mt.doctor())
        assert device.of_stream() == FLUSHES
        monkeypatch.setenv("MLX_TENSOROPS_FLUSHES_HALF", "yes")
        with pytest.raises(TensorOpsError, match="MLX_TENSOROPS_FLUSHES_HALF is 'yes'.\n  nearest legal: 0, 1"):
            mt.explain(*call, mode="nvfp4", engine="mpp")
