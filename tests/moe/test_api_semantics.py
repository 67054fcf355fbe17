"""With engine auto the gathers have MLX's types and shapes; what is refused, and how; what explain() and trace() say."""

import itertools

import mlx.core as mx
import numpy as np
import pytest

import mlx_tensorops as mt
from mlx_tensorops import device
from mlx_tensorops.errors import DTypeError, EngineError, ShapeError, TensorOpsError
from mlx_tensorops.reference import to_float64
from tests.moe.api import ids
from tests.quant.api import floats, on, stack

W = floats((5, 32, 64), 1)
AFFINE, NVFP4 = mx.quantize(W), mx.quantize(W, mode="nvfp4")
DENSE = W.swapaxes(-1, -2)
X = floats((7, 1, 64), 2)
RIGHT = mx.array([0, 1, 2, 3, 4, 0, 1])


def compared(call, mine, refusal=TensorOpsError) -> bool:
    """Equal type, shape and, within what MLX's CPU kernels do, values; or an error on both sides. Whether there was a result."""
    try:
        want = call()
    except (ValueError, RuntimeError):
        with pytest.raises(refusal):
            mine()
        return False
    got = mine()
    assert got.dtype == want.dtype and got.shape == want.shape
    if got.dtype == mx.float32:
        assert np.allclose(to_float64(got), to_float64(want), rtol=1e-5, atol=1e-4)
    return True


def test_types_of_gather_qmm():
    kinds = (mx.float16, mx.bfloat16, mx.float32, mx.int32, mx.complex64)
    results = 0
    for x, s in itertools.product(kinds, kinds[:4]):
        stored = AFFINE[0], AFFINE[1].astype(s), AFFINE[2].astype(s)
        results += compared(lambda: mx.gather_qmm(X.astype(x), *stored, rhs_indices=RIGHT), lambda: mt.gather_qmm(X.astype(x), *stored, rhs_indices=RIGHT))
    assert results == 4 * 3
    results = [compared(lambda: mx.gather_qmm(X.astype(x), *NVFP4, rhs_indices=RIGHT, mode="nvfp4"),
                        lambda: mt.gather_qmm(X.astype(x), *NVFP4, rhs_indices=RIGHT, mode="nvfp4")) for x in kinds]
    assert results == [True, True, True, False, False]


def test_types_of_gather_mm():
    kinds = (mx.float16, mx.bfloat16, mx.float32, mx.int32, mx.complex64)
    results = sum(compared(lambda: mx.gather_mm(X.astype(a), DENSE.astype(b), rhs_indices=RIGHT), lambda: mt.gather_mm(X.astype(a), DENSE.astype(b), rhs_indices=RIGHT))
                  for a, b in itertools.product(kinds, kinds))
    assert results == 4 * 4 - 1, "all real pairs but two integers"


@pytest.mark.parametrize("a, b, lhs, rhs", [
    ((64,), (5, 64, 32), None, (2,)), ((64,), (5, 64, 32), None, None), ((7, 1, 64), (64,), (2,), (2,)), ((64,), (64,), None, None), ((3, 64), (64, 5), None, None),
    ((3, 64), (64, 5), None, (1,)), ((3, 64), (5, 64, 32), None, ()), ((2, 5, 3, 64), (5, 64, 32), None, None), ((7, 1, 64), (5, 64, 32), (5,), None),
    ((7, 1, 64), (5, 64, 32), (3, 1), (2,)), ((7, 1, 64), (5, 64, 32), (2,), (3,)), ((7, 1, 64), (5, 64, 32), None, None), ((7, 1, 64), (5, 64, 32), None, (7, 2)),
    ((7, 1, 3), (5, 64, 32), None, (7,)), ((7, 1, 0), (5, 0, 32), None, (7,)), ((0, 1, 64), (5, 64, 32), None, (0,)), ((), (5, 64, 32), None, (1,)),
])
def test_shapes_of_gather_mm(a, b, lhs, rhs):
    arrays = floats(a, 1), floats(b, 2)
    indices = [None if s is None else mx.zeros(s, mx.int32) for s in (lhs, rhs)]
    try:
        compared(lambda: mx.gather_mm(*arrays, *indices), lambda: mt.gather_mm(*arrays, *indices))
    except IndexError:
        with pytest.raises(ShapeError):
            mt.gather_mm(*arrays, *indices)


