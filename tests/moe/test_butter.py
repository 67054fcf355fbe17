"""The fifteen kernels that Butter writes by hand: each row of the table runs, in the checked build on two lane layouts, against float64."""

import mlx.core as mx
import numpy as np
import pytest

from mlx_tensorops import registry, resolve
from mlx_tensorops.policies import butter
from mlx_tensorops.primitives import _weighted
from mlx_tensorops.spec import GemmSpec
from tests.cases.gemm import make
from tests.gemm import flows as dense
from tests.gemm import judge as dense_judge
from tests.weighted import cases, experts, flows, judge
from tests.moe.test_pool import staged_as
from tools import kernel_table

KERNELS = pytest.mark.parametrize("kernel", butter.KERNELS, ids=lambda k: k.name)
LAYOUTS = ("nax", "permuted")
N, K = 200, 96  # no multiple of a block, and of none of the steps but 32


def test_there_are_fifteen_and_each_is_another():
    assert len(butter.KERNELS) == len({k.name for k in butter.KERNELS}) == 15
    assert len({(k.family, k.dataflow, k.tile, k.options, k.spec) for k in butter.KERNELS}) == 15
    by_engine = [sum(k.engine == engine for k in butter.KERNELS) for engine in ("mpp", "simdgroup")]
    assert by_engine == [11, 4]


def test_the_page_is_the_table():
    assert kernel_table.PAGE.read_text() == kernel_table.page()
    assert all(k.name in kernel_table.page() for k in butter.KERNELS)


def variants_of(kernel, options: tuple | None = None):
    module = dense if isinstance(kernel.spec, GemmSpec) else flows
    return module.variant_set(kernel.engine, kernel.dataflow, kernel.tile, kernel.spec, kernel.options if options is None else options)


@KERNELS
def test_runs_right_and_clean(kernel):
    """Ragged M, N and K; an expert without rows, ids that name nobody."""
    for seed, layout in enumerate(LAYOUTS):
        run(kernel, variants_of(kernel), seed, layout)


def run(kernel, variants, seed: int, layout: str) -> None:
    spec = kernel.spec
    if isinstance(spec, GemmSpec):
        a, b = make("rows", 77, K + 5, spec.a, np.random.default_rng(seed)), make("columns", K + 5, N, spec.b, np.random.default_rng(seed + 9))
        c, dispatch = dense.run(variants, a, b, layout=layout, checked=True)
        assert dense_judge.errors_over_bound(a, b, c, spec.out) <= 1
    elif spec.rows == "whole":
        problem = cases.problem(spec, 77, N, K, seed)
        results, dispatch = flows.run(variants, problem.inputs, layout=layout, checked=True)
        assert judge.over_bound(problem, results[0]) <= 1
    else:
        ids = experts.ids_of(90, seed, bad=True)
        given = experts.problem(spec, np.sort(ids) if spec.rows == "runs" else ids, N, K, seed)
        results, dispatch = flows.run(variants, given[0].inputs, layout=layout, checked=True)
        assert experts.over_bound(*given, results, staged_as(variants[dispatch["row"]])) <= 1
    assert variants[dispatch["row"]].family == kernel.family and dispatch["threads"][0] == kernel.tile.threads


@pytest.mark.parametrize("kernel", [k for k in butter.KERNELS if k.differs.startswith("bf16 operands") and k.family != "gemm"], ids=lambda k: k.name)
def test_the_half_form_exists_and_policy_does_not_take_it(kernel):
    """Butter's factors are an option of the same dataflow; the decision for the same problem names another form."""
    folded = variants_of(kernel, (*kernel.options, ("operands", "half_fold")))
    assert folded.rows and all(v.option("operands", "native") == "half_fold" for v in folded.rows)
    family = registry.family(kernel.family)
    taken = _weighted.rows(kernel.spec, kernel.engine, resolve.tile_entries(family, kernel.spec, kernel.engine))
    assert all(v.option("operands", "native") == "native" for v in taken)


def test_the_half_form_gives_the_product_of_large_activations():
    """Where no activation becomes subnormal under 2^-14: the result is that of the weights and of x."""
    kernel = butter.KERNELS[0]
    variants = variants_of(kernel, (*kernel.options, ("operands", "half_fold")))
    given, ids, source = experts.problem(kernel.spec, np.sort(experts.ids_of(60, 1)), N, K, 2)
    x = mx.where(mx.abs(given.arrays["x"]) < 0.5, mx.array(1.0, mx.bfloat16), given.arrays["x"]) * 4
    given = cases.Problem(given.spec, given.arrays | {"x": x})
    for layout in LAYOUTS:
        results, _ = flows.run(variants, given.inputs, layout=layout, checked=True)
        assert experts.over_bound(given, ids, source, results, "float16") <= 1


@KERNELS
def test_policy_knows_the_block(kernel):
    """Reached or not, it stands in a table of its family: lint, manifest and the registry's tests walk it."""
    import importlib

    table = importlib.import_module(f"mlx_tensorops.policies.{kernel.family}")
    assert (kernel.engine, kernel.dataflow, kernel.tile) in {(e.engine, e.dataflow, e.tile) for e in table.tables()}
