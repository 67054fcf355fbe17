"""The route through ``mx.fast.metal_kernel``: the text MLX would compile, and the kernel executed in the emulator's drop-in."""

import mlx.core as mx
import numpy as np
import pytest

import mlx_tensorops as mt
from mlx_tensorops import device, hostmetal
from mlx_tensorops.epilogues import Epilogue
from mlx_tensorops.errors import ShapeError, TensorOpsError
from mlx_tensorops.primitives import _metal_kernel, _native
from mlx_tensorops.primitives import matmul as module
from mlx_tensorops.primitives._metal_kernel import ThreadgroupKernel, pad_small, threadgroups_of
from mlx_tensorops.shaders.render import render_fast
from mlx_tensorops.variant import Tile
from tests.cases import gemm as cases
from tests.gemm import flows, judge


@pytest.fixture
def no_extension(monkeypatch):
    """As on a machine whose MLX is not the one the extension was built for."""
    monkeypatch.setattr(_native, "_verdict", "[native] the extension was built for another mlx")
    monkeypatch.setattr(module, "_plans", {})
    monkeypatch.setattr(module, "_by_decision", {})


@pytest.mark.parametrize("m, n, k", [(64, 128, 32), (70, 128, 32), (33, 50, 21), (2, 3, 2)])
def test_dense_gemm_without_the_extension(no_extension, m, n, k):
    a = cases.make("columns", m, k, "float16", np.random.default_rng(m))
    b = cases.make("rows", k, n, "float16", np.random.default_rng(n))
    with hostmetal.active():
        c = mt.matmul(a, b, engine="mpp")
        mx.eval(c)
    assert c.dtype == mx.float16 and judge.errors_over_bound(a, b, c, "float16") <= 1


@pytest.mark.parametrize("m, n, k", [(64, 128, 32), (70, 128, 32), (67, 90, 21), (2, 3, 2), (40, 20, 16), (20, 30, 1500)])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_engine_simdgroup_without_the_extension(no_extension, m, n, k, dtype):
    """As Metal 3.1, the oldest dialect that MLX asks for: registers, staged and split-K, whole and ragged."""
    a = cases.make("columns", m, k, dtype, np.random.default_rng(m))
    b = cases.make("rows", k, n, dtype, np.random.default_rng(n))
    with hostmetal.active(checked=True, dialect="3.1"):
        c = mt.matmul(a, b, engine="simdgroup")
        mx.eval(c)
    assert judge.errors_over_bound(a, b, c, dtype) <= 1


def test_batched_epilogue_of_engine_simdgroup_without_the_extension(no_extension):
    a, b = cases.make("rows", 9, 20, "float16", np.random.default_rng(1), lead=(2, 3)), cases.make("rows", 20, 40, "float16", np.random.default_rng(2), lead=(3,))
    residual = cases.make("rows", 9, 40, "float16", np.random.default_rng(3), lead=(2, 3))
    with hostmetal.active(checked=True, dialect="3.1"):
        c = mt.matmul(a, b, engine="simdgroup", activation="gelu_erf", residual=residual)
        mx.eval(c)
    assert judge.epilogue_over_bound(a, b, c, "float16", Epilogue(activation="gelu_erf", residual=True), residual=residual) <= 1


def test_empty_without_the_extension(no_extension):
    with hostmetal.active():
        assert mt.matmul(mx.ones((3, 0), mx.float16), mx.ones((0, 4), mx.float16), engine="mpp").tolist() == [[0.0] * 4] * 3
        assert mt.matmul(mx.ones((0, 2), mx.float16), mx.ones((2, 4), mx.float16), engine="mpp").shape == (0, 4)


def test_everything_answers_without_the_extension(no_extension):
    a = mx.ones((3, 4))
    with mt.trace() as trace:
        assert np.all(np.array(mt.matmul(a, a.T)) == 4)
    assert trace.calls[0].engine == "mlx"
    assert "built for another mlx" in mt.explain("matmul", a, a.T).verdicts["cpu"].reason
    with device.force("m5"):
        assert "matmul2d_descriptor" in mt.dump_source("matmul", a.astype(mx.float16), a.T.astype(mx.float16), engine="mpp")


