"""Counters equal hand formulas, exactly, on kernels of every kind."""

import pytest

from mlx_tensorops import hostmetal

from .planted_cases import BY_NAME

HALF, FLOAT = 2, 4


@pytest.fixture(scope="module")
def counters():
    def run(name):
        case = BY_NAME[name]
        kernel = hostmetal.compile(case.source, checked=True)
        return kernel.dispatch(grid=case.grid, threadgroup=case.threadgroup, buffers=case.buffers(), **case.options).counters

    return run


def test_stage(counters):
    c = counters("stage")
    n = 512 * FLOAT
    assert (c.device_load[0], c.device_store[1], c.threadgroup_load, c.threadgroup_store) == (n, n, n, n)
    assert (c.barriers, c.threadgroups, c.threadgroup_bytes) == (4, 4, 128 * FLOAT)


def test_exchange(counters):
    c = counters("exchange")
    n = 256 * FLOAT
    assert c.device_load == {0: n, 1: n, 2: 0}
    assert c.device_store == {0: 0, 1: n, 2: n, 3: 0}
    assert (c.barriers, c.threadgroup_bytes) == (4, 0)


def test_transpose(counters):
    c = counters("transpose")
    inside = 50 * 70 * HALF
    assert (c.device_load[0], c.device_store[1], c.threadgroup_load) == (inside, inside, inside)
    assert c.threadgroup_store == 6 * 32 * 32 * HALF
    assert (c.barriers, c.threadgroup_bytes) == (6, 32 * 33 * HALF)


def test_coop(counters):
    m, n, k = 128, 64, 48
    c = counters("coop")
    products = (m // 16) * (n // 32) * (k // 16)
    assert (c.matmul2d, c.macs, c.mma8x8, c.barriers, c.threadgroup_load) == (products, m * n * k, 0, 0, 0)
    assert c.device_load == {0: products * 16 * 16 * HALF, 1: products * 16 * 32 * HALF, 2: 0}
    assert c.device_store[2] == m * n * FLOAT


def test_staged(counters):
    m, n, k = 128, 128, 64
    c = counters("staged")
    groups, steps = (m // 64) * (n // 64), k // 32
    assert c.matmul2d == (m // 16) * (n // 32) * (k // 16) and c.macs == m * n * k
    assert c.device_load == {0: (n // 64) * m * k * HALF, 1: (m // 64) * k * n * HALF, 2: 0}
    assert c.threadgroup_store == c.device_load[0] + c.device_load[1]
    # Each of 4 simdgroups takes, per 16 of K, 16x32 of B once and 16x16 of A twice.
    assert c.threadgroup_load == groups * 4 * (k // 16) * (16 * 32 + 2 * 16 * 16) * HALF
    assert (c.barriers, c.threadgroup_bytes) == (groups * steps * 2, (64 * 32 + 32 * 72) * HALF)


def test_matrix8(counters):
    m, n, k = 64, 16, 16
    c = counters("matrix8")
    products = (m // 8) * (n // 8) * (k // 8)
    assert (c.mma8x8, c.macs, c.matmul2d) == (products, m * n * k, 0)
    assert c.device_load == {0: products * 64 * HALF, 1: products * 64 * HALF, 2: 0}
    assert (c.device_store[2], c.simdgroup_barriers) == (m * n * FLOAT, 2 * products)


def test_tensor_operands_count_apart(counters):
    c = counters("tensor")
    assert (c.matmul2d, c.macs, c.barriers) == (2, 2 * 64 * 32 * 32, 4)
    assert c.opaque_load[1] == 2 * 32 * 32 * HALF and c.device_load[1] == 0
    assert c.device_load[0] == 2 * 64 * 32 * HALF
    assert c.device_store == {0: 0, 1: 0, 2: 2 * 64 * 32 * FLOAT, 3: 2 * 64 * 32 * FLOAT, 4: 0}
    assert c.device_load[2] == 2 * 64 * 32 * FLOAT


def test_fast_build_counts_operations_but_no_bytes():
    case = BY_NAME["coop"]
    c = hostmetal.compile(case.source).dispatch(grid=case.grid, threadgroup=case.threadgroup, buffers=case.buffers()).counters
    assert c.matmul2d == 8 * 2 * 3 and not any(c.device_load.values())
