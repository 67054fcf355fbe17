"""gather_mm, gather_qmm, gather_gateup and switch_glu of every engine against float64."""

import mlx.core as mx
import numpy as np
import pytest

import mlx_tensorops as mt
from mlx_tensorops.epilogues import GATES
from mlx_tensorops.reference import to_float64
from tests.moe.api import INDEX_TYPES, ids, products
from tests.quant.api import ENGINES, floats, on, over, stack

E, N, K = 5, 40, 64
# (shape of x, of lhs, of rhs): MLX's defaults on either side, broadcasting in every direction, more than one row to a matrix, nothing at all.
CASES = (((7, 1), None, (7,)), ((7, 1, 1), None, (7, 3)), ((7, 2), None, (7,)), ((5, 1), None, None), ((6, 1), (4, 1), (1, 3)), ((6, 2), (4,), (4,)),
         ((1, 3, 1), None, (2, 3)), ((0, 1), None, (0,)), ((0, 1, 2), None, (0, 3)), ((0, 1, 1), None, (0, 3)), ((3,), None, (2,)),
         ((6, 1), (5,), None), ((3, 1, 2), None, (3, 2)))


def call(stored, words, *indices, x, **options):
    """gather_qmm, or gather_mm for dense weights."""
    if words:
        return mt.gather_qmm(x, *stored, *[None] * (3 - len(stored)), *indices, **words, **options)
    return mt.gather_mm(x, stored[0].swapaxes(-1, -2), *indices, **options)


@pytest.mark.parametrize("engine, name", [(e, n) for e in ENGINES for n in ("affine4_g64", "nvfp4", None)])
def test_every_form_of_indices(engine, name):
    stored, w, words = stack(name, E, N, K, seed=1)
    for case, (shape, lhs, rhs) in enumerate(CASES):
        x = floats((*shape, K), case)
        count = int(np.prod(shape[:-1]))
        for beyond in (0, 2):
            left, right = (None if s is None else ids(s, n, case, beyond) for s, n in ((lhs, count), (rhs, E)))
            kind = INDEX_TYPES[case % 3 if beyond else case % 4]
            given = [None if i is None else mx.array(i).astype(kind) for i in (left, right)]
            want, magnitude, _ = products(x, w, left, right)
            with on(engine):
                got = call(stored, words, *given, x=x, engine=engine)
                assert got.dtype == mx.float32 and over(got, want, magnitude, k=K) <= 1, (shape, lhs, rhs, beyond)


@pytest.mark.parametrize("engine", ENGINES)
def test_sorted_indices(engine):
    stored, w, words = stack("nvfp4", E, N, K, seed=1)
    for rows, lhs in ((40, None), (33, (33,)), (1, None)):
        x = floats((rows, 1, K), rows)
        left, right = None if lhs is None else ids(lhs, rows, 1), np.sort(ids((rows,), E, 2, beyond=1))
        with on(engine):
            got = call(stored, words, None if lhs is None else mx.array(left), mx.array(right), x=x, engine=engine, sorted_indices=True)
            assert over(got, *products(x, w, left, right)[:2], k=K) <= 1


@pytest.mark.parametrize("block_m", [16, 64])
@pytest.mark.parametrize("engine", ENGINES)
def test_one_plan_serves_every_product(engine, block_m):
    stored, w, words = stack("affine4_g64", E, N, K, seed=1)
    right = ids((20, 3), E, 2)
    x = floats((20, 1, 1, K), 3)
    with on(engine):
        for given in (right, mx.array(right)):
            plan = mt.tile_plan(given, num_experts=E, block_m=block_m)
            got = call(stored, words, None, mx.array(right), x=x, engine=engine, plan=plan)
            assert over(got, *products(x, w, None, right)[:2], k=K) <= 1


@pytest.mark.parametrize("engine", ENGINES)
def test_a_permuted_plan_changes_the_walk_and_not_the_result(engine):
    stored, w, words = stack("nvfp4", E, N, K, seed=1)
    right, x = ids((30,), E, 2), floats((30, 1, K), 3)
    plan = mt.tile_plan(right, num_experts=E, block_m=16)
    order = np.random.default_rng(4).permutation(plan.tiles)
    tiles = [np.array(a)[order] for a in plan.arrays[:3]]
    permuted = mt.TilePlan(*tiles, *map(np.array, plan.arrays[3:]), num_experts=E, block_m=16)
    with on(engine):
        a, b = (np.array(call(stored, words, None, mx.array(right), x=x, engine=engine, plan=p)) for p in (plan, permuted))
    assert np.array_equal(a, b) and np.abs(a).max() > 0


