"""Every family, engine and axis: source, signature, guard and manifest of a variant say the same."""

import importlib
import json
import re

import pytest

import mlx_tensorops as mt
from mlx_tensorops import guards, manifests, registry, signature
from mlx_tensorops.errors import RuleError, TensorOpsError
from mlx_tensorops.shaders import lint, msl
from mlx_tensorops.shaders.render import render, render_fast
from mlx_tensorops.signature import C_TYPES
from mlx_tensorops.variant import Tile, Variant, VariantSet

VARIANTS = [v for f in registry.families().values() for v in f.variants()]


def test_keys_and_kernel_names_are_unique():
    assert len({v.key for v in VARIANTS}) == len(VARIANTS)
    assert len({render(v).kernel for v in VARIANTS}) == len(VARIANTS)


@pytest.mark.parametrize("family", registry.families().values(), ids=lambda f: f.name)
def test_four_products_agree(family):
    cases = importlib.import_module(f"tests.cases.{family.name}")
    for variant in family.variants():
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
        for check in sign.checks:
            assert check.message in text, "the file on top names what the host guarantees"
        assert render(variant).kernel == entry["kernel"] and entry["kernel"] in text
        shapes = cases.example_shapes(variant)
        assert len(shapes) == sign.inputs
        assert guards.compiled(family.op, [f"input {i}" for i in range(sign.inputs)], sign.checks)(*shapes) is None
        assert all(axis(shapes) > 0 for axis in sign.grid if axis.shape_only())
        assert json.loads(manifests.to_json(variant)) == entry


def test_lint_is_clean_and_can_fail():
    assert [(v.key, lint.lint(v)) for v in VARIANTS if lint.lint(v)] == []
    variant = registry.family("gemm").variants()[0]
    text = render(variant).text
    planted = {
        "ASCII": text.replace("Queried once", "Queried \u2014 once"),
        "unroll(full)": text.replace("#pragma clang loop unroll(full)\n", "", 1),
        "mode::multiply": text.replace("mode::multiply_accumulate)", "mode::multiply)"),
        "an empty kernel": text.replace("op.run(", "nothing("),
        "is never used": text.replace("const device B* b0 = b +", "const device B* b0 = a +").replace("const device B* b1 = b +", "const device B* b1 = a +"),
        "does not exist": text.replace("execution_simdgroup>", "execution_threadgroup>"),
        "threads per threadgroup": text.replace("threadgroup(128)", "threadgroup(64)"),
        "unresolved placeholder": text + "{{ x }}",
        "does not count": text.replace("  const int row0", "  threadgroup half staging[64];\n  const int row0"),
        "is copied": text.replace("  zero(c00);", "  auto again = c00;\n  zero(c00);"),
        "remove_addrspace_t": text.replace("get_destination_cooperative_tensor<Left", "get_destination_cooperative_tensor<decltype(left0)"),
        "is not declared": text.replace("  int K;\n", ""),
        "no guard for dialects": text.replace("__METAL_VERSION__ >= 400", "__METAL_VERSION__ >= 300"),
    }
    for expected, wrong in planted.items():
        assert wrong != text, expected
        assert any(expected in finding for finding in lint.lint_text(variant, wrong)), expected


def test_descriptor_fields_go_by_name():
    text = msl.descriptor(m=16, n=32, k=16, transpose_right=True, relaxed_precision=True)
    numbers = re.sub(r"/\*.*?\*/|\s", "", text)
    assert numbers == ("mpp::tensor_ops::matmul2d_descriptor(16,32,16,false,true,true,"
                       "mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate)")


def test_both_routes_share_the_body():
    for variant in VARIANTS:
        native, fast = render(variant).text, render_fast(variant)
        prologue = msl.fast_kernel_prologue(signature.of(variant))
        assert native.startswith(fast.header.rstrip("\n"))
        shared = fast.body.removeprefix(prologue).strip()
        assert shared in native and all(re.search(rf"\b{b.name}\b", shared) for b in signature.of(variant).buffers)


def test_public_names_are_discovered():
    assert "matmul" in registry.public_names() and callable(mt.matmul)
    assert set(registry.public_names()) <= set(dir(mt))
    for name in dir(mt):
        assert getattr(mt, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'no_such_thing'"):
        mt.no_such_thing


def test_contradictions_are_refused():
    with pytest.raises(RuleError, match="does not divide"):
        Tile(64, 100, 2, 2, 16, 32, 16)
    with pytest.raises(RuleError, match="at most 1024"):
        Tile(512, 512, 8, 8, 16, 32, 16)
    tile = VARIANTS[0].tile
    with pytest.raises(RuleError, match="layout 'nx'"):
        Variant("gemm", "mpp", "direct", tile, "nx", "aligned", ("float16",) * 3, True)
    with pytest.raises(RuleError, match="distinct names"):
        VariantSet(None, "mpp", (VARIANTS[0], VARIANTS[0]))
    with pytest.raises(TensorOpsError, match="no kernel family is called 'x'.*\n.*gemm"):
        registry.family("x")
