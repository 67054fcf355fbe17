"""With engine auto, ``quantized_matmul`` has MLX's types and shapes, and refuses, with a lesson, what MLX refuses or reads wrongly."""

import itertools

import mlx.core as mx
import numpy as np
import pytest

import mlx_tensorops as mt
from mlx_tensorops import formats
from mlx_tensorops.errors import DTypeError, EngineError, ShapeError, TensorOpsError
from mlx_tensorops.reference import to_float64
from tests.quant.api import floats, over

DTYPES = (mx.float16, mx.bfloat16, mx.float32, mx.int32, mx.bool_, mx.complex64, mx.float64)
W = floats((24, 64), 1)
AFFINE, NVFP4, MXFP8 = mx.quantize(W, group_size=32), mx.quantize(W, mode="nvfp4"), mx.quantize(W, mode="mxfp8")
X = mx.ones((3, 64))


def same_as_mlx(*arrays, **words) -> bool:
    """Type and shape as MLX's, values as they should be (MLX's CPU kernel adds up in the type of the result), or an error on both sides.

    Whether there was a result."""
    try:
        want = mx.quantized_matmul(*arrays, **words)
        mx.eval(want)
    except (ValueError, RuntimeError) as refused:
        with pytest.raises(TensorOpsError, match=r"\[quantized_matmul\] "):
            mt.quantized_matmul(*arrays, **words)
        assert "quantized_matmul" in str(refused)
        return False
    got = mt.quantized_matmul(*arrays, **words)
    assert got.dtype == want.dtype and got.shape == want.shape
    x, w, scales, biases = *arrays, *[None] * (4 - len(arrays))
    weights = formats.dequantise(w, scales, biases, formats.find("test", words.get("mode", "affine"), words.get("group_size"), None)).T
    assert over(got, to_float64(x) @ weights, np.abs(to_float64(x)) @ np.abs(weights), k=64) <= 1
    return True


def test_types_of_affine_weights():
    results = 0
    for x, scales, biases in itertools.product(DTYPES, DTYPES[:4], DTYPES[:4]):
        with mx.stream(mx.cpu):
            results += same_as_mlx(floats((3, 64), 2).astype(x), AFFINE[0], AFFINE[1].astype(scales), AFFINE[2].astype(biases), group_size=32)
    assert results == 5 * (4 * 4 - 1)  # x real and not float64; scales and biases floating, or one of them


@pytest.mark.parametrize("stored, mode", [(NVFP4, "nvfp4"), (MXFP8, "mxfp8")])
def test_types_of_weights_with_byte_scales(stored, mode):
    with mx.stream(mx.cpu):
        results = [same_as_mlx(floats((3, 64), 2).astype(x), *stored, mode=mode) for x in DTYPES]
    assert results == [True, True, True, False, False, False, False]


