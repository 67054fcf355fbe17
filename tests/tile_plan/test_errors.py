"""What tile_plan refuses, and what it says."""

import mlx.core as mx
import numpy as np
import pytest

import mlx_tensorops as mt
from mlx_tensorops import hostmetal
from mlx_tensorops.errors import DTypeError, EngineError, ShapeError, TensorOpsError

IDS = [1, 0, 2]


@pytest.mark.parametrize("kind, message, call", [
    (TensorOpsError, r"expert_ids\[1, 0\] = 130, but num_experts = 128.\n  nearest legal: 0 .. 127\n  instead: a device plan",
     lambda: mt.tile_plan([[0, 1], [130, -1]], num_experts=128)),
    (TensorOpsError, r"expert_ids\[2\] = -1, but num_experts = 4", lambda: mt.tile_plan(np.array([0, 3, -1]), num_experts=4)),
    (TensorOpsError, r"expert_ids\[0\] = 7", lambda: mt.tile_plan(mx.array([7]), num_experts=4, builder="host")),
    (DTypeError, r"expert_ids is float32.\n  nearest legal: an integer type\n  instead: expert_ids.astype\(mx.int32\)", lambda: mt.tile_plan(mx.array([1.0]), num_experts=4)),
    (DTypeError, "expert_ids is bool", lambda: mt.tile_plan(mx.array([True]), num_experts=4)),
    (DTypeError, "expert_ids is float64", lambda: mt.tile_plan([0.5], num_experts=4)),
    (DTypeError, "expert_ids is bool", lambda: mt.tile_plan(np.array([True]), num_experts=4)),
    (TensorOpsError, "num_experts is missing", lambda: mt.tile_plan(IDS)),
    (ShapeError, "num_experts = 0.\n  nearest legal: 1", lambda: mt.tile_plan(IDS, num_experts=0)),
    (DTypeError, "num_experts is 4.5", lambda: mt.tile_plan(IDS, num_experts=4.5)),
    (ShapeError, "block_m = -1.\n  nearest legal: 1", lambda: mt.tile_plan(mx.array(IDS), num_experts=4, block_m=-1)),
    (ShapeError, "3 rows in 2147483648 tiles; a plan counts with int32", lambda: mt.tile_plan(mx.array(IDS), num_experts=2**31 - 1, block_m=3)),
    (EngineError, "builder 'gpu' is unknown.\n  nearest legal: auto, host, mpp, simdgroup, cpu, mlx", lambda: mt.tile_plan(IDS, num_experts=4, builder="gpu")),
    (EngineError, r"engine 'mpp' cannot run this here: family tile_plan has no kernel for engine mpp", lambda: mt.tile_plan(IDS, num_experts=4, builder="mpp")),
    (TensorOpsError, "expects either expert_ids or offsets", lambda: mt.tile_plan(num_experts=4)),
    (TensorOpsError, "expects either expert_ids or offsets", lambda: mt.tile_plan(IDS, offsets=[0, 3], num_experts=1)),
    (TensorOpsError, r"offsets\[0\] = 1.\n  nearest legal: 0", lambda: mt.tile_plan(offsets=[1, 3])),
    (TensorOpsError, r"offsets\[2\] = 2 is below offsets\[1\] = 3", lambda: mt.tile_plan(offsets=[0, 3, 2])),
    (ShapeError, r"offsets has shape \(1,\).\n  nearest legal: \(num_experts \+ 1,\)", lambda: mt.tile_plan(offsets=[0])),
    (ShapeError, "offsets has 3 elements, but num_experts = 3.\n  nearest legal: num_experts = 2", lambda: mt.tile_plan(offsets=[0, 1, 2], num_experts=3)),
    (ShapeError, "rows = 9, but offsets end at 2", lambda: mt.tile_plan(offsets=[0, 1, 2], rows=9)),
    (TensorOpsError, "rows is missing: offsets are an mx.array", lambda: mt.tile_plan(offsets=mx.array([0, 1, 2]))),
    (ShapeError, "rows = -2.\n  nearest legal: 0", lambda: mt.tile_plan(offsets=mx.array([0, 1, 2]), rows=-2)),
    (TensorOpsError, "rows = 7 with expert_ids, which are as many as they are.\n  instead: leave rows out", lambda: mt.tile_plan(IDS, num_experts=4, rows=7)),
    (TensorOpsError, "rows = 3 with expert_ids", lambda: mt.tile_plan(mx.array(IDS), num_experts=4, rows=3)),
    (TensorOpsError, "builder 'cpu' with offsets", lambda: mt.tile_plan(offsets=[0, 1, 2], builder="cpu")),
    (DTypeError, "offsets is float32", lambda: mt.tile_plan(offsets=mx.array([0.0, 1.0]), rows=1)),
])
def test_refusals(kind, message, call):
    with pytest.raises(kind, match=rf"\[tile_plan\] {message}"):
        call()


@pytest.mark.parametrize("rows", [dict(expert_ids=IDS, num_experts=4), dict(expert_ids=mx.array(IDS), num_experts=4), dict(offsets=[0, 3]), dict(offsets=mx.array([0, 3]), rows=3)])
def test_a_stream_is_one_whoever_builds_the_plan(rows):
    with pytest.raises(DTypeError, match="stream 'x' is a str"):
        mt.tile_plan(**rows, stream="x")
    assert mt.tile_plan(**rows, stream=mx.cpu).rows == 3


def test_engine_simdgroup_needs_metal_or_emulation():
    with pytest.raises(EngineError, match=r"\[tile_plan\] engine 'simdgroup' cannot run this here: the stream runs on cpu.*\n  nearest legal: cpu, mlx"):
        mt.tile_plan(mx.array(IDS), num_experts=4, builder="simdgroup")
    with hostmetal.active():
        assert mt.tile_plan(mx.array(IDS), num_experts=4, builder="simdgroup").order.tolist() == [1, 0, 2]
