"""Weights decoded, bytes moved and barriers of our kernels beside MLX's own for the M5, counted in one emulated run."""

import os

import pytest

from benchmarks import emulated_qgemm as table
from mlx_tensorops import formats
from tools.maccheck import fetch


@pytest.fixture(scope="module", autouse=True)
def headers():
    try:
        fetch.mac_mlx()
    except fetch.Unreachable as error:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"mlx-metal is not reachable: {error}")


@pytest.mark.parametrize("m", [64, *(pytest.param(m, marks=pytest.mark.exhaustive) for m in (32, 128, 256, 512))])
def test_for_each_number_of_rows_a_kernel_of_ours_is_level_with_mlx(m):
    found = table.lines(m)
    for name, line in table.level(found).items():
        theirs = next(t for t in found if t.format == name)
        assert (line.weight_bytes, line.barriers) <= (theirs.weight_bytes, theirs.barriers)
        assert "x bytes x" in table.paid(line, theirs)
    assert set(table.level(found)) == set(table.FORMATS)


@pytest.mark.parametrize("name", table.FORMATS)
def test_mlx_kernel_decodes_its_weights_once_per_block_of_rows(name):
    """The count is what the kernel's source says: so the yardstick is read right."""
    fmt, m = formats.by_name(name), 64
    x, w, scales, biases, _ = table.operands(name, m)
    line = table.mlx(name, m)
    codes, each = w.nbytes, scales.nbytes + (0 if biases is None else biases.nbytes)
    assert line.x_bytes == x.nbytes * table.N // 32, "every simdgroup column reads x itself"
    looks = {"nvfp4": 1, "affine4_g64": 4}[name]  # at a group's scale: by each thread that decodes a part of the group
    assert line.weight_bytes == codes + looks * each and fmt.bits == 4
    step = {"nvfp4": 64, "affine4_g64": 32}[name]
    assert line.barriers == (table.N // 64) * (2 * table.K // step + 1)


def test_a_kernel_that_decodes_more_is_not_level():
    found = table.lines(64)
    narrow = next(line for line in found if "16x32" in line.kernel)
    assert narrow.kernel not in {line.kernel for line in table.level([next(t for t in found if t.format == narrow.format), narrow]).values()}
