"""Graphs of ``mx.compile(shapeless=True)`` on the Metal engines, emulated: replays of other sizes against float64, and what is refused."""

import mlx.core as mx
import numpy as np
import pytest

import mlx_tensorops as mt
from mlx_tensorops.primitives import _replay
from mlx_tensorops.reference import to_float64
from tests.moe.api import ids, products
from tests.quant.api import floats, on, one, over, stack

E, N, K = 5, 40, 64
ENGINES = ("mpp", "simdgroup")
# Leading axes: one element, equal products of other sizes, few rows and many, nothing.
TOKENS = ((1, 1), (2, 3), (3, 2), (6, 1), (4, 9), (0, 4), (1, 6))


def shapeless(call):
    return mx.compile(call, shapeless=True)


def replayed(compiled, x, w, right, *others):
    """Errors of a replay over bounds."""
    want, magnitude, _ = products(x, w, None, right) if x.size else (np.zeros((*right.shape, x.shape[-2], N)),) * 3
    return over(compiled(x, mx.array(right), *others), want, magnitude, k=K)


@pytest.mark.parametrize("traced", [0, 1, 4, 5])
@pytest.mark.parametrize("engine", ENGINES)
def test_whole_matrices(engine, traced):
    stored, w, words = one("nvfp4", N, K, seed=1)
    bias = floats((N,), 5)
    with on(engine):
        compiled = shapeless(lambda x, residual: mt.quantized_matmul(x, *stored, **words, bias=bias, residual=residual, engine=engine))
        for tokens in (TOKENS[traced], *TOKENS):
            x, residual = floats((*tokens, K), 1), floats((*tokens, N), 2)
            want = to_float64(x) @ w + to_float64(bias) + to_float64(residual)
            magnitude = np.abs(to_float64(x)) @ np.abs(w) + 2 * np.abs(to_float64(bias)) + np.abs(to_float64(residual))
            assert over(compiled(x, residual), want, magnitude, k=K) <= 1, tokens


@pytest.mark.parametrize("traced", [0, 1, 4, 5])
@pytest.mark.parametrize("engine", ENGINES)
def test_rows_of_experts(engine, traced):
    """Traced for one token, for few and for many, so that ids are sorted by a plan, or taken as they come."""
    stored, w, words = stack("nvfp4", E, N, K, seed=1)
    with on(engine):
        compiled = shapeless(lambda x, right: mt.gather_qmm(x, *stored, rhs_indices=right, **words, engine=engine))
        for k in (2, 1, 3):
            for tokens in (TOKENS[traced], *TOKENS):
                assert replayed(compiled, floats((*tokens, 1, 1, K), 1), w, ids((*tokens, k), E, 3, beyond=1)) <= 1, (tokens, k)


@pytest.mark.parametrize("engine", ENGINES)
def test_sorted_rows_and_rows_of_a_step_before(engine):
    stored, w, words = stack("affine4_g32", E, N, K, seed=1)
    with on(engine):
        ascending = shapeless(lambda x, right: mt.gather_qmm(x, *stored, rhs_indices=right, sorted_indices=True, **words, engine=engine))
        for rows in (30, 4, 0, 1, 70):
            assert replayed(ascending, floats((rows, 1, K), 1), w, np.sort(ids((rows,), E, 2))) <= 1
        own = shapeless(lambda x, right: mt.gather_qmm(x, *stored, rhs_indices=right, **words, engine=engine))
        for lead in ((2, 3, 4), (4, 3, 2), (1, 1, 2), (5, 2, 7)):
            assert replayed(own, floats((*lead, 1, K), 1), w, ids(lead, E, 2)) <= 1


@pytest.mark.parametrize("activation", ["swiglu", None])
@pytest.mark.parametrize("engine", ENGINES)
def test_two_tensors(engine, activation):
    (gate, g, words), (up, u, _) = (stack("nvfp4", E, N, K, seed=seed) for seed in (1, 2))
    with on(engine):
        compiled = shapeless(lambda x, right: mt.gather_gateup(x, gate, up, None, right, **words, activation=activation, engine=engine))
        for tokens in ((2, 3), (3, 2), (4, 9), (1, 1)):
            x, right = floats((*tokens, 1, 1, K), 1), ids((*tokens, 2), E, 3)
            got, wanted = compiled(x, mx.array(right)), [products(x, w, None, right) for w in (g, u)]
            if activation is None:
                assert all(over(y, want, magnitude, k=K) <= 1 for y, (want, magnitude, _) in zip(got, wanted))
            else:
                (a, a_size, _), (b, b_size, _) = wanted
                assert over(got, a / (1 + np.exp(-a)) * b, (np.abs(a) + a_size) * (np.abs(b) + b_size), k=K) <= 1


