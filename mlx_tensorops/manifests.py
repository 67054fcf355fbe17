"""Variant -> its record: what it needs, what it was made from, how it is launched. JSON, stable order."""

from __future__ import annotations

import json
from dataclasses import asdict

from . import formats, registry, signature
from .select import INPUT_COOPERATIVE_TENSORS_SINCE, METAL_3_1_SINCE, version
from .variant import Variant
from .version import __version__

SCHEMA = 1

# What an engine needs from the machine that compiles and runs the kernel.
REQUIRES = {
    "mpp": {"metal": "4.0", "os": version(INPUT_COOPERATIVE_TENSORS_SINCE), "neural_accelerators": True},
    "simdgroup": {"metal": "3.1", "os": version(METAL_3_1_SINCE), "neural_accelerators": False},
}


def of(variant: Variant, source=None) -> dict:
    """The manifest entry of a variant; ``source`` is its rendered shader, where the caller is what renders it."""
    from .shaders.render import render

    sign = signature.of(variant)
    source = source or render(variant)
    family = registry.family(variant.family)
    return {
        "schema": SCHEMA,
        "package": __version__,
        "family": variant.family,
        "op": family.op,
        "engine": variant.engine,
        "dataflow": variant.dataflow,
        "row": variant.row,
        "variant": variant.key,
        "kernel": source.kernel,
        "sha256": source.digest,
        "template": family.templates[variant.engine, variant.dataflow],
        "requires": REQUIRES[variant.engine],
        # Anything with cooperative tensors is compiled on the user's OS: metallibs built against another SDK
        # have been seen to give finite wrong numbers.
        "live_compile": True,
        "types": list(variant.types),
        "accumulate": "float32" if variant.matrix else None,
        "relaxed_precision": variant.relaxed,
        "weights": _weights(variant.option("format", "")),
        "threads": sign.threads,
        "threadgroup_bytes": sign.threadgroup_bytes,
        "buffers": [{"name": b.name, "type": b.element.name, "role": b.role} for b in sign.buffers],
        "scalars": [{"name": s.name, "type": s.c_type, "rule": s.rule.program()} for s in sign.scalars],
        "outputs": [{"type": o.element.name, "shape": [r.program() for r in o.shape]} for o in sign.outputs],
        "checks": [{"rule": c.rule.program(), "message": c.message} for c in sign.checks],
        "when": sign.when.program(),
        "grid": [r.program() for r in sign.grid],
    }


def _weights(name: str) -> dict | None:
    """A format's record, and the hardware paths that would take its codes as they are, each with whether it is built."""
    if not name:
        return None
    found = formats.by_name(name)
    return asdict(found) | {"values": list(found.values), "tiers": [asdict(t) | {"left": list(t.left)} for t in formats.tiers(found)]}


def to_json(variant: Variant, source=None) -> str:
    """The entry as JSON text."""
    return json.dumps(of(variant, source), indent=1) + "\n"


def manifest() -> list[dict]:
    """The entry of every variant of every family."""
    return [of(v) for family in registry.families().values() for v in family.variants()]
