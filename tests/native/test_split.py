"""The node that splits an array's first axis: sizes by rules, at graph time and in replays; a view; gradients; errors."""

import mlx.core as mx
import numpy as np
import pytest

from mlx_tensorops.rules import dim, eq


def split(ext, like, *checks):
    """The first axis of y as the two leading axes of ``like``."""
    how = ext.Split("op", 2, [dim(1, 0).program(), dim(1, 1).program()], [(rule.program(), text) for rule, text in checks])
    return lambda y, x: ext.split(how, [y, x], mx.cpu)


def numbers(*shape):
    return mx.arange(int(np.prod(shape)), dtype=mx.float32).reshape(shape)


@pytest.mark.parametrize("view", [lambda y: y, lambda y: y[::-1], lambda y: y[:, ::2], lambda y: mx.broadcast_to(y[:1], y.shape)])
def test_values_of_any_strides(ext, view):
    y, x = view(numbers(6, 4)), mx.zeros((2, 3, 9))
    got = split(ext, x)(y, x)
    assert got.shape == (2, 3, y.shape[1]) and np.array_equal(np.array(got), np.array(y).reshape(got.shape))
    assert np.array_equal(np.array(got.transpose(1, 0, 2) + 0), np.array(y).reshape(got.shape).transpose(1, 0, 2))


@pytest.mark.parametrize("shape", [(1, 6), (6, 1), (0, 3), (3, 0)])
def test_axes_of_one_and_of_nothing(ext, shape):
    y, x = numbers(shape[0] * shape[1], 4), mx.zeros(shape)
    assert np.array_equal(np.array(split(ext, x)(y, x)), np.array(y).reshape(*shape, 4))


def test_a_replay_takes_the_sizes_it_is_given(ext):
    compiled = mx.compile(lambda x: split(ext, x)(mx.flatten(mx.abs(x), 0, 1), x), shapeless=True)
    for shape in ((2, 3, 4), (3, 2, 4), (5, 1, 4), (1, 1, 2)):
        x = numbers(*shape)
        assert np.array_equal(np.array(compiled(x)), np.array(x)), shape


def test_it_copies_nothing(ext):
    y, x = numbers(512, 1024), mx.zeros((2, 256))
    mx.eval(y, x)
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    mx.eval(split(ext, x)(y, x))
    assert mx.get_peak_memory() - before < y.nbytes // 4


def test_gradients_and_tangents(ext):
    y, x, t = numbers(6, 4), mx.zeros((2, 3)), numbers(6, 4) + 1
    f = split(ext, x)
    assert np.array_equal(np.array(mx.grad(lambda y: (f(y, x) ** 2).sum())(y)), 2 * np.array(y))
    assert np.array_equal(np.array(mx.jvp(lambda y: f(y, x), [y], [t])[1][0]), np.array(t).reshape(2, 3, 4))
    assert not np.array(mx.grad(lambda x: f(y, x).sum())(x)).any()


def test_what_does_not_fit_is_refused(ext):
    x = mx.zeros((2, 3))
    with pytest.raises(ValueError, match=r"\[op\] 7 rows are not those of the axes"):
        split(ext, x)(numbers(7, 4), x)
    with pytest.raises(ValueError, match="only three"):
        split(ext, x, (eq(dim(1, 1), 3), "only three"))(numbers(8, 4), mx.zeros((2, 4)))
    with pytest.raises(ValueError, match="input beyond"):
        ext.Split("op", 1, [dim(1, 0).program()], [])
    with pytest.raises(ValueError, match="strides"):
        ext.Split("op", 1, ["s0.0"], [])
    checked = split(ext, x, (eq(dim(1, 1), 3), "only three"))
    compiled = mx.compile(lambda x: checked(mx.flatten(mx.abs(x), 0, 1), x), shapeless=True)
    assert compiled(mx.zeros((2, 3, 4))).shape == (2, 3, 4)
    with pytest.raises(ValueError, match="only three"):
        compiled(mx.zeros((3, 2, 4)))
