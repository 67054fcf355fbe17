"""The native plan builder against a NumPy one written from the definition."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mlx_tensorops.primitives import _native

NAMES = ("tile_expert", "tile_row_start", "tile_row_count", "order", "inverse", "dropped")
INTEGERS = (mx.uint8, mx.uint16, mx.uint32, mx.uint64, mx.int8, mx.int16, mx.int32, mx.int64)


def plan(ids, num_experts: int, block_m: int) -> list[np.ndarray]:
    return [np.array(x) for x in _native.ext().cpu_tile_plan(ids, num_experts, block_m)]


def expected(ids: np.ndarray, num_experts: int, block_m: int) -> list[np.ndarray]:
    ids = ids.astype(object).reshape(-1)  # exact for every width
    group = np.array([int(i) if 0 <= i < num_experts else num_experts for i in ids], np.int64)
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(num_experts + 2))
    tiles = [(e if e < num_experts else -1, s, min(block_m, starts[e + 1] - s))
             for e in range(num_experts + 1) for s in range(starts[e], starts[e + 1], block_m)]
    total = -(-len(ids) // block_m) + num_experts
    assert len(tiles) <= total
    tiles += [(-1, len(ids), 0)] * (total - len(tiles))
    columns = np.array(tiles, np.int32).reshape(-1, 3).T
    inverse = np.empty(len(ids), np.int32)
    inverse[order] = np.arange(len(ids))
    return [*columns, order.astype(np.int32), inverse, np.array([len(ids) - starts[num_experts]], np.int32)]


def check(ids: mx.array, num_experts: int, block_m: int) -> None:
    for name, got, want in zip(NAMES, plan(ids, num_experts, block_m), expected(np.array(ids), num_experts, block_m), strict=True):
        assert got.dtype == np.int32
        np.testing.assert_array_equal(got, want, f"{name} of {num_experts} experts, tiles of {block_m}")


def histogram(rng: np.random.Generator, rows: int, experts: int, kind: str) -> np.ndarray:
    """Expert ids of one of the shapes that routing takes."""
    match kind:
        case "uniform":
            return rng.integers(0, experts, rows)
        case "one":
            return np.full(rows, rng.integers(0, experts))
        case "skewed":
            return np.minimum(rng.geometric(min(1.0, 8 / experts), rows) - 1, experts - 1)
        case "sorted":
            return np.sort(rng.integers(0, experts, rows))
        case "outside":
            return rng.integers(-2, experts + 3, rows)
    raise ValueError(kind)


KINDS = ("uniform", "one", "skewed", "sorted", "outside")


@pytest.mark.parametrize("kind", KINDS)
def test_random_histograms(kind):
    rng = np.random.default_rng(KINDS.index(kind))
    for _ in range(80):
        experts, rows = int(rng.choice([1, 2, 7, 32, 128, 512])), int(rng.choice([0, 1, 5, 63, 64, 300, 2000]))
        check(mx.array(histogram(rng, rows, experts, kind).astype(np.int32)), experts, int(rng.choice([1, 7, 16, 32, 64, 5000])))


def test_many_rows():
    check(mx.array(histogram(np.random.default_rng(5), 40_000, 512, "outside").astype(np.int32)), 512, 16)


def test_no_experts_drop_every_row():
    check(mx.array([0, 1, 2]), 0, 2)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_every_integer_and_its_limits(dtype):
    limits = np.iinfo(str(dtype).split(".")[-1])
    ids = mx.array(np.array([3, 0, limits.min, 2, limits.max, 0, 5], limits.dtype))
    assert ids.dtype == dtype
    check(ids, 5, 2)


def test_any_strides():
    ids = mx.array(np.random.default_rng(6).integers(-1, 6, (8, 6, 4)).astype(np.int32))
    for view in (ids.T, ids[::-2, 1:, ::3], mx.broadcast_to(ids[:, :1], (8, 5, 4)), ids.swapaxes(0, 1)[..., 2]):
        check(view, 5, 4)


def test_lazy_and_replayed_with_other_rows():
    build = mx.compile(lambda ids: _native.ext().cpu_tile_plan(ids + 0, 6, 4), shapeless=True)
    for rows in (9, 1, 30, 0):
        ids = mx.array(np.random.default_rng(rows).integers(-1, 7, rows).astype(np.int32))
        for got, want in zip(build(ids), expected(np.array(ids), 6, 4), strict=True):
            np.testing.assert_array_equal(np.array(got), want)


@pytest.mark.parametrize("arguments, text", [
    ((mx.float32, 4, 16), "ids is float32, but must be integers"), ((mx.bool_, 4, 16), "ids is bool, but must be integers"),
    ((mx.int32, -1, 16), "num_experts = -1, but must be 0 or more"), ((mx.int32, 4, 0), "block_m = 0, but must be 1 or more"),
])
def test_refusals(arguments, text):
    dtype, experts, block_m = arguments
    with pytest.raises(ValueError, match=r"\[cpu_tile_plan\] " + text):
        _native.ext().cpu_tile_plan(mx.zeros((3,), dtype), experts, block_m)
