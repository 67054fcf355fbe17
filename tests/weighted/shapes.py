"""Shapes of the inputs of a weighted kernel, from its sizes."""

from __future__ import annotations

from mlx_tensorops.primitives import _weighted_signature as shared


def of(variant, *, m: int = 64, n: int = 128, k: int = 256, experts: int = 3, batch: int = 2) -> tuple[tuple[int, ...], ...]:
    """Shapes in the order in which the kernel takes its inputs; a plan has room for ``m`` rows of so many experts."""
    p, transpose = shared.problem(variant), shared.given_transposed(variant)
    stack = (batch,) if variant.batched else () if p.rows == "whole" else (experts,)
    fmt = p.weights
    outer, inner = (n, k) if transpose else (k, n)
    groups, packed = (inner // fmt.group, inner * fmt.bits // 32) if fmt else (0, inner)
    tiles = (-(-m // variant.tile.m) + experts,)
    lead = stack if variant.batched else ()
    by_stem = {
        "x": (*lead, m, k), "w": (*stack, outer, packed), "scales": (*stack, outer, groups), "biases": (*stack, outer, groups),
        "global_scale": (experts if p.rows != "whole" else 1,), "bias": (experts, n) if p.rows != "whole" else (*lead, 1, n),
        "residual": (*lead, m, n), "experts": (m,), "tile_expert": tiles, "tile_row_start": tiles, "tile_row_count": tiles, "order": (m,), "x_rows": (m,),
    }
    return tuple(by_stem[shared.stem_of(name)] for name in shared.names(p, variant.epilogue))
