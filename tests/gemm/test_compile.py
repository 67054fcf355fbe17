"""``mx.compile``: one trace, many shapes and layouts; the row is chosen when the graph runs."""

import mlx.core as mx
import numpy as np
import pytest

import mlx_tensorops as mt
from mlx_tensorops import hostmetal, reference
from tests.cases import gemm as cases
from tests.gemm import judge

ENGINES = ("mpp", "cpu", "mlx")

# Replays of a graph traced on aligned, contiguous operands: (m, n, k, view of a, view of b, row that engine mpp must take).
REPLAYS = (
    (64, 128, 32, "rows", "rows", "nn/aligned"),
    (70, 128, 32, "rows", "rows", "nn/ragged_m"),
    (33, 70, 21, "rows", "rows", "nn/ragged"),
    (33, 50, 21, "rows", "rows", "n64/nn/ragged"),
    (16, 50, 32, "rows", "rows", "m16/nn/ragged"),
    (64, 128, 32, "rows", "columns", "nt/aligned"),
    (33, 70, 21, "columns", "rows", "tn/ragged"),
    (64, 128, 32, "columns", "columns", "tt/aligned"),
    (33, 70, 21, "repeated", "rows", "nn/ragged"),
    (33, 70, 21, "one_column_repeated", "repeated", "tn/ragged"),
    (33, 70, 21, "offset", "offset", "nn/ragged"),
    (33, 70, 21, "reversed", "gap", "strided/ragged"),
    (3, 0, 5, "rows", "rows", None),
    (3, 4, 0, "rows", "rows", None),
)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_shapeless_replay(engine, dtype):
    with hostmetal.active(checked=True):
        compiled = mx.compile(lambda a, b: mt.matmul(a, b, engine=engine), shapeless=True)
        first = [cases.make("rows", *s, dtype, np.random.default_rng(0)) for s in ((128, 64), (64, 256))]
        mx.eval(compiled(*first))
        for number, (m, n, k, a_view, b_view, row) in enumerate(REPLAYS):
            if 0 in (m, n, k):
                a, b = mx.zeros((m, k), getattr(mx, dtype)), mx.zeros((k, n), getattr(mx, dtype))
            else:
                a = cases.make(a_view, m, k, dtype, np.random.default_rng(number))
                b = cases.make(b_view, k, n, dtype, np.random.default_rng(number + 50))
            mx.eval(a, b)
            with mt.trace() as trace:
                c = compiled(a, b)
                mx.eval(c)
            assert c.shape == (m, n)
            assert judge.errors_over_bound(a, b, c, dtype) <= 1
            if engine == "mpp":
                assert [d["row"] for d in trace.dispatches] == ([row] if row else [])


def test_a_replay_whose_k_disagrees_is_refused():
    with hostmetal.active():
        compiled = mx.compile(lambda a, b: mt.matmul(a, b, engine="mpp"), shapeless=True)
        mx.eval(compiled(mx.zeros((64, 32), mx.float16), mx.zeros((32, 128), mx.float16)))
        with pytest.raises(ValueError, match=r"\[matmul\].*\(K\)"):
            mx.eval(compiled(mx.zeros((64, 32), mx.float16), mx.zeros((31, 128), mx.float16)))


def test_equal_calls_are_merged():
    a, b = (cases.make("rows", *s, "float16", np.random.default_rng(0)) for s in ((64, 32), (32, 128)))
    with hostmetal.active(), mt.trace() as trace:
        c = mx.compile(lambda a, b: mt.matmul(a, b, engine="mpp") + mt.matmul(a, b, engine="mpp"))(a, b)
        mx.eval(c)
    assert len(trace.dispatches) == 1
    # c = 2 * round(ab), exactly
    assert np.all(np.abs(reference.to_float64(c) / 2 - reference.gemm(a, b)) <= reference.gemm_bound(a, b, "float16"))


def test_the_guard_never_evaluates():
    """Inputs that cannot be evaluated inside a transformation are only looked at."""
    seen = []

    def traced(a, b):
        c = mt.matmul(a, b)
        seen.append(mt.explain("matmul", a, b).flops)
        return c

    c = mx.compile(traced)(mx.ones((8, 16)), mx.ones((16, 4)))
    assert seen == [2 * 8 * 16 * 4] and np.all(np.array(c) == 16)