@pytest.mark.parametrize("traced", [0, 1, 4])
@pytest.mark.parametrize("engine", ENGINES)
def test_layers(engine, traced):
    hidden, width = 64, 96
    (gate, g, words), (up, u, _), (down, d, _) = (stack("affine4_g32", E, n, k, seed=seed) for seed, n, k in ((1, width, hidden), (2, width, hidden), (3, hidden, width)))
    with on(engine):
        compiled = shapeless(lambda x, right, scores: mt.switch_glu(x, gate, up, down, right, scores, **words, engine=engine))
        for tokens in (TOKENS[traced], *TOKENS):
            x, right, scores = floats((*tokens, hidden), 1), ids((*tokens, 3), E, 2), floats((*tokens, 3), 4)
            got = compiled(x, mx.array(right), scores)
            rows = to_float64(x)[..., None, None, :]
            a, b = rows @ g[right], rows @ u[right]
            want = (to_float64(scores)[..., None, None] * (a / (1 + np.exp(-a)) * b @ d[right])).sum(-3)[..., 0, :]
            assert got.shape == want.shape
            assert np.all(np.abs(to_float64(got) - want) <= 1e-4 * np.abs(want).max(initial=1.0)), tokens


@pytest.mark.parametrize("engine", ENGINES)
def test_what_cannot_be_replayed_raises(engine):
    """Never the sizes of the trace: also where the number of elements agrees."""
    stored, w, words = stack("nvfp4", E, N, K, seed=1)

    def gather(x, right, **how):
        return mt.gather_qmm(x, *stored, rhs_indices=right, **how, **words, engine=engine)

    def refused(compiled, good, bad, match):
        mx.eval(compiled(*good))
        with pytest.raises(ValueError, match=match):
            mx.eval(compiled(*bad))

    with on(engine):
        right = mx.array(ids((6,), E, 3))
        refused(shapeless(gather), (mx.ones((6, 4, K)), right), (mx.ones((6, 2, K)), right), "4 rows of x to an index")
        refused(shapeless(gather), (mx.ones((2, 3, 1, K)), mx.zeros((2, 3), mx.int32)), (mx.ones((2, 3, 2, K)), mx.zeros((2, 6), mx.int32)), "broadcast|rows")
        refused(shapeless(gather), (mx.ones((1, 1, 1, K)), mx.zeros((4, 2), mx.int32)), (mx.ones((1, 2, 1, K)), mx.zeros((4, 2), mx.int32)), "repeats along the last")
        refused(shapeless(lambda x, left, right: gather(x, right, lhs_indices=left)), (mx.ones((4, 1, K)), right % 4, right), (mx.ones((7, 1, K)), right, right),
                r"traced for leading axes \(4,\)")
        refused(shapeless(lambda x: mt.gather_qmm(x, *stored, **words, engine=engine)), (mx.ones((E, 1, K)),), (mx.ones((2, 1, K)),), "multiple of x")
        pair, scales = (mx.array(np.array(part)[:2]) for part in stored)
        refused(shapeless(lambda x: mt.quantized_matmul(x, pair, scales, **words, engine=engine)), (mx.ones((2, 3, K)),), (mx.ones((2, 6, K)),),
                "traced shapes alone|reshape|broadcast")
        refused(shapeless(lambda x, right: mt.gather_mm(x, mx.zeros((E, 0, N)), rhs_indices=right, engine=engine)),
                (mx.ones((2, 3, 1, 0)), mx.zeros((2, 3), mx.int32)), (mx.ones((3, 2, 1, 0)), mx.zeros((3, 2), mx.int32)), "traced shapes alone")
        grads = shapeless(mx.grad(lambda x, right: (gather(x, right) ** 2).sum()))
        with pytest.raises(ValueError, match="cannot infer output shapes"):  # the scatter of MLX's own gradient
            grads(mx.ones((2, 3, 1, 1, K)), mx.zeros((2, 3, 2), mx.int32))