def test_mlx_itself_writes_the_signature_of_a_staged_kernel(capfd, tmp_path):
    """The thread index is an argument because the body names it; threadgroup memory stands in the body."""
    variants = flows.variant_set("simdgroup", "staged", Tile(64, 64, 2, 2, 8, 8, 8), flows.spec_of("bfloat16"))
    fast = render_fast(variants["nn/aligned"])
    kernel = mx.fast.metal_kernel(name=fast.kernel, input_names=["a", "b", "params"], output_names=["c"], source=fast.body, header=fast.header)

    def call(a, b, params):
        return kernel(inputs=[a, b, params], grid=(128, 1, 1), threadgroup=(128, 1, 1), output_shapes=[(64, 64)], output_dtypes=[mx.bfloat16], verbose=True)[0]

    mx.export_function(str(tmp_path / "f.mlxfn"), call, mx.zeros((64, 64), mx.bfloat16), mx.zeros((64, 64), mx.bfloat16), mx.zeros((8,), mx.int64))
    text = capfd.readouterr().out
    for attribute in ("uint thread_index_in_threadgroup", "uint simdgroup_index_in_threadgroup", "uint3 threadgroup_position_in_grid"):
        assert attribute in text
    assert text.index("[[kernel]]") < text.index("threadgroup T a_tile[") and text.isascii()


def test_mlx_itself_writes_this_signature(capfd, tmp_path):
    """While exporting, MLX prints the whole text it would hand to Metal, also where there is no Metal."""
    choice = dict(row="nn/aligned", operand="bfloat16", out="float16", precision="exact")
    fast = render_fast(cases.variant_of(choice))
    kernel = mx.fast.metal_kernel(name=fast.kernel, input_names=["a", "b", "params"], output_names=["c"], source=fast.body, header=fast.header)

    def call(a, b, params):
        return kernel(inputs=[a, b, params], grid=(128, 1, 1), threadgroup=(128, 1, 1), output_shapes=[(64, 128)], output_dtypes=[mx.float16], verbose=True)[0]

    mx.export_function(str(tmp_path / "f.mlxfn"), call, mx.zeros((64, 64), mx.bfloat16), mx.zeros((64, 128), mx.bfloat16), mx.zeros((8,), mx.int64))
    text = capfd.readouterr().out
    assert "const device bfloat16_t* a [[buffer(0)]]" in text and "const device int64_t* params [[buffer(2)]]" in text
    assert "uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]]" in text and text.isascii()
    assert fast.body.strip()[:200] in text


DOUBLE = "const uint i = thread_position_in_grid.x; y[i] = 2.0f * x[i % 3];"


def test_small_inputs_are_padded_into_device_memory():
    with hostmetal.active():
        (y,) = ThreadgroupKernel("twice", ["x"], ["y"], DOUBLE)([mx.array([1.0, 2.0, 3.0])], threadgroups=(2, 1, 1), threads=(32, 1, 1),
                                                                output_shapes=[(64,)], output_dtypes=[mx.float32])
    assert np.array_equal(np.array(y), np.tile([2.0, 4.0, 6.0], 22)[:64])
    assert pad_small(mx.array([1.0, 2.0])).tolist() == [1.0, 2.0, 0, 0, 0, 0, 0, 0]
    assert pad_small(mx.array(5)).tolist() == [5, 0, 0, 0, 0, 0, 0, 0] and pad_small(mx.zeros((0,))).size == 8
    whole = mx.zeros((3, 3))
    assert pad_small(whole) is whole


@pytest.mark.parametrize("launch, text", [
    (dict(threadgroups=(0, 1, 1), threads=(32, 1, 1)), "3 counts of at least 1"),
    (dict(threadgroups=(1, 1), threads=(32, 1)), "3 counts of at least 1"),
    (dict(threadgroups=(1, 1, 1), threads=(1024, 2, 1)), "2048 threads per threadgroup"),
    (dict(threadgroups=(2**26, 1, 1), threads=(32, 1, 1)), "2147483648 threads along one axis"),
])
def test_bad_launches_are_refused(launch, text):
    kernel = ThreadgroupKernel("twice", ["x"], ["y"], DOUBLE, factory=lambda **_: None)
    with pytest.raises(ShapeError, match=text):
        kernel([mx.zeros(8)], output_shapes=[(8,)], output_dtypes=[mx.float32], **launch)


def test_inexact_multiples_are_refused():
    assert threadgroups_of((128, 4, 1), (32, 2, 1)) == (4, 2, 1)
    with pytest.raises(ShapeError, match="grid axis 0 has 100 threads, no multiple of the threadgroup's 32.\n  nearest legal: 128"):
        threadgroups_of((100, 1, 1), (32, 1, 1))


def test_bodies_that_padding_would_break_are_refused():
    with pytest.raises(TensorOpsError, match="reads x_shape, which padding would change"):
        ThreadgroupKernel("k", ["x"], ["y"], "y[0] = x[x_shape[0]];")
    with pytest.raises(TensorOpsError, match="not ASCII"):
        ThreadgroupKernel("k", ["x"], ["y"], "y[0] = x[0]; // \u00d7")


def test_a_kernel_per_variant_is_built_once():
    with hostmetal.active():
        variant = cases.variant_of(dict(row="nn/aligned", operand="float16", out="float16", precision="exact"))
        active = hostmetal.current()
        assert _metal_kernel._kernel(variant, active) is _metal_kernel._kernel(variant, active)
