"""What the codec refuses, and how."""

import mlx.core as mx
import numpy as np
import pytest

from mlx_tensorops import formats
from mlx_tensorops.errors import DTypeError, ShapeError, TensorOpsError

AFFINE, NVFP4 = formats.by_name("affine4_g32"), formats.by_name("nvfp4")
ROWS = np.ones((3, 4, 64))
W, S, B = formats.quantise(ROWS, AFFINE)
WN, SN, _ = formats.quantise(ROWS, NVFP4)


@pytest.mark.parametrize("call, error, text", [
    (lambda: formats.quantise(ROWS, "nvfp4"), DTypeError, r"\[quantise\] format is 'nvfp4', a str.\n.*nearest legal: a Format\n  instead: formats.by_name\(name\)"),
    (lambda: formats.dequantise(W, S, B, "affine"), DTypeError, r"\[dequantise\] format is 'affine'"),
    (lambda: formats.quantise([1.0] * 64, AFFINE), DTypeError, "x is a list"),
    (lambda: formats.quantise(np.ones(64, np.complex128), AFFINE), DTypeError, "x holds complex128.\n  nearest legal: real numbers"),
    (lambda: formats.quantise(mx.ones(64, mx.complex64), AFFINE), DTypeError, "x holds complex64"),
    (lambda: formats.quantise(np.array(["1"] * 64), AFFINE), DTypeError, "x holds <U1"),
    (lambda: formats.dequantise(W, np.ones((3, 4, 2), complex), B, AFFINE), DTypeError, "scales holds complex128"),
    (lambda: formats.quantise(np.float64(1), AFFINE), ShapeError, r"weights of shape \(\).*\n  nearest legal: 32 weights per row"),
    (lambda: formats.quantise(np.ones(31), AFFINE), ShapeError, "nearest legal: 32 weights per row, zeros at the end"),
    (lambda: formats.dequantise(W, [1.0], B, AFFINE), DTypeError, "scales is a list"),
    (lambda: formats.dequantise(W, mx.zeros((3, 4, 2), mx.uint8), B, AFFINE), DTypeError, "scales are uint8, and those of format 'affine4_g32' are numbers.\n  nearest legal: float32"),
    (lambda: formats.dequantise(WN, mx.ones((3, 4, 4)), None, NVFP4), DTypeError, "scales are float32, and those of format 'nvfp4' are bytes.\n  nearest legal: uint8"),
    (lambda: formats.dequantise(WN, SN, None, NVFP4, global_scale=np.ones(4)), ShapeError, r"global_scale of shape \(4,\) for weights of shape \(3, 4, 64\).*\n  nearest legal: shape \(3,\)"),
    (lambda: formats.quantise(ROWS, NVFP4, global_scale=np.ones((3, 1))), ShapeError, r"global_scale of shape \(3, 1\)"),
    (lambda: formats.by_name(4), TensorOpsError, "no weight format is called 4"),
])
def test_refused(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_one_global_scale_or_one_per_matrix():
    """Both factors are exact: the amax convention divides by 2688."""
    for scale in (np.float32(2688), np.full(3, 2688, np.float32), np.full(1, 2688, np.float32)):
        assert np.array_equal(formats.dequantise(WN, SN, None, NVFP4, global_scale=scale), formats.dequantise(WN, SN, None, NVFP4))
