"""The drop-in generates the text that MLX generates, and means what MLX means."""

import contextlib
import io
import re
import subprocess
import sys

import mlx.core as mx
import numpy as np
import pytest

from mlx_tensorops import TensorOpsError, hostmetal
from mlx_tensorops.hostmetal.metal_kernel import ATTRIBUTES

SCALE = """
    uint at = thread_position_in_grid.x;
    if (at < a_shape[0]) o[at] = a[at] * T(s);
"""


def _kernel(factory=hostmetal.metal_kernel, **changes):
    return factory(**{"name": "scale", "input_names": ["a", "s"], "output_names": ["o"], "source": SCALE, "header": "// a header\n", **changes})


def _call(kernel, x, s=2.0, **changes):
    arguments = dict(inputs=[x, mx.array(s)], template=[("T", x.dtype)], grid=(x.shape[0], 1, 1), threadgroup=(32, 1, 1), output_shapes=[x.shape], output_dtypes=[x.dtype])
    return kernel(**{**arguments, **changes})


CASES = {
    "template": dict(),
    "small input": dict(n=5),
    "two outputs": dict(output_names=["o", "p"], source=SCALE + "p[at] = a_ndim;"),
    "negative template": dict(extra=[("N", -3), ("F", True)]),
    "no attribute": dict(source="o[0] = a[0] * T(s);"),
    "every attribute": dict(source=SCALE + " ".join(f"/* {name} */" for name in ATTRIBUTES)),
    "strides": dict(source=SCALE + "int q = a_strides[0] + a_ndim;"),
    "atomic": dict(atomic_outputs=True, source="mlx_atomic(o, thread_position_in_grid)"),
}


@pytest.mark.parametrize("name", CASES)
def test_generated_text_is_mlxs(name, tmp_path):
    changes = dict(CASES[name])
    n, extra = changes.pop("n", 100), changes.pop("extra", [])
    x = mx.arange(n).astype(mx.float16)
    outputs = len(changes.get("output_names", ["o"]))
    call = dict(inputs=[x, mx.array(2.0)], template=[("T", mx.float16), *extra], grid=(n, 1, 1), threadgroup=(32, 1, 1), output_shapes=[(n,)] * outputs,
                output_dtypes=[mx.float16] * outputs)
    # MLX prints its text while a function is exported, even without Metal; in C++, so another process catches it.
    script = tmp_path / "export.py"
    script.write_text(
        "import mlx.core as mx\n"
        f"k = mx.fast.metal_kernel(**{ {'name': 'scale', 'input_names': ['a', 's'], 'output_names': ['o'], 'source': SCALE, 'header': '// a header' + chr(10), **changes}!r})\n"
        f"f = lambda x: k(inputs=[x, mx.array(2.0)], template=[('T', mx.float16), *{extra!r}], grid=({n}, 1, 1), threadgroup=(32, 1, 1),\n"
        f"                output_shapes=[({n},)] * {outputs}, output_dtypes=[mx.float16] * {outputs}, verbose=True, stream=mx.gpu)\n"
        f"mx.export_function({str(tmp_path / 'f.mlxfn')!r}, f, mx.arange({n}).astype(mx.float16))\n")
    printed = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True).stdout
    wanted = re.search(r"```\n(.*)\n```", printed, re.DOTALL)[1]
    _, text = _kernel(**changes).source(call["inputs"], call["output_dtypes"], call["template"])
    assert text == wanted


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32])
@pytest.mark.parametrize("n", [5, 100])
def test_runs(dtype, n):
    x = mx.arange(n).astype(dtype)
    (o,) = _call(_kernel(), x)
    assert o.dtype == dtype and mx.array_equal(o, x * 2).item()


def test_grid_counts_threads_and_groups_are_cut_at_the_edge():
    source = "o[thread_position_in_grid.x] = threads_per_threadgroup.x + 1000 * threadgroup_position_in_grid.x + 100000 * dispatch_threads_per_threadgroup.x;"
    kernel = hostmetal.metal_kernel("groups", [], ["o"], source)
    (o,) = kernel(inputs=[], grid=(70, 1, 1), threadgroup=(32, 1, 1), output_shapes=[(70,)], output_dtypes=[mx.int32])
    wanted = [100000 * 32 + 1000 * (i // 32) + (6 if i >= 64 else 32) for i in range(70)]
    assert o.tolist() == wanted
    (o,) = kernel(inputs=[], grid=(7, 1, 1), threadgroup=(32, 1, 1), output_shapes=[(7,)], output_dtypes=[mx.int32])
    assert o.tolist() == [100000 * 7 + 7] * 7


def test_small_inputs_are_constant_and_a_device_pointer_does_not_take_them():
    kernel = _kernel(source="const device T* p = a; o[thread_position_in_grid.x] = p[thread_position_in_grid.x] * T(s);")
    assert mx.array_equal(_call(kernel, mx.arange(8).astype(mx.float32))[0], mx.arange(8) * 2.0)
    with pytest.raises(hostmetal.CompileError, match="const device float .* with an lvalue of type 'const constant float"):
        _call(kernel, mx.arange(7).astype(mx.float32))


def test_outputs_are_uninitialised_unless_asked():
    kernel = _kernel(source="if (thread_position_in_grid.x == 0) o[0] = a[0] * T(s);")
    x = mx.ones(9)
    assert np.isnan(np.array(_call(kernel, x)[0])[1:]).all()
    assert _call(kernel, x, init_value=7)[0].tolist() == [2.0] + [7.0] * 8


def test_strided_inputs():
    x = mx.arange(24).reshape(4, 6).astype(mx.float32).T
    source = "uint2 at = thread_position_in_grid.xy; o[at.y * 4 + at.x] = a[at.y * a_strides[0] + at.x * a_strides[1]];"
    kernel = hostmetal.metal_kernel("strided", ["a"], ["o"], source, ensure_row_contiguous=False)
    mx.eval(x)
    (o,) = kernel(inputs=[x], grid=(4, 6, 1), threadgroup=(4, 6, 1), output_shapes=[(6, 4)], output_dtypes=[mx.float32])
    assert mx.array_equal(o, x).item()


def test_active_chooses_the_build():
    kernel = _kernel(source="o[0] = a[thread_position_in_grid.x] * T(s);")
    _call(kernel, mx.ones(64))
    with hostmetal.active(checked=True), pytest.raises(hostmetal.HostMetalError, match="race"):
        _call(kernel, mx.ones(64))
    assert hostmetal.current() is None


def test_counts_are_checked():
    with pytest.raises(TensorOpsError, match="inputs has 1 entries"):
        _call(_kernel(), mx.ones(9), inputs=[mx.ones(9)])
    with pytest.raises(TensorOpsError, match="at least 1 along each axis"):
        _call(_kernel(), mx.ones(9), grid=(0, 1, 1))
    with pytest.raises(TensorOpsError, match="int, bool or a dtype"):
        _call(_kernel(), mx.ones(9), template=[("T", 1.5)])
    with pytest.raises(TensorOpsError, match="no outputs"):
        _kernel(output_names=[])


def test_verbose_prints_the_text():
    caught = io.StringIO()
    with contextlib.redirect_stdout(caught):
        _call(_kernel(), mx.ones(9), verbose=True)
    assert "Generated source code for `scale`:" in caught.getvalue()
