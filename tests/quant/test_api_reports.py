"""Public bug reports about quantised products, as far as this machine can try them: each with the right behaviour.

The number is that of the issue or pull request in ml-explore/mlx unless another project is named.
"""

import mlx.core as mx
import numpy as np
import pytest

import mlx_tensorops as mt
from mlx_tensorops import formats
from mlx_tensorops.errors import DTypeError, ShapeError
from mlx_tensorops.reference import to_float64
from tests.quant.api import ENGINES, floats, on, one, over, stack


def right(engine, x, stored, w, words, **options) -> bool:
    """Whether an engine's result lies within rounding of the exact one."""
    with on(engine):
        got = mt.quantized_matmul(x, *stored, **words, engine=engine, **options)
        return over(got, to_float64(x) @ w, np.abs(to_float64(x)) @ np.abs(w), k=x.shape[-1]) <= 1


@pytest.mark.parametrize("engine", ENGINES)
def test_3480_weights_with_a_stride_of_zero(engine):
    stored, w, words = one("affine4_g64", 40, 64)
    repeated = [mx.broadcast_to(a, (6, *a.shape)) for a in stored]
    assert right(engine, floats((6, 1, 64), 2), repeated, w, words)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("n", [32, 96])
def test_4250_one_row_against_weights_packed_along_n(engine, n):
    stored, w, words = one("mxfp8", n, 1024, transpose=False)
    assert right(engine, floats((1, 1024), 2), stored, w, words)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("n", [1, 3, 7, 33])
def test_665_and_rMLX_438_any_number_of_columns(engine, n):
    """Engines mpp and simdgroup run with checked pointers: one load past a buffer would be an error."""
    stored, w, words = one("affine4_g64", n, 64)
    for rows in (1, 9):
        assert right(engine, floats((rows, 64), 2), stored, w, words)


@pytest.mark.parametrize("engine", ENGINES)
def test_1577_a_tail_of_length_zero(engine):
    stored, w, words = one("affine4_g32", 40, 32)
    assert right(engine, floats((5, 32), 2), stored, w, words)


@pytest.mark.parametrize("engine", ENGINES)
def test_3912_nvfp4_with_a_tail_of_one_group(engine):
    stored, w, words = one("nvfp4", 40, 1040)
    assert right(engine, floats((20, 1040), 2), stored, w, words)


@pytest.mark.parametrize("engine", ENGINES)
def test_3444_weights_packed_along_n_with_any_k(engine):
    stored, w, words = one("mxfp4", 64, 72, transpose=False)
    assert right(engine, floats((9, 72), 2), stored, w, words)


@pytest.mark.parametrize("engine", ENGINES)
def test_410_and_3737_empty_operands(engine):
    """MLX's CPU kernel divides by the number of rows; the process would end there."""
    stored, _, words = one("nvfp4", 40, 64)
    with on(engine):
        for shape in ((0, 64), (3, 0, 64), (0, 3, 64)):
            got = mt.quantized_matmul(mx.zeros(shape), *stored, **words, engine=engine, bias=mx.ones(40))
            assert got.shape == (*shape[:-1], 40) and np.array(got).size == 0
        none = [a[:0] for a in stored]
        assert np.array(mt.quantized_matmul(mx.zeros((3, 64)), *none, **words, engine=engine)).shape == (3, 0)


def test_1051_2143_3327_3591_sizes_beyond_32_bits():
    """Nothing is evaluated: the lazy result has the right shape, and what a kernel cannot count is refused by name."""
    stored, _, words = one("nvfp4", 16, 32)
    x = mx.broadcast_to(mx.zeros((1, 1, 32)), (65536, 65536, 32))
    assert mt.quantized_matmul(x, *stored, **words, engine="cpu").shape == (65536, 65536, 16)
    with on("mpp"), pytest.raises(ShapeError, match=r"4294967296 rows.*2\*\*31"):
        mt.quantized_matmul(x, *stored, **words, engine="mpp")


