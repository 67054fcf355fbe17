"""Dataflow ``split_k`` of engine simdgroup: ``staged`` over one slice of K per threadgroup."""

from __future__ import annotations

from dataclasses import replace

from . import _slices, simdgroup_staged

DATAFLOW = replace(
    simdgroup_staged.DATAFLOW,
    name="split_k",
    text="As staged, but a threadgroup sums one slice of K only; dataflow accumulate adds the slices.",
    axes={axis: simdgroup_staged.AXES[axis] for axis in ("block_k", "skew_bytes")},
    legal=_slices.legal,
    cost=_slices.cost(simdgroup_staged.DATAFLOW.cost),
    k_slice=_slices.k_slice,
)
