import mlx.core as mx
import pytest

from mlx_tensorops.primitives import _native

from .stub import Stub


@pytest.fixture(autouse=True)
def on_the_cpu():
    """The stand-in runs on CPU streams; on a Mac the default is the GPU's."""
    default = mx.default_device()
    mx.set_default_device(mx.cpu)
    yield
    mx.set_default_device(default)


@pytest.fixture(scope="session")
def ext():
    return _native.ext()


@pytest.fixture(scope="session")
def _built(tmp_path_factory):
    return Stub(tmp_path_factory.mktemp("stub"))


@pytest.fixture
def stub(_built):
    _built.prepared.clear()
    return _built
