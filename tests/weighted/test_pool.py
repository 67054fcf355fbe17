"""Every pooled kernel for whole quantised matrices, in the checked build on two lane layouts, against float64 and its cost rules."""

import pytest

from mlx_tensorops import formats, signature
from mlx_tensorops.primitives import weighted_dataflows
from mlx_tensorops.variant import VariantSet
from tests.weighted import flows, judge, pool

CHOICES = pool.pool()


def test_the_pool_meets_what_it_should():
    counts, pairs, axes = {}, set(), pool.axes()
    for choice in CHOICES:
        for axis in (a for a in axes if a != "option"):
            counts[axis, getattr(choice, axis)] = counts.get((axis, getattr(choice, axis)), 0) + 1
        pairs |= {(choice.kernel, choice.format.name), (choice.kernel, choice.options), (choice.format.name, choice.x)}
    assert {(axis, value) for axis, values in axes.items() if axis != "option" for value in values} == set(counts) and min(counts.values()) >= 3
    assert {(f.name, x) for f in formats.BUILT_IN for x in pool.X} <= pairs
    assert {c.format.name for c in CHOICES} == {f.name for f in formats.BUILT_IN}
    assert {(e.engine, e.dataflow) for c in CHOICES for e in pool.kernels()[c.kernel]} == set(weighted_dataflows.dataflows())
    refused = {(k, o) for k in pool.kernels() for o in pool.options_of(k)} - pairs
    assert all({"tail", "block_k"} & set(dict(options)) for _, options in refused), "what only rows of experts have, and steps that do not fit"


def staged_as(variant) -> str | None:
    """Element type in which the kernel multiplies decoded weights."""
    return weighted_dataflows.of(variant).context(variant).get("b", weighted_dataflows.decoded_type(
        variant.option("format", ""), variant.types[0], variant.types[1])).name


def right(choice, seed: int, *, layout: str, checked: bool = True, sizes=None):
    """One problem of a choice on one lane layout: values, row and counters. Returns the dispatch record."""
    problem = choice.problem(seed, sizes)
    variant = choice.variant(problem)
    (c,), dispatch = flows.run(VariantSet(variant, variant.engine, (variant,)), problem.inputs, layout=layout, checked=checked)
    if weighted_dataflows.of(variant).k_slice:
        assert c.shape[0] == signature.of(variant).outputs[0].shape[0]([x.shape for x in problem.inputs])
        c = c.sum(axis=0)
    assert judge.over_bound(problem, c, staged_as(variant)) <= 1, (variant.key, layout)
    if choice.strides == "n" and seed % 2 == 0:  # arrays of their own, as the rules are told here
        judge.counters_as_predicted(variant, problem, dispatch, layout)
    return dispatch


@pytest.mark.parametrize("choice", CHOICES, ids=lambda c: c.name)
def test_kernel(choice):
    for seed, layout in enumerate(("nax", "permuted")):
        right(choice, seed, layout=layout)
