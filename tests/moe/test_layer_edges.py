"""A layer of experts at its edges: replays with a shared expert, weights that do not belong together, plans that point outside."""

import itertools

import mlx.core as mx
import numpy as np
import pytest

import mlx_tensorops as mt
from mlx_tensorops import hostmetal
from mlx_tensorops.errors import DTypeError, ShapeError, TensorOpsError


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


@pytest.mark.parametrize("engine", ["cpu", "mlx"])
def test_a_shared_expert_may_be_packed_where_the_others_are_not(engine):
    x, shared = normal(3, 64), [mx.quantize(w, group_size=32) for w in (GATE[0], UP[0], DOWN[0])]
    ids, scores = mx.zeros((3, 1), mx.int32), mx.zeros((3, 1))
    with pytest.raises(TensorOpsError, match="group_size 32 .*with dense weights"):
        mt.switch_glu(x, GATE, UP, DOWN, ids, scores, group_size=32, shared=shared, engine=engine)
    gate, up, down = normal(2, 64, 64, seed=1), normal(2, 64, 64, seed=2), normal(2, 64, 64, seed=3)
    shared = [mx.quantize(w[0]) for w in (gate, up, down)]
    want = expert(np.array(x, np.float64), *(mx.dequantize(*w) for w in shared))
    for last in (shared[2], mx.dequantize(*shared[2])):
        y = mt.switch_glu(x, gate, up, down, ids, scores, shared=(*shared[:2], last), engine=engine)
        assert np.abs(np.array(y, np.float64) - want).max() <= 1e-5 * np.abs(want).max()


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
    with pytest.raises(ShapeError, match=r"\[switch_glu\] down has shape .2, 32, 64., so K = 64 with transpose=True, and gate and up give 32 columns(.|\n)*nearest legal: K = 32"):
        mt.switch_glu(x, GATE, UP, GATE, ids, scores)
    packed = [mx.quantize(w, mode="nvfp4") for w in (GATE, UP, GATE)]
    with pytest.raises(ShapeError, match="down has shape .2, 32, 8., so K = 64 with transpose=True, and gate and up give 32 columns"):
        mt.switch_glu(x, *packed, ids, scores, mode="nvfp4")


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


ENGINES = ("cpu", "mlx", "mpp", "simdgroup")


@pytest.mark.parametrize("engine", ENGINES)
def test_the_score_of_an_expert_that_does_not_exist_is_not_looked_at(engine):
    """Values and gradients, also where no score of a token counts."""
    x = normal(3, 64)
    scores = mx.array([[1.0, np.nan], [np.inf, 0.5], [-np.inf, np.nan]])
    for kind in (mx.int32, mx.uint32, mx.int64):
        ids = mx.array([[0, 7], [2, 1], [2, 2**31 - 1]]).astype(kind)
        with hostmetal.active():
            layer = lambda x, scores: mt.switch_glu(x, GATE, UP, DOWN, ids, scores, engine=engine)  # noqa: E731
            y = layer(x, scores)
            gradients = mx.grad(lambda *a: layer(*a).square().sum(), argnums=(0, 1))(x, scores)
            mx.eval(y, *gradients)
        exact = np.array(x, np.float64)
        want = np.stack([expert(exact[0], GATE[0], UP[0], DOWN[0]), 0.5 * expert(exact[1], GATE[1], UP[1], DOWN[1]), np.zeros(64)])
        assert np.all(np.abs(np.array(y, np.float64) - want) <= 1e-5 * np.abs(want).max()), kind
        assert all(np.isfinite(np.array(g)).all() for g in gradients)
        assert np.all(np.array(gradients[1])[[0, 1, 2, 2], [1, 0, 0, 1]] == 0) and np.all(np.array(gradients[1])[[0, 1], [0, 1]] != 0)


def test_a_layer_without_experts_has_no_score_to_look_at():
    y = mt.switch_glu(normal(2, 64), GATE[:0], UP[:0], DOWN[:0], mx.array([[0], [1]]), mx.array([[np.nan], [np.inf]]), engine="mlx")
    assert np.array_equal(np.array(y), np.zeros((2, 64)))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_plan_of_other_indices_is_refused_where_the_host_knows_both(engine):
    ids = np.array([0, 1, 1, 0])
    right = mt.tile_plan(ids, num_experts=2, block_m=4)
    permuted = mt.TilePlan(*(np.array(a)[::-1] for a in right.arrays[:3]), *map(np.array, right.arrays[3:]), num_experts=2, block_m=4)
    other = mt.tile_plan([0, 1, 0, 1], num_experts=2, block_m=4)
    b, x = GATE.swapaxes(-1, -2), normal(4, 1, 64)
    with hostmetal.active():
        for plan in (right, permuted, mt.tile_plan(mx.array(ids), num_experts=2, block_m=4)):
            y = mt.gather_mm(x, b, rhs_indices=ids, plan=plan, engine=engine)
            assert np.allclose(np.array(y), np.array(x) @ np.array(b)[ids], atol=1e-4)
        for given in (ids, ids.tolist()):
            with pytest.raises(TensorOpsError, match=r"plan is of other indices: it has row 2 with expert 0, and rhs_indices name 1.\n  instead: tile_plan of these"):
                mt.gather_mm(x, b, rhs_indices=given, plan=other, engine=engine)
        with pytest.raises(TensorOpsError, match="it has row 2 with expert 1, and rhs_indices name 0"):  # two rows to an index
            mt.gather_mm(normal(2, 2, 64), b, rhs_indices=[1, 0], plan=mt.tile_plan([1, 1, 1, 0], num_experts=2, block_m=4), engine=engine)
        with pytest.raises(TensorOpsError, match="it has row 0 with expert 1, and rhs_indices name 0"):  # none given: all experts in order
            mt.gather_mm(normal(2, 1, 64), b, plan=mt.tile_plan([1, 0], num_experts=2, block_m=4), engine=engine)
        with pytest.raises(TensorOpsError, match="it has row 1 with expert 0, and rhs_indices name 1"):
            mt.switch_glu(normal(2, 64), GATE, UP, DOWN, [[0, 1], [1, 0]], mx.ones((2, 2)), plan=mt.tile_plan([0, 0, 1, 1], num_experts=2, block_m=4), engine=engine)


def test_indices_in_a_tuple_mean_the_same_in_every_call():
    """Not the array alone, of which a warm call would make another shape."""
    x, ids = normal(2, 1, 64), mx.array([0, 1])
    exact, gate, up, down = (np.array(a, np.float64) for a in (x[:, 0], GATE, UP, DOWN))
    one = np.stack([row @ w.T for row, w in zip(exact, gate)])[None, :, None]
    two = np.stack([row @ w.T for row, w in zip(exact, up)])[None, :, None]
    layer = np.stack([expert(row, *weights) for row, *weights in zip(exact, gate, up, down)])[None, :, None]
    for _ in range(3):
        for y, want in ((mt.gather_mm(x, GATE.swapaxes(-1, -2), rhs_indices=(ids,)), one), (mt.gather_gateup(x, GATE, UP, None, (ids,)), one / (1 + np.exp(-one)) * two),
                        (mt.switch_glu(x[None, :, 0], GATE, UP, DOWN, (ids[:, None],)), layer)):
            assert y.shape == want.shape and np.all(np.abs(np.array(y, np.float64) - want) <= 1e-5 * np.abs(want).max())
