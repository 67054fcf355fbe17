"""explain, dump_source, manifest, doctor, demo and the command line say what is true."""

import json
import subprocess
import sys

import mlx.core as mx
import numpy as np
import pytest

import mlx_tensorops as mt
from mlx_tensorops import device, hostmetal
from mlx_tensorops.errors import ShapeError, TensorOpsError
from mlx_tensorops.shaders import render
from tests.cases import gemm as cases
from tests.gemm import judge


def test_explain_predicts_what_the_counters_count():
    choice = dict(row="nn/aligned", operand="float16", out="float16", precision="exact")
    a, b, _, dispatch = judge.run(choice, cases.ROW_CASES["nn/aligned"], seed=1, layout="nax", checked=True)
    with device.force("m5"):
        told = mt.explain("matmul", a, b, engine="mpp")
    assert told.predicted["matmul2d"] == dispatch["counters"]["matmul2d"]
    assert list(told.predicted["operand_bytes"]) == dispatch["counters"]["device_load"][:2]
    assert told.predicted["output_bytes"] == dispatch["counters"]["device_store"][2]
    assert dispatch["kernel"].startswith(told.variant)


def test_explain_gives_a_reason_for_every_engine_and_a_roofline():
    a, b = mx.zeros((64, 2048), mx.float16), mx.zeros((2048, 768), mx.float16)
    with device.force("m5"):
        told = mt.explain("matmul", a, b)
    assert set(told.verdicts) == {"mpp", "simdgroup", "cpu", "mlx"} and all(v.reason for v in told.verdicts.values())
    assert told.engine == "mlx" and told.flops == 2 * 64 * 2048 * 768
    assert told.bytes == 2 * (64 * 2048 + 2048 * 768 + 64 * 768)
    assert told.bound == "memory" and told.seconds == pytest.approx(told.bytes / 153e9)
    text = str(told)
    for part in ("engine mlx", "no paired measurement", "CPU streams only", "roofline", "201,326,592 flop"):
        assert part in text
    batch = mt.explain("matmul", mx.zeros((5, 2, 3)), mx.zeros((3, 4)))
    assert batch.flops == 2 * 5 * 2 * 3 * 4 and batch.bytes == 4 * (5 * 2 * 3 + 3 * 4 + 5 * 2 * 4)


def test_explain_refuses_what_the_call_refuses():
    with pytest.raises(ShapeError, match="K = 3"):
        mt.explain("matmul", mx.zeros((2, 3)), mx.zeros((4, 5)))
    with pytest.raises(TensorOpsError, match="no operation is called 'conv'.\n  nearest legal: .*, matmul"):
        mt.explain("conv", mx.zeros((2, 3)))


def test_dump_source_is_the_kernel_that_runs(tmp_path):
    a, b = mx.zeros((64, 32), mx.bfloat16), mx.zeros((32, 128), mx.bfloat16)
    with hostmetal.active(), mt.trace() as trace:
        text = mt.dump_source("matmul", a, b, engine="mpp", path=tmp_path / "kernel.metal")
        mx.eval(mt.matmul(a, b, engine="mpp"))
    assert trace.dispatches[0]["kernel"] in text and (tmp_path / "kernel.metal").read_text() == text
    assert mt.dump_source("matmul", a, b, engine="mlx") == ""


def test_every_kernel_is_dumped_where_the_switch_says_or_it_is_told_why_not(tmp_path, monkeypatch):
    a = mx.zeros((64, 64), mx.bfloat16)
    for folder in (tmp_path / "new" / "folder", "/dev/full/below"):
        monkeypatch.setenv("MLX_TENSOROPS_DUMP", str(folder))
        render.render.cache_clear()
        with hostmetal.active():
            if folder == "/dev/full/below":
                with pytest.raises(TensorOpsError, match="MLX_TENSOROPS_DUMP=/dev/full/below cannot be written: Not a directory\\.\n  nearest legal: a folder"):
                    mt.dump_source("matmul", a, a, engine="mpp")
            else:
                text = mt.dump_source("matmul", a, a, engine="mpp")
                (path,) = folder.glob("*.metal")
                assert path.read_text() == text and json.loads(path.with_suffix(".json").read_text())


def test_a_forced_device_is_read_and_not_run():
    a, b = mx.zeros((64, 32), mx.float16), mx.zeros((32, 128), mx.float16)
    with device.force("m5"), pytest.raises(TensorOpsError, match="forced device profile.*no Metal"):
        mt.matmul(a, b, engine="mpp")


def test_manifest_lists_every_variant():
    entries = mt.manifest()
    assert len({e["kernel"] for e in entries}) == len(entries) >= 84
    assert all(e["live_compile"] and e["requires"]["os"] == "26.2" for e in entries if e["engine"] == "mpp")


def test_doctor_reports_and_survives_a_broken_probe(monkeypatch):
    from mlx_tensorops import diagnosis

    told = {f.topic: f for f in mt.doctor().findings}
    assert told["mlx"].ok and mx.__version__ in told["mlx"].text and told["extension"].ok
    for topic in ("python", "device", "engines", "cpu", "hostmetal", "templates"):
        assert told[topic].ok, told[topic]
    assert "MLX_TENSOROPS_ENGINE" in str(mt.doctor())

    def broken():
        raise OSError("disk on fire")

    monkeypatch.setattr(diagnosis, "_device", broken)
    assert "disk on fire" in str(mt.doctor())


def test_trace_sees_calls_only_inside():
    a = mx.ones((4, 4))
    with mt.trace() as outer:
        mt.matmul(a, a)
        with mt.trace() as inner:
            mt.matmul(a, a, engine="mlx")
    mt.matmul(a, a)
    assert len(outer.calls) == 2 and [c.engine for c in inner.calls] == ["mlx"] and inner.calls[0].shapes == ((4, 4), (4, 4))


def command(*arguments, code=0):
    done = subprocess.run([sys.executable, "-m", "mlx_tensorops", *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_command_line():
    assert "engine mpp: named by the caller" in command("explain", "matmul", "64x32:float16", "32x128:float16", "--device", "m5", "--engine", "mpp")
    assert "matmul2d_descriptor" in command("explain", "matmul", "64x32:float16", "32x128:float16", "--device", "m5", "--engine", "mpp", "--source")
    assert "K = 32" in command("explain", "matmul", "64x32:float16", "33x128:float16", code=2)
    assert "nearest legal: 64x2048:float16" in command("explain", "matmul", "64by32", code=2)
    assert "extension" in command("doctor")
    assert len(json.loads(command("manifest"))) >= 84


def test_demo_every_engine_inside_its_bound():
    rows = json.loads(command("demo", "--json"))["rows"]
    engines = {r["engine"] for r in rows}
    assert {"mx.matmul", "mlx", "cpu", "mpp"} <= engines
    for row in rows:
        assert {"engine", "error", "bound", "seconds", "ratio", "matmul2d"} <= set(row)
        if row["engine"] in ("cpu", "mpp", "simdgroup"):  # MLX's own sums of quantised products are outside
            assert row["inside"] and row["error"] <= row["bound"], row
        assert (row["matmul2d"] > 0) == (row["engine"] == "mpp")
    assert np.isfinite([r["ratio"] for r in rows]).all()
