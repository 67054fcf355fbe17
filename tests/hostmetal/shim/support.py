"""What the tests of the Metal headers share: compile and run one kernel, operand rounding, error bounds."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from mlx_tensorops import hostmetal

LAYOUTS = ({"layout": "nax"}, {"layout": "strict"}, {"layout": "permuted", "layout_seed": 3}, {"layout": "padded", "layout_seed": 5})
NUMPY = {"half": np.float16, "bfloat": ml_dtypes.bfloat16, "float": np.float32, "char": np.int8, "uchar": np.uint8, "int": np.int32}
UNIT = {"half": 2.0**-11, "bfloat": 2.0**-8, "float": 2.0**-24, "int": 0.0}
"""unit roundoff of a type's stores"""

HEADER = """#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;
"""


def run(source: str, buffers, *, kernel=None, grid=1, threadgroup=32, header=HEADER, compile_options=None, **options):
    """Outputs of one dispatch of one kernel."""
    compiled = hostmetal.compile(header + source, kernel, **(compile_options or {}))
    return compiled.dispatch(grid=grid, threadgroup=threadgroup, buffers=buffers, **options).outputs


def operand(generator, shape, type_name: str) -> np.ndarray:
    dtype = NUMPY[type_name]
    if type_name in ("char", "uchar"):
        return generator.integers(-20 if type_name == "char" else 0, 21, shape).astype(dtype)
    return generator.standard_normal(shape).astype(dtype)


def assert_product(actual, a, b, c0, stored: str, roundings: int = 1):
    """actual = c0 + a @ b with float32 accumulation in any order, rounded to the stored type ``roundings`` times."""
    a, b, c0 = (np.asarray(x).astype(np.float64) for x in (a, b, c0))
    exact, magnitude = c0 + a @ b, np.abs(c0) + np.abs(a) @ np.abs(b)
    bound = 0.0 if stored == "int" else (a.shape[1] + 2) * 2.0**-24 * magnitude + UNIT[stored] * (np.abs(exact) if roundings == 1 else roundings * magnitude) + 1e-30
    error = np.abs(np.asarray(actual).astype(np.float64) - exact)
    assert np.all(error <= bound), f"worst error {np.max(error - bound)} above its bound at {np.unravel_index(np.argmax(error - bound), error.shape)}"