@pytest.mark.parametrize("engine", ENGINES)
def test_bias_activation_and_global_scales(engine):
    stored, w, words = stack("nvfp4", E, N, K, seed=1)
    x, right, bias = floats((9, 1, 1, K), 2), ids((9, 2), E, 3, beyond=1), floats((E, N), 4)
    amax = floats((E,), 5) ** 2
    for keyword, divisor in (("global_scale", 2688), ("weight_scale_2", 1)):
        factor = to_float64(amax) / divisor
        want, magnitude, valid = products(x, w * factor[:, None, None], None, right)
        added = np.where(valid[..., None, None], to_float64(bias)[np.clip(right, 0, E - 1)][..., None, :], 0)
        with on(engine):
            got = call(stored, words, None, mx.array(right), x=x, engine=engine, bias=bias, activation="relu", **{keyword: amax})
            assert over(got, np.maximum(want + added, 0), magnitude + np.abs(added), k=K) <= 1


def test_half_types_are_rounded_once_where_the_engine_is_ours():
    for dtype in (mx.float16, mx.bfloat16):
        for name in ("mxfp4", None):
            stored, w, words = stack(name, E, N, K, seed=1, dtype=dtype)
            x, right = floats((9, 1, 1, K), 2, dtype), ids((9, 2), E, 3)
            for engine in ("cpu", "mlx") if name is None else ("cpu", "mpp"):
                with on(engine):
                    got = call(stored, words, None, mx.array(right), x=x, engine=engine)
                    assert got.dtype == dtype and over(got, *products(x, w, None, right)[:2], k=K) <= 1


def gated(x, groups, right, activation, biases=None):
    """(result in float64, magnitude) of both products joined."""
    found = [products(x, w, None, right) for _, w, _ in groups]
    valid = found[0][2][..., None, None]
    sums = [want if biases is None else want + to_float64(b)[np.clip(right, 0, E - 1)][..., None, :] for (want, _, _), b in zip(found, biases or (0, 0))]
    magnitudes = [m + (0 if biases is None else np.abs(to_float64(b)).max()) for (_, m, _), b in zip(found, biases or (0, 0))]
    widened = magnitudes[0] * (1 + np.abs(sums[1])) + magnitudes[1] * (1 + np.abs(sums[0]))
    return np.where(valid, GATES[activation].float64(np, *sums), 0), widened


@pytest.mark.parametrize("activation", GATES)
@pytest.mark.parametrize("engine", ENGINES)
def test_gate_and_up(engine, activation):
    groups = [stack("nvfp4", E, N, K, seed=s) for s in (1, 2)]
    (gate, _, words), (up, _, _) = groups
    x, right = floats((6, 1, 1, K), 3), ids((6, 3), E, 4, beyond=1)
    biases = floats((E, N), 5), floats((E, N), 6)
    with on(engine):
        for bias in (None, biases):
            got = mt.gather_gateup(x, gate, up, rhs_indices=mx.array(right), **words, activation=activation, bias=bias, engine=engine)
            want, magnitude = gated(x, groups, right, activation, bias)
            assert over(got, want, magnitude, k=K, slope=2.2, operations=16) <= 1


@pytest.mark.parametrize("engine", ENGINES)
def test_both_products_of_one_load(engine):
    groups = [stack("affine4_g64", E, N, K, seed=s) for s in (1, 2)]
    x, right = floats((6, 1, 1, K), 3), ids((6, 3), E, 4, beyond=1)
    with on(engine):
        got = mt.gather_gateup(x, groups[0][0], groups[1][0], rhs_indices=mx.array(right), **groups[0][2], activation=None, engine=engine)
        for y, (_, w, _) in zip(got, groups):
            assert over(y, *products(x, w, None, right)[:2], k=K) <= 1


def layer(name, hidden, inner, seed):
    """(gate, up, down as callers pass them, their float64 weights, keywords)."""
    made = [stack(name, E, *shape, seed=seed + i) for i, shape in enumerate(((inner, hidden), (inner, hidden), (hidden, inner)))]
    return [g[0] if len(g) == 1 else g for g, _, _ in made], [w for _, w, _ in made], {k: v for k, v in made[0][2].items() if k != "transpose"}


def expected(x, weights, right, scores=None, biases=None, activation="swiglu"):
    """The layer in float64."""
    valid = ((right >= 0) & (right < E))[..., None]
    safe = np.where(valid[..., 0], right, 0)
    rows = to_float64(x)[..., None, None, :]
    g, u = ((rows @ w[safe])[..., 0, :] + (0 if b is None else to_float64(b)[safe]) for w, b in zip(weights[:2], (biases or (None, None))[:2]))
    y = (GATES[activation].float64(np, g, u)[..., None, :] @ weights[2][safe])[..., 0, :] + (0 if biases is None else to_float64(biases[2])[safe])
    y = np.where(valid, y, 0)
    return y if scores is None else (y * to_float64(scores)[..., None]).sum(axis=-2)