@pytest.mark.parametrize("engine", ["cpu"])
def test_4479_more_than_2_to_the_31_weights(engine):
    """Rows with a stride of 0, so that the weights themselves are small."""
    stored, w, words = one("mxfp4", 1, 128)
    n = 2**24 + 8
    wide = [mx.broadcast_to(a, (n, a.shape[-1])) for a in stored]
    x = floats((1, 128), 2)
    got = mt.quantized_matmul(x, *wide, **words, engine=engine)
    for column in (0, 2**24, n - 1):
        assert over(got[:, column : column + 1], to_float64(x) @ w, np.abs(to_float64(x)) @ np.abs(w), k=128) <= 1


def test_swift_420_mixed_half_types_are_float32_only_where_nobody_says_otherwise():
    stored, w, words = one("affine4_g64", 40, 64, dtype=mx.float16)
    x = floats((5, 64), 2, mx.bfloat16)
    assert mt.quantized_matmul(x, *stored, **words).dtype == mx.quantized_matmul(x, *stored, **words).dtype == mx.float32
    assert mt.quantized_matmul(x, *stored, **words, out_dtype=mx.bfloat16).dtype == mx.bfloat16


def test_3473_a_row_stays_within_the_bound_whatever_stands_beside_it():
    stored, w, words = one("affine4_g64", 40, 512)
    x = floats((64, 512), 2)
    for rows in (1, 2, 4, 16, 64):
        for engine in ("cpu", "mpp"):
            assert right(engine, x[:rows], stored, w, words)


@pytest.mark.parametrize("engine", ENGINES)
def test_2962_and_mlx_lm_1836_tiny_weights_need_the_second_level(engine):
    """Weights of 1e-6 underflow E4M3 group scales; with the tensor's amax beside them they keep their digits."""
    weights = np.random.default_rng(3).normal(size=(40, 64)).astype(np.float32) * 1e-6
    x, amax = floats((5, 64), 2), float(np.abs(weights).max())
    nvfp4 = formats.by_name("nvfp4")
    alone, scaled = formats.quantise(weights, nvfp4)[:2], formats.quantise(weights, nvfp4, global_scale=np.float32(amax))[:2]
    with on(engine):
        lost = mt.quantized_matmul(x, *map(mx.array, alone), mode="nvfp4", engine=engine)
        kept = mt.quantized_matmul(x, *map(mx.array, scaled), mode="nvfp4", engine=engine, global_scale=amax)
        mx.eval(lost, kept)
    want = to_float64(x) @ weights.T.astype(np.float64)
    assert np.linalg.norm(to_float64(kept) - want) < 0.15 * np.linalg.norm(want)
    assert np.linalg.norm(to_float64(lost) - want) > 0.9 * np.linalg.norm(want)


def test_pmetal_32_the_tensor_factor_is_never_lost():
    stored, w, words = one("nvfp4", 40, 64)
    x = floats((5, 64), 2)
    for engine in ENGINES:
        assert right(engine, x, stored, w * (2.5 / 2688), words, global_scale=2.5)
    affine, _, affine_words = one("affine4_g64", 40, 64)
    with pytest.raises(DTypeError, match="has none"):
        mt.quantized_matmul(x, *affine, **affine_words, global_scale=2.5)


@pytest.mark.parametrize("engine", ["cpu", "mpp", "simdgroup"])
def test_963_partial_sums_beyond_half(engine):
    stored, w, words = one("mxfp4", 8, 256)
    x = mx.concatenate([mx.full((3, 128), 6e4, mx.float16), mx.full((3, 128), -6e4, mx.float16)], axis=1)
    half = w[:128]
    stored = [mx.concatenate([a[:, : a.shape[1] // 2]] * 2, axis=1) for a in stored]
    assert np.abs(6e4 * half.sum(0)).max() > 65504
    assert right(engine, x, stored, np.concatenate([half, half]), words)


def test_2548_of_tract_no_lane_map_is_assumed():
    """A fixed lane map gives finite wrong values on older GPUs: operands are filled where the tensor says its elements are."""
    stored, _, words = one("nvfp4", 96, 128)
    with on("mpp"):
        source = mt.dump_source("quantized_matmul", floats((64, 128), 1), *stored, **words, engine="mpp")
    assert "get_multidimensional_index" in source or ".load(" in source
