"""The down projection with its weighted sum: in the order of k, bit by bit, within its memory."""

from __future__ import annotations

import itertools

import mlx.core as mx
import numpy as np
import pytest

from mlx_tensorops.formats import BUILT_IN
from mlx_tensorops.primitives import _cpu
from tests.cases.tile_plan import KINDS, routing

from .engine import counters
from .experts import combine, experts, gather_mm, gateup, ids, product
from .oracle import DTYPES, check, f64, random, wrong
from .test_gather import STORES, restored

SETS = _cpu.info()["usable_instruction_sets"]


def expected(x, weights, rhs, scores, **kwargs):
    """sum over k of scores * products, [..., N]; NaN scores of bad ids count as nothing."""
    rows = mx.broadcast_to(x, (*rhs.shape, x.shape[-1]))
    want, slack = product(mx.expand_dims(rows, -2), weights, rhs, **kwargs)
    valid = (np.array(rhs).astype(np.int64) >= 0) & (np.array(rhs).astype(np.int64) < weights.values.shape[0])
    score = np.where(valid, f64(scores), 0)[..., None]
    terms = want[..., 0, :] * score
    k = rhs.shape[-1]
    return terms.sum(-2), (slack[..., 0, :] * np.abs(score)).sum(-2) + np.abs(terms).sum(-2) * 2.0**-24 * (4 * k**0.5 + 4)


def agree(x, weights, rhs, scores, *, dtype=None, what=None, **kwargs) -> None:
    check(combine(x, weights, rhs, scores, dtype=dtype, **kwargs), *expected(x, weights, rhs, scores, **kwargs), what)


@pytest.mark.parametrize("name", (None, *(f.name for f in BUILT_IN)))
def test_every_format(name):
    rng = np.random.default_rng(1)
    for transpose, dtype in itertools.product((True, False), DTYPES):
        weights = experts(rng, name, 5, 128, 128, transpose=transpose, dtype=dtype)
        agree(random(rng, (11, 3, 128), dtype), weights, ids(rng, (11, 3), 5, outside=True), random(rng, (11, 3), dtype), what=(transpose, dtype))


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("name", (None, "affine4_g64", "nvfp4", "mxfp8"))
def test_sizes(configure, name, instruction_set):
    configure(instruction_set=instruction_set, threads=2)
    rng = np.random.default_rng(2)
    for i, ((n, k), (tokens, top)) in enumerate(itertools.product(((1, 64), (33, 128), (300, 192)), ((1, 1), (1, 8), (5, 2), (130, 4)))):
        dtype = DTYPES[i % 3]
        weights = experts(rng, name, 6, n, k, dtype=dtype)
        agree(random(rng, (tokens, top, k), dtype), weights, ids(rng, (tokens, top), 6), random(rng, (tokens, top), DTYPES[i % 2]), what=(n, k, tokens, top))


@pytest.mark.parametrize("kind", KINDS)
def test_random_histograms(kind):
    rng = np.random.default_rng(30 + KINDS.index(kind))
    for turn in range(12):
        e, tokens, top = int(rng.choice([1, 2, 8, 128, 512])), int(rng.choice([0, 1, 17, 200])), int(rng.choice([1, 2, 8]))
        weights = experts(rng, ("affine4_g64", "mxfp4", "nvfp4")[turn % 3], e, int(rng.integers(1, 100)), 64)
        rhs = mx.array(routing(kind, tokens * top, e, rng).reshape(tokens, top).astype(np.int32))
        agree(random(rng, (tokens, top, 64), DTYPES[turn % 3]), weights, rhs, random(rng, (tokens, top), mx.float32), what=(kind, turn))


