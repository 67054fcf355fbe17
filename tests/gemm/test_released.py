"""Golden files of this version; bit-equality with those of the last one."""

import re

import mlx.core as mx
import numpy as np
import pytest

from mlx_tensorops import hostmetal
from mlx_tensorops.primitives import _enqueue, gemm_dataflows
from mlx_tensorops.shaders import render as renderer
from mlx_tensorops.variant import VariantSet
from mlx_tensorops.version import __version__
from tests.cases.gemm import make
from tests.gemm import flows, released

CHOSEN = released.chosen()


def text_of(name: str) -> str:
    """A fixture's text."""
    return (released.FOLDER / name).read_text(encoding="ascii")


def test_every_dataflow_has_its_files():
    assert {p.name for p in released.FOLDER.glob("*.metal")} == set(CHOSEN)
    assert {(v.engine, v.dataflow) for v in CHOSEN.values()} == set(gemm_dataflows.dataflows())


@pytest.mark.parametrize("name", CHOSEN)
def test_golden(name):
    if released.VERSION.read_text().strip() == __version__:
        assert renderer.render(CHOSEN[name]).text == text_of(name), "read the diff, then: python -m tests.gemm.released"


@pytest.mark.parametrize("name", [n for n in CHOSEN if n.endswith("float16.metal")])
def test_lint_at_both_dialects(name):
    """Address spaces, program scope and the SDK's static assertions, as Metal 4.0 and 4.1 see them; simdgroup kernels from 3.1 on."""
    for dialect, sdk in (("4.0", "26.4"), ("4.1", "27"), *((("3.1", "26.4"),) if CHOSEN[name].engine == "simdgroup" else ())):
        assert hostmetal.lint(text_of(name), dialect=dialect, sdk=sdk) == (), (dialect, sdk)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CHOSEN)
def test_lint_at_every_sdk(name):
    for sdk in ("26.2", "26.4", "27"):
        assert hostmetal.lint(text_of(name), sdk=sdk) == (), sdk


def test_the_lint_can_fail():
    text = text_of("mpp_direct_float16.metal")
    stray = text.replace("int M, int N) {\n", "int M, int N) {\n  const float* stray = 0;\n", 1)
    assert stray != text and hostmetal.lint(stray)
    with pytest.raises(hostmetal.CompileError, match="must be 32"):
        hostmetal.lint(re.sub(r"matmul2d_descriptor\(\s*16, 32, 16,", "matmul2d_descriptor(16, 16, 16,", text))


def executed(variant, arrays, source=None):
    """The result's bits; of another text, where one is given."""
    with pytest.MonkeyPatch.context() as patch:
        if source is not None:
            patch.setattr(_enqueue, "render", lambda v: source)
        _enqueue.native_set.cache_clear()
        try:
            c, _ = flows.run(VariantSet(variant, variant.engine, (variant,)), *arrays)
        finally:
            _enqueue.native_set.cache_clear()
    return np.array(c.view(mx.uint8))


@pytest.mark.parametrize("name", [n for n in CHOSEN if n.endswith("float16.metal")])
def test_bit_equal_to_the_last_release(name):
    variant, text = CHOSEN[name], text_of(name)
    kernel = re.search(r"\]\] void (\w+)\(", text)[1]
    if gemm_dataflows.of(variant).adds_slices:
        arrays = [mx.array(np.random.default_rng(1).normal(size=(3, 70, 150)).astype(np.float32))]
    else:
        rng = np.random.default_rng(2)
        arrays = [make("rows", 70, 83, "float16", rng), make("rows", 83, 150, "float16", rng)]
    same = np.array_equal(executed(variant, arrays), executed(variant, arrays, renderer.Source(text, kernel, "")))
    assert same != (name in released.REASONS), f"listed: {released.REASONS.get(name)}"


def test_the_comparison_can_fail():
    name = "mpp_direct_float16.metal"
    rng = np.random.default_rng(2)
    arrays = [make("rows", 70, 83, "float16", rng), make("rows", 83, 150, "float16", rng)]
    text = text_of(name).replace("step < steps;", "step + 1 < steps;")
    kernel = re.search(r"\]\] void (\w+)\(", text)[1]
    assert not np.array_equal(executed(CHOSEN[name], arrays), executed(CHOSEN[name], arrays, renderer.Source(text, kernel, "")))
