"""Dataflow ``split_k``: ``staged`` over one slice of K per threadgroup, f32 sums; the dense family's ``accumulate`` adds the slices."""

from __future__ import annotations

from dataclasses import replace

from ...policies import qgemm as table
from ...rules import Rule
from ...variant import Variant
from .._weighted_signature import facts_of, slices_of
from . import staged


def _k_slice(v: Variant) -> Rule:
    f = facts_of(v)
    return table.k_slice(f.M, f.N, f.K)


def _legal(spec, options) -> list[str]:
    """Partial sums are f32, and what follows the product follows the sum."""
    reasons = list(staged.DATAFLOW.legal(spec, options))
    if spec.rows != "whole" or spec.batched:
        reasons.append("one matrix at a time is split")
    if spec.out != "float32":
        reasons.append(f"partial sums are float32, not {spec.out}")
    if spec.epilogue:
        reasons.append("the epilogue belongs to the pass that adds the slices")
    return reasons


DATAFLOW = replace(
    staged.DATAFLOW,
    name="split_k",
    text="As staged, but a threadgroup sums one slice of K only; dataflow accumulate of the dense family adds the slices.",
    legal=_legal,
    cost=lambda v: staged.cost(v, slices_of(v, DATAFLOW, facts_of(v))),
    k_slice=_k_slice,
)
