"""The dataflows of family ``gemm``: how operands reach the matrix unit. One module each, found by discovery."""

from __future__ import annotations

from functools import lru_cache
from typing import Mapping

from ...variant import Variant
from .._dataflow import EVERY_ROW, Dataflow, discover


@lru_cache(maxsize=None)
def dataflows() -> Mapping[tuple[str, str], Dataflow]:
    """(engine, name) -> dataflow, of every module beside this one."""
    return discover(__name__, __path__)


def of(variant: Variant) -> Dataflow:
    """The dataflow of a variant."""
    return dataflows()[variant.engine, variant.dataflow]
