"""With engine auto, ``matmul`` gives what ``mx.matmul`` gives, and refuses, with a lesson, what it refuses."""

import itertools

import mlx.core as mx
import numpy as np
import pytest

import mlx_tensorops as mt
from mlx_tensorops import reference
from mlx_tensorops.epilogues import ACTIVATIONS, Epilogue, apply_float64
from mlx_tensorops.errors import DTypeError, EngineError, ShapeError, TensorOpsError

DTYPES = (mx.float16, mx.bfloat16, mx.float32, mx.complex64, mx.int32, mx.bool_)
SHAPES = (((2, 3), (3, 4)), ((3,), (3,)), ((3,), (3, 4)), ((2, 3), (3,)), ((0, 3), (3, 4)), ((2, 0), (0, 4)), ((2, 3), (3, 0)),
          ((5, 2, 3), (3, 4)), ((2, 3), (5, 3, 4)), ((5, 1, 2, 3), (1, 6, 3, 4)), ((3,), (5, 3, 4)), ((5, 2, 3), (3,)))


def integers(shape, dtype, seed):
    """Small integers: every product and sum is exact in every type, so results must be equal."""
    return mx.array(np.random.default_rng(seed).integers(-3, 4, size=shape).astype(np.float32)).astype(dtype)


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_same_values_and_dtype_as_mlx(shapes):
    compared = 0
    for da, db in itertools.product(DTYPES, DTYPES):
        a, b = integers(shapes[0], da, 1), integers(shapes[1], db, 2)
        try:
            want = mx.matmul(a, b)
        except ValueError as refused:
            with pytest.raises(TensorOpsError, match=r"\[matmul\] "):
                mt.matmul(a, b)
            assert "inexact" in str(refused)
            continue
        got = mt.matmul(a, b)
        assert got.dtype == want.dtype and got.shape == want.shape
        assert np.array_equal(np.array(got.astype(mx.complex64)), np.array(want.astype(mx.complex64)))
        compared += 1
    assert compared == 32


@pytest.mark.parametrize("a, b, error, text", [
    (mx.zeros((2, 3)), mx.zeros((4, 5)), ShapeError, r"a has shape \(2, 3\), so K = 3, but b has shape \(4, 5\), so K = 4\.\n  nearest legal: K = 3\n  instead: slice or pad"),
    (mx.zeros((2, 3)), mx.zeros((5, 3)), ShapeError, r"instead: b\.swapaxes\(-1, -2\)"),
    (mx.array(1.0), mx.zeros((3,)), ShapeError, r"a scalar is no matrix\.\n  instead: multiply with \*"),
    (mx.zeros((2, 2, 3)), mx.zeros((3, 3, 5)), ShapeError, r"leading axes \(2,\) of a and \(3,\) of b do not broadcast"),
    (mx.zeros((2, 3)), 3.0, DTypeError, r"b is a float\.\n  instead: pass mx\.array\(b\)"),
    ([[1.0]], mx.zeros((1, 1)), DTypeError, r"a is a list"),
    (mx.zeros((2, 3), mx.int32), mx.zeros((3, 2), mx.int8), DTypeError, r"a is int32 and b is int8, whose product is no floating type"),
])
def test_what_mlx_refuses_is_refused_with_a_lesson(a, b, error, text):
    with pytest.raises((ValueError, TypeError)):
        mx.matmul(a, b)
    with pytest.raises(error, match=text):
        mt.matmul(a, b)


