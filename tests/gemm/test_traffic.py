"""Operand traffic of the half 512x512x512 product, counted in one run beside MLX's own NAX kernel.

Nothing is shared between simdgroups, so each loads M K s (N / n) + K N s (M / m) bytes where it owns m x n of C.
"""

import os
import struct

import numpy as np
import pytest

from mlx_tensorops import hostmetal, registry
from tests.cases.gemm import make
from tests.gemm import filled, flows
from tools.maccheck import fetch

SIZE = 512
WANTED = {(32, 64): 12_582_912, (32, 32): 16_777_216}  # part of C per simdgroup -> bytes
WORDS = {"direct": 80, "direct8": 44, "register_direct": 60}  # registers per lane: accumulators and live operands
CASES = (("direct", "coordinate"), ("direct8", "coordinate"), ("register_direct", "nax"))


def operands():
    rng = np.random.default_rng(1)
    return make("rows", SIZE, SIZE, "float16", rng), make("rows", SIZE, SIZE, "float16", rng)


@pytest.mark.parametrize("dataflow, fill", CASES)
def test_operand_bytes(dataflow, fill):
    variants = filled.variants(dataflow, fill)
    variant = variants["nn/aligned"]
    a, b = operands()
    c, dispatch = flows.run(variants, a, b, checked=True)
    counters, part = dispatch["counters"], (variant.tile.warp_m, variant.tile.warp_n)
    assert filled.over_bound(variants, a, b, c) <= 1
    read = sum(counters["device_load"][:2])
    assert read == SIZE**3 * 2 // part[1] + SIZE**3 * 2 // part[0] == WANTED[part]
    assert [rule((a.shape, b.shape)) for rule in registry.family("gemm").cost(variant).operand_bytes] == counters["device_load"][:2]
    assert counters["threadgroup_bytes"] == counters["threadgroup_load"] == 0
    assert counters["matmul2d"] == SIZE**3 // (16 * 32 * 16)
    assert filled.words_per_lane(variant) == WORDS[dataflow]


def test_mlx_own_kernel_reads_as_much_as_its_partition_says():
    """steel_gemm_fused_nax of the pinned mlx-metal wheel: 32x32 per simdgroup, in 64x128 blocks of 2x4."""
    try:
        include = fetch.mac_mlx() / "include"
    except fetch.Unreachable as error:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"mlx-metal is not reachable: {error}")
    folder, (bm, bn, bk) = "mlx/backend/metal/kernels", (64, 128, 256)
    headers = ("utils.h", "steel/gemm/gemm_nax.h", "steel/gemm/kernels/steel_gemm_fused_nax.h")
    source = "#include <metal_stdlib>\n#include <metal_tensor>\n#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>\n"
    source += "".join(f'#include "{folder}/{h}"\n' for h in headers)
    constants = {10: False, 100: False, 110: False, 200: True, 201: True, 202: True}
    kernel = hostmetal.compile(source, "gemm", checked=True, template=f"half, {bm}, {bn}, {bk}, 2, 4, false, false, float",
                               function_constants=constants, include=[include])
    a, b = (np.array(x) for x in operands())
    grid = (SIZE // bn, SIZE // bm, 1)
    params = struct.pack("<8i3q3i4x", *(SIZE,) * 6, *grid[:2], 0, 0, 0, 0, SIZE // bk, 1)
    c, none = np.zeros((SIZE, SIZE), np.float16), np.zeros(1, np.float16)
    buffers = [a, b, none, c, params, bytes(32), np.array([1], np.int32), np.zeros(2, np.int64)]
    result = kernel.dispatch(grid=grid, threadgroup=(32, 4, 2), buffers=buffers)
    counters, want = result.counters, a.astype(np.float64) @ b.astype(np.float64)
    assert np.max(np.abs(result.outputs[3].astype(np.float64) - want)) <= 1e-3 * np.max(np.abs(want))
    assert counters.device_load[0] + counters.device_load[1] == WANTED[32, 32]
    assert counters.threadgroup_bytes == 0 and counters.matmul2d == SIZE**3 // (16 * 32 * 16)
