"""Products with block-quantised weights against float64: every format, size, layout, instruction set and number of threads."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from mlx_tensorops.formats import Format, by_name

from .oracle import DTYPES, LAYOUTS, random
from .quant import FORMATS, SETS, check, of_arrays, qmm, stored

OF_EACH_KIND = ("affine4_g64", "affine3_g32", "affine8_g128", "mxfp4", "mxfp8", "nvfp4")

# Formats that MLX does not have: a table that bf16 cannot hold, one of eight bits, groups that are not a power of two or a multiple of 16.
NORMAL_FLOAT = Format("nf4", "nf4", 4, 64, "table", "float", values=tuple(float(x) for x in np.sort(np.random.default_rng(5).standard_normal(16)).astype(np.float32)))
OF_ONES_OWN = (
    NORMAL_FLOAT,
    Format("table3", "table3", 3, 32, "table", "float", biased=True, values=(-4.0, -2.5, -1.0, 0.0, 0.5, 1.5, 3.0, 7.0)),
    Format("table5", "table5", 5, 32, "table", "e8m0", values=tuple(float(i * i) / 7 - 3 for i in range(32))),
    Format("table8", "table8", 8, 16, "table", "e4m3", values=tuple(float(i - 128) / 3 for i in range(256))),
    Format("bf16table4", "bf16table4", 4, 32, "table", "float", values=tuple(float(i - 8) for i in range(16))),
    Format("four_by_8", "four_by_8", 4, 8, "e2m1", "e4m3"),
    Format("two_by_48", "two_by_48", 2, 48, "unsigned", "float", biased=True),
    Format("eight_by_96", "eight_by_96", 8, 96, "e4m3", "e8m0"),
)
WIDE = (Format("eight_by_400", "eight_by_400", 8, 400, "unsigned", "float", biased=True),
        Format("four_by_1024", "four_by_1024", 4, 1024, "unsigned", "float", biased=True))


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("form", (*FORMATS, *OF_ONES_OWN), ids=lambda f: f.name)
def test_every_format(configure, form, instruction_set):
    configure(instruction_set=instruction_set)
    rng = np.random.default_rng(FORMATS.index(form) if form in FORMATS else 99)
    for transpose in (True, False):
        for dtype in DTYPES:
            for m in (1, 3, 8, 19):
                tail = 7 * form.group  # not a multiple of what any kernel takes at a time
                n, k = (21, tail) if transpose else (tail, 21)
                s, x = stored(rng, form, n, k, transpose, dtype), random(rng, (m, k), dtype)
                check(qmm(x, s), x, s, dtype)


@pytest.mark.parametrize("name", OF_EACH_KIND)
def test_rows_of_x(name):
    rng = np.random.default_rng(31)
    for transpose in (True, False):
        s = stored(rng, by_name(name), 128, 256, transpose, mx.bfloat16)
        for m in (*range(0, 26), 31, 32, 33, 63, 64, 70, 287, 289, 600):
            x = random(rng, (m, 256), mx.bfloat16)
            check(qmm(x, s, mx.float32), x, s)


@pytest.mark.parametrize("transpose", (True, False))
@pytest.mark.parametrize("name", OF_EACH_KIND)
def test_ragged_sizes(name, transpose):
    rng, form = np.random.default_rng(32), by_name(name)
    outer, inner = (1, 7, 33, 96, 704), (form.group, 3 * form.group, 1040 // form.group * form.group)
    for rows in outer:
        for columns in inner:
            n, k = (rows, columns) if transpose else (columns, rows)
            s = stored(rng, form, n, k, transpose, mx.float16)
            for m in (1, 2, 5, 17):
                x = random(rng, (m, k), mx.float16)
                check(qmm(x, s), x, s)


def test_more_than_one_block_along_every_axis():
    rng = np.random.default_rng(33)
    for transpose in (True, False):
        s = stored(rng, by_name("nvfp4"), 1056, 1040, transpose)
        for m in (3, 300):
            x = random(rng, (m, 1040), mx.float32)
            check(qmm(x, s), x, s)
    for form in WIDE:  # the scales are one for each step, or one for more than a block
        s = stored(rng, form, 100, 12 * form.group, True, mx.bfloat16)
        for m in (1, 7, 30):
            x = random(rng, (m, 12 * form.group), mx.bfloat16)
            check(qmm(x, s), x, s)
    s = stored(rng, by_name("mxfp4"), 40, 9216)
    x = random(rng, (2, 9216), mx.bfloat16)
    check(qmm(x, s), x, s)


def test_nothing_to_multiply():
    """Zero rows, columns and depth: the shape is right, and an empty sum is what the epilogue starts from."""
    form = by_name("affine4_g32")
    rng = np.random.default_rng(34)
    s = stored(rng, form, 32, 64)
    assert qmm(mx.zeros((0, 64)), s).shape == (0, 32)
    assert qmm(mx.zeros((3, 0, 64)), s).shape == (3, 0, 32)
    none = stored(rng, form, 0, 64)
    assert qmm(mx.zeros((5, 64)), none).shape == (5, 0)
    empty = stored(rng, form, 32, 0)
    bias, residual = mx.array(rng.standard_normal(32, np.float32)), random(rng, (4, 32), mx.float32)
    x = mx.zeros((4, 0))
    check(qmm(x, empty, None, None, bias, "silu", residual), x, empty, bias=bias, activation="silu", residual=residual)
    gs = mx.array([3.0])
    check(qmm(x, stored(rng, by_name("nvfp4"), 32, 0), None, (gs, 1.0), bias), x, stored(rng, by_name("nvfp4"), 32, 0), bias=bias)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_x(layout):
    rng = np.random.default_rng(35)
    for name in ("mxfp4", "affine6_g32"):
        for transpose in (True, False):
            s = stored(rng, by_name(name), 64, 160, transpose)
            for dtype in DTYPES:
                for m in (1, 4, 21):
                    x = random(rng, (m, 160), dtype, layout)
                    check(qmm(x, s), x, s, layout)


VIEWS = {
    "rows": lambda x: x[3:40],
    "every other row": lambda x: x[::2],
    "rows backwards": lambda x: x[::-1],
    "one row again and again": lambda x: mx.broadcast_to(x[5:6], x.shape),
    "the last columns": lambda x: x[:, x.shape[1] // 2 :],
    "columns apart": lambda x: mx.concatenate([x, x], 0).T.reshape(-1).reshape(x.shape[1], 2 * x.shape[0]).T[: x.shape[0]],
}


@pytest.mark.parametrize("view", VIEWS)
def test_views_of_the_weights(view):
    rng = np.random.default_rng(36)
    for name in ("nvfp4", "mxfp8", "affine3_g32"):
        for transpose in (True, False):
            whole = stored(rng, by_name(name), *((64, 256) if transpose else (256, 64)), transpose, mx.float16)
            part = whole.view(VIEWS[view])
            x = random(rng, (6, part.weights.shape[-2]), mx.float16)
            check(qmm(x, part), x, part, view)


def test_batches():
    rng, form = np.random.default_rng(37), by_name("nvfp4")
    for x_batch, w_batch in (((3,), ()), ((2, 3), ()), ((3,), (3,)), ((2, 1), (1, 3)), ((), (4,)), ((1,), (2, 3)), ((2, 3), (2, 1)), ((2, 3), (3,)), ((0,), ())):
        for m in (1, 5):
            s = stored(rng, form, 32, 48, True, batch=w_batch)
            x = random(rng, (*x_batch, m, 48), mx.float32)
            check(qmm(x, s), x, s, (x_batch, w_batch))
    s = stored(rng, form, 32, 48, True, batch=(1, 2))
    shared = s.view(lambda a: mx.broadcast_to(a, (4, 2, *a.shape[2:])))  # stride 0
    x = random(rng, (4, 2, 3, 48), mx.float32)
    check(qmm(x, shared), x, shared)
    swapped = stored(rng, form, 32, 48, True, batch=(2, 3)).view(lambda a: a.swapaxes(0, 1))
    x = random(rng, (2, 3, 5, 48), mx.float32).swapaxes(0, 1)
    check(qmm(x, swapped), x, swapped)
    # Each of the three arrays may be broadcast on its own.
    s, x = stored(rng, by_name("affine8_g32"), 16, 64, batch=(3,)), random(rng, (3, 2, 64), mx.float32)
    got = qmm(x, replace(s, w=s.w[:1]))
    for i in range(3):
        one = of_arrays(s.w[0], s.scales[i], s.biases[i], s.format, True)
        check(got[i], x[i], one)


@pytest.mark.parametrize("activation", (None, "relu", "silu", "gelu_tanh", "gelu_erf"))
def test_epilogues(activation):
    rng = np.random.default_rng(38)
    for name, global_scale in (("affine4_g64", None), ("nvfp4", (mx.array([3.5]), 2688.0)), ("nvfp4", (mx.array(0.25), 1.0))):
        factor = None if global_scale is None else float(np.float32(global_scale[0].item()) / np.float32(global_scale[1]))
        for dtype in DTYPES:
            for m in (1, 9):
                s, x = stored(rng, by_name(name), 96, 192, True, dtype), random(rng, (2, m, 192), dtype) * 0.1
                bias, residual = random(rng, (1, 96), dtype)[0], random(rng, (2, m, 96), mx.float32, "t")
                for b in (None, bias):
                    for r in (None, residual):
                        check(qmm(x, s, None, global_scale, b, activation, r), x, s, (dtype, factor), global_scale=factor, bias=b, activation=activation, residual=r)


def test_a_global_scale_for_each_batch_element():
    rng = np.random.default_rng(39)
    s, x = stored(rng, by_name("nvfp4"), 32, 64, batch=(3,)), random(rng, (2, 3, 4, 64), mx.float32)
    scale = mx.array([1.0, -2.0, 0.5])
    got = qmm(x, s, None, (scale, 2.0))
    for i, factor in enumerate((0.5, -1.0, 0.25)):
        one = s.view(lambda a, i=i: a[i])
        check(got[:, i], x[:, i], one, global_scale=factor)
    # One set of weights under several global scales: the batch may not become rows of one product.
    s = stored(rng, by_name("nvfp4"), 32, 64)
    got = qmm(x[:, :, :1], s, None, (scale, 2.0))
    for i, factor in enumerate((0.5, -1.0, 0.25)):
        check(got[:, i], x[:, i, :1], s, global_scale=factor)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("threads", (1, 2, 3))
def test_threads(configure, threads, instruction_set):
    configure(threads=threads, instruction_set=instruction_set)
    rng = np.random.default_rng(40)
    for transpose in (True, False):
        s = stored(rng, by_name("mxfp4"), 704, 1024, transpose)
        for m in (1, 6, 64, 300):
            x = random(rng, (m, 1024), mx.float32)
            check(qmm(x, s), x, s, threads)


def test_a_planted_error_is_noticed():
    """One code changed by one step, in one of 1024 x 96 weights."""
    rng = np.random.default_rng(41)
    s, x = stored(rng, by_name("affine4_g32"), 96, 1024), random(rng, (4, 1024), mx.float32)
    packed = np.array(s.w)
    packed[7, 100] ^= 1 << 12
    got = qmm(x, replace(s, w=mx.array(packed)))
    with pytest.raises(AssertionError, match=r"4 of 384 wrong, first at \[0 7\]"):
        check(got, x, s)
