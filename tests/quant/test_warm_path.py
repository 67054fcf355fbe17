"""Warm calls of ``quantized_matmul``: one native call that builds the node, with the values, types and errors of the full call."""

import mlx.core as mx
import numpy as np
import pytest

import mlx_tensorops as mt
from mlx_tensorops import device, hostmetal
from mlx_tensorops.errors import ShapeError, TensorOpsError
from mlx_tensorops.primitives import quantized_matmul as module
from mlx_tensorops.reference import to_float64
from tests.clock import best
from tests.quant.api import floats, one, over, stack


@pytest.fixture(autouse=True)
def cold():
    module._warm_calls.clear()


@pytest.fixture
def only_warm(monkeypatch):
    """From its call on, a call that is not warm fails."""

    def refuse(*_):
        pytest.fail("this call was not warm")

    return lambda: (monkeypatch.setattr(module, "_plans", {}), monkeypatch.setattr(module, "_make_plan", refuse))


@pytest.mark.parametrize("form", ["affine4_g64", "nvfp4", "mxfp8"])
@pytest.mark.parametrize("transpose", [True, False])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_values_of_a_warm_call_with_other_sizes(form, transpose, dtype, only_warm):
    x, (stored, weights, words) = floats((3, 5, 128), 1, dtype), one(form, 64, 128, transpose=transpose, dtype=dtype)
    mt.quantized_matmul(floats((1, 2, 64), 2, dtype), *one(form, 192, 64, transpose=transpose, dtype=dtype)[0], **words)
    only_warm()
    got = mt.quantized_matmul(x, *stored, **words)
    assert got.dtype == dtype
    assert over(got, to_float64(x) @ weights, np.abs(to_float64(x)) @ np.abs(weights), k=128) <= 1


def test_values_with_everything(only_warm):
    """A stack of matrices on both sides, a global scale, a bias, an activation, a residual and a type of its own."""
    (stored, weights, words), x = stack("nvfp4", 3, 32, 64), floats((2, 1, 4, 64), 1)
    bias, residual, scale = floats((32,), 2), floats((3, 1, 32), 3), mx.array([1.5])
    for call in (1, 2):
        got = mt.quantized_matmul(x, *stored, **words, weight_scale_2=scale, bias=bias, activation="relu", residual=residual, out_dtype=mx.float16)
        only_warm()
    sums, magnitude = (1.5 * f(to_float64(x)) @ f(weights) for f in (np.asarray, np.abs))
    want = np.maximum(sums + to_float64(bias), 0) + to_float64(residual)
    assert got.dtype == mx.float16
    assert over(got, want, magnitude + np.abs(to_float64(bias)) + np.abs(to_float64(residual)), k=64) <= 1


@pytest.mark.parametrize("wrong", [
    dict(x=mx.zeros((2, 96))), dict(scales=mx.zeros((64, 4))), dict(bias=mx.zeros((63,))), dict(residual=mx.zeros((3, 2, 64))),
], ids=lambda wrong: next(iter(wrong)))
def test_what_does_not_fit_gets_the_lesson_of_the_full_call(wrong):
    (w, scales, biases), _, words = one("affine4_g64", 64, 128)
    right = dict(x=mx.zeros((2, 128)), w=w, scales=scales, biases=biases, **words, bias=mx.zeros((64,)), residual=mx.zeros((2, 64)))
    if "residual" in wrong:
        right["residual"] = mx.zeros((1, 2, 64))
        right["x"] = mx.zeros((1, 2, 128))
    texts = []
    for warm in (False, True):
        if warm:
            mx.eval(mt.quantized_matmul(**right))
            assert len(module._warm_calls) == 1
        with pytest.raises(ShapeError) as caught:
            mt.quantized_matmul(**right | wrong)
        texts.append(str(caught.value))
    assert texts[0] == texts[1] and texts[0].startswith("[quantized_matmul] ")


def test_words_are_told_apart():
    x, (stored, _, words) = mx.zeros((2, 128)), one("affine4_g64", 64, 128)
    call = lambda **more: mt.quantized_matmul(x, *stored, **words | more)  # noqa: E731
    assert call(out_dtype=mx.float16).dtype == mx.float16 and call().dtype == mx.float32 and call(out_dtype=x.dtype).dtype == mx.float32
    known = len(module._warm_calls)
    for wrong in (dict(transpose=1), dict(out_dtype=None, mode=mx.float16), dict(mode=mx.float32), dict(engine="cpus"), dict(activation=["relu"]),
                  dict(activation=mx.float16)):
        with pytest.raises(TensorOpsError):
            call(**wrong)
    assert len(module._warm_calls) == known == 3


def test_where_a_call_runs_is_part_of_it(monkeypatch):
    x, (stored, _, words) = mx.zeros((2, 128)), one("affine4_g64", 64, 128)
    make, resolved = module._make_plan, []
    monkeypatch.setattr(module, "_plans", {})
    monkeypatch.setattr(module, "_make_plan", lambda *given: resolved.append(given) or make(*given))

    def resolves():
        monkeypatch.setattr(module, "_plans", {})
        before = len(resolved)
        mt.quantized_matmul(x, *stored, **words)
        return len(resolved) - before

    assert [resolves(), resolves()] == [1, 0]
    with device.force("m5-max"):
        assert resolves() == 1
    with hostmetal.active():
        assert resolves() == 1
    assert resolves() == 0
    with mt.trace() as trace:
        assert resolves() == 1
    assert [call.engine for call in trace.calls] == ["cpu"]


def test_the_cost_of_a_warm_call_and_of_the_guard():
    x, stored = mx.zeros((1, 64)), mx.quantize(mx.zeros((64, 64)))
    mx.eval(x, *stored)
    mt.quantized_matmul(x, *stored)
    guard = module._guard(mt.formats.find("test", "affine", None, None), True, False)
    shapes = [a.shape for a in (x, *stored)]
    times = best({"mx": lambda: mx.quantized_matmul(x, *stored), "call": lambda: mt.quantized_matmul(x, *stored), "guard": lambda: guard(*shapes)}, 5000)
    assert times["call"] <= 1.6 * times["mx"], times
    assert times["guard"] <= 1e-6, times


def test_one_row_with_evaluation_is_no_slower_than_mlx():
    """The smallest sizes, where handing the work to the stream's thread is most of the time."""
    for n, k in ((32, 64), (64, 64)):
        x, stored = floats((1, k), 1), mx.quantize(floats((n, k), 2))
        mx.eval(x, *stored)
        times = best({"mx": lambda: mx.eval(mx.quantized_matmul(x, *stored)), "mt": lambda: mx.eval(mt.quantized_matmul(x, *stored))}, 2000)
        assert times["mt"] <= 1.15 * times["mx"], (n, k, times)
