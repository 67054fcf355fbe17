"""Faults that users could run into, each with its smallest input."""

import threading

import mlx.core as mx
import numpy as np
import pytest

import mlx_tensorops as mt
from mlx_tensorops import hostmetal
from mlx_tensorops.errors import DTypeError, ShapeError, TensorOpsError

ONES = mx.ones((2, 2))
COMPLEX = mx.full((2, 2), 1 + 2j)


@pytest.mark.parametrize("call", [
    lambda: mt.matmul(ONES, ONES, bias=COMPLEX), lambda: mt.matmul(ONES, ONES, residual=COMPLEX),
    lambda: mt.matmul(COMPLEX, ONES, activation="relu"), lambda: mt.addmm(COMPLEX, ONES, ONES, activation="silu"),
])
def test_no_imaginary_part_is_dropped(call):
    with pytest.raises(DTypeError, match="complex"):
        call()


def test_complex_and_float64_addends_keep_their_type():
    assert np.all(np.array(mt.addmm(COMPLEX, ONES, ONES, bias=mx.ones(2))) == 4 + 2j)
    assert np.all(np.array(mt.addmm(COMPLEX, ONES, ONES)) == 3 + 2j)
    with mx.stream(mx.cpu):
        wide = mx.array([[1 / 3]], mx.float64)
        assert mt.matmul(wide, wide).dtype == mx.float64 and mt.matmul(wide, wide).item() == (1 / 3) ** 2
        assert mt.matmul(mx.ones((1, 1)), mx.ones((1, 1)), residual=wide, out_dtype=mx.float64).item() == 1 + 1 / 3


@pytest.mark.parametrize("engine", ["auto", "cpu", "mlx", "mpp", "simdgroup"])
@pytest.mark.parametrize("activation", [None, "relu"])
def test_beta_zero_ignores_c(engine, activation):
    with hostmetal.active():
        got = mt.addmm(mx.full((4, 4), float("nan")), mx.ones((4, 4)), mx.ones((4, 4)), 1.0, 0.0, engine=engine, activation=activation)
        assert np.all(np.array(got) == 4)
    with pytest.raises(ShapeError, match="c has shape"):
        mt.addmm(mx.ones((3, 4, 4)), mx.ones((4, 4)), mx.ones((4, 4)), 1.0, 0.0)


@pytest.mark.parametrize("engine", ["cpu", "mlx"])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_activations_far_out_are_not_minus_infinity(engine, activation):
    x = mx.array([[-1e4, -3e38, 5.0]]).T
    got = np.array(mt.matmul(x, mx.ones((1, 1)), activation=activation, engine=engine))[:, 0]
    assert np.all(np.abs(got[:2]) < 1e-30) and abs(got[2] - 5) < 0.04
    if engine == "cpu":
        assert abs(np.array(mt.matmul(mx.array([[-np.inf]]), mx.ones((1, 1)), activation=activation, engine=engine)).item()) < 1e-30
        assert np.isnan(np.array(mt.matmul(mx.array([[np.nan]]), mx.ones((1, 1)), activation=activation, engine=engine)).item())


def test_traces_nest_and_other_threads_do_not_disturb_them():
    a = mx.ones((8, 8), mx.float16)
    with hostmetal.active(), mt.trace() as outer:
        mx.eval(mt.matmul(a, a, engine="simdgroup"))
        with mt.trace() as inner:
            mx.eval(mt.matmul(a, a, engine="simdgroup"))

        def elsewhere():
            with mt.trace():
                pass

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        mx.eval(mt.matmul(a, a, engine="simdgroup"))
    mt.matmul(a, a)
    assert (len(outer.dispatches), len(inner.dispatches)) == (3, 1) and (len(outer.calls), len(inner.calls)) == (3, 1)


def test_vmap_over_the_bias_alone():
    bias = mx.array(np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32))
    for options in (dict(bias=True), dict(residual=True)):
        name = next(iter(options))
        got = mx.vmap(lambda x: mt.matmul(ONES, ONES, **{name: x}))(bias)
        assert np.allclose(np.array(got), 2 + np.array(bias)[:, None, :]) and got.shape == (5, 2, 2)


def test_explain_counts_broadcast_batches_and_refuses_what_the_call_refuses():
    assert mt.explain("matmul", mx.zeros((2, 1, 8, 16)), mx.zeros((1, 3, 16, 4))).flops == 2 * 6 * 8 * 16 * 4
    assert mt.explain("matmul", mx.zeros((0, 2, 3)), mx.zeros((1, 3, 4))).flops == 0
    with pytest.raises(ShapeError, match="bias has shape"):
        mt.explain("matmul", mx.zeros((8, 16)), mx.zeros((16, 12)), bias=mx.ones(8))
    assert mt.explain("addmm", mx.zeros(12), mx.zeros((8, 16)), mx.zeros((16, 12))).flops == 2 * 8 * 16 * 12


@pytest.mark.parametrize("call, text", [
    (lambda: mt.addmm(None, ONES, ONES), "c is a NoneType"),
    (lambda: mt.matmul(ONES, ONES, engine=["cpu"]), "engine is a list"),
    (lambda: mt.matmul(ONES, ONES, activation=["relu"]), "activation is a list"),
    (lambda: mt.addmm(ONES, ONES, ONES, 10**400), "beyond what a float can hold"),
])
def test_wrong_arguments_are_answered(call, text):
    with pytest.raises(TensorOpsError, match=text):
        call()


def test_a_grid_that_does_not_fit_is_refused():
    with pytest.raises(TensorOpsError, match="2\\^32 - 2 threadgroups"):
        hostmetal.compile("kernel void k() {}").dispatch(grid=(2**31, 2**31, 2**31), threadgroup=1, buffers=[])


def test_a_cache_that_cannot_be_written_is_named(monkeypatch):
    monkeypatch.setenv("MLX_TENSOROPS_CACHE", "/proc/nope")
    with pytest.raises(TensorOpsError, match="MLX_TENSOROPS_CACHE"):
        hostmetal.compile("kernel void k() { }")
    told = {f.topic: f for f in mt.doctor().findings}
    assert not told["hostmetal"].ok and "MLX_TENSOROPS_CACHE" in told["hostmetal"].text


SCALE = "kernel void k(device float* o [[buffer(0)]], constant half& s [[buffer(1)]]) { o[0] = 2.0f * float(s); }"


@pytest.mark.parametrize("value", [1.5, np.array(1.5), np.array([1.5]), np.float32(1.5), mx.array(1.5)], ids=["python", "0-d", "1-d", "numpy", "mlx"])
def test_a_number_for_a_scalar_reference_is_its_value(value):
    assert hostmetal.compile(SCALE).dispatch(grid=1, threadgroup=1, buffers=[np.zeros(1, np.float32), value]).outputs[0][0] == 3


def test_an_array_of_another_float_type_is_refused():
    with pytest.raises(TensorOpsError, match="holds float64 and the kernel reads 'device float"):
        hostmetal.compile(SCALE).dispatch(grid=1, threadgroup=1, buffers=[np.zeros(1), 1.0])