@pytest.mark.parametrize("tokens, top", [(5000, 4), (700, 30), (3, 6000), (1, 9217), (9217, 1)])
def test_more_pairs_than_scratch_holds(tokens, top):
    """Blocks of tokens, and for long lists of experts slices of one token's."""
    rng = np.random.default_rng(3)
    weights = experts(rng, "mxfp4", 8, 40, 32)
    agree(random(rng, (tokens, top, 32), mx.bfloat16), weights, ids(rng, (tokens, top), 8, outside=True), random(rng, (tokens, top), mx.float32))


def test_shapes_strides_and_broadcasts():
    rng = np.random.default_rng(4)
    for store in STORES.values():
        weights = restored(experts(rng, "affine4_g32", 4, 64, 96, dtype=mx.float16), store)
        base, every = random(rng, (8, 9, 6, 2 * 96), mx.float16), ids(rng, (9, 16, 8), 4, outside=True)
        scores = random(rng, (8, 16, 9), mx.float16)
        for x, rhs, score in ((base[1:4, ::2, :3, :96], every[:3, :5, :3], scores[:3, :5, :3]), (base[:, 0, :2, ::2], every[0, ::2, :2], scores.T[1, ::2, ::4]),
                              (base[0, 0, :, :96], every[0, 0, :6], scores[0, 0, :6]), (base[:, :1, :1, 96:], every[:8, :5, :3], scores[:, :5, :3]),
                              (base[::-1, 3, ::-1, :96], every[:8, 2, :6], mx.broadcast_to(scores[0, 0, :1], (8, 6)))):
            agree(x, weights, rhs, score)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bias_and_global_scale(dtype):
    rng = np.random.default_rng(5)
    weights, bias = experts(rng, "nvfp4", 3, 72, 64), random(rng, (3, 72), dtype)
    x, rhs, scores = random(rng, (20, 4, 64), dtype), ids(rng, (20, 4), 3, outside=True), random(rng, (20, 4), dtype)
    for scale, divisor in ((mx.array([1.5]) * 2688, 2688.0), (mx.array([0.5, 1.0, 3.0]), 1.0)):
        agree(x, weights, rhs, scores, bias=bias, global_scale=scale, divisor=divisor)
        agree(x, weights, rhs, scores, global_scale=scale, divisor=divisor, dtype=mx.float32)


def test_an_id_out_of_range_contributes_nothing_whatever_its_score():
    rng = np.random.default_rng(6)
    weights, x = experts(rng, "affine4_g64", 3, 40, 64), random(rng, (3, 3, 64), mx.float32)
    bias = random(rng, (3, 40), mx.float32)
    rhs, scores = mx.array([[0, -1, 2], [3, 5, -7], [1, 1, 100]]), mx.array([[0.5, np.nan, 0.25], [np.inf, 1.0, 2.0], [1.0, -1.0, np.nan]])
    agree(x, weights, rhs, scores, bias=bias)
    assert (np.array(combine(x, weights, rhs, scores, bias=bias))[1] == 0).all()


@pytest.mark.parametrize("shape", [(0, 2), (3, 0), (0, 0), (2, 0, 3), (2, 3, 0)])
def test_zero_sizes(shape):
    weights = experts(np.random.default_rng(7), "mxfp4", 2, 8, 32)
    got = combine(mx.zeros((*shape, 32)), weights, mx.zeros(shape, mx.int32), mx.zeros(shape))
    assert got.shape == (*shape[:-1], 8)
    assert (np.array(got) == 0).all()


def test_the_sum_goes_in_the_order_of_k():
    """float32 addition is not associative: terms of 2^26, 1 and -2^26 tell their order."""
    e = np.eye(4, dtype=np.float32)[:, None]  # expert i takes element i of the row
    from .experts import Experts

    weights = Experts(mx.array(np.ascontiguousarray(e)), None, None, None, True, e.swapaxes(1, 2).astype(np.float64))
    big = 2.0**26
    for row, rhs, want in (((big, 1, -big, 0), (0, 1, 2), 0.0), ((big, 1, -big, 0), (0, 2, 1), 1.0), ((big, 1, -big, 0), (1, 2, 0), 0.0), ((big, 1, -big, 0), (2, 0, 1), 1.0),
                           ((1, big, 1, -big), (3, 1, 0), 1.0)):
        for tokens in (1, 50, 3000):
            x = mx.broadcast_to(mx.array(row), (tokens, len(rhs), 4))
            got = combine(x, weights, mx.broadcast_to(mx.array(rhs), (tokens, len(rhs))), mx.ones((tokens, len(rhs))))
            assert (np.array(got) == want).all(), (rhs, tokens)


