"""A layer of experts at its edges: replays with a shared expert, weights that do not belong together, plans that point outside."""

import itertools

import mlx.core as mx
import numpy as np
import pytest

import mlx_tensorops as mt
from mlx_tensorops import hostmetal
from mlx_tensorops.errors import DTypeError, ShapeError


def normal(*shape, seed=0):
    return mx.array(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32))


GATE, UP, DOWN = normal(2, 32, 64, seed=1), normal(2, 32, 64, seed=2), normal(2, 64, 32, seed=3)


def expert(x, gate, up, down):
    g, u = x @ np.array(gate, np.float64).T, x @ np.array(up, np.float64).T
    return (g / (1 + np.exp(-g)) * u) @ np.array(down, np.float64).T


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("engine", ["auto", "mlx"])
def test_a_shared_expert_follows_the_number_of_tokens(engine, k):
    """A replay used to read past the rows that were traced."""
    shared = GATE[0], UP[0], DOWN[0]
    layer = mx.compile(lambda x, i, s: mt.switch_glu(x, GATE, UP, DOWN, i, s, shared=shared, engine=engine), shapeless=engine == "auto")
    for tokens in (2, 3, 1, 70, 0):
        x, ids = normal(tokens, 64, seed=tokens), np.arange(tokens * k).reshape(tokens, k) % 2
        y = layer(x, mx.array(ids.astype(np.int32)), mx.full((tokens, k), 0.5))
        exact = np.array(x, np.float64)
        want = expert(exact, *shared)
        for place in range(k):
            want += 0.5 * np.stack([expert(row, GATE[int(e)], UP[int(e)], DOWN[int(e)]) for row, e in zip(exact, ids[:, place])]) if tokens else 0
        assert y.shape == want.shape
        assert np.all(np.abs(np.array(y, np.float64) - want) <= 1e-5 * (1 + np.abs(want).max(initial=0)))


def test_one_expert_per_token_in_a_shapeless_graph():
    layer = mx.compile(lambda x, i: mt.switch_glu(x, GATE, UP, DOWN, i, mx.ones((4, 1)), engine="mlx"), shapeless=True)
    x = normal(4, 64)
    want = expert(np.array(x, np.float64), GATE[0], UP[0], DOWN[0])
    assert np.allclose(np.array(layer(x, mx.zeros((4, 1), mx.int32))), want, atol=1e-5 * np.abs(want).max())


def test_weights_that_do_not_belong_together():
    x, ids, scores = normal(3, 64), mx.array([[0], [1], [1]]), mx.ones((3, 1))
    with pytest.raises(ShapeError, match="gate has shape .2, 32, 64.(.|\n)*nearest legal: .32, 64."):
        mt.switch_glu(x, GATE, UP, DOWN, ids, scores, shared=(GATE, UP, DOWN))
    with pytest.raises(ShapeError, match="down has shape .1, 64, 32., and gate and up have 2 experts"):
        mt.switch_glu(x, GATE, UP, DOWN[:1], ids, scores)


@pytest.mark.parametrize("engine", ["mpp", "simdgroup"])
def test_a_plan_that_points_past_the_rows_reads_nothing_outside(engine):
    rows = mx.array(np.arange(20, dtype=np.int32))
    for block_m, start in itertools.product((4, 16, 64), (-4, -(2**31), 18, 20, 2**31 - 1)):
        plan = mt.TilePlan(mx.array([0]), mx.array([start], mx.int32), mx.array([4]), rows, rows, mx.array([0]), 2, block_m)
        with hostmetal.active(checked=True):
            mx.eval(mt.gather_mm(normal(20, 1, 64), GATE.swapaxes(-1, -2), rhs_indices=mx.zeros((20,), mx.int32), plan=plan, engine=engine))


@pytest.mark.parametrize("engine", ["mpp", "simdgroup", "cpu", "mlx"])
def test_what_is_no_plan_is_refused(engine):
    with hostmetal.active(), pytest.raises(DTypeError, match="plan is a ndarray"):
        mt.gather_mm(normal(5, 1, 64), GATE.swapaxes(-1, -2), rhs_indices=mx.zeros((5,), mx.int32), plan=np.arange(5), engine=engine)
