"""The cost model ranks dataflows as hardware did, and explain() prints what it says."""

import mlx.core as mx
import pytest

import mlx_tensorops as mt
from mlx_tensorops import device, registry
from mlx_tensorops.policies.partition import cooperative_tile
from mlx_tensorops.variant import Tile
from tests.gemm import flows

# Shapes on which TileLang's authors found their direct-global path faster than shared staging (base M5, f16, full tiles).
MEASURED = ((4096, 4096, 4096), (2048, 2048, 2048), (4096, 2048, 4096), (2048, 4096, 4096))


def cost(dataflow: str, tile: Tile):
    """Cost of the aligned nn row with half operands."""
    return registry.family("gemm").cost(flows.variant_set("mpp", dataflow, tile, flows.spec_of("float16"))["nn/aligned"])


@pytest.mark.parametrize("m, n, k", MEASURED)
def test_direct_ranks_above_staged_where_hardware_put_it(m, n, k):
    shapes, strides = ((m, k), (k, n)), ((k, 1), (n, 1))
    direct, staged = cost("direct", cooperative_tile(64, 128, 4)), cost("staged", Tile(64, 64, 2, 2, 32, 32, 32))
    assert direct.bytes_moved(shapes, strides) < staged.bytes_moved(shapes, strides)
    assert direct.barriers(shapes, strides) == 0 < staged.barriers(shapes, strides)
    device_bytes = [sum(rule(shapes, strides) for rule in c.operand_bytes) for c in (direct, staged)]
    assert device_bytes[0] > device_bytes[1], "device bytes alone would have ranked them the other way round"


def test_explain_prints_the_whole_model():
    with device.force("m5"):
        told = mt.explain("matmul", mx.zeros((512, 512), mx.float16), mx.zeros((512, 512), mx.float16), engine="mpp")
    want = {"matmul2d", "mma8x8", "macs", "operand_bytes", "output_bytes", "bytes_moved", "barriers", "threadgroup_bytes", "threadgroup_load",
            "threadgroup_store", "accumulator_words", "operand_words"}
    assert set(told.predicted) == want
    assert sum(told.predicted["operand_bytes"]) == 12_582_912 and told.predicted["matmul2d"] == 16384
    for name in want:
        assert f"predicts {name} = " in str(told)