@pytest.mark.parametrize("tokens", [1, 2, 3, 6])
def test_engine_mlx_serves_the_traced_shapes_and_raises_elsewhere(tokens):
    """MLX keeps the row numbers of the trace: a replay for one token gave the rows of all, one for fewer tokens read past x."""
    (gate, g, words), (up, u, _), (down, d, _) = (stack("affine4_g32", E, *shape, seed=seed) for seed, shape in ((1, (32, 64)), (2, (32, 64)), (3, (64, 32))))
    right, scores = ids((6, 2), E, 1), mx.ones((6, 2))
    constant, arrays = mx.array(right[:3]), (floats((6, 1, 1, 64), 2), mx.array(right), scores)
    one, two = (products(arrays[0][:3], w, None, right[:3])[0] for w in (g, u))
    hidden = one / (1 + np.exp(-one)) * two
    layer = np.einsum("tkmi,tkin->tn", hidden, d[right[:3]])
    calls = {
        "gather": (lambda x, i, s: mt.gather_qmm(x, *gate, rhs_indices=i, **words, engine="mlx"), one),
        "gateup": (lambda x, i, s: mt.gather_gateup(x, gate, up, None, i, **words, engine="mlx"), hidden),
        "layer": (lambda x, i, s: mt.switch_glu(x[:, 0, 0], gate, up, down, i, s, **words, engine="mlx"), layer),
        "constant": (lambda x, i, s: mt.gather_qmm(x, *gate, rhs_indices=constant, **words, engine="mlx"), one),
    }
    for name, (call, want) in calls.items():
        compiled = shapeless(call)
        for _ in range(1 + (tokens == 3)):
            y = to_float64(compiled(*(a[:3] for a in arrays)))
            assert y.shape == want.shape and np.all(np.abs(y - want) <= 1e-5 * np.abs(want).max()), name
        if tokens != 3:
            with pytest.raises(ValueError, match="traced shapes alone|broadcast"):
                mx.eval(compiled(*(a[:tokens] for a in arrays)))


@pytest.mark.parametrize("engine", ["cpu", "mpp"])
def test_constant_indices_broadcast_against_a_replay_or_it_raises(engine):
    """As MLX's own operations do outside a graph: one row of x meets every id."""
    stored, w, words = stack("nvfp4", E, N, K, seed=1)
    right = ids((4,), E, 3)
    with on(engine):
        compiled = shapeless(lambda x: mt.gather_qmm(x, *stored, rhs_indices=mx.array(right), **words, engine=engine))
        for rows in (4, 1):
            x = floats((rows, 1, K), rows)
            assert over(compiled(x), *products(x, w, None, right)[:2], k=K) <= 1
        for rows in (2, 8):
            with pytest.raises(ValueError, match="broadcast|multiple of x"):
                mx.eval(compiled(floats((rows, 1, K), rows)))


def test_a_shapeless_trace_is_seen():
    """By the node that MLX makes of a broadcast, as it does not export the fact."""
    seen = []

    def look(x):
        seen.append(_replay.traced())
        return x.sum()

    look(mx.ones(2))
    for shapeless in (False, True):
        mx.eval(mx.compile(look, shapeless=shapeless)(mx.ones(2)))
        mx.eval(mx.compile(mx.grad(look), shapeless=shapeless)(mx.ones(2)))
    mx.eval(mx.grad(look)(mx.ones(2)))
    assert seen == [False, False, False, True, True, False]


def test_gradients_pass_the_leading_axes():
    """Of a sum of squares of [B, T, N] to x of [B, T, K]."""
    stored, w, words = one("nvfp4", N, K, seed=1)
    with on("mpp"):
        x = floats((2, 3, K), 1)
        got = mx.grad(lambda x: (mt.quantized_matmul(x, *stored, **words, engine="mpp") ** 2).sum())(x)
        want = 2 * (to_float64(x) @ w) @ w.T
        assert got.shape == x.shape and np.abs(to_float64(got) - want).max() <= 2e-5 * np.abs(want).max()


def test_a_reshape_would_give_the_sizes_of_the_trace(monkeypatch):
    """What the node that splits is for: with MLX's reshape in its place these replays are wrong in silence."""
    stored, _, words = one("nvfp4", N, K, seed=1)
    monkeypatch.setattr(_replay.Axes, "of", lambda self, mx, y, x: mx.reshape(y, (*x.shape[:-1], N)))
    with on("mpp"):
        compiled = shapeless(lambda x: mt.quantized_matmul(x, *stored, **words, engine="mpp"))
        assert [compiled(floats((*tokens, K), 1)).shape for tokens in ((2, 3), (3, 2))] == [(2, 3, N), (2, 3, N)]