@pytest.mark.parametrize("options, error, text", [
    (dict(engine="nax"), EngineError, "engine 'nax' is unknown"),
    (dict(engine="mpp"), EngineError, "(?s)engine 'mpp' cannot run this here.*nearest legal: .*mlx"),
    (dict(engine="simdgroup"), EngineError, "(?s)engine 'simdgroup' cannot run this here.*nearest legal: .*mlx"),
    (dict(precision="fp8"), TensorOpsError, "precision 'fp8' is unknown.\n  nearest legal: exact, tf32"),
    (dict(activation="swish"), TensorOpsError, "activation 'swish' is unknown.\n  nearest legal: relu"),
    (dict(out_dtype="float16"), DTypeError, "out_dtype 'float16' is no MLX dtype"),
    (dict(out_dtype=mx.int32), DTypeError, "out_dtype int32 is no floating type"),
    (dict(bias=1.0), DTypeError, "bias is a float"),
    (dict(engine="mlx", residual=mx.zeros((7, 2, 2))), ShapeError, r"residual has shape \(7, 2, 2\), which does not broadcast to the result's \(2, 2\)"),
])
def test_bad_options_are_refused(options, error, text):
    with pytest.raises(error, match=text):
        mt.matmul(mx.ones((2, 2)), mx.ones((2, 2)), **options)


def test_complex_does_not_lose_its_imaginary_part_silently():
    with pytest.raises(DTypeError, match="drop its imaginary part"):
        mt.matmul(mx.zeros((2, 2), mx.complex64), mx.zeros((2, 2)), out_dtype=mx.float32)


@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
@pytest.mark.parametrize("engine", ["mlx", "auto"])
@pytest.mark.parametrize("out", [None, "float16", "bfloat16", "float32"])
def test_epilogue_rounds_once(activation, engine, out):
    rng = np.random.default_rng(5)
    a, b, bias, residual = (mx.array(rng.normal(size=s).astype(np.float32)).astype(mx.float16) for s in ((9, 33), (33, 17), (17,), (9, 17)))
    got = mt.matmul(a, b, bias=bias, activation=activation, residual=residual, engine=engine, out_dtype=out and getattr(mx, out))
    want = apply_float64(np, Epilogue(True, activation, True), reference.gemm(a, b), bias=reference.to_float64(bias), residual=reference.to_float64(residual))
    name = out or "float16"
    assert str(got.dtype).endswith(name)
    # slope of the activations is below 1.13; f32 work on values of size 10 adds a few units of 2**-24
    bound = 1.13 * reference.gemm_bound(a, b, "float32") + 2e-6 * (1 + np.abs(want)) + reference.element_type(name).epsilon / 2 * np.abs(want) + 2.0**-25
    assert np.all(np.abs(reference.to_float64(got) - want) <= bound)


def test_a_wider_result_is_not_rounded_first():
    a, b = mx.full((4, 2049), 1.0, mx.float16), mx.full((2049, 4), 1.0, mx.float16)
    assert np.all(np.array(mt.matmul(a, b, out_dtype=mx.float32, engine="mlx")) == 2049), "a float16 result cannot hold 2049"


def test_gradient_and_vmap_through_auto():
    a, b = integers((3, 4), mx.float32, 1), integers((4, 5), mx.float32, 2)
    grad = mx.grad(lambda x: (mt.matmul(x, b) ** 2).sum())(a)
    assert np.allclose(np.array(grad), 2 * (np.array(a) @ np.array(b)) @ np.array(b).T)
    batch = integers((6, 3, 4), mx.float32, 3)
    assert np.array_equal(np.array(mx.vmap(lambda x: mt.matmul(x, b))(batch)), np.array(batch) @ np.array(b))


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_addmm_of_no_columns_is_not_left_to_mlx(dtype, monkeypatch):
    """``mx.addmm`` with K = 0 and a sliced c was wrong in one run of random calls; no small call is known that shows it."""
    monkeypatch.setattr(mx, "addmm", lambda *a, **k: pytest.fail("mx.addmm was called"))
    whole = np.arange(34 * 34).reshape(34, 34) % 13
    c = mx.array(whole.astype(np.float32)).astype(dtype)[2:33, 2:33]
    y = mt.addmm(c, mx.zeros((31, 0), dtype), mx.zeros((0, 31), dtype), 1.0, 2.5, engine="mlx")
    assert y.dtype == dtype and np.array_equal(np.array(y.astype(mx.float32)), 2.5 * whole[2:33, 2:33])
