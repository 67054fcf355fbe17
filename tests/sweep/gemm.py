"""Dense GEMM, exhaustively: every variant on every layout, fast and checked, and random shapes, views and scales."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

import mlx_tensorops as mt
from mlx_tensorops import hostmetal
from tests.cases import gemm as cases
from tests.gemm import judge

FUZZ_ITEMS, FUZZ_CASES, SEED = 40, 25, 20261129


def items():
    for choice in cases.everything():
        name = "-".join(choice.values())
        yield f"values/{name}", lambda c=choice: _values(c)
        yield f"checked/{name}", lambda c=choice: _checked(c)
    for number in range(FUZZ_ITEMS):
        yield f"fuzz/{number}", lambda n=number: _fuzz(SEED + n)


def _values(choice: dict) -> None:
    case = cases.ROW_CASES[choice["row"]]
    for number, layout in enumerate(cases.LAYOUTS):
        a, b, c, dispatch = judge.run(choice, case, seed=number, layout=layout)
        assert judge.errors_over_bound(a, b, c, choice["out"]) <= 1, layout
        judge.counters_as_predicted(cases.variant_of(choice), (a.shape, b.shape), dispatch, layout)


def _checked(choice: dict) -> None:
    case = cases.ROW_CASES[choice["row"]]
    for layout in ("nax", "padded"):
        a, b, c, dispatch = judge.run(choice, case, seed=9, layout=layout, checked=True)
        assert judge.errors_over_bound(a, b, c, choice["out"]) <= 1
        judge.counters_as_predicted(cases.variant_of(choice), (a.shape, b.shape), dispatch, layout)


def _fuzz(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(FUZZ_CASES):
        m, n, k = (int(x) for x in rng.integers(1, (140, 280, 90)))
        dtype = str(rng.choice(("float16", "bfloat16", "float32")))
        a = cases.make(str(rng.choice(cases.VIEWS)), m, k, dtype, rng)
        b = cases.make(str(rng.choice(cases.VIEWS)), k, n, dtype, rng)
        layout = str(rng.choice(cases.LAYOUTS))
        with hostmetal.active(layout=layout, checked=bool(rng.integers(2))):
            c = mt.matmul(a, b, engine="mpp")
            mx.eval(c)
        assert judge.errors_over_bound(a, b, c, dtype) <= 1, (m, n, k, dtype, layout)
