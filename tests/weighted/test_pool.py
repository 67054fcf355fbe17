"""Every pooled kernel for whole quantised matrices, in the checked build on two lane layouts, against float64 and its cost rules."""

import pytest

from mlx_tensorops import formats
from mlx_tensorops.primitives import weighted_dataflows
from tests.alone import alone
from tests.weighted import flows, judge, pool

CHOICES = pool.pool()


def test_the_pool_meets_what_it_should():
    counts, pairs, axes = {}, set(), pool.axes()
    for choice in CHOICES:
        for axis in (a for a in axes if a != "option"):
            counts[axis, getattr(choice, axis)] = counts.get((axis, getattr(choice, axis)), 0) + 1
        pairs |= {(choice.kernel, choice.options), (choice.format.name, choice.x), *((choice.kernel, edge) for edge in choice.edges)}
    assert {(axis, value) for axis, values in axes.items() if axis != "option" for value in values} == set(counts) and min(counts.values()) >= 3
    assert {(f.name, x) for f in formats.BUILT_IN for x in pool.X} <= pairs
    assert {(kernel, edge) for kernel in pool.kernels() for edge in pool.EDGES} <= pairs
    assert {(e.engine, e.dataflow) for c in CHOICES for e in pool.kernels()[c.kernel]} == set(weighted_dataflows.dataflows())
    refused = {(k, o) for k in pool.kernels() for o in pool.options_of(k)} - pairs
    assert all({"tail", "block_k"} & set(dict(options)) for _, options in refused), "what only rows of experts have, and steps that do not fit"


def staged_as(variant) -> str | None:
    """Element type in which the kernel multiplies decoded weights."""
    return weighted_dataflows.of(variant).context(variant).get("b", weighted_dataflows.decoded_type(
        variant.option("format", ""), variant.types[0], variant.types[1])).name


def right(choice, edge: str, seed: int, *, layout: str, checked: bool = True, sizes=None):
    """One problem of a choice on one lane layout: values, and what was counted."""
    variant, problem = choice.variant, choice.problem(seed, sizes or choice.sizes(edge))
    (c,), dispatch = flows.run(alone(variant), problem.inputs, layout=layout, checked=checked)
    if weighted_dataflows.of(variant).k_slice:
        c = c.sum(axis=0)
    assert judge.over_bound(problem, c, staged_as(variant)) <= 1, (variant.key, edge, layout)
    if choice.row[0] == "n" and seed % 2 == 0:  # arrays of their own, as the rules are told here
        judge.counters_as_predicted(variant, problem, dispatch, layout)


@pytest.mark.parametrize("choice", CHOICES, ids=lambda c: c.name)
def test_kernel(choice):
    for seed, (layout, edge) in enumerate(zip(("nax", "permuted"), choice.edges)):
        right(choice, edge, seed, layout=layout)