def test_a_token_does_not_depend_on_its_company_within_a_block_size():
    """The same tokens again in a longer batch: rows of one expert in other company. Every block gives an expert many rows: few are
    added up in another order."""
    rng = np.random.default_rng(8)
    weights, rhs = experts(rng, "affine4_g64", 4, 96, 128), mx.array(rng.permuted(np.tile(np.arange(4, dtype=np.int32), (600, 1)), axis=1))
    x, scores = random(rng, (600, 4, 128), mx.bfloat16), random(rng, (600, 4), mx.float32)
    first = np.array(combine(x, weights, rhs, scores, dtype=mx.float32))
    again = np.array(combine(mx.concatenate([x] * 4), weights, mx.concatenate([rhs] * 4), mx.concatenate([scores] * 4), dtype=mx.float32))
    for part in np.split(again, 4):
        np.testing.assert_array_equal(part, first)


def test_memory_of_a_layer():
    """gate + up (fused), then down + combine, T = 512 of a quarter-size Qwen3-30B-A3B: nothing but inputs, result and activations."""
    rng = np.random.default_rng(9)
    t, h, i, e, k = 512, 512, 192, 32, 8
    gate, up, down = (experts(rng, "affine4_g64", e, n, d, dtype=mx.bfloat16) for n, d in ((i, h), (i, h), (h, i)))
    x, rhs, scores = random(rng, (t, 1, 1, h), mx.bfloat16), ids(rng, (t, k), e), random(rng, (t, k), mx.float32)
    mx.eval(x, rhs, scores)

    def layer():
        inner = gateup(x, gate, up, rhs, activation="swiglu")[0]
        return combine(inner.squeeze(-2), down, rhs, scores)

    mx.eval(layer())
    mx.synchronize()
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    seen = counters(layer)
    assert mx.get_peak_memory() - before <= t * h * 2 + t * k * i * 2 + 4096
    assert 0 < seen["scratch_bytes_per_thread"] <= 2**20


def test_weights_are_decoded_few_times():
    """Once for each block of 4096 pairs in which the expert has rows (fewer than a panel serves)."""
    rng = np.random.default_rng(10)
    weights, e = experts(rng, "affine4_g64", 64, 96, 64), 64
    for tokens, blocks in ((4, 1), (900, 2)):
        rhs = ids(rng, (tokens, 9), e)
        x, scores = random(rng, (tokens, 9, 64), mx.bfloat16), random(rng, (tokens, 9), mx.float32)
        mx.eval(x, rhs, scores)
        used = sum(len(np.unique(part)) for part in np.array_split(np.array(rhs), blocks))
        assert counters(lambda: combine(x, weights, rhs, scores))["weights_decoded"] == used * 96 * 64


