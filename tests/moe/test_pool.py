"""Every pooled kernel for rows of experts, in the checked build on two lane layouts, against float64; what it loads of x and stores is exact."""

import pytest

from mlx_tensorops.dtypes import element_type
from mlx_tensorops.primitives import weighted_dataflows
from tests.moe import pool
from tests.weighted import experts, flows

CHOICES = pool.pool()


def test_the_pool_meets_what_it_should():
    for axis, values in pool.axes().items():
        counts = {value: sum(getattr(c, axis) == value for c in CHOICES) for value in values}
        assert min(counts.values()) >= pool.AT_LEAST, (axis, counts)
    kernels = {(family, kernel) for family in pool.TABLES for kernel in pool.kernels(family)}
    assert {(c.family, c.kernel) for c in CHOICES} == kernels
    for axis in ("rows", "edge", "indirect", "strides", "transpose"):
        met = {(c.kernel, getattr(c, axis)) for c in CHOICES}
        assert met == {(kernel, value) for _, kernel in kernels for value in pool.axes()[axis] if not ("vector" in kernel and value == "ragged_m")}, axis


def staged_as(variant) -> str:
    """Element type in which the kernel multiplies decoded weights."""
    flow = weighted_dataflows.of(variant)
    return flow.context(variant).get("b", weighted_dataflows.decoded_type(variant.option("format", ""), variant.types[0], variant.types[1])).name


def x_bytes(variant, ids, count: int, n: int, k: int) -> int:
    """What the kernel loads of x: each row of an expert that exists once per part of the columns that reads on its own. Nothing else exists
    that holds rows of x."""
    t = variant.tile
    parts = -(-n // (t.n if variant.dataflow == "staged" else t.warp_n))
    lanes = 4 if variant.dataflow == "vector" and variant.layout[1] == "n" else 1  # that share a row of K
    return int(((ids >= 0) & (ids < count)).sum()) * k * element_type(variant.types[0]).bytes * parts * lanes


def right(choice, seed: int, *, layout: str, histogram: tuple | None = None, sizes=None, checked: bool = True, **adversary):
    """One problem of a choice on one lane layout: values, row, bytes of x, bytes stored. Returns the dispatch record."""
    problem, ids, source = choice.problem(seed, histogram, sizes)
    variants = choice.variants()
    (variant,) = variants.rows
    results, dispatch = flows.run(variants, problem.inputs, layout=layout, checked=checked, **adversary)
    staged = staged_as(variant) if choice.format else None
    assert experts.over_bound(problem, ids, source, results, staged) <= 1, (variant.key, layout, seed)
    if checked:
        w = problem.arrays["w" if choice.family == "gather" else "w_gate"]
        loads, n = dispatch["counters"]["device_load"], results[0].shape[-1]
        if layout != "padded":
            assert loads[0] == x_bytes(variant, ids, len(w), n, problem.arrays["x"].shape[1])
        assert sum(dispatch["counters"]["device_store"]) == sum(r.nbytes for r in results)
    return dispatch


@pytest.mark.parametrize("choice", CHOICES, ids=lambda c: f"{c.family}-{c.name}")
def test_kernel(choice):
    first = CHOICES.index(choice)
    for seed, layout in enumerate(("nax", "permuted")):
        right(choice, first + seed, layout=layout)
