"""The native plan builder against the definition."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mlx_tensorops.primitives import _native
from tests.cases.tile_plan import KINDS, definition, routing
from tests.tile_plan.judge import assert_same

INTEGERS = (mx.uint8, mx.uint16, mx.uint32, mx.uint64, mx.int8, mx.int16, mx.int32, mx.int64)


def check(ids: mx.array, num_experts: int, block_m: int) -> None:
    assert_same(_native.ext().cpu_tile_plan(ids, num_experts, block_m), definition(np.array(ids), num_experts, block_m))


@pytest.mark.parametrize("kind", KINDS)
def test_random_histograms(kind):
    rng = np.random.default_rng(KINDS.index(kind))
    for _ in range(80):
        experts, rows = int(rng.choice([1, 2, 7, 32, 128, 512])), int(rng.choice([0, 1, 5, 63, 64, 300, 2000]))
        check(mx.array(routing(kind, rows, experts, rng).astype(np.int32)), experts, int(rng.choice([1, 7, 16, 32, 64, 5000])))


def test_many_rows():
    check(mx.array(routing("out_of_range", 40_000, 512, np.random.default_rng(5)).astype(np.int32)), 512, 16)


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
        assert_same(build(ids), definition(np.array(ids), 6, 4))


@pytest.mark.parametrize("arguments, text", [
    ((mx.float32, 4, 16), "ids is float32, but must be integers"), ((mx.bool_, 4, 16), "ids is bool, but must be integers"),
    ((mx.int32, -1, 16), "num_experts = -1, but must be 0 or more"), ((mx.int32, 4, 0), "block_m = 0, but must be 1 or more"),
])
def test_refusals(arguments, text):
    dtype, experts, block_m = arguments
    with pytest.raises(ValueError, match=r"\[cpu_tile_plan\] " + text):
        _native.ext().cpu_tile_plan(mx.zeros((3,), dtype), experts, block_m)
