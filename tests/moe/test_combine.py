"""The weighted sum over a token's experts: values, order, strides, what the launch does, and planted bugs."""

import mlx.core as mx
import numpy as np
import pytest

import mlx_tensorops as mt
from mlx_tensorops import hostmetal, reference
from mlx_tensorops.policies import combine as table
from mlx_tensorops.primitives import _combine_run, _enqueue, combine
from mlx_tensorops.spec import CombineSpec
from mlx_tensorops.variant import VariantSet
from tests.planted import caught, planted

# (y, scores, addend, addend's weights, result): every type in every place, with and without what is optional.
CASES = (
    ("float16", "float16", "", "", "float16"),
    ("bfloat16", "float32", "bfloat16", "", "bfloat16"),
    ("float32", "bfloat16", "float16", "float32", "float32"),
    ("bfloat16", "bfloat16", "float32", "bfloat16", "float16"),
    ("float16", "float32", "float32", "float16", "bfloat16"),
)


EXPERTS = 4


def everybody(y) -> dict:
    """Ids of one expert, who exists."""
    return dict(experts=mx.zeros(y.shape[:-1], mx.int32), count=1)


def problem(types, tokens=(2, 3), k=5, n=72, seed=0):
    """The operands by name, [..., k, N] first. Some experts do not exist: their rows are zeros, as kernels write them, their scores no numbers."""
    rng = np.random.default_rng(seed)
    shapes = dict(y=(*tokens, k, n), scores=(*tokens, k), addend=(*tokens, n), addend_scores=(*tokens, 1))
    values = {name: rng.normal(size=shapes[name]).astype(np.float32) for name, kind in zip(shapes, types) if kind}
    experts = rng.integers(-1, EXPERTS + 1, size=shapes["scores"]).astype(np.int32)
    lost = (experts < 0) | (experts >= EXPERTS)
    values["y"][lost] = 0
    values["scores"][lost] = rng.choice([np.nan, np.inf, -np.inf], size=lost.sum())
    return {name: mx.array(a).astype(getattr(mx, kind)) for (name, a), kind in zip(values.items(), filter(None, types))} | dict(experts=mx.array(experts), count=EXPERTS)


def oracle(y, scores, experts, count, addend=None, addend_scores=None):
    """(the sum in float64, the sum of its terms' magnitudes)."""
    y, scores, addend, weights = (None if a is None else reference.to_float64(a) for a in (y, scores, addend, addend_scores))
    experts = np.array(experts)
    terms = y * np.where((experts >= 0) & (experts < count), scores, 0)[..., None]
    if addend is not None:
        terms = np.concatenate([terms, (addend if weights is None else addend * weights)[..., None, :]], axis=-2)
    return terms.sum(axis=-2), np.abs(terms).sum(axis=-2)


def over_bound(c, operands, out):
    """Largest |error| / bound: f32 operations, one per term and a product each, and one rounding."""
    want, magnitude = oracle(**operands)
    terms = operands["y"].shape[-2] + 1
    bound = 2 * terms * reference.F32_UNIT * magnitude + reference.element_type(out).epsilon / 2 * np.abs(want) + 2.0**-25
    assert c.shape == want.shape and str(c.dtype).endswith(out)
    return float(np.max(np.abs(reference.to_float64(c) - want) / bound))


def run(operands, out, **active):
    with hostmetal.active(checked=True, **active), mt.trace() as trace:
        c = _combine_run.combine(mx, **operands, out=out)
        mx.eval(c)
    return c, trace.dispatches


@pytest.mark.parametrize("types", CASES, ids="-".join)
@pytest.mark.parametrize("n", [72, 1])
def test_values(types, n):
    operands = problem(types, n=n)
    c, (dispatch,) = run(operands, types[-1])
    assert over_bound(c, operands, types[-1]) <= 1
    assert dispatch["grid"][1] == 6


def test_rows_and_what_a_launch_does():
    for n, row in ((256, "by4"), (70, "ordered")):
        operands = problem(CASES[2], tokens=(7,), n=n)
        operands["addend"] = aligned(operands["addend"])
        operands["y"] = aligned(operands["y"])
        c, (dispatch,) = run(operands, "float32")
        assert dispatch["row"] == row and over_bound(c, operands, "float32") <= 1
        v = VariantSet(None, "simdgroup", combine.rows(CombineSpec(*CASES[2][:2], CASES[2][-1], *CASES[2][2:4]), "simdgroup", table.TILES))[row]
        cost = combine.cost(v)
        shapes = ((7, 5, n), (7, 5), (7, n), (7,), (7, 5), (1,))
        assert dispatch["counters"]["device_load"][:6] == [r(shapes) for r in cost.operand_bytes]
        assert sum(dispatch["counters"]["device_store"]) == cost.output_bytes(shapes)
        assert dispatch["counters"]["barriers"] == 0


