"""The dataflows of products with stored weights. One module each, found by discovery; the three families share them."""

from __future__ import annotations

from functools import lru_cache
from typing import Mapping

from ...dtypes import BFLOAT16, FLOAT32, ElementType, element_type
from ...formats import by_name
from ...variant import ALIGNMENTS, Variant
from .._dataflow import Dataflow, discover

# x with contiguous rows ("n") or any strides ("t"); the weights as they are stored; any edges last.
EVERY_ROW = (*((f"n{right}", alignment) for alignment in ALIGNMENTS for right in "tn"), ("tt", "ragged"), ("tn", "ragged"))


@lru_cache(maxsize=None)
def dataflows() -> Mapping[tuple[str, str], Dataflow]:
    """(engine, name) -> dataflow, of every module beside this one."""
    return discover(__name__, __path__)


def of(variant: Variant) -> Dataflow:
    """The dataflow of a variant."""
    return dataflows()[variant.engine, variant.dataflow]


def decoded_type(format_name: str, x: str, stored: str) -> ElementType:
    """Element type in which a weight meets x.

    f32 where x is f32, and every weight of a floating format is exact in bfloat (at most 6 significant bits, E8M0's range), which half
    could not hold. Affine weights are rounded once to x's type, as by MLX. Dense weights stay as they are.
    """
    if not format_name:
        return element_type(stored)
    if x == FLOAT32.name:
        return FLOAT32
    return element_type(x) if by_name(format_name).scale == "float" else BFLOAT16
