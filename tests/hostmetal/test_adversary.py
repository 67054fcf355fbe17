"""Each switch reveals a fault that nothing else does, and leaves the right kernel alone."""

from pathlib import Path

import numpy as np
import pytest

from mlx_tensorops import hostmetal

SOURCE = (Path(__file__).parent / "planted" / "adversary.metal").read_text()
BY_COORDINATE, BY_LANE_MAP, FIXED_CAPACITY, NOT_ZEROED = range(4)


@pytest.fixture(scope="module")
def kernel():
    built = {}

    def get(name):
        if name not in built:
            built[name] = hostmetal.compile(SOURCE, name)
        return built[name]

    return get


def _operands(dtype, scale=1.0):
    rng = np.random.default_rng(5)
    return (rng.standard_normal((16, 16)) * scale).astype(dtype), rng.standard_normal((16, 32)).astype(dtype)


def _error(kernel, how, dtype=np.float16, scale=1.0, **options):
    a, b = _operands(dtype, scale)
    got = kernel.dispatch(grid=1, threadgroup=32, buffers=[a, b, np.full((16, 32), np.nan, np.float32), how], allow_findings=True, **options).outputs[2]
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    error = np.abs(got - wanted).max() / np.abs(wanted).max()
    return np.inf if np.isnan(error) else error


LAYOUTS = [dict(layout="nax"), dict(layout="strict"), *(dict(layout=name, layout_seed=s) for name in ("permuted", "padded") for s in (0, 1, 99))]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_layouts(kernel, layout):
    product = kernel("half_product")
    assert _error(product, BY_COORDINATE, **layout) < 1e-6
    assert (_error(product, BY_LANE_MAP, **layout) < 1e-6) == (layout["layout"] == "nax")
    assert (_error(product, FIXED_CAPACITY, **layout) < 1e-6) == (layout["layout"] != "padded")
    assert not _error(product, NOT_ZEROED, **layout) < 1e-6  # cooperative tensors start as NaN


def test_seeds_draw_different_layouts_and_compile_nothing(kernel, monkeypatch):
    product = kernel("half_product")
    monkeypatch.setattr(hostmetal.toolchain, "run", lambda *a, **k: pytest.fail("a compiler was started"))
    seen = set()
    layouts = [layout for layout in LAYOUTS if layout["layout"] != "padded"]  # there the fixed map runs out of bounds
    for layout in layouts:
        a, b = _operands(np.float16)
        seen.add(product.dispatch(grid=1, threadgroup=32, buffers=[a, b, np.zeros((16, 32), np.float32), BY_LANE_MAP], allow_findings=True, **layout).outputs[2].tobytes())
    assert len(seen) == len(layouts)


def test_relaxed_floats_lose_bits(kernel):
    exact = _error(kernel("float_product"), BY_COORDINATE, np.float32)
    relaxed = _error(kernel("float_product"), BY_COORDINATE, np.float32, truncate_f32=True)
    assert exact < 1e-6 and 1e-5 < relaxed < 2e-3
    assert _error(kernel("half_product"), BY_COORDINATE, truncate_f32=True) < 1e-6


def test_half_subnormals_are_flushed(kernel):
    assert _error(kernel("half_product"), BY_COORDINATE, scale=2.0**-16) < 1e-6
    assert _error(kernel("half_product"), BY_COORDINATE, scale=2.0**-16, flush_half=True) > 0.1
    assert _error(kernel("half_product"), BY_COORDINATE, flush_half=True) < 1e-4  # a few operands are subnormal


def test_multiply_may_accumulate(kernel):
    overwriting = kernel("overwriting")
    assert _error(overwriting, NOT_ZEROED) < 1e-6
    assert not _error(overwriting, NOT_ZEROED, multiply_accumulates=True) < 1e-6
    assert _error(overwriting, BY_COORDINATE, multiply_accumulates=True) < 1e-6


@pytest.mark.parametrize("how, agree", [(0, True), (1, False)])
def test_eight_orders_must_agree(kernel, how, agree):
    x = np.random.default_rng(1).integers(0, 100, 256).astype(np.int32)
    results = set()
    for seed in range(8):
        buffers = [x, np.full(256, -1, np.int32), np.zeros(1, np.int32), how]
        y = kernel("compact").dispatch(grid=4, threadgroup=64, buffers=buffers, order_seed=seed).outputs[1]
        assert sorted(y[y >= 0]) == sorted(x[x % 2 == 0])
        results.add(y.tobytes())
    assert (len(results) == 1) == agree
