"""A set of one kernel, for tests that pick the kernel themselves."""

from __future__ import annotations

from dataclasses import dataclass

from mlx_tensorops import registry
from mlx_tensorops.variant import Variant, VariantSet


@dataclass(frozen=True)
class Call:
    """What launching asks of a spec: the operation that errors name."""

    op: str


def alone(variant: Variant) -> VariantSet:
    """The set of this variant alone."""
    return VariantSet(Call(registry.family(variant.family).op), variant.engine, (variant,))
