"""Public bug reports about gathers and experts, as far as this machine can try them: each with the right behaviour.

The number is that of the issue or pull request in ml-explore/mlx unless another project is named.
"""

import mlx.core as mx
import numpy as np
import pytest

import mlx_tensorops as mt
from tests.moe.api import ids, products
from tests.quant.api import ENGINES, floats, on, over, stack


def right(engine, x, stored, w, words, lhs, rhs, **options) -> bool:
    """Whether an engine's result lies within rounding of the exact one."""
    given = [None if i is None else mx.array(i) for i in (lhs, rhs)]
    with on(engine):
        if words:
            got = mt.gather_qmm(x, *stored, *[None] * (3 - len(stored)), *given, **words, engine=engine, **options)
        else:
            got = mt.gather_mm(x, stored[0].swapaxes(-1, -2), *given, engine=engine, **options)
        return over(got, *products(x, w, lhs, rhs)[:2], k=x.shape[-1]) <= 1


@pytest.mark.parametrize("engine", ENGINES)
def test_3887_sorted_rows_with_a_tail_of_k(engine):
    stored, w, words = stack("affine4_g32", 4, 40, 96)
    assert right(engine, floats((50, 1, 96), 1), stored, w, words, None, np.sort(ids((50,), 4, 2)), sorted_indices=True)


@pytest.mark.parametrize("engine", ["cpu", "mlx", "mpp"])
def test_3856_and_mlx_lm_1585_more_rows_than_16_bits_count(engine):
    """32,771 rows: no multiple of any block, and more than 2**15."""
    stored, w, words = stack("affine4_g32", 3, 8, 32)
    assert right(engine, floats((32771, 1, 32), 1), stored, w, words, None, np.sort(ids((32771,), 3, 2)), sorted_indices=True)


@pytest.mark.parametrize("engine", ["cpu", "mlx"])
def test_4253_sorted_with_an_inserted_axis(engine):
    stored, w, words = stack(None, 4, 24, 32)
    x, rhs = floats((6, 1, 1, 32), 1), np.sort(ids((6, 3), 4, 2).ravel()).reshape(6, 3)
    assert right(engine, x, stored, w, words, None, rhs, sorted_indices=True)
    assert right(engine, x, stored, w, words, None, rhs)


@pytest.mark.parametrize("engine", ENGINES)
def test_4055_row_slices_of_packed_weights(engine):
    stored, w, words = stack("nvfp4", 8, 64, 64)
    assert right(engine, floats((20, 1, 64), 1), [a[::2, 8:40] for a in stored], w[::2, :, 8:40], words, None, np.sort(ids((20,), 4, 2)), sorted_indices=True)


@pytest.mark.parametrize("engine", ENGINES)
def test_3912_nvfp4_experts_with_a_tail_of_one_group(engine):
    stored, w, words = stack("nvfp4", 2, 24, 1040)
    assert right(engine, floats((40, 1, 1040), 1), stored, w, words, None, ids((40,), 2, 2))


@pytest.mark.parametrize("engine", ENGINES)
def test_3762_few_columns(engine):
    stored, w, words = stack("mxfp4", 3, 5, 64)
    assert right(engine, floats((4, 1, 64), 1), stored, w, words, None, ids((4,), 3, 2))


@pytest.mark.parametrize("engine", ENGINES)
def test_3444_packed_along_n_with_a_tail_of_k(engine):
    stored, w, words = stack("mxfp8", 3, 64, 72, transpose=False)
    assert right(engine, floats((9, 1, 72), 1), stored, w, words, None, ids((9,), 3, 2))


def test_3632_names_come_from_one_table():
    """The kernel that a call looks up is the one its source defines."""
    stored, _, words = stack("nvfp4", 3, 40, 64)
    x, rhs = floats((40, 2, 64), 1), mx.array(ids((40,), 3, 2))
    with on("mpp"), mt.trace() as trace:
        mx.eval(mt.gather_qmm(x, *stored, rhs_indices=rhs, **words, engine="mpp"))
        source = mt.dump_source("gather_qmm", x, *stored, rhs_indices=rhs, **words, engine="mpp")
    assert f"void {trace.dispatches[-1]['kernel']}(" in source