def test_shapeless_compile_gradients_and_vmap():
    rng = np.random.default_rng(11)
    weights = experts(rng, "affine4_g32", 4, 32, 64)
    values = mx.array(weights.values.astype(np.float32))
    bias = random(rng, (4, 32), mx.float32)
    replay = mx.compile(lambda x, rhs, scores: combine(x, weights, rhs, scores, bias=bias), shapeless=True)
    for tokens, k in ((5, 2), (1, 3), (40, 2), (0, 2)):
        x, rhs, scores = random(rng, (tokens, k, 64), mx.float32), ids(rng, (tokens, k), 4, outside=True), random(rng, (tokens, k), mx.float32)
        check(replay(x, rhs, scores), *expected(x, weights, rhs, scores, bias=bias))

    x, rhs, scores = random(rng, (6, 3, 64), mx.float32), ids(rng, (6, 3), 4), random(rng, (6, 3), mx.float32)
    along, weight = [random(rng, a.shape, mx.float32) for a in (x, scores)], random(rng, (6, 32), mx.float32)

    def ours(x, scores, bias):
        return combine(x, weights, rhs, scores, bias=bias)

    def dense(x, scores, bias):
        return (((x[..., None, :] @ values[rhs])[..., 0, :] + bias[rhs]) * scores[..., None]).sum(-2)

    got, want = (mx.grad(lambda *a, f=f: (f(*a) * weight).sum(), argnums=(0, 1, 2))(x, scores, bias) for f in (ours, dense))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(np.array(a), np.array(b), rtol=1e-3, atol=1e-3)
    got, want = (mx.jvp(lambda a, b, f=f: f(a, b, bias), [x, scores], along)[1][0] for f in (ours, dense))
    np.testing.assert_allclose(np.array(got), np.array(want), rtol=1e-3, atol=1e-3)

    xs, many = random(rng, (6, 2, 3, 64), mx.float32), ids(rng, (6, 3, 2), 4)
    got = mx.vmap(lambda x, rhs: combine(x, weights, rhs, scores), in_axes=(1, 2))(xs, many)
    for i in range(2):
        np.testing.assert_allclose(np.array(got[i]), np.array(combine(xs[:, i], weights, many[..., i], scores)), rtol=1e-3, atol=1e-3)


def test_the_bound_notices_planted_faults():
    rng = np.random.default_rng(12)
    weights, x, rhs, scores = experts(rng, "nvfp4", 4, 48, 128), random(rng, (30, 4, 128), mx.bfloat16), ids(rng, (30, 4), 4), random(rng, (30, 4), mx.float32)
    want, slack = expected(x, weights, rhs, scores)
    assert not wrong(combine(x, weights, rhs, scores), want, slack).any()
    pieces = gather_mm(x[..., None, :], weights, rhs, dtype=mx.float32)[..., 0, :]

    def summed(scores, count=4):
        return ((pieces * scores[..., None])[:, :count].sum(1)).astype(mx.bfloat16)

    assert not wrong(summed(scores), want, slack).any()
    for fault in (summed(scores, 3), summed(scores[:, ::-1]), summed(mx.roll(scores, 1, 0)), summed(scores * 1.01), combine(x[:, ::-1], weights, rhs, scores)):
        assert wrong(fault, want, slack).any()
    rounded = ((pieces.astype(mx.bfloat16) * scores[..., None].astype(mx.bfloat16)).astype(mx.bfloat16)).sum(1)
    assert wrong(rounded, want, slack).any(), "sums of rounded rows are told from f32 ones"


def test_a_layer_equals_its_parts():
    """gateup with a gate, then combine, against MLX's own operations in float32."""
    rng = np.random.default_rng(13)
    gate, up, down = (experts(rng, "affine4_g64", 8, n, d) for n, d in ((64, 128), (64, 128), (128, 64)))
    x, rhs, scores = random(rng, (2, 9, 1, 1, 128), mx.float32) / 8, ids(rng, (2, 9, 3), 8), random(rng, (2, 9, 3), mx.float32)
    ours = combine(gateup(x, gate, up, rhs, activation="swiglu")[0].squeeze(-2), down, rhs, scores)
    g, u = (mx.gather_qmm(x, *w.stored, rhs_indices=rhs, group_size=64, bits=4) for w in (gate, up))
    y = mx.gather_qmm(g * mx.sigmoid(g) * u, *down.stored, rhs_indices=rhs, group_size=64, bits=4).squeeze(-2)
    np.testing.assert_allclose(np.array(ours), np.array((y * scores[..., None]).sum(-2)), rtol=1e-3, atol=1e-3)
