"""What both split-K dataflows share: they are whole-K kernels that take one slice each and store f32 sums."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Mapping

from ...cost import Cost
from ...policies.gemm import SPLIT_K
from ...rules import Rule
from ...variant import Variant
from .._gemm_signature import sizes, slices


def k_slice(v: Variant) -> Rule:
    """Length of a slice, a multiple of every step of K that a dataflow takes."""
    return SPLIT_K[v.engine].k_slice(*sizes(v.batched))


def legal(spec: Any, options: Mapping[str, Any]) -> list[str]:
    """Partial sums are f32, and what follows the product follows the sum."""
    reasons = []
    if spec.out != "float32":
        reasons.append(f"partial sums are float32, not {spec.out}")
    if spec.epilogue:
        reasons.append("the epilogue belongs to the pass that adds the slices")
    return reasons


def cost(of_product: Callable[[Variant], Cost]) -> Callable[[Variant], Cost]:
    """The same work as in one piece, and one result per slice."""

    def of_slices(v: Variant) -> Cost:
        whole = of_product(v)
        return replace(whole, output_bytes=whole.output_bytes * slices(v))

    return of_slices
