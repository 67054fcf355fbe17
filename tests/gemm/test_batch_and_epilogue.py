"""Batches, vectors and fused epilogues of the kernel engines, emulated, against the formula in float64."""

import itertools
from contextlib import nullcontext

import mlx.core as mx
import numpy as np
import pytest

import mlx_tensorops as mt
from mlx_tensorops import hostmetal, reference
from mlx_tensorops.epilogues import ACTIVATIONS, Epilogue, apply_float64
from mlx_tensorops.errors import DTypeError, ShapeError

RNG = np.random.default_rng(17)


def normal(*shape, dtype="float16"):
    return mx.array(RNG.normal(size=shape).astype(np.float32)).astype(getattr(mx, dtype))


def run(call):
    """(result, dispatches) of a call in the checked emulator."""
    with hostmetal.active(checked=True), mt.trace() as trace:
        c = call()
        mx.eval(c)
    return c, trace.dispatches


BATCHES = (
    ((5, 9, 20), (20, 30), "a folds into one tall product"),
    ((5, 1, 20), (20, 30), "one row per batch folds, too"),
    ((2, 3, 9, 20), (20, 30), "two axes fold"),
    ((2, 3, 9, 20), (2, 3, 20, 30), "true batches"),
    ((2, 1, 9, 20), (1, 3, 20, 30), "both broadcast"),
    ((9, 20), (4, 20, 30), "a broadcasts"),
    ((2, 2, 2, 9, 20), (2, 1, 2, 20, 30), "three axes"),
    ((0, 9, 20), (20, 30), "no batch at all"),
    ((20,), (20, 30), "vector times matrix"),
    ((9, 20), (20,), "matrix times vector"),
    ((20,), (20,), "dot product"),
    ((20,), (3, 20, 30), "vector times three matrices"),
    ((3, 9, 20), (20,), "three matrices times vector: they fold"),
)


