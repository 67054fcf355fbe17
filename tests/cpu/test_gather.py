"""Products of gathered rows with their experts: right values for every format, type, stride, index and histogram."""

from __future__ import annotations

import itertools

import mlx.core as mx
import numpy as np
import pytest

from mlx_tensorops.formats import BUILT_IN
from mlx_tensorops.primitives import _cpu
from tests.cases.tile_plan import KINDS, routing

from .experts import Experts, experts, gather_mm, ids, product
from .oracle import DTYPES, activate, check, f64, random, wrong

SETS = _cpu.info()["usable_instruction_sets"]
SAMPLE = ("affine4_g64", "affine3_g32", "affine8_g128", "mxfp4", "mxfp8", "nvfp4")


def agree(x, weights, rhs, lhs=None, *, activation=None, what=None, **kwargs) -> None:
    want, slack = product(x, weights, rhs, lhs, **{k: v for k, v in kwargs.items() if k != "dtype"})
    got = gather_mm(x, weights, rhs, lhs, activation=activation, **kwargs)
    check(got, activate(want, activation), slack * 1.13, what)


@pytest.mark.parametrize("name", [f.name for f in BUILT_IN])
def test_every_format(name):
    rng = np.random.default_rng(1)
    for transpose, dtype in itertools.product((True, False), DTYPES):
        weights = experts(rng, name, 5, 128, 128, transpose=transpose, dtype=dtype)
        agree(random(rng, (9, 1, 1, 128), dtype), weights, ids(rng, (9, 2), 5, outside=True), what=(transpose, dtype))


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("name", (None, *SAMPLE))
def test_sizes_around_every_edge(configure, name, instruction_set):
    """Ragged N (below 8, too) and K (one group over, 1040), rows per expert on both sides of the tiles and of the few-row routes."""
    configure(instruction_set=instruction_set, threads=2)
    rng = np.random.default_rng(2)
    for i, (n, k) in enumerate(((1, 128), (7, 256), (33, 384), (96, 128), (200, 640))):
        dtype = DTYPES[i % 3]
        weights = experts(rng, name, 3, n, k, dtype=dtype)
        for rows in (1, 2, 9, 40):
            agree(random(rng, (rows, 1, k), dtype), weights, ids(rng, (rows,), 3), dtype=dtype, what=(n, k, rows))
    group = 16 if name is None else max(16, next(f.group for f in BUILT_IN if f.name == name))
    for transpose in (True, False):
        n, k = (40, 1040 // group * group) if transpose else (group, 7)
        weights = experts(rng, name, 3, n, k, transpose=transpose)
        agree(random(rng, (70, 1, k), mx.float32), weights, ids(rng, (70,), 3), what=(transpose, n, k))


@pytest.mark.parametrize("kind", KINDS)
def test_random_histograms(kind):
    rng = np.random.default_rng(30 + KINDS.index(kind))
    for turn in range(20):
        e, rows = int(rng.choice([1, 2, 8, 64, 512])), int(rng.choice([0, 1, 5, 64, 700]))
        weights = experts(rng, SAMPLE[turn % 6], e, int(rng.integers(1, 70)), 128)
        agree(random(rng, (rows, 1, 128), DTYPES[turn % 3]), weights, mx.array(routing(kind, rows, e, rng).astype(np.int32)), what=(kind, turn))


def test_forty_thousand_rows():
    """More than a 16-bit row count, with a remainder in every tile height."""
    rng = np.random.default_rng(4)
    weights = experts(rng, "mxfp4", 16, 24, 32)
    agree(random(rng, (40_001, 1, 32), mx.bfloat16), weights, ids(rng, (40_001,), 16, outside=True))


@pytest.mark.parametrize("dtype", (np.uint8, np.uint16, np.uint32, np.uint64, np.int8, np.int16, np.int32, np.int64))
def test_index_types_and_ids_out_of_range(dtype):
    """The rows of -1, E, and the type's limits are zeros, bias and activation or not; MLX crashes or returns what it finds there."""
    rng = np.random.default_rng(5)
    limits = np.iinfo(dtype)
    values = np.array([2, limits.max, 0, limits.min, 3, 1], dtype)
    rhs, lhs = mx.array(values), mx.array(np.array([0, 1, limits.max, 2, 1, 3], dtype))
    weights, x, bias = experts(rng, "nvfp4", 3, 40, 64), random(rng, (3, 2, 64), mx.float32), random(rng, (3, 40), mx.float32)
    agree(x, weights, rhs, lhs, bias=bias, activation="gelu_erf")
    outside = [i for i in range(6) if not (0 <= int(values[i]) < 3 and 0 <= int(np.array(lhs)[i]) < 3)]
    assert len(outside) >= 3
    got = np.array(gather_mm(x, weights, rhs, lhs, bias=bias + 5))
    assert (got[outside] == 0).all() and (np.abs(np.delete(got, outside, 0)).sum((1, 2)) > 0).all()


@pytest.mark.parametrize("name", (None, "affine4_g64", "mxfp8"))
def test_each_index_selects_a_matrix(name):
    """MLX's rules: batches of x of any rank, M > 1, lhs and rhs broadcast."""
    rng = np.random.default_rng(6)
    weights = experts(rng, name, 6, 50, 128)
    for m, (batch, lhs, rhs) in itertools.product((1, 3, 20, 300), (
            ((), None, ()), ((), None, (4,)), ((5,), None, (5,)), ((5, 1), None, (5, 3)), ((2, 3, 1), None, (3, 2)), ((3, 4), None, (2, 1, 4)),
            ((5,), (7,), (7,)), ((2, 3), (4, 1), (1, 5)), ((4,), (), (3, 2)), ((4,), (3, 2), ()))):
        if m == 300 and len(rhs) > 1:
            continue
        x = random(rng, (*batch, m, 128), DTYPES[m % 3])
        left = None if lhs is None else ids(rng, lhs, int(np.prod(batch)))
        agree(x, weights, ids(rng, rhs, 6), left, what=(m, batch, lhs, rhs))


def test_the_same_as_mlx():
    """The semantics are those of mx.gather_qmm and mx.gather_mm, tried on both in float32."""
    rng = np.random.default_rng(7)
    for batch, lhs, rhs in (((4, 1), None, (4, 2)), ((3,), (5,), (5,)), ((2, 2), (2, 1), (3,))):
        left = None if lhs is None else ids(rng, lhs, int(np.prod(batch)))
        x, right = random(rng, (*batch, 2, 64), mx.float32), ids(rng, rhs, 3)
        for transpose in (True, False):
            q, d = experts(rng, "affine4_g32", 3, 96, 64, transpose=transpose), experts(rng, None, 3, 96, 64, transpose=transpose)
            theirs = mx.gather_qmm(x, *q.stored, left, right, transpose=transpose, group_size=32, bits=4)
            np.testing.assert_allclose(np.array(gather_mm(x, q, right, left)), np.array(theirs), rtol=1e-4, atol=1e-4)
            theirs = mx.gather_mm(x, d.w.swapaxes(1, 2) if transpose else d.w, left, right)
            np.testing.assert_allclose(np.array(gather_mm(x, d, right, left)), np.array(theirs), rtol=1e-4, atol=1e-4)


def restored(weights: Experts, store) -> Experts:
    """The same weights, each array held by a view that ``store`` makes."""
    return Experts(*(None if a is None else store(a) for a in weights.stored), weights.format, weights.transpose, weights.values)


def rows_cut(a):
    """A slice of rows and experts out of larger storage."""
    wide = mx.zeros((a.shape[0] + 1, 2 * a.shape[1] + 3, a.shape[2] + 4), a.dtype)
    wide[1:, 3::2, 2:-2] = a
    return wide[1:, 3::2, 2:-2]


STORES = {"rows cut": rows_cut, "reversed": lambda a: mx.contiguous(a[::-1, ::-1])[::-1, ::-1],
          "last axis strided": lambda a: mx.repeat(a, 2, axis=2)[..., ::2], "experts innermost": lambda a: mx.contiguous(a.transpose(1, 2, 0)).transpose(2, 0, 1)}


@pytest.mark.parametrize("store", STORES)
def test_any_strides_of_weights(store):
    rng = np.random.default_rng(8)
    for name, transpose in itertools.product((None, "affine4_g32", "affine5_g64", "nvfp4", "mxfp8"), (True, False)):
        weights = experts(rng, name, 4, 64, 128, transpose=transpose, dtype=mx.bfloat16)
        views = restored(weights, STORES[store])
        mx.eval(*(a for a in views.stored if a is not None))
        agree(random(rng, (12, 1, 128), mx.bfloat16), views, ids(rng, (12,), 4), what=(name, transpose))


def test_experts_that_share_weights_and_experts_of_two_axes():
    rng = np.random.default_rng(9)
    one = experts(rng, "affine4_g64", 1, 32, 128)
    shared = Experts(*(mx.broadcast_to(a, (5, *a.shape[1:])) for a in one.stored), one.format, True, np.repeat(one.values, 5, 0))
    agree(random(rng, (20, 1, 128), mx.float16), shared, ids(rng, (20,), 5))
    many = experts(rng, "mxfp4", 6, 32, 128)
    square = restored(many, lambda a: a.reshape(2, 3, *a.shape[1:]).swapaxes(0, 1))
    square = Experts(*square.stored, many.format, True, many.values.reshape(2, 3, 128, 32).swapaxes(0, 1).reshape(6, 128, 32))
    agree(random(rng, (20, 1, 128), mx.float16), square, ids(rng, (20,), 6, outside=True))


def test_any_strides_of_x_and_of_indices():
    rng = np.random.default_rng(10)
    weights = experts(rng, "nvfp4", 4, 48, 64)
    base = random(rng, (6, 8, 10, 128), mx.bfloat16)
    views = {"cut": base[1:4, ::2, 3:5, 64:], "reversed": base[::-1, ::-3, :2, ::-2], "transposed": base[..., :2, :64].swapaxes(0, 1),
             "columns": random(rng, (3, 4, 64, 5), mx.bfloat16).swapaxes(2, 3), "repeated": mx.broadcast_to(base[:, :1, :1, :64], (6, 8, 3, 64)),
             "single rows": base[:, 0, :, None, :64]}
    every = ids(rng, (20, 30), 4, outside=True)
    for name, x in views.items():
        batch = x.shape[:-2]
        for rhs in (every[: batch[0], : batch[1]], every.T[1 : 2 * batch[0] + 1 : 2, : batch[1]], every[:1, : batch[1]]):
            agree(x, weights, rhs, what=(name, "broadcast"))
        lhs = mx.array(rng.integers(-1, int(np.prod(batch)) + 1, (9, 4)).astype(np.int32))
        agree(x, weights, every[:4, :9].T, lhs, what=(name, "lhs"))
        agree(x, weights, every[:4, :9].T, lhs[:, :1], what=(name, "lhs, one axis broadcast"))


@pytest.mark.parametrize("activation", (None, "relu", "silu", "gelu_tanh", "gelu_erf"))
def test_bias_activation_and_global_scale(activation):
    rng = np.random.default_rng(11)
    weights, x = experts(rng, "nvfp4", 4, 72, 64), random(rng, (30, 1, 64), mx.bfloat16) / 16
    for dtype, (scales, divisor) in itertools.product(DTYPES, (((1,), 2688.0), ((4,), 2688.0), ((4,), 1.0))):
        global_scale = mx.array(rng.uniform(0.5, 2, (2 * scales[0],)).astype(np.float32) * divisor)[::2]
        for bias in (None, random(rng, (4, 72), dtype), random(rng, (72, 4), dtype).T, random(rng, (1, 72), dtype, "n")[:, ::-1] + mx.zeros((4, 1), dtype)):
            agree(x, weights, ids(rng, (30,), 4, outside=True), bias=bias, global_scale=global_scale, divisor=divisor, activation=activation, dtype=dtype)


@pytest.mark.parametrize("shape", [dict(rows=0), dict(n=0), dict(e=0), dict(m=0), dict(k=0)])
def test_zero_sizes(shape):
    sizes = dict(rows=5, n=8, e=3, m=2, k=32) | shape
    rows, n, e, m, k = sizes.values()
    weights = Experts(mx.ones((e, n, k)), None, None, None, True, np.ones((e, k, n)))
    rhs, bias = mx.zeros((rows,), mx.int32), mx.ones((e, n))
    agree(mx.ones((rows, m, k)), weights, rhs, bias=bias if e else None)


def test_a_row_repeated_by_a_stride_of_zero():
    rng = np.random.default_rng(12)
    weights, row = experts(rng, None, 2, 5, 16), random(rng, (1, 1, 16), mx.float32)
    x = mx.broadcast_to(row, (2**16, 1, 16))
    many = mx.broadcast_to(ids(rng, (1, 1), 2), (2**15, 1))
    got = gather_mm(x, weights, many, mx.full((2**15, 1), 2**16 - 1, mx.int64))
    want, slack = product(row, weights, many[:1])
    check(got[:1], want, slack)
    assert mx.all(got == got[:1]).item()


@pytest.mark.exhaustive  # takes 4.3 GB
def test_weights_longer_than_32_bit_offsets():
    """The second expert starts 2^31 elements behind the first."""
    rng = np.random.default_rng(13)
    values = experts(rng, None, 2, 8, 32, dtype=mx.bfloat16)
    store = mx.zeros((2**11 + 1, 8, 2**17), mx.bfloat16)
    store[0, :, :32], store[2**11, :, :32] = values.w[0], values.w[1]
    apart = Experts(store[:: 2**11, :, :32], None, None, None, True, values.values)
    agree(random(rng, (40, 1, 32), mx.bfloat16), apart, ids(rng, (40,), 2))
    agree(store[:: 2**11, 2:5, :32], apart, ids(rng, (4, 2), 2))
    # Rows one element apart and rows 2^31 apart in one block: no 32-bit index reaches both.
    narrow = experts(rng, None, 2, 5, 8)
    agree(store[:: 2**11, :, :32].swapaxes(1, 2)[..., None, :], narrow, mx.zeros((2, 32), mx.int32))


def test_the_bound_notices_planted_faults():
    """What a broken engine would return, against the bound that every test here uses."""
    rng = np.random.default_rng(14)
    weights, x, rhs = experts(rng, "affine4_g64", 4, 40, 256, dtype=mx.bfloat16), random(rng, (24, 1, 256), mx.bfloat16), ids(rng, (24,), 4)
    want, slack = product(x, weights, rhs)
    assert not wrong(gather_mm(x, weights, rhs), want, slack).any()
    values, row = weights.values, f64(x)[:, 0]

    def all_rows(chosen, scale=1.0):
        return mx.array((np.einsum("rk,rkn->rn", row, chosen) * scale)[:, None].astype(np.float32)).astype(mx.bfloat16)

    chosen = values[np.array(rhs)]
    faults = {
        "another expert for one row": np.concatenate([values[(np.array(rhs)[:1] + 1) % 4], chosen[1:]]),
        "last group of K dropped": np.concatenate([chosen[:, :192], np.zeros_like(chosen[:, 192:])], 1),
        "scales shifted by one group": np.roll(chosen, 64, 1),
        "one column late": np.roll(chosen, 1, 2),
    }
    for name, value in faults.items():
        assert wrong(all_rows(value), want, slack).any(), name
    assert wrong(all_rows(chosen, 1.01), want, slack).any()
    shuffled = gather_mm(x[::-1], weights, rhs)
    assert wrong(shuffled, want, slack).any()
