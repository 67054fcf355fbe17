"""The import guard: each way in which an extension can fail to fit, made real in a copy of the package."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest

import mlx_tensorops
from mlx_tensorops.primitives import _native

PACKAGE = Path(mlx_tensorops.__file__).parent
EXTENSION = Path(importlib.util.find_spec("mlx_tensorops._ext").origin)


@pytest.fixture
def copy(tmp_path):
    """The package's Python without its extension, in a folder that `report` puts first on the path."""
    ignore = shutil.ignore_patterns("*.so", "__pycache__", "hostmetal")
    shutil.copytree(PACKAGE, tmp_path / "mlx_tensorops", ignore=ignore)
    return tmp_path


REPORT = """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in type(f).__module__]
import mlx_tensorops
from mlx_tensorops.primitives import _native
assert mlx_tensorops.__file__.startswith(sys.argv[1]), mlx_tensorops.__file__
ok, text = _native.status()
try:
    _native.ext()
except mlx_tensorops.TensorOpsError as error:
    assert str(error) == text and type(error).__name__ == "NativeError"
    print("refused", text)
else:
    print("taken", ok, text)
"""


def report(folder: Path) -> str:
    done = subprocess.run([sys.executable, "-c", REPORT, str(folder)], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "PYTHONPATH": str(folder)}, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def install(folder: Path, contents: bytes) -> None:
    path = folder / "mlx_tensorops" / EXTENSION.name
    path.write_bytes(contents)
    if sys.platform == "darwin":  # else the loader kills the process over the changed signature
        subprocess.run(["codesign", "--force", "--sign", "-", str(path)], capture_output=True)


def test_a_fitting_extension_is_taken(copy):
    install(copy, EXTENSION.read_bytes())
    assert re.match(rf"taken True .*built for mlx {re.escape(mx.__version__)} with nanobind 3", report(copy))


def test_no_extension(copy):
    said = report(copy)
    assert "refused [native] the compiled extension is not installed." in said
    assert "instead: pip install . in the source tree; without it everything runs through engine='mlx'" in said


def test_built_for_another_mlx(copy):
    mark = f"built for mlx={mx.__version__} ".encode()
    other = mark[:-2] + b"9 "
    assert EXTENSION.read_bytes().count(mark) == 1
    install(copy, EXTENSION.read_bytes().replace(mark, other))
    version = other.decode().removeprefix("built for mlx=").strip()
    said = report(copy)
    assert f"refused [native] the extension was built for mlx {version} and mlx {mx.__version__} is installed." in said
    assert f"instead: pip install 'mlx=={version}', or rebuild mlx_tensorops for mlx {mx.__version__}" in said


def test_a_missing_symbol(copy):
    """What another MLX looks like to the loader: a function of libmlx that is not there."""
    name = b"_ZN3mlx4core9to_streamE"
    assert name in EXTENSION.read_bytes()
    install(copy, EXTENSION.read_bytes().replace(name, name.replace(b"to_stream", b"to_strean")))
    said = report(copy)
    assert f"refused [native] the extension (built for mlx {mx.__version__}) does not load:" in said
    assert "undefined symbol" in said or "Symbol not found" in said
    assert f"instead: reinstall mlx_tensorops and mlx=={mx.__version__} together" in said


def test_a_damaged_file(copy):
    whole = EXTENSION.read_bytes()
    install(copy, b"\0" * 64 + whole[64:])
    assert "refused [native] the extension (built for mlx" in report(copy)
    install(copy, whole[:100])
    assert "refused [native] the extension (built for mlx unknown) does not load:" in report(copy)


def test_another_nanobind(copy):
    """Such a module imports, and then refuses every array with a TypeError."""
    (copy / "mlx_tensorops" / "_ext.py").write_text(
        f"# mlx_tensorops built for mlx={mx.__version__} nanobind=2.15.0;\n"
        "def canary(array):\n    raise TypeError('canary(): incompatible function arguments')\n")
    said = report(copy)
    assert f"refused [native] the extension (nanobind 2.15.0) does not share mx.array with mlx {mx.__version__}" in said
    assert "instead: rebuild with the nanobind that pyproject.toml pins" in said


def tags(path: Path) -> set[bytes]:
    return set(re.findall(rb"nanobind_[a-z0-9_]*_a1_v\d+[a-z0-9_]*|v\d+_system_[a-z0-9_]+", path.read_bytes()))


def test_the_nanobind_tag_is_that_of_mlx():
    assert tags(EXTENSION) == tags(Path(mx.__file__)) and len(tags(EXTENSION)) == 1


def test_arrays_are_those_of_mlx(ext):
    assert "mlx.core.array" in ext.canary.__doc__ and "mlx::core::array" not in ext.canary.__doc__
    array = mx.array([1.0, 2.0])
    assert ext.canary(array).tolist() == [1.0, 2.0]
    with pytest.raises(TypeError, match="incompatible function arguments"):
        ext.canary([1.0])


def test_import_creates_and_loads_nothing():
    code = ("import sys, mlx_tensorops.primitives._native as n; "
            "assert n._verdict is None and 'mlx_tensorops._ext' not in sys.modules; "
            "assert 'numpy' not in sys.modules and 'jinja2' not in sys.modules")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60,
                   env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)})


def test_status_agrees_with_ext(ext):
    assert _native.status() == (True, f"{ext.__file__}, built for mlx {mx.__version__} with nanobind {ext.nanobind_version}")
    assert ext.mlx_version == mx.__version__