@pytest.mark.parametrize("x, w", tuple(itertools.product([(64,), (1, 64), (3, 64), (2, 3, 64), (5, 3, 64), (1, 3, 64), (2, 5, 3, 64), (2, 1, 3, 64)], [(), (1,), (5,)])))
def test_shapes(x, w):
    stored = mx.quantize(floats((*w, 24, 64), 1), group_size=32)
    try:
        want = mx.quantized_matmul(floats(x, 2), *stored, group_size=32)
    except ValueError:
        with pytest.raises(ShapeError, match=r"leading axes \(2,\) of x and \(5,\) of w do not broadcast"):
            mt.quantized_matmul(floats(x, 2), *stored, group_size=32)
        return
    got = mt.quantized_matmul(floats(x, 2), *stored, group_size=32)
    assert got.shape == want.shape and np.allclose(to_float64(got), to_float64(want), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("call, error, text", [
    (lambda: mt.quantized_matmul(X, *AFFINE, group_size=32, mode="fp4"), DTypeError, r"mode 'fp4' is unknown\.\n  nearest legal: affine, mxfp4, mxfp8, nvfp4"),
    (lambda: mt.quantized_matmul(X, *AFFINE, group_size=32, bits=7), DTypeError, "mode 'affine' has no group_size 32 with 7 bits"),
    (lambda: mt.quantized_matmul(X, *NVFP4, mode="nvfp4", group_size=32), DTypeError, "mode 'nvfp4' has no group_size 32 with 4 bits"),
    (lambda: mt.quantized_matmul(X, *AFFINE[:2], group_size=32), DTypeError, "biases are missing, and mode 'affine' has them.\n  instead: pass what mx.quantize returned for this mode$"),
    (lambda: mt.quantized_matmul(X, *NVFP4), DTypeError, "for this mode, or the mode of these uint8 scales: mxfp4, mxfp8, nvfp4"),
    (lambda: mt.quantized_matmul(X, *NVFP4, NVFP4[1], mode="nvfp4"), DTypeError, "biases are given, and mode 'nvfp4' has none"),
    (lambda: mt.quantized_matmul(X, AFFINE[0].view(mx.int32), *AFFINE[1:], group_size=32), DTypeError, r"w is int32; packed weights are uint32\.\n  instead: w\.view"),
    (lambda: mt.quantized_matmul(X, NVFP4[0], NVFP4[1].view(mx.int8), mode="nvfp4"), DTypeError, "scales are int8; mode 'nvfp4' has uint8 scales"),
    (lambda: mt.quantized_matmul(X, *AFFINE), ShapeError, r"scales have shape \(24, 2\): one for each 64 weights of w"),
    (lambda: mt.quantized_matmul(X, AFFINE[0], AFFINE[1][:3], AFFINE[2][:3], group_size=32), ShapeError, r"scales have shape \(3, 2\).*\n  nearest legal: \(24, 2\)"),
    (lambda: mt.quantized_matmul(X, AFFINE[0], AFFINE[1], AFFINE[2][:3], group_size=32), ShapeError, r"biases have shape \(3, 2\)"),
    (lambda: mt.quantized_matmul(mx.ones((3, 32)), *AFFINE, group_size=32), ShapeError, r"K = 32, but w has shape \(24, 8\): K = 64, N = 24 with 4 bits.*\n  nearest legal: K = 64\n  instead: slice or pad x"),
    (lambda: mt.quantized_matmul(mx.ones((3, 24)), *AFFINE, group_size=32), ShapeError, "instead: transpose=False"),
    (lambda: mt.quantized_matmul(mx.array(1.0), *AFFINE, group_size=32), ShapeError, r"x has shape \(\)"),
    (lambda: mt.quantized_matmul(X, *(a[0] for a in AFFINE), group_size=32), ShapeError, r"w has shape \(8,\); a weight matrix has two axes"),
    (lambda: mt.quantized_matmul([[1.0]], *AFFINE, group_size=32), DTypeError, r"x is a list\.\n  instead: pass mx\.array\(x\)"),
    (lambda: mt.quantized_matmul(X, *AFFINE, transpose=1, group_size=32), TensorOpsError, "transpose is a int"),
    (lambda: mt.quantized_matmul(X, *AFFINE, group_size=32, global_scale=1.0), DTypeError, r"global_scale with mode 'affine', which has none\.\n  nearest legal: mode=\"nvfp4\""),
    (lambda: mt.quantized_matmul(X, *NVFP4, mode="nvfp4", global_scale=1.0, weight_scale_2=1.0), TensorOpsError, "global_scale and weight_scale_2 are both given"),
    (lambda: mt.quantized_matmul(X, *NVFP4, mode="nvfp4", global_scale=mx.ones(2)), ShapeError, "one value for the tensor"),
    (lambda: mt.quantized_matmul(X, *NVFP4, mode="nvfp4", weight_scale_2=mx.ones(1, mx.float16)), DTypeError, "weight_scale_2 is float16; it is float32"),
    (lambda: mt.quantized_matmul(X, *AFFINE, group_size=32, bias=mx.ones(23)), ShapeError, r"bias has shape \(23,\), which does not broadcast to the result's \(3, 24\)"),
    (lambda: mt.quantized_matmul(X, *AFFINE, group_size=32, residual=mx.ones((2, 3, 24))), ShapeError, "residual has shape"),
    (lambda: mt.quantized_matmul(X, *AFFINE, group_size=32, bias=mx.ones(24, mx.complex64)), DTypeError, "bias is complex64"),
    (lambda: mt.quantized_matmul(X, *AFFINE, group_size=32, activation="swish"), TensorOpsError, r"activation 'swish' is unknown\.\n  nearest legal: relu"),
    (lambda: mt.quantized_matmul(X, *AFFINE, group_size=32, out_dtype=mx.int32), DTypeError, "out_dtype int32 is no type this operation gives"),
    (lambda: mt.quantized_matmul(X, *AFFINE, group_size=32, out_dtype="float16"), DTypeError, "out_dtype 'float16' is no MLX dtype"),
    (lambda: mt.quantized_matmul(X, *AFFINE, group_size=32, precision="fp8"), TensorOpsError, "precision 'fp8' is unknown"),
    (lambda: mt.quantized_matmul(X, *AFFINE, group_size=32, engine="nax"), EngineError, "engine 'nax' is unknown"),
    (lambda: mt.quantized_matmul(X, *AFFINE, group_size=32, engine="mpp"), EngineError, "(?s)engine 'mpp' cannot run this here.*nearest legal: .*mlx"),
])
def test_what_is_refused_and_how(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_a_narrower_result_keeps_x_as_it_is():
    """bfloat16 x with float16 scales is float32 in MLX and here; who names bfloat16 gets no float32 product."""
    mixed = [AFFINE[0], *(a.astype(mx.float16) for a in AFFINE[1:])]
    x = floats((3, 64), 2, mx.bfloat16)
    assert mt.quantized_matmul(x, *mixed, group_size=32).dtype == mx.float32
    with mx.stream(mx.cpu):
        plain, named = (mt.explain("quantized_matmul", x, *mixed, group_size=32, out_dtype=out) for out in (None, mx.bfloat16))
    got = mt.quantized_matmul(x, *mixed, group_size=32, out_dtype=mx.bfloat16)
    assert got.dtype == mx.bfloat16 and plain.bytes > named.bytes


def test_integer_addends_are_floats():
    bias = mx.arange(24)
    got, want = (mt.quantized_matmul(X, *AFFINE, group_size=32, bias=b) for b in (bias, bias.astype(mx.float32)))
    assert np.array_equal(np.array(got), np.array(want))


def test_a_replay_without_rows_on_engine_mlx_is_refused():
    """MLX's kernel divides by the number of rows, and the process ended."""
    x = mx.array(np.random.default_rng(5).standard_normal((3, 64)), mx.float32)
    w = mx.quantize(mx.array(np.random.default_rng(6).standard_normal((32, 64)), mx.float32))
    product = mx.compile(lambda x: mt.quantized_matmul(x, *w, engine="mlx"), shapeless=True)
    want = np.array(x, np.float64) @ np.array(mx.dequantize(*w), np.float64).T
    for rows in (3, 1, 2):
        assert np.allclose(np.array(product(x[:rows])), want[:rows], atol=1e-4)
    with pytest.raises(ValueError, match="replayed without rows(.|\n)*instead: trace the graph again"):
        product(x[:0])
    assert mt.quantized_matmul(x[:0], *w, engine="mlx").shape == (0, 32)
