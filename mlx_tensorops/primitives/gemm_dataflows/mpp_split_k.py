"""Dataflow ``split_k`` of engine mpp: ``direct`` over one slice of K per threadgroup."""

from __future__ import annotations

from functools import partial

from . import Dataflow, _filled, _slices


def _legal(spec, options):
    return _slices.legal(spec, options) + _filled.legal(spec, options)


DATAFLOW = Dataflow(
    name="split_k",
    engine="mpp",
    template="gemm_mpp_direct.metal.j2",
    text="As direct, but a threadgroup sums one slice of K only; dataflow accumulate adds the slices.",
    axes={"fill": _filled.FILLS},
    legal=_legal,
    cost=_slices.cost(lambda v: _filled.cost(v, lefts=v.tile.fragments_m, rights=1)),
    context=partial(_filled.context, left="held", right="streamed"),
    fits=_filled.fits,
    builtins=_filled.builtins,
    k_slice=_slices.k_slice,
)
