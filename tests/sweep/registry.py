"""Every kernel of every family: source, signature, guard, manifest, lint and routes agree."""

from __future__ import annotations

from mlx_tensorops import registry
from mlx_tensorops.shaders.render import render
from tests import registered

CHUNK = 250


def items():
    for name, family in registry.families().items():
        variants = family.variants()
        for start in range(0, len(variants), CHUNK):
            yield f"{name}/{start}", lambda v=variants[start : start + CHUNK]: _check(v)
        yield f"{name}/names", lambda v=variants: _names(v)


def _check(variants) -> None:
    for variant in variants:
        registered.check(variant)


def _names(variants) -> None:
    assert len({render(v).kernel for v in variants}) == len(variants)
