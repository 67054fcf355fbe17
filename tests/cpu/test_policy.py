"""Where ``auto`` takes the CPU engine: by measured system, and matmul follows."""

import platform

import mlx.core as mx
import pytest

import mlx_tensorops as mt
from mlx_tensorops.policies import cpu_gemm


@pytest.mark.parametrize("system, taken", [("Linux", True), ("Darwin", False), ("Windows", False)])
def test_by_system(system, taken):
    entry = cpu_gemm.choose(system)
    assert entry.cpu is taken and entry.why
    assert taken or "unmeasured" in entry.why


def test_matmul_takes_what_the_table_says():
    told = mt.explain("matmul", mx.zeros((8, 8)), mx.zeros((8, 8)), stream=mx.cpu)
    entry = cpu_gemm.choose(platform.system())
    assert (told.engine, told.why) == ("cpu" if entry.cpu else "mlx", entry.why)
