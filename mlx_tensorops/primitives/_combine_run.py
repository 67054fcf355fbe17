"""The weighted sum over a token's experts as one launch of family ``combine``."""

from __future__ import annotations

from .. import resolve
from ..spec import CombineSpec
from . import _enqueue, _experts, _replay
from ._arguments import dtype_name
from ._axes import merged
from ._kernel import Kernel
from .combine import FAMILY, FLOATS, composed

_kernels: dict = {}


def combine(mx, y, scores, experts, count: int, addend=None, addend_scores=None, *, out: str, stream=None):
    """``sum_j scores[..., j] y[..., j, :] (+ addend_scores[..., 0] addend)`` in f32, rounded once to ``out``; lazy.

    Args:
        y: ``[..., k, N]``.
        scores: ``[..., k]``; not looked at where the expert does not exist.
        experts: ids ``[..., k]`` of ``count`` experts.
        addend, addend_scores: ``[..., N]`` and ``[..., 1]``, or None.
        out: element type of the result.

    Returns:
        ``[..., N]``.
    """
    arrays = dict(y=merged(mx, y, 2), scores=merged(mx, scores, 1))
    if addend is not None:
        arrays["addend"] = merged(mx, addend, 1)
    if addend_scores is not None:
        arrays["addend_scores"] = merged(mx, addend_scores.squeeze(-1), 0)
    arrays = {name: x if dtype_name(x.dtype) in FLOATS else x.astype(mx.float32) for name, x in arrays.items()}
    types = {name: dtype_name(x.dtype) for name, x in arrays.items()}
    if 0 in y.shape:  # a node without input is zero, and the addend is not
        return _replay.like(mx, CombineSpec.op, composed(mx, **arrays).astype(getattr(mx, out)), scores, 1)
    arrays |= dict(experts=mx.stop_gradient(merged(mx, _experts.to_int32(mx, experts, count), 1)), experts_count=mx.array([count], mx.int32))
    spec = CombineSpec(**types, out=out)
    context = _enqueue.context(stream)
    kernel = _kernels.get((spec, context))
    if kernel is None:
        kernel = _kernels[spec, context] = Kernel(resolve.resolve(FAMILY.name, spec, "simdgroup", context), spec.op)
    return _replay.like(mx, CombineSpec.op, kernel.launch(arrays, stream)[0], scores, 1)
