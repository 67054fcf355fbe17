"""Dense GEMM, exhaustively: a 3-wise covering array of kernels, and random problems over all of them."""

from __future__ import annotations

from functools import lru_cache

import mlx.core as mx
import numpy as np

import mlx_tensorops as mt
from mlx_tensorops import hostmetal
from tests.alone import alone
from tests.cases import gemm as cases
from tests.gemm import flows, judge, pool
from tests.gemm.test_pool import lane_layouts

SEED = 20261129
FUZZ_ITEMS, FUZZ_CASES = 80, 25  # 2,000 random problems over all legal kernels
PUBLIC_ITEMS, PUBLIC_CASES = 20, 25  # 500 more through matmul itself: whatever rows policy and strides choose


def items():
    for choice in choices():
        yield f"kernel/{choice.name}", lambda c=choice: _kernel(c)
    for number in range(FUZZ_ITEMS):
        yield f"fuzz/{number}", lambda n=number: _fuzz(SEED + n)
    for number in range(PUBLIC_ITEMS):
        yield f"matmul/{number}", lambda n=number: _public(SEED + 1000 + n)


@lru_cache(maxsize=1)
def choices():
    """Kernels in which every triple of axis values occurs."""
    return tuple({c.name: c for c in pool.pool(strength=3, seed=SEED)}.values())


def _kernel(choice) -> None:
    """Every layout of lanes in the fast build, one in the checked build."""
    variant = choice.variant
    variants = alone(variant)
    layouts = cases.LAYOUTS if len(lane_layouts(variant)) > 1 else lane_layouts(variant)
    for seed, layout in enumerate(layouts):
        for checked in (False, True) if seed == 0 else (False,):
            arrays, extra = choice.problem(seed)
            c, dispatch = flows.run(variants, *arrays, layout=layout, checked=checked)
            assert judge.epilogue_over_bound(arrays[0], arrays[1], c, choice.out, variant.epilogue, **extra) <= 1, layout
            if not choice.epilogue:
                judge.counters_as_predicted(variant, [x.shape for x in arrays], dispatch, layout)


def _fuzz(seed: int) -> None:
    """Random sizes, layouts of lanes and seeds on kernels of the 3-wise array that take every size."""
    rng = np.random.default_rng(seed)
    general = [c for c in choices() if c.edge == "ragged"]
    kernels = [general[i] for i in rng.choice(len(general), size=5, replace=False)]  # few kernels, many problems: builds are dear
    for number in range(FUZZ_CASES):
        choice = kernels[number % len(kernels)]
        variant = choice.variant
        # From 2: an axis of one element has no stride to speak of, and a set of one row may then not take what another row would.
        sizes = tuple(int(x) for x in rng.integers(2, (150, 280, 100)))
        arrays, extra = choice.problem(int(rng.integers(2**31)), sizes=sizes)
        layout = str(rng.choice(cases.LAYOUTS)) if len(lane_layouts(variant)) > 1 else "nax"
        c, _ = flows.run(alone(variant), *arrays, layout=layout)
        assert judge.epilogue_over_bound(arrays[0], arrays[1], c, choice.out, variant.epilogue, **extra) <= 1, (variant.key, sizes, layout)


def _public(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(PUBLIC_CASES):
        m, n, k = (int(x) for x in rng.integers(1, (140, 280, 90)))
        dtype = str(rng.choice(("float16", "bfloat16", "float32")))
        a = cases.make(str(rng.choice(cases.VIEWS)), m, k, dtype, rng)
        b = cases.make(str(rng.choice(cases.VIEWS)), k, n, dtype, rng)
        layout, engine = str(rng.choice(cases.LAYOUTS)), str(rng.choice(("mpp", "simdgroup")))
        with hostmetal.active(layout=layout, checked=bool(rng.integers(2))):
            c = mt.matmul(a, b, engine=engine)
            mx.eval(c)
        assert judge.errors_over_bound(a, b, c, dtype) <= 1, (m, n, k, dtype, layout, engine)