def close(got, want, relative=2e-5) -> bool:
    return got.shape == want.shape and (want.size == 0 or np.abs(to_float64(got) - want).max() <= relative * np.abs(want).max(initial=1))


@pytest.mark.parametrize("engine, name", [("cpu", "affine4_g32"), ("cpu", None), ("mlx", "nvfp4"), ("mlx", None), ("mpp", "affine4_g32"), ("simdgroup", "affine4_g32")])
def test_a_layer(engine, name):
    (gate, up, down), weights, words = layer(name, 64, 96, 1)
    biases = floats((E, 96), 7), floats((E, 96), 8), floats((E, 64), 9)
    for lead in ((), (7,), (2, 3), (0,), (2, 0)):
        x, right, scores = floats((*lead, 64), 10), ids((*lead, 3), E, 11, beyond=1), floats((*lead, 3), 12)
        with on(engine):
            for bias in (None, biases):
                for s in (None, scores):
                    got = mt.switch_glu(x, gate, up, down, mx.array(right).astype(mx.int32), s, **words, bias=bias, engine=engine)
                    assert close(got, expected(x, weights, right, s, bias)), (lead, bias is None, s is None)


@pytest.mark.parametrize("engine", ["cpu", "mlx", "mpp"])
def test_skewed_routing_and_a_shared_expert(engine):
    (gate, up, down), weights, words = layer("affine4_g32", 64, 96, 1)
    shared = [tuple(a[0] for a in group) for group in (gate, up, down)]
    x, scores, weight = floats((50, 64), 10), floats((50, 2), 12), floats((50, 1), 13)
    right = np.where(ids((50, 2), 100, 11) < 95, 3, 1)
    alone = expected(x, [w[:1].repeat(E, 0) for w in weights], np.zeros((50, 1), int))[:, 0]
    with on(engine):
        for factor in (None, weight):
            got = mt.switch_glu(x, gate, up, down, mx.array(right), scores, **words, shared=shared, shared_scores=factor, engine=engine)
            assert close(got, expected(x, weights, right, scores) + alone * (1 if factor is None else to_float64(factor)))


@pytest.mark.parametrize("engine", ["cpu", "mlx", "mpp"])
def test_a_layer_gives_the_same_bits_every_time(engine):
    (gate, up, down), _, words = layer("affine4_g32", 64, 96, 1)
    x, right, scores = floats((40, 64), 10, mx.bfloat16), mx.array(ids((40, 3), E, 11)), floats((40, 3), 12)
    with on(engine):
        runs = [np.array(mt.switch_glu(x, gate, up, down, right, scores, **words, engine=engine).astype(mx.float32)) for _ in range(3)]
    assert np.array_equal(runs[0], runs[1]) and np.array_equal(runs[0], runs[2]) and np.abs(runs[0]).max() > 0


@pytest.mark.parametrize("engine", ["cpu", "mlx", "mpp"])
def test_gradient_of_a_layer(engine):
    (gate, up, down), _, words = layer("affine4_g32", 64, 96, 1)
    right = mx.array(ids((5, 2), E, 11, beyond=1))
    dense = [mx.dequantize(*g, group_size=32, bits=4) for g in (gate, up, down)]
    valid, safe = ((right >= 0) & (right < E))[..., None], mx.clip(right, 0, E - 1)

    def plain(x, scores):
        g, u = ((x[:, None, None] @ w[safe].swapaxes(-1, -2))[..., 0, :] for w in dense[:2])
        y = ((g * mx.sigmoid(g) * u)[..., None, :] @ dense[2][safe].swapaxes(-1, -2))[..., 0, :]
        return ((mx.where(valid, y, 0) * scores[..., None]).sum(-2) ** 2).sum()

    def ours(x, scores):
        return (mt.switch_glu(x, gate, up, down, right, scores, **words, engine=engine) ** 2).sum()

    x, scores = floats((5, 64), 10), floats((5, 2), 12)
    with on(engine):
        got = mx.grad(ours, argnums=(0, 1))(x, scores)
        mx.eval(*got)
    for g, want in zip(got, mx.grad(plain, argnums=(0, 1))(x, scores)):
        assert close(g, to_float64(want), 1e-4)


@pytest.mark.parametrize("engine", ["cpu", "mpp"])
def test_compiled_with_other_numbers_of_tokens(engine):
    (gate, up, down), weights, words = layer("affine4_g32", 64, 96, 1)
    with on(engine):
        for shapeless in (False, True):
            compiled = mx.compile(lambda x, right, scores: mt.switch_glu(x, gate, up, down, right, scores, **words, engine=engine), shapeless=shapeless)
            for tokens in (4, 9, 1):
                x, right, scores = floats((tokens, 64), tokens), ids((tokens, 3), E, tokens), floats((tokens, 3), 1)
                assert close(compiled(x, mx.array(right), scores), expected(x, weights, right, scores))
