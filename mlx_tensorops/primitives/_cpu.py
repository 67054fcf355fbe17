"""The native CPU engine: configured once, then called directly."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path

from .. import config
from ..errors import TensorOpsError, fail
from . import _native


def matmul() -> Callable:
    """``product(a, b, out_dtype, bias, activation, residual, stream) -> array``; a and b have two dimensions or more."""
    return _engine().cpu_matmul


def quantized_matmul() -> Callable:
    """``product(x, w, scales, biases, format, transpose, out_dtype, global_scale, bias, activation, residual, stream) -> array``."""
    return _engine().cpu_qmm


def gather_mm() -> Callable:
    """``product(x, w, scales, biases, format, transpose, out_dtype, lhs, rhs, global_scale, bias, activation, plan, stream) -> array``."""
    return _engine().cpu_gather_mm


def gather_gateup() -> Callable:
    """``product(x, gate, up, format, transpose, out_dtype, lhs, rhs, global_scales, activation, alpha, limit, plan, stream) -> arrays``."""
    return _engine().cpu_gather_gateup


def gather_combine() -> Callable:
    """The down projection with the weighted sum over each row's experts."""
    return _engine().cpu_gather_combine


def prepared(name: str, *constants):
    """A product with everything decided but its arrays, for :mod:`._warm`; ``name``: "qmm", "gather", "gateup" or "layer"."""
    return getattr(_engine(), f"cpu_{name}_product")(*constants)


def tile_plan() -> Callable:
    """``build(ids, num_experts, block_m, stream) -> the six arrays of a plan``."""
    return _engine().cpu_tile_plan


def info() -> dict[str, object]:
    """Instruction set, threads, BLAS (or why there is none)."""
    return _engine().cpu_info()


def openblas_path() -> str:
    """The library of the wheel scipy-openblas32, or an empty string. The package is found, not imported:
    its own loader would make the symbols global."""
    spec = importlib.util.find_spec("scipy_openblas32")
    folders = spec.submodule_search_locations if spec else None
    for folder in folders or ():
        found = sorted(Path(folder, "lib").glob("libscipy_openblas.*"))
        if found:
            return str(found[0])
    return ""


@functools.cache
def _engine():
    ext = _native.ext()
    if not hasattr(ext, "cpu_matmul"):
        fail("cpu", "the extension was built without its CPU engine", instead="rebuild it, or pass engine='mlx'")
    try:
        ext.cpu_configure(threads=_threads(), openblas_path=openblas_path())
    except TensorOpsError:
        raise
    except ValueError as refused:
        fail("cpu", f"MLX_TENSOROPS_THREADS: {refused}")
    return ext


def _threads() -> int:
    text = config.get("MLX_TENSOROPS_THREADS")
    if not (text.isascii() and text.isdecimal()):
        fail("cpu", f"MLX_TENSOROPS_THREADS is {text!r}, but it must be a whole number from 0 on", nearest="0 (one for each core)")
    return int(text) if len(text) < 10 else 2**31 - 1  # the engine knows how many are too many
