"""What explain(), trace() and dump_source() say about a quantised product."""

import mlx.core as mx
import pytest

import mlx_tensorops as mt
from mlx_tensorops import device
from mlx_tensorops.errors import ShapeError
from tests.quant.api import floats, on, one

STORED, W, WORDS = one("nvfp4", 96, 128)
X = floats((32, 128), 1, mx.bfloat16)


def test_on_metal_mlx_keeps_what_it_has_and_we_take_the_rest():
    with device.force("m5"):
        plain = mt.explain("quantized_matmul", X, *STORED, **WORDS)
        two_levels = mt.explain("quantized_matmul", X, *STORED, **WORDS, global_scale=1.0)
        fused = mt.explain("quantized_matmul", X, *STORED, **WORDS, activation="silu")
    assert (plain.engine, plain.variant) == ("mlx", "")
    assert two_levels.engine == "mpp" and "nvfp4" in two_levels.variant and "amax" in two_levels.variant
    assert fused.engine == "mpp" and "MLX has no fused form" in fused.why
    with device.force("m1"):
        assert mt.explain("quantized_matmul", X, *STORED, **WORDS, global_scale=1.0).engine == "simdgroup"


def test_work_is_counted_from_what_is_stored():
    found = mt.explain("quantized_matmul", X, *STORED, **WORDS)
    assert found.engine == "cpu" and found.flops == 2 * 32 * 96 * 128
    assert found.bytes == 32 * 128 * 2 + 96 * 128 // 2 + 96 * 128 // 16 + 32 * 96 * 2


def test_explain_refuses_what_the_call_refuses():
    with pytest.raises(ShapeError, match="K = 64"):
        mt.explain("quantized_matmul", X[:, :64], *STORED, **WORDS)


def test_trace_names_the_engine_and_the_kernel_that_ran():
    with on("mpp"), mt.trace() as trace:
        mx.eval(mt.quantized_matmul(X, *STORED, **WORDS, engine="mpp"))
        mx.eval(mt.quantized_matmul(X, *STORED, **WORDS))
    assert [call.engine for call in trace.calls] == ["mpp", "cpu"] and trace.calls[0].op == "quantized_matmul"
    (ran,) = trace.dispatches
    with on("mpp"):
        told = mt.explain("quantized_matmul", X, *STORED, **WORDS, engine="mpp")
        source = mt.dump_source("quantized_matmul", X, *STORED, **WORDS, engine="mpp")
    assert ran["kernel"] in source and told.predicted["matmul2d"] == ran["counters"]["matmul2d"]


def test_the_precision_word_reaches_the_kernel():
    x = X.astype(mx.float32)
    with on("mpp"):
        exact, tf32 = (mt.explain("quantized_matmul", x, *STORED, **WORDS, engine="mpp", precision=p).variant for p in ("exact", "tf32"))
    assert "_full_" in exact and "_relaxed_" in tf32
