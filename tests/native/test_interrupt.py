"""Ctrl-C while a kernel is compiled inside an evaluation."""

import signal

import mlx.core as mx
import pytest

import mlx_tensorops as mt
from mlx_tensorops import hostmetal
from mlx_tensorops.hostmetal import build


@pytest.fixture
def listening():
    """Python raises KeyboardInterrupt: a shell starts what runs in its background with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_in_a_compile_stays_ctrl_c(monkeypatch, listening):
    """It became a RuntimeError, which ``except RuntimeError`` swallows."""
    a = mx.ones((3, 4))

    def pressed(*args, **kwargs):
        raise KeyboardInterrupt

    with hostmetal.active(sdk="26.1"):
        with monkeypatch.context() as patch:
            patch.setattr(build, "build", pressed)
            y = mt.matmul(a, a.T, engine="simdgroup")
            with pytest.raises(KeyboardInterrupt):
                try:
                    mx.eval(y)
                except RuntimeError:
                    for _ in range(1000):
                        pass
                pytest.fail("swallowed")
