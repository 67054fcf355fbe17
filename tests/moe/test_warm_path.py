"""Warm calls of the operations over experts: one native call that builds the nodes, with the values, types and errors of the full call."""

import mlx.core as mx
import numpy as np
import pytest

import mlx_tensorops as mt
from mlx_tensorops.errors import ShapeError
from mlx_tensorops.primitives import _expert_call, gated, gather_matmul, switch_glu
from mlx_tensorops.reference import to_float64
from tests.clock import best
from tests.moe.api import ids, products
from tests.quant.api import floats, over, stack

E, N, K = 5, 64, 128
CALLS = gather_matmul._warm_mm, gather_matmul._warm_qmm, gated._warm_calls, switch_glu._warm_calls


@pytest.fixture(autouse=True)
def cold():
    for calls in CALLS:
        calls.clear()


@pytest.fixture
def only_warm(monkeypatch):
    """From its call on, a call that is not warm fails."""

    def refuse(*_):
        pytest.fail("this call was not warm")

    return lambda: monkeypatch.setattr(_expert_call, "lookup", refuse)


def silu(x):
    return x / (1 + np.exp(-x))


@pytest.mark.parametrize("form", [None, "affine4_g64", "nvfp4"])
@pytest.mark.parametrize("named", [False, True], ids=["rows", "lhs"])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_values_of_a_gather_with_other_sizes(form, named, dtype, only_warm):
    (stored, weights, words), x = stack(form, E, N, K, dtype=dtype), floats((6, 2, K), 1, dtype)
    (small, *_), rhs = stack(form, 3, 32, 64, dtype=dtype), ids((6,), E, 2, beyond=2)
    lhs = ids((6,), 6, 3, beyond=1) if named else None
    if form is None:
        call = lambda x, arrays, lhs, rhs: mt.gather_mm(x, arrays[0].swapaxes(-1, -2), lhs, rhs)  # noqa: E731
    else:
        call = lambda x, arrays, lhs, rhs: mt.gather_qmm(x, *arrays, lhs_indices=lhs, rhs_indices=rhs, **words)  # noqa: E731
    call(floats((4, 3, 64), 4, dtype), small, mx.zeros((4,), mx.int32) if named else None, mx.zeros((4,), mx.int64))
    only_warm()
    got = call(x, stored, None if lhs is None else mx.array(lhs.astype(np.int32)), mx.array(rhs))
    want, magnitude, _ = products(x, weights, lhs, rhs)
    assert got.dtype == dtype and over(got, want, magnitude, k=K) <= 1


@pytest.mark.parametrize("activation", ["swiglu", None])
def test_values_of_gate_and_up(activation, only_warm):
    (gate, g, words), (up, u, _) = stack("nvfp4", E, N, K, seed=1), stack("nvfp4", E, N, K, seed=2)
    x, rhs, scale, bias = floats((6, 1, K), 1), ids((6,), E, 2), floats((2, E), 3) ** 2 + 1, floats((2, E, N), 4)
    more = dict(activation=activation, bias=tuple(bias), weight_scale_2=tuple(scale), **words)
    for call in (1, 2):
        got = mt.gather_gateup(x, gate, up, None, mx.array(rhs), **more)
        only_warm()
    sums, magnitudes = [], []
    for weights, s, b in zip((g, u), to_float64(scale), to_float64(bias)):
        want, magnitude, _ = products(x, weights, None, rhs)
        sums.append(want * s[rhs][:, None, None] + b[rhs][:, None])
        magnitudes.append(magnitude * s[rhs][:, None, None] + np.abs(b[rhs][:, None]))
    if activation is None:
        assert all(over(y, want, magnitude, k=K) <= 1 for y, want, magnitude in zip(got, sums, magnitudes, strict=True))
    else:
        size = magnitudes[0] * np.abs(sums[1]) + magnitudes[1] * np.abs(silu(sums[0]))
        assert over(got, silu(sums[0]) * sums[1], size, k=K, slope=1.1, operations=8) <= 1