@pytest.mark.parametrize("kind", [mx.uint8, mx.int8, mx.int16, mx.uint32, mx.int64, mx.uint64, mx.float32, mx.bool_])
def test_types_of_indices(kind):
    right = RIGHT.astype(kind)
    compared(lambda: mx.gather_qmm(X, *AFFINE, rhs_indices=right), lambda: mt.gather_qmm(X, *AFFINE, rhs_indices=right), DTypeError)


@pytest.mark.parametrize("name", ["affine4_g64", None])
def test_host_indices_are_checked_and_need_no_mask(name):
    stored, _, words = stack(name, 5, 32, 64)
    ask = (lambda **k: mt.gather_qmm(X, *stored, **words, **k)) if words else (lambda **k: mt.gather_mm(X, stored[0].swapaxes(-1, -2), **k))
    want = np.array(ask(rhs_indices=RIGHT))
    for given in (np.array(RIGHT), RIGHT.tolist(), tuple(RIGHT.tolist())):
        for engine in ("cpu", "mlx"):
            assert np.allclose(np.array(ask(rhs_indices=given, engine=engine)), want, rtol=1e-4, atol=1e-4)
    with pytest.raises(TensorOpsError, match=r"rhs_indices holds 5 at position 2, which is not one of 5\.\n  nearest legal: 0 to 4\n  instead: an mx\.array"):
        ask(rhs_indices=[0, 1, 5, 9, 0, 0, 0])
    with pytest.raises(TensorOpsError, match="lhs_indices holds -1 at position 0, which is not one of 7"):
        ask(lhs_indices=np.array([-1, 2]), rhs_indices=[0, 1])
    with pytest.raises(TensorOpsError, match="rhs_indices falls from 4 to 2 at position 2"):
        ask(rhs_indices=[0, 4, 2, 3, 3, 3, 3], sorted_indices=True)
    with pytest.raises(DTypeError, match="rhs_indices is float64; indices are integers"):
        ask(rhs_indices=[0.0] * 7)


def plan(rows=7, experts=5, **options):
    return mt.tile_plan(ids((rows,), experts, 1), num_experts=experts, **options)


