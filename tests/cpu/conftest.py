"""The engine under test, with its settings restored after each test."""

from __future__ import annotations

import mlx.core as mx
import pytest

from mlx_tensorops.primitives import _cpu, _native


@pytest.fixture(autouse=True)
def on_cpu():
    before = mx.default_device()
    mx.set_default_device(mx.cpu)
    yield
    mx.set_default_device(before)


@pytest.fixture
def configure():
    """cpu_configure, undone at the end of the test."""
    _cpu.matmul()
    ext = _native.ext()
    yield ext.cpu_configure
    ext.cpu_configure(threads=0, instruction_set="", blas="auto", openblas_path=_cpu.openblas_path())


@pytest.fixture
def product():
    """cpu_matmul(a, b, out_dtype=None, bias=None, activation=None, residual=None, stream=None)."""
    return _cpu.matmul()
