"""The tests of this folder can fail: each fault planted into a copy of the headers is caught by the test named with it."""

import shutil

import pytest

from mlx_tensorops import hostmetal
from mlx_tensorops.hostmetal import toolchain

from . import test_adversary, test_groups, test_math, test_matmul2d, test_vectors

FRAGMENT = ("half", "half", "float", 16, 32, 16, False, False, True)
TRANSPOSED = ("bfloat", "bfloat", "float", 16, 32, 16, True, True, True)

# file, what is there, what takes its place, and the check that must notice
MUTANTS = {
    "tile transposed": ("hm_matmul.h", "Swap ? column * Cols + row", "Swap ? row * Cols + column", lambda: test_matmul2d.test_fragments(*TRANSPOSED, False)),
    "inner loop short": ("hm_matmul.h", "k < K; ++k)", "k + 1 < K; ++k)", lambda: test_matmul2d.test_fragments(*FRAGMENT, False)),
    "accumulation lost": ("hm_matmul.h", "if (accumulate) gather_from", "if (!accumulate) gather_from", lambda: test_matmul2d.test_fragments(*FRAGMENT, False)),
    "edge not clipped": ("hm_matmul_tensor.h", "(Swap ? c : r) < t.shape.values[1]", "(Swap ? c : r) <= t.shape.values[1]", lambda: test_matmul2d.test_tensor_operands(100, 40, 50, True)),
    "inner tail dropped": ("hm_matmul_tensor.h", "k < length; k += step", "k + step <= length; k += step", lambda: test_matmul2d.test_tensor_operands(100, 40, 50, False)),
    "nibbles exchanged": ("hm_formats.h", "byte >> n * F::bits % 8", "byte >> (8 - F::bits - n * F::bits % 8)", lambda: test_matmul2d.test_packed_right_operands("int4b_format")),
    "identity ignored": ("hm_reduce.h", "F r = static_cast<F>(identity)", "F r = F(0)", lambda: test_matmul2d.test_chained_products_and_reductions(False)),
    "truncation one bit off": ("hm_matmul.h", "0xffffe000u", "0xffffc000u", test_adversary.test_relaxed_float_operands_keep_eleven_bits),
    "destination not read": ("hm_mpp.h", "if (accumulate) __hm::note_reads(destination);", "", lambda: test_adversary.test_an_uninitialised_tile_is_nan_and_in_the_checked_build_a_finding("nax")),
    "shuffle off by one": ("hm_collective.h", "i + k < Width ? i + k : i", "i + k + 1 < Width ? i + k + 1 : i", lambda: test_groups.test_group_functions("float", "simd")),
    "scan always inclusive": ("hm_collective.h", "Inclusive ? sum : before", "sum", lambda: test_groups.test_group_functions("float", "simd")),
    "modulo ignored": ("hm_collective.h", "filled = i - base + k >= m", "filled = i + k >= Width", test_groups.test_vectors_bfloat_and_modulo),
    "matrix map": ("hm_simdgroup_matrix.h", "(lane >> 2 & 2) * 2 + (lane & 1) * 2", "(lane >> 2 & 2) + (lane & 1) * 4", lambda: test_groups.test_simdgroup_matrix("float", False)),
    "compare-and-swap loses": ("hm_atomic.h", "if (equal) value = desired;", "if (equal && desired % 3) value = desired;", lambda: test_groups.test_atomics_under_several_orders(False)),
    "bfloat truncates": ("hm_bfloat.h", "(u + 0x7fffu + ((u >> 16) & 1)) >> 16", "u >> 16", test_vectors.test_bfloat_rounds_to_nearest_even),
    "one swizzle": ("hm_swizzle4.h", "(wzyx, abgr, 4, (d[3], d[2], d[1], d[0])", "(wzyx, abgr, 4, (d[3], d[1], d[2], d[0])", test_vectors.test_every_swizzle_reads_and_writes),
    "base of exp2": ("hm_math.h", "__builtin_exp2f(x)", "__builtin_expf(x)", test_math.test_float_functions),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_in_the_headers_is_caught(name, tmp_path, monkeypatch):
    file, old, new, check = MUTANTS[name]
    folder = tmp_path / "include"
    shutil.copytree(toolchain.INCLUDE, folder)
    text = (folder / file).read_text()
    assert text.count(old) == 1, f"{old!r} is not in {file} exactly once"
    (folder / file).write_text(text.replace(old, new))
    monkeypatch.setattr(toolchain, "INCLUDE", folder)
    with pytest.raises((AssertionError, hostmetal.HostMetalError)):
        check()