@pytest.mark.parametrize("call, error, text", [
    (lambda: mt.gather_qmm(X, *AFFINE, rhs_indices=mx.zeros(3, mx.int32)), ShapeError, r"the leading axes of x \(7,\) and rhs_indices \(3,\) do not broadcast"),
    (lambda: mt.gather_qmm(X, *AFFINE, mx.zeros(2, mx.int32), mx.zeros(3, mx.int32)), ShapeError, r"lhs_indices \(2,\) and rhs_indices \(3,\) do not broadcast"),
    (lambda: mt.gather_qmm(X[0, 0], *AFFINE, rhs_indices=RIGHT), ShapeError, r"x has shape \(64,\).\n  nearest legal: 2 axes or more"),
    (lambda: mt.gather_qmm(X, *AFFINE, rhs_indices=RIGHT, bias=mx.ones(32)), ShapeError, r"bias has shape \(32,\): it holds N = 32 values for each expert.\n  nearest legal: \(5, 32\)"),
    (lambda: mt.gather_qmm(X, *NVFP4, rhs_indices=RIGHT, mode="nvfp4", global_scale=mx.ones(4)), ShapeError, "one value per expert"),
    (lambda: mt.gather_qmm(X, *NVFP4, rhs_indices=RIGHT, mode="nvfp4", global_scale=1.0), DTypeError, "global_scale is a float"),
    *((lambda engine=engine: mt.gather_qmm(X, *AFFINE, rhs_indices=RIGHT, global_scale=mx.ones(5), engine=engine), DTypeError,
       "global_scale with mode 'affine', which has none.*\n.*nearest legal: mode=\"nvfp4\"\n  instead: multiply the result") for engine in ("auto", "cpu", "mlx", "mpp", "simdgroup")),
    (lambda: mt.gather_qmm(X, *AFFINE, rhs_indices=RIGHT, plan=[1]), DTypeError, r"plan is a list.\n  instead: mlx_tensorops\.tile_plan"),
    (lambda: mt.gather_qmm(X, *AFFINE, rhs_indices=RIGHT, plan=plan(experts=4)), ShapeError, "plan is for 4 experts, the weights hold 5"),
    (lambda: mt.gather_qmm(X, *AFFINE, rhs_indices=RIGHT, plan=plan(rows=8)), ShapeError, "plan orders 8 rows, and this call has 7"),
    (lambda: mt.gather_qmm(mx.ones((7, 2, 64)), *AFFINE, rhs_indices=RIGHT, plan=plan()), ShapeError, r"has 14.*\n.*\n  instead: tile_plan of mx\.repeat\(rhs_indices, 2\)"),
    (lambda: mt.gather_mm(X, W, rhs_indices=RIGHT), ShapeError, "K = 64, but the weights have shape .*K = 32.*\n.*\n  instead: swap the last two axes"),
    (lambda: mt.gather_mm(X, DENSE, rhs_indices=RIGHT, engine="mpp"), EngineError, r"^\[gather_mm\] engine 'mpp' cannot run this here"),
    (lambda: mt.gather_mm(X, DENSE, rhs_indices=RIGHT, engine="gpu"), EngineError, r"^\[gather_mm\] engine 'gpu' is unknown"),
    (lambda: mt.gather_gateup(X, AFFINE, AFFINE, rhs_indices=RIGHT, global_scale=(mx.ones(5),) * 2, engine="mpp"), DTypeError, "has none"),
    (lambda: mt.gather_gateup(X, AFFINE, W, rhs_indices=RIGHT), DTypeError, "one of gate and up is quantised"),
    (lambda: mt.gather_gateup(X, AFFINE, [a[:, :8] for a in AFFINE], rhs_indices=RIGHT), ShapeError, "gate has shape"),
    (lambda: mt.gather_gateup(X, AFFINE[:1], AFFINE[:1], rhs_indices=RIGHT), DTypeError, r"gate is a list of 1\.\n  nearest legal: \(w, scales\) or"),
    (lambda: mt.gather_gateup(X, W, W, rhs_indices=RIGHT, mode="nvfp4"), TensorOpsError, "mode 'nvfp4', group_size None and bits None with dense weights"),
    (lambda: mt.gather_gateup(X, AFFINE, AFFINE, rhs_indices=RIGHT, activation="silu"), TensorOpsError, "activation 'silu' is unknown.\n  nearest legal: swiglu"),
    (lambda: mt.gather_gateup(X, AFFINE, AFFINE, rhs_indices=RIGHT, bias=mx.ones((5, 32))), DTypeError, "bias is a array.\n  nearest legal: 2 arrays"),
    (lambda: mt.switch_glu(X[:, 0], AFFINE, AFFINE, AFFINE, RIGHT), ShapeError, r"x has shape \(7, 64\) and indices \(7,\)"),
    (lambda: mt.switch_glu(X[:, 0], AFFINE, AFFINE, AFFINE, RIGHT[:, None], mx.ones(7)), ShapeError, r"scores have shape \(7,\) and indices \(7, 1\)"),
    (lambda: mt.switch_glu(X[:, 0], AFFINE, AFFINE, AFFINE, RIGHT[:, None], activation=None), TensorOpsError, "activation is None, and down takes one array"),
    (lambda: mt.switch_glu(X[:, 0], AFFINE, AFFINE, AFFINE, RIGHT[:, None], RIGHT[:, None]), DTypeError, "scores are int32"),
    (lambda: mt.switch_glu(X[:, 0], AFFINE, AFFINE, AFFINE, RIGHT[:, None], np.ones((7, 1))), DTypeError, r"scores is a ndarray.\n  instead: pass mx.array\(scores\)"),
    (lambda: mt.switch_glu(X[:, 0], AFFINE, AFFINE, AFFINE, RIGHT[:, None], shared=(W[0], W[0], W[0])), DTypeError, "shared is added to the sum over k"),
    (lambda: mt.switch_glu(X[:, 0], AFFINE, AFFINE, AFFINE, [[0], [7]] + [[0]] * 5), TensorOpsError, "rhs_indices holds 7 at position 1"),
    (lambda: mt.switch_glu(X[:, 0], AFFINE, AFFINE, AFFINE, RIGHT[:, None], bias=(mx.ones((5, 32)),) * 2), DTypeError, "bias is a tuple.\n  nearest legal: a triple"),
])
def test_what_is_refused_and_how(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_a_plan_of_a_height_that_no_kernel_has():
    odd = plan(block_m=48)
    with on("mpp"), pytest.raises(EngineError, match="the plan's tiles have 48 rows, this engine's blocks 4, 16, 32, 64"):
        mt.gather_qmm(X, *AFFINE, rhs_indices=RIGHT, plan=odd, engine="mpp")
    with device.force("m5"):
        assert mt.explain("gather_qmm", X, *AFFINE, rhs_indices=RIGHT, plan=odd).engine == "mlx"
        assert mt.explain("gather_qmm", X, *AFFINE, rhs_indices=RIGHT, plan=plan(block_m=32)).engine == "mpp"


def test_explain_and_trace():
    gate, down = (mx.quantize(floats((5, 64, 64), seed)) for seed in (4, 3))
    with device.force("m5"):
        assert mt.explain("gather_qmm", X, *AFFINE, rhs_indices=RIGHT).engine == "mlx"
        for op, arrays in (("gather_gateup", (X, gate, gate)), ("switch_glu", (X[:, 0], gate, gate, down))):
            indices = (RIGHT[:, None],) if op == "switch_glu" else (None, RIGHT)
            told = mt.explain(op, *arrays, *indices)
            assert told.engine == "mpp" and "MLX has no fused form" in told.why and told.flops == 2 * 7 * 64 * 64 * 2
    told = mt.explain("gather_mm", X, DENSE, rhs_indices=RIGHT)
    assert told.engine == "cpu" and told.flops == 2 * 7 * 32 * 64
    for k, planned in ((3, ["tile_plan"]), (1, [])):  # 21 rows of 5 experts; 7 rows are few, and need no plan
        with on("mpp"), mt.trace() as trace:
            mx.eval(mt.switch_glu(X[:, 0], gate, gate, down, mx.repeat(RIGHT[:, None], k, 1), mx.ones((7, k)), engine="mpp"))
        assert [call.op for call in trace.calls] == ["switch_glu", *planned, "gather_gateup", "gather_qmm"]
    assert [d["kernel"].split("_")[0] for d in trace.dispatches if "tile_plan" not in d["kernel"]] == ["gateup", "gather", "combine"]


def test_the_gate_loads_x_once():
    """X's bytes of the fused kernel are those of one product; apart they are loaded twice."""
    x, right = floats((32, 1, 64), 1), mx.array(np.sort(ids((32,), 5, 2)))
    moved = {}
    with on("mpp"):
        for name, arrays in (("gather_qmm", AFFINE), ("gather_gateup", (AFFINE, AFFINE))):
            told = mt.explain(name, x, *arrays, rhs_indices=right, sorted_indices=True, engine="mpp")
            moved[name] = told.predicted["operand_bytes"]
    assert moved["gather_gateup"][0] == moved["gather_qmm"][0] and moved["gather_gateup"][1] == moved["gather_qmm"][1]
