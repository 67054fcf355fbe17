import pytest

from mlx_tensorops.primitives import _native

from .stub import Stub


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
