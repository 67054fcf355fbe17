"""The compiled extension, or the reason why it cannot be used here.

An extension fits exactly one MLX. Built for another, it does not load, or loads and refuses every array,
or would read memory wrongly; so three checks stand before the first use: the versions, the link, and one
real array passed through. None of them runs at import.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path
from types import ModuleType

from ..errors import NativeError, lesson

_NAME = __package__.partition(".")[0] + "._ext"
_MARK = re.compile(rb"mlx_tensorops built for mlx=(\S+) nanobind=(\S+);")  # written by cpp/bindings.cpp
_WITHOUT = "without it everything runs through engine='mlx'"

_verdict: ModuleType | str | None = None


def ext() -> ModuleType:
    """The extension, checked once; raises NativeError where it does not fit."""
    verdict = _verdict if _verdict is not None else _check()
    if isinstance(verdict, str):
        raise NativeError(verdict)
    return verdict


def status() -> tuple[bool, str]:
    """Whether the extension can be used, and what it is or what to do about it."""
    verdict = _verdict if _verdict is not None else _check()
    if isinstance(verdict, str):
        return False, verdict
    return True, f"{verdict.__file__}, built for mlx {verdict.mlx_version} with nanobind {verdict.nanobind_version}"


def _check() -> ModuleType | str:
    global _verdict
    _verdict = _load()
    return _verdict


def _load() -> ModuleType | str:
    try:
        import mlx.core as mx  # loads libmlx, which the extension refers to by name
    except ImportError as error:
        return _say(f"mlx.core does not import: {error}", "pip install 'mlx[cpu]' (Linux), or 'mlx' (macOS)")
    spec = importlib.util.find_spec(_NAME)
    if spec is None or spec.origin is None:
        return _say("the compiled extension is not installed", f"pip install . in the source tree; {_WITHOUT}")
    mark = _MARK.search(Path(spec.origin).read_bytes())
    built, nanobind = (part.decode() for part in mark.groups()) if mark else ("unknown", "unknown")
    repair = f"pip install 'mlx=={built}', or rebuild mlx_tensorops for mlx {mx.__version__}; {_WITHOUT}"
    if mark and built != mx.__version__:
        return _say(f"the extension was built for mlx {built} and mlx {mx.__version__} is installed", repair)
    try:
        module = importlib.import_module(_NAME)
    except ImportError as error:
        return _say(f"the extension (built for mlx {built}) does not load: {error}",
                    f"reinstall mlx_tensorops and mlx=={built} together; {_WITHOUT}")
    try:
        module.canary(mx.array(0))
    except TypeError:
        return _say(f"the extension (nanobind {nanobind}) does not share mx.array with mlx {mx.__version__}: "
                    "their nanobind ABI tags differ",
                    f"rebuild with the nanobind that pyproject.toml pins; {_WITHOUT}")
    return module


def _say(what: str, instead: str) -> str:
    return lesson("native", what, instead=instead)