@pytest.mark.parametrize("a_shape, b_shape, why", BATCHES, ids=[b[2] for b in BATCHES])
def test_batches_and_vectors(a_shape, b_shape, why):
    a, b = normal(*a_shape), normal(*b_shape)
    c, dispatches = run(lambda: mt.matmul(a, b, engine="mpp"))
    want = reference.gemm(a, b)
    assert c.shape == want.shape
    assert np.all(np.abs(reference.to_float64(c) - want) <= reference.gemm_bound(a, b, "float16"))
    if "fold" in why:
        assert dispatches[0]["grid"][2] == 1, "one tall product"
        assert dispatches[0]["grid"][1] == -(-int(np.prod(a_shape[:-1])) // 64)
    elif "batches" in why or "axes" in why:
        assert dispatches[0]["grid"][2] == int(np.prod(want.shape[:-2]))


def test_batched_views_fold_only_where_rows_lie_at_one_distance():
    base = normal(4, 6, 20)
    w = normal(20, 30)
    for a, folds in ((base, True), (base[:, :5], False), (base.swapaxes(0, 1), False), (base[::2], False), (base[:, :1], True), (base[::-1], False)):
        c, (dispatch,) = run(lambda a=a: mt.matmul(a, w, engine="mpp"))
        assert np.all(np.abs(reference.to_float64(c) - reference.gemm(a, w)) <= reference.gemm_bound(a, w, "float16"))
        assert (dispatch["grid"][2] == 1) is folds


@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
@pytest.mark.parametrize("operands", ["", "bias", "residual", "bias residual"])
def test_fused_epilogue(activation, operands):
    a, b = normal(5, 33), normal(33, 40)
    bias = normal(40, dtype="float32") if "bias" in operands else None
    residual = normal(5, 40) if "residual" in operands else None
    c, dispatches = run(lambda: mt.matmul(a, b, engine="mpp", bias=bias, activation=activation, residual=residual))
    check(c, a, b, Epilogue(bias is not None, activation, residual is not None), bias=bias, residual=residual)
    assert len(dispatches) == 1, "fused: one kernel"


def check(c, a, b, epilogue, *, bias=None, residual=None, alpha=1.0, beta=1.0, out="float16"):
    """Every element inside the bound: the accumulation's, widened by the activation's slope, and one rounding."""
    extra = {n: reference.to_float64(x) for n, x in (("bias", bias), ("residual", residual)) if x is not None}
    want = apply_float64(np, epilogue, reference.gemm(a, b), alpha=alpha, beta=beta, **extra)
    slope = ACTIVATIONS[epilogue.activation].slope if epilogue.activation else 1.0
    accumulated = abs(alpha) * slope * reference.gemm_bound(a, b, "float32")
    f32_work = 8 * reference.F32_UNIT * (1 + np.abs(want) + sum(np.abs(x) for x in extra.values()))
    unit = reference.element_type(out).epsilon / 2
    assert c.shape == want.shape
    assert np.all(np.abs(reference.to_float64(c) - want) <= accumulated + f32_work + unit * np.abs(want) + 2.0**-25)


# Row, column, scalar and full operands; in the batched problem also one per batch.
SHAPES = {
    "plain": ((9, 20), (20, 30), ((30,), (9, 1), (1, 1), (9, 30), ())),
    "folded": ((3, 5, 20), (20, 30), ((30,), (5, 1), (3, 5, 30), (3, 1, 1), (1, 1, 30))),
    "batched": ((3, 5, 20), (3, 20, 30), ((30,), (3, 5, 30), (3, 1, 30), (5, 1))),
    "vector a": ((20,), (20, 30), ((30,), (1,))),
    "vector b": ((9, 20), (20,), ((9,), (1,))),
    "vector a, batch": ((20,), (3, 20, 30), ((30,), (3, 30), (3, 1))),
}


@pytest.mark.parametrize("problem", SHAPES)
def test_epilogue_operands_broadcast(problem):
    a_shape, b_shape, shapes = SHAPES[problem]
    a, b = normal(*a_shape), normal(*b_shape)
    for first, second in itertools.product(shapes, shapes):
        bias, residual = normal(*first), normal(*second)
        c, _ = run(lambda: mt.matmul(a, b, engine="mpp", bias=bias, activation="silu", residual=residual))
        check(c, a, b, Epilogue(True, "silu", True), bias=bias, residual=residual)


@pytest.mark.parametrize("engine", ["mpp", "mlx", "auto"])
@pytest.mark.parametrize("alpha, beta", [(1.0, 1.0), (0.5, -2.0), (0.0, 1.0), (3, 0)])
def test_addmm(engine, alpha, beta):
    a, b = normal(9, 20, dtype="float32"), normal(20, 30, dtype="float32")
    for c_shape in ((9, 30), (30,), (9, 1)):
        c = normal(*c_shape, dtype="float32")
        got, _ = run(lambda: mt.addmm(c, a, b, alpha, beta, engine=engine))
        check(got, a, b, Epilogue(residual=True), residual=c, alpha=alpha, beta=beta, out="float32")
        assert got.dtype == mx.addmm(c, a, b, alpha, beta).dtype


def test_addmm_types_follow_mlx():
    a, b, c = normal(3, 4), normal(4, 5), normal(3, 5, dtype="float32")
    assert mt.addmm(c, a, b).dtype == mx.addmm(c, a, b).dtype == mx.float32
    with pytest.raises(DTypeError, match="alpha is a array.\n  instead: pass float\\(alpha\\)"):
        mt.addmm(c, a, b, mx.array(2.0))


@pytest.mark.parametrize("engine", ["mpp", "mlx", "auto"])
def test_an_operand_that_widens_the_result_is_refused(engine):
    with hostmetal.active(), pytest.raises(ShapeError, match=r"bias has shape \(2, 9, 30\), which does not broadcast to the result's \(9, 30\)"):
        mt.matmul(normal(9, 20), normal(20, 30), bias=normal(2, 9, 30), engine=engine)


def test_gradient_of_a_batched_epilogue():
    a, b, bias = normal(2, 3, 8, dtype="float32"), normal(8, 5, dtype="float32"), normal(5, dtype="float32")
    with hostmetal.active():
        grads = mx.grad(lambda a, b, bias: (mt.matmul(a, b, bias=bias, activation="silu", engine="mpp") ** 2).sum(), argnums=(0, 1, 2))(a, b, bias)
        mx.eval(grads)
    wants = mx.grad(lambda a, b, bias: ((lambda y: y * mx.sigmoid(y))(mx.matmul(a, b) + bias) ** 2).sum(), argnums=(0, 1, 2))(a, b, bias)
    for got, want in zip(grads, wants):
        assert got.shape == want.shape and np.allclose(np.array(got), np.array(want), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("engine", ["mpp", "simdgroup", "cpu", "mlx"])
def test_relu_keeps_nan(engine):
    """Metal's max prefers the number."""
    a = mx.full((1, 64), float("nan"))
    with hostmetal.active() if engine in ("mpp", "simdgroup") else nullcontext():
        y = mt.matmul(a, mx.zeros((64, 4)), activation="relu", engine=engine)
        assert np.isnan(np.array(y)).all()
