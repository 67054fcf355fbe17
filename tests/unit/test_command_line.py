"""``python -m mlx_tensorops`` with arguments that are none: a lesson and status 2, no traceback."""

import os
import subprocess
import sys

import pytest

from mlx_tensorops import __main__ as command
from mlx_tensorops import config
from mlx_tensorops.hostmetal import cli


@pytest.mark.parametrize("arguments, said", [
    ("matmul 4x4:float16", "missing a required argument: 'b'"),
    ("matmul 4x4 4x4 4x4", "too many positional arguments"),
    ("matmul 99999999999999999999x4 4x4", "longer than MLX's arrays can have.\n  nearest legal: 2147483647"),
    ("matmul 2147483648x4 4x4", "longer than MLX's arrays can have"),
    ("matmul \u00b2x4 4x4", "is not SHAPE:DTYPE"),
    ("tile_plan 4:int32", "num_experts is missing"),
    ("tile_plan 4:int32 --engine cpu", "unexpected keyword argument 'engine'"),
])
def test_explain(arguments, said, capsys):
    assert command.main(["explain", *arguments.split()]) == 2
    assert said in capsys.readouterr().err


@pytest.fixture
def kernel(tmp_path):
    path = tmp_path / "f.metal"
    path.write_text("kernel void f(device float* x [[buffer(0)]]) { x[0] = 1; }")
    return path


@pytest.mark.parametrize("options, said", [
    ("--buffer f32:99999999999999", "buffer 'f32:99999999999999' cannot be made"),
    ("--buffer f32:99999999999999999999", "cannot be made"),
    ("--buffer BAD.npy", "BAD.npy is no array"),
    ("--buffer f32:4 --threadgroup-memory 0=x", "'x' is no number of bytes.\n  nearest legal: a multiple of 16"),
])
def test_hostmetal_run(kernel, tmp_path, monkeypatch, capsys, options, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "BAD.npy").write_text("junk")
    assert cli.main(["run", str(kernel), "--grid", "1", "--threadgroup", "1", *options.split()]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("words", [["lint"], ["run", "--grid", "1", "--threadgroup", "1"]])
def test_a_source_that_is_no_text(tmp_path, capsys, words):
    path = tmp_path / "binary.metal"
    path.write_bytes(b"\xd0\x00\xff")
    assert cli.main([words[0], str(path), *words[1:]]) == 2
    assert "is no text" in capsys.readouterr().err


def test_a_reader_that_has_read_enough_and_a_full_disk():
    code = "import sys, mlx_tensorops.manifests as m, mlx_tensorops.__main__ as c; m.manifest = lambda: ['x'] * 100000; sys.exit(c.main(['manifest']))"
    listing = [sys.executable, "-c", code]
    shown = subprocess.run(["sh", "-c", '"$@" | head -c 1', "sh", *listing], capture_output=True, text=True, timeout=120)
    assert (shown.stdout, shown.stderr) == ("[", "")
    with open("/dev/full", "w") as full:
        done = subprocess.run(listing, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode != 0 and "No space left on device" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("threads, said", [("257", "must be in 0..256"), ("9" * 30, "must be in 0..256"), ("-1", "must be a whole number"), ("\u0663", "must be a whole number")])
def test_threads_that_cannot_be(threads, said):
    code = "import mlx.core as mx, mlx_tensorops as mt\ntry: mt.matmul(mx.ones((2, 2)), mx.ones((2, 2)), engine='cpu')\nexcept mt.TensorOpsError as error: print(error)"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "MLX_TENSOROPS_THREADS": threads}, capture_output=True, text=True, timeout=60)
    assert said in done.stdout and "MLX_TENSOROPS_THREADS" in done.stdout


def test_an_empty_switch_is_its_default(monkeypatch):
    monkeypatch.setenv("MLX_TENSOROPS_THREADS", "")
    assert config.get("MLX_TENSOROPS_THREADS") == "0"
