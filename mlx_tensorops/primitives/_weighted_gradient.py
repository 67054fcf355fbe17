"""Gradients of kernels with stored weights: their formula."""

from __future__ import annotations

from dataclasses import replace

from ..epilogues import GATES
from . import _compose, _experts, _gradient, weighted_dataflows
from . import _weighted_signature as shared
from ._weights import Group


def of(v, primals, cotangents, argnums) -> list:
    """Gradients of the inputs ``argnums`` of a variant, whose inputs come in the kernel's order."""
    import mlx.core as mx

    return _gradient.of(lambda *arrays: _results(mx, v, arrays), primals, cotangents, argnums, sliced=weighted_dataflows.of(v).k_slice is not None)


def _results(mx, v, arrays) -> list:
    """The kernel's results in f32, from its inputs."""
    p = shared.problem(v)
    given = dict(zip(shared.names(p, v.epilogue), arrays))
    sums = [_sums(mx, v, p, given, suffix) for suffix in p.suffixes]
    if p.gate:
        sums = [GATES[p.gate].mlx(mx, *sums)]
    formula = replace(v.epilogue, bias=v.epilogue.bias and p.rows == "whole")
    sums = [_compose.finish(mx, formula, "float32", y, given.get("bias") if formula.bias else None, given.get("residual")) for y in sums]
    if p.rows == "whole":
        return sums
    valid = _experts.in_range(mx, _ids(mx, p, given), given["w" + p.suffixes[0]].shape[0])[:, None]
    return [mx.where(valid, y, 0) for y in sums]


def _sums(mx, v, p, given: dict, suffix: str):
    """One destination's products with their global scale and, for rows of experts, their bias."""
    group = Group(*(given.get(name + suffix) for name in Group._fields))
    scale, transpose = given.get("global_scale" + suffix), shared.given_transposed(v)
    if p.rows == "whole":
        return _compose.scaled(_compose.whole(mx, p.weights, transpose, given["x"], group), scale, p.global_scale)
    ids = _experts.clamped(mx, _ids(mx, p, given), group.w.shape[0])
    x = given["x"][:, None]
    rows = given["x_rows"] if p.indirect else mx.arange(ids.size, dtype=mx.int32) // (ids.size // x.shape[0])
    y = _compose.gathered(mx, p.weights, transpose, x, group, rows, ids)[:, 0]
    y = _compose.scaled(y, None if scale is None else scale[ids][:, None], p.global_scale)
    return y + given["bias" + suffix][ids].astype(mx.float32) if v.epilogue.bias else y


def _ids(mx, p, given: dict):
    """Expert of each row of the result; out of range where there is none."""
    return given["experts"] if p.rows == "runs" else _experts.of_plan(mx, given)