@pytest.mark.parametrize("scored", [True, False], ids=["added", "each"])
@pytest.mark.parametrize("form", [None, "affine4_g64"])
def test_values_of_a_layer_with_other_sizes(scored, form, only_warm):
    def layer(tokens, e, i, h, k, seed):
        (gate, g, words), (up, u, _), (down, d, _) = stack(form, e, i, h, seed=seed), stack(form, e, i, h, seed=seed + 1), stack(form, e, h, i, seed=seed + 2)
        gate, up, down = (group if form else group[0] for group in (gate, up, down))
        x, rhs, scores = floats((tokens, h), seed), ids((tokens, k), e, seed), floats((tokens, k), seed + 3)
        got = mt.switch_glu(x, gate, up, down, mx.array(rhs), scores if scored else None, **words)
        rows = x[:, None, None]
        (a, size_a, _), (b, size_b, _) = (products(rows, w, None, rhs) for w in (g, u))
        hidden = silu(a) * b
        want = (hidden @ d[rhs])[..., 0, :]
        size = ((size_a * np.abs(b) + size_b * np.abs(silu(a)) + np.abs(hidden)) @ np.abs(d[rhs]))[..., 0, :]
        if scored:
            s = to_float64(scores)[..., None]
            want, size = (want * s).sum(axis=-2), (size * np.abs(s)).sum(axis=-2)
        return over(got, want, size, k=h + i, slope=1.1, operations=12)

    assert layer(3, 4, 64, 128, 2, 1) <= 1
    only_warm()
    assert layer(6, E, 128, 64, 3, 2) <= 1


def test_a_gradient_through_a_warm_layer():
    (gate, *_), (down, *_), x = stack("affine4_g64", E, N, K), stack("affine4_g64", E, K, N, seed=1), floats((6, K), 1)
    rhs, scores = mx.array(ids((6, 2), E, 2)), floats((6, 2), 3)
    loss = lambda x, scores: mt.switch_glu(x, gate, gate, down, rhs, scores).square().sum()  # noqa: E731
    full = mx.grad(loss, (0, 1))(x, scores)
    assert len(switch_glu._warm_calls) == 1
    warm = mx.grad(loss, (0, 1))(x, scores)
    assert all(mx.array_equal(a, b).item() and a.abs().sum().item() > 0 for a, b in zip(full, warm))


@pytest.mark.parametrize("wrong", [dict(x=mx.zeros((6, 1, 96))), dict(rhs=mx.zeros((5,), mx.int32)), dict(bias=mx.zeros((E, N - 1))), dict(biases=mx.zeros((E, N, 1)))],
                         ids=lambda wrong: next(iter(wrong)))
def test_what_does_not_fit_gets_the_lesson_of_the_full_call(wrong):
    (w, scales, biases), _, words = stack("affine4_g64", E, N, K)
    right = dict(x=mx.zeros((6, 1, K)), w=w, scales=scales, biases=biases, rhs=mx.zeros((6,), mx.int32), bias=mx.zeros((E, N)))

    def call(x, w, scales, biases, rhs, bias):
        return mt.gather_qmm(x, w, scales, biases, None, rhs, bias=bias, **words)

    texts = []
    for warm in (False, True):
        if warm:
            mx.eval(call(**right))
            assert len(gather_matmul._warm_qmm) == 1
        with pytest.raises(ShapeError) as caught:
            call(**right | wrong)
        texts.append(str(caught.value))
    assert texts[0] == texts[1] and texts[0].startswith("[gather_qmm] ")


def test_indices_that_the_host_sees_are_checked_in_every_call():
    (stored, _, words), x = stack("affine4_g64", E, N, K), mx.zeros((2, 1, K))
    for values in ([0, 1], mx.array([0, 1]), [0, 1]):
        mt.gather_qmm(x, *stored, None, values, **words)
    for values in ([0, E], np.array([0, -1])):
        with pytest.raises(mt.errors.TensorOpsError, match="which is not one of 5"):
            mt.gather_qmm(x, *stored, None, values, **words)


def test_the_cost_of_warm_calls_and_of_the_guard():
    x, right, scores = mx.zeros((4, 64)), mx.zeros((4, 2), mx.int32), mx.ones((4, 2))
    gate, down = mx.quantize(mx.zeros((8, 128, 64))), mx.quantize(mx.zeros((8, 64, 128)))
    rows = x[:, None, None]
    mx.eval(rows, right, scores, *gate, *down)
    arms = {
        "mx": lambda: mx.gather_qmm(rows, *gate, rhs_indices=right), "gather": lambda: mt.gather_qmm(rows, *gate, rhs_indices=right),
        "gateup": lambda: mt.gather_gateup(rows, gate, gate, rhs_indices=right), "layer": lambda: mt.switch_glu(x, gate, gate, down, right, scores),
    }
    for call in arms.values():
        call()
    guard = next(plan.guard for plan in _expert_call._plans.values() if plan.decision.spec.op == "gather_qmm" and plan.decision.engine == "cpu"
                 and plan.decision.spec.weights.format == "affine4_g64" and plan.decision.spec.weights.transpose)
    shapes = [a.shape for a in (rows, *gate)]
    times = best(arms | {"guard": lambda: guard(*shapes)}, 3000)
    assert times["guard"] <= 1e-6, times
    assert times["gather"] <= times["mx"] and times["gateup"] <= times["mx"] and times["layer"] <= 2 * times["mx"], times
