"""Case tables, one module per kernel family, found by discovery: tests, sweep and benchmarks read the same ones."""

from __future__ import annotations

import importlib
import pkgutil


def families() -> dict:
    """Family name -> its module of cases."""
    return {info.name: importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)}
