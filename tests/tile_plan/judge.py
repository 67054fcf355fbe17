"""Runs a builder of tile plans and compares what it gives, bit for bit."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

import mlx_tensorops as mt
from mlx_tensorops import hostmetal
from mlx_tensorops.plans import ARRAYS


def assert_same(arrays, expected) -> None:
    """Six arrays against six others: type, shape, every element."""
    for name, got, want in zip(ARRAYS, arrays, expected, strict=True):
        got = np.array(got)
        assert got.dtype == want.dtype == np.int32 and got.shape == want.shape, (name, got.dtype, got.shape, want.shape)
        wrong = np.flatnonzero(got != want)
        assert not wrong.size, f"{name}[{wrong[0]}] = {got[wrong[0]]}, not {want[wrong[0]]} ({wrong.size} differ)"


def emulated(ids, num_experts: int, block_m: int, *, checked=False, order_seed=0, **adversary):
    """(plan, dispatches) of the kernels; any finding raises."""
    ids = ids if isinstance(ids, mx.array) else mx.array(np.asarray(ids).astype(np.int32))
    with hostmetal.active(checked=checked, order_seed=order_seed, **adversary), mt.trace() as trace:
        plan = mt.tile_plan(ids, num_experts=num_experts, block_m=block_m)
        mx.eval(*plan.arrays)
    return plan, trace.dispatches
