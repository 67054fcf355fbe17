"""Every pooled dense kernel, in the checked build on two lane layouts, against float64 and its cost rules."""

import pytest

from tests.alone import alone
from tests.gemm import flows, judge, pool

CHOICES = pool.pool()


def test_the_pool_names_every_dataflow_and_every_value_often_enough():
    counts = {}
    for choice in CHOICES:
        for axis in ("entry", "layout", "edge", "operands", "out", "precision", "epilogue", "batched"):
            counts[axis, getattr(choice, axis)] = counts.get((axis, getattr(choice, axis)), 0) + 1
    wanted = {(axis, value) for axis, values in pool.axes(2).items() if axis != "option" for value in values}
    assert wanted == set(counts) and min(counts.values()) >= 3


def lane_layouts(variant):
    """Layouts a kernel must be right under: all, but for those that hard-code the M5's lane map."""
    return ("nax",) if variant.option("fill", "coordinate") == "nax" else ("nax", "permuted")


@pytest.mark.parametrize("choice", CHOICES, ids=lambda c: c.name)
def test_kernel(choice):
    variant = choice.variant
    variants = alone(variant)
    for seed, layout in enumerate(lane_layouts(variant)):
        arrays, extra = choice.problem(seed)
        c, dispatch = flows.run(variants, *arrays, layout=layout, checked=True)
        assert dispatch["row"] == variant.row
        assert judge.epilogue_over_bound(arrays[0], arrays[1], c, choice.out, variant.epilogue, **extra) <= 1, layout
        if not choice.epilogue:
            judge.counters_as_predicted(variant, [x.shape for x in arrays], dispatch, layout)
