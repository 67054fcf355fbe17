"""Every family, engine and axis: source, signature, guard and manifest of a variant say the same."""

import re

import pytest

import mlx_tensorops as mt
from mlx_tensorops import formats, manifests, registry
from mlx_tensorops.errors import RuleError, TensorOpsError
from mlx_tensorops.primitives import _weighted
from mlx_tensorops.shaders import lint, msl
from mlx_tensorops.shaders.render import render
from mlx_tensorops.variant import Tile, Variant, VariantSet
from tests import registered

FAMILIES = pytest.mark.parametrize("family", registry.families())


def test_keys_are_unique():
    keys = [v.key for f in registry.families().values() for v in f.variants()]
    assert len(set(keys)) == len(keys)


@FAMILIES
def test_kernels_of_a_sample(family):
    for variant in registered.sample(family):
        registered.check(variant)


@FAMILIES
def test_the_sample_shows_everything_that_occurs(family):
    everything = registry.family(family).variants()
    chosen = registered.sample(family)
    assert {f for v in chosen for f in registered.features(v)} == {f for v in everything for f in registered.features(v)}
    assert len({render(v).kernel for v in chosen}) == len(chosen) <= len(everything)


def test_the_manifest_tells_a_format_and_what_hardware_could_do_with_it():
    entries = {v.option("format", ""): manifests.of(v)["weights"] for v in registered.sample("qgemm")}
    assert set(entries) == {f.name for f in _weighted.LISTED} and len(entries) == 4
    assert (entries["affine4_g64"]["bits"], entries["affine4_g64"]["group"], entries["affine4_g64"]["biased"]) == (4, 64, True)
    assert [(t["operand"], t["sdk"], t["built"]) for t in entries["affine4_g64"]["tiers"]] == [("uint4b_format", "26.4", False)]
    assert [(t["operand"], t["plane"], t["metal"], t["built"]) for t in entries["mxfp4"]["tiers"]] == [
        ("metal_fp4_e2m1_format", "", "4.1", False), ("metal_fp4_e2m1_format", "metal_fp8_ue8m0_format", "4.1", False)]
    assert formats.tiers(formats.by_name("affine3_g32")) == () and entries["nvfp4"]["global_scale"]
    assert manifests.of(direct())["weights"] is None


def direct() -> Variant:
    """A dense kernel without staging, for what is planted into its text."""
    return next(v for v in registry.family("gemm").variants() if (v.engine, v.dataflow, v.row) == ("mpp", "direct", "nn/aligned"))


def test_lint_can_fail():
    variant = direct()
    assert lint.lint(variant) == []
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
    variant = direct()
    tile = variant.tile
    with pytest.raises(RuleError, match="layout 'nx'"):
        Variant("gemm", "mpp", "direct", tile, "nx", "aligned", ("float16",) * 3, True)
    with pytest.raises(RuleError, match="distinct names"):
        VariantSet(None, "mpp", (variant, variant))
    with pytest.raises(TensorOpsError, match="no kernel family is called 'x'.*\n.*gemm"):
        registry.family("x")
