"""What must hold of every kernel, whatever it computes: the registry test looks at a sample, the sweep at all of them."""

from __future__ import annotations

import importlib
import json
import re
from functools import lru_cache

from mlx_tensorops import guards, manifests, registry, signature
from mlx_tensorops.shaders import lint, msl
from mlx_tensorops.shaders.render import render, render_fast
from mlx_tensorops.signature import C_TYPES
from mlx_tensorops.variant import Variant
from tests.covering import covering_sample


def features(v: Variant) -> tuple:
    """What can differ between two kernels, as (axis, value)."""
    return (("kernel", (v.engine, v.dataflow, v.tile.name)), ("row", (v.size, v.layout, v.alignment)), ("types", v.types), ("relaxed", v.relaxed),
            ("batched", v.batched), ("epilogue", v.epilogue), *v.options)


@lru_cache(maxsize=None)
def sample(family: str) -> tuple[Variant, ...]:
    """Kernels of a family in which every pair of features occurs that occurs at all."""
    return tuple(covering_sample(registry.family(family).variants(), features, seed=2026))


def check(variant: Variant) -> None:
    """Source, signature, guard, manifest, lint and, where there is one, the other route into MLX agree."""
    four_products_agree(variant)
    assert lint.lint(variant) == [], variant.key
    if registry.family(variant.family).fast_route:
        routes_share_the_body(variant)


def four_products_agree(variant: Variant) -> None:
    """Each fact of the signature stands in the text and in the manifest."""
    family = registry.family(variant.family)
    cases = importlib.import_module(f"tests.cases.{family.name}")
    sign, text, entry = signature.of(variant), render(variant).text, manifests.of(variant)
    declared = re.findall(r"(const )?device (\w+)\* (__restrict )?(\w+) \[\[buffer\((\d+)\)\]\]", text)
    assert declared == [("" if b.output else "const ", b.element.msl, "" if b.read_back else "__restrict ", b.name, str(i))
                        for i, b in enumerate(sign.buffers)]
    assert [(b["name"], b["type"]) for b in entry["buffers"]] == [(b.name, b.element.name) for b in sign.buffers]
    fields = re.search(rf"struct {sign.params} {{\n(.*?)\n}};", text, re.S)[1]
    assert [tuple(line.strip(" ;").split()) for line in fields.splitlines()] == [(s.c_type, s.name) for s in sign.scalars]
    assert [s["rule"] for s in entry["scalars"]] == [s.rule.program() for s in sign.scalars]
    assert f"constant {sign.params}& p [[buffer({len(sign.buffers)})]]" in text
    kind, letters, programs = sign.bindings()[-1]
    assert kind == "scalars" and letters == "".join(C_TYPES[s.c_type][0] for s in sign.scalars) and len(programs) == len(letters)
    assert f"max_total_threads_per_threadgroup({entry['threads']})" in text and entry["threads"] == variant.tile.threads
    size = f"BM = {variant.tile.m}, BN = {variant.tile.n};" if variant.matrix else f"THREADS = {variant.tile.threads};"
    assert size in text
    assert [c["rule"] for c in entry["checks"]] == [c.rule.program() for c in sign.checks]
    for line in sign.checks:
        assert line.message in text, "the file on top names what the host guarantees"
    assert render(variant).kernel == entry["kernel"] and entry["kernel"] in text
    shapes = cases.example_shapes(variant)
    assert len(shapes) == sign.inputs
    assert guards.compiled(family.op, [f"input {i}" for i in range(sign.inputs)], sign.checks)(*shapes) is None
    assert all(axis(shapes) > 0 for axis in sign.grid if axis.shape_only())
    assert json.loads(manifests.to_json(variant)) == entry


def routes_share_the_body(variant: Variant) -> None:
    """What mx.fast.metal_kernel gets is the same text but for the argument list."""
    native, fast = render(variant).text, render_fast(variant)
    prologue = msl.fast_kernel_prologue(signature.of(variant))
    assert native.startswith(fast.header.rstrip("\n"))
    shared = fast.body.removeprefix(prologue).strip()
    assert shared in native and all(re.search(rf"\b{b.name}\b", shared) for b in signature.of(variant).buffers)