def aligned(x, to=16):
    """The same values at an address that whole vectors of four allow: MLX's CPU allocator gives odd multiples of 8."""
    skipped = (to - 8) // x.itemsize
    y = mx.concatenate([mx.zeros((skipped,), x.dtype), x.reshape(-1)])[skipped:].reshape(x.shape)
    mx.eval(y)
    return y


def test_any_strides():
    wide = problem(("float16", "float32"), tokens=(4,), k=6, n=80)
    views = dict(y=wide["y"][:, ::2, ::-1], scores=mx.broadcast_to(wide["scores"][:1, ::2], (4, 3)),
                 experts=mx.broadcast_to(wide["experts"][:1, ::2], (4, 3)), count=EXPERTS)
    c, _ = run(views, "float16")
    assert over_bound(c, views, "float16") <= 1


def test_the_same_bits_in_every_order_of_threads():
    operands = problem(CASES[1], tokens=(9,), k=8)
    first, _ = run(operands, "bfloat16")
    for order in (1, 2, 3, 5, 8, 13, 21):
        assert mx.array_equal(run(operands, "bfloat16", order_seed=order)[0], first)


def test_terms_are_added_in_the_order_of_k():
    """2^24 + 1 - 2^24 is 0 in f32 from the left, 1 in any other order."""
    y = mx.array([2.0**24, 1.0, -(2.0**24)]).reshape(1, 3, 1) * mx.ones((1, 3, 8))
    for n in (8, 3):
        c, _ = run(dict(y=y[..., :n], scores=mx.ones((1, 3)), **everybody(y)), "float32")
        assert not np.any(np.array(c))


def test_nothing_to_add():
    for tokens, k, n in (((0,), 2, 4), ((3,), 0, 4), ((3,), 2, 0)):
        operands = problem(("float16", "float16"), tokens=tokens, k=k, n=n)
        c, dispatches = run(operands, "float16")
        assert c.shape == (*tokens, n) and not np.any(np.array(c)) and dispatches == []
    operands = problem(CASES[1], k=0)
    c, dispatches = run(operands, "bfloat16")
    assert mx.array_equal(c, operands["addend"]) and dispatches == []


def test_the_kernel_itself_needs_an_expert_where_something_is_added():
    spec = CombineSpec("float16", "float16", "float16", "float16")
    variants = VariantSet(spec, "simdgroup", combine.rows(spec, "simdgroup", table.TILES))
    arrays = [mx.zeros(shape, mx.float16) for shape in ((2, 0, 4), (2, 0), (2, 4))] + [mx.zeros(shape, mx.int32) for shape in ((2, 0), (1,))]
    with hostmetal.active(), pytest.raises(ValueError, match="k must be at least 1 where something is added"):
        _enqueue.launch(variants, arrays)


def test_gradients_are_those_of_the_formula():
    operands = problem(("float32",) * 4, tokens=(3,))
    experts, count = operands.pop("experts"), operands.pop("count")
    valid = (experts >= 0) & (experts < count)

    def of(function):
        gradients = mx.grad(lambda *a: (function(*a) ** 2).sum(), argnums=(0, 1, 2, 3))(*operands.values())
        mx.eval(gradients)
        return gradients

    with hostmetal.active():
        ours = of(lambda y, scores, *more: _combine_run.combine(mx, y, scores, experts, count, *more, out="float32"))
    for mine, theirs in zip(ours, of(lambda *a: combine.composed(mx, *a[:3], a[3].squeeze(-1), valid))):
        assert np.all(np.isfinite(np.array(mine))) and np.allclose(np.array(mine), np.array(theirs), rtol=1e-4, atol=1e-4)


PLANTED = (
    ("scores of the first token", "scores += token * p.scores_t;", ""),
    ("last expert left out", "j < p.k;", "j < p.k - 1;"),
    ("one score for all", "scores[j * p.scores_j]", "scores[0]"),
    ("rounded on the way", "sums[i] = fma(score, values[i], sums[i]);", "sums[i] = float(C(fma(score, values[i], sums[i])));"),
    ("past the last column", "if (column >= p.N) return;", ""),
    ("addend not weighted", "fma(weight, values[i], sums[i])", "values[i] + sums[i]"),
    ("addend of the first token", "addend + token * p.addend_t", "addend"),
    ("scores of nobody counted", "< count ? given : 0.0f", "< count ? given : given"),
    ("ids of the first token", "experts += token * p.experts_t;", ""),
    ("ids below the range taken for experts", "uint(experts[j * p.experts_j]) < count", "experts[j * p.experts_j] < int(count)"),
)


@pytest.mark.parametrize("bug, before, after", PLANTED, ids=[p[0] for p in PLANTED])
def test_planted_bugs_are_caught(bug, before, after):
    operands = problem(CASES[3], n=70)
    with planted(before, after):
        assert caught(lambda: run(operands, "float16")[0], lambda got: over_bound(got, operands, "float16")), f"not caught: {bug}"