def test_unsloth_1129_a_switch_turns_kernels_off(monkeypatch):
    monkeypatch.setenv("MLX_TENSOROPS_ENGINE", "mlx")
    stored, _, words = stack("affine4_g32", 3, 40, 64)
    told = mt.explain("gather_qmm", floats((4, 1, 64), 1, mx.float16), *stored, rhs_indices=mx.array([0, 1, 2, 0]), precision="tf32", activation="silu", **words)
    assert told.engine == "mlx" and "MLX_TENSOROPS_ENGINE" in told.why


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32])
def test_3200_finite_results(dtype):
    stored, w, words = stack(None, 4, 24, 32, dtype=dtype)
    for rows in (1, 3, 64):
        assert right("cpu", floats((rows, 5, 32), rows, dtype), stored, w, words, None, ids((rows,), 4, 2))
        assert right("mlx", floats((rows, 5, 32), rows, dtype), stored, w, words, None, ids((rows,), 4, 2))


@pytest.mark.parametrize("kind", [mx.int32, mx.int64, mx.uint32, mx.uint64])
@pytest.mark.parametrize("engine", ENGINES)
def test_ids_out_of_range_give_zero_rows(engine, kind):
    """MLX's CPU kernels crash or return what lies behind the weights. Values that only look right in 32 bits are out of range, too."""
    stored, w, words = stack("affine4_g64", 4, 40, 64)
    wide = [0, 4, 3, 2**31 - 1, 1] + ([2**31, 2**32 - 1] if kind != mx.int32 else []) + ([2**32, 2**32 + 1] if kind in (mx.int64, mx.uint64) else [])
    if kind in (mx.int32, mx.int64):
        wide += [-1, -(2**31)]
    rhs = np.array(wide, dtype=object)
    given = mx.array(np.array(wide, dtype={mx.int32: np.int32, mx.int64: np.int64, mx.uint32: np.uint32, mx.uint64: np.uint64}[kind]))
    x = floats((len(wide), 1, 64), 1)
    want, magnitude, valid = products(x, w, None, rhs.astype(np.int64))
    assert valid.sum() == 3
    with on(engine):
        got = mt.gather_qmm(x, *stored, rhs_indices=given, **words, engine=engine)
        assert over(got, want, magnitude, k=64) <= 1
        order = np.argsort(rhs)
        got = mt.gather_qmm(x[mx.array(order)], *stored, rhs_indices=given[mx.array(order)], **words, sorted_indices=True, engine=engine)
        assert over(got, want[order], magnitude[order], k=64) <= 1
        left = mx.array(np.array([0, -1, len(wide), 1], dtype=np.int32))
        got = mt.gather_qmm(x, *stored, lhs_indices=left, rhs_indices=mx.array([0, 1, 2, 3]), **words, engine=engine)
        assert over(got, *products(x, w, np.array(left), np.arange(4))[:2], k=64) <= 1
    dropped = mt.tile_plan(given, num_experts=4)
    assert dropped.dropped.item() == len(wide) - 3


@pytest.mark.parametrize("engine", ENGINES)
def test_sorted_ids_with_x_that_has_no_row_of_its_own_for_each(engine):
    """MLX's grouped kernel on Metal takes the number of rows before it broadcasts x, and leaves the rest unwritten."""
    stored, w, words = stack("nvfp4", 4, 40, 64)
    assert right(engine, floats((1, 1, 64), 1), stored, w, words, None, np.sort(ids((30,), 4, 2)), sorted_indices=True)


def test_no_expert_at_all():
    """A set without experts has no id in range: rows of zeros on engine cpu and mlx."""
    stored, _, words = stack("affine4_g64", 1, 40, 64)
    none = [a[:0] for a in stored]
    for engine in ("cpu", "mlx"):
        got = mt.gather_qmm(floats((3, 1, 64), 1), *none, rhs_indices=mx.array([0, 1, -1]), **words, engine=engine)
        assert got.shape == (3, 1, 40) and not np.array(got).any()
