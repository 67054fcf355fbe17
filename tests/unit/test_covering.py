"""The covering arrays cover: counted by brute force."""

import itertools

import pytest

from tests.covering import covering_array, covering_sample

AXES = {"a": (0, 1, 2), "b": ("x", "y"), "c": (0, 1, 2, 3), "d": (True, False), "e": range(5)}


def legal(row):
    return not (row["a"] == 2 and row["d"]) and not (row["c"] == 3 and row["e"] == 4 and row["b"] == "x")


@pytest.mark.parametrize("strength", [1, 2, 3])
def test_every_legal_combination_is_there(strength):
    rows = covering_array(AXES, strength=strength, seed=3, legal=legal)
    everything = [row for row in (dict(zip(AXES, v)) for v in itertools.product(*AXES.values())) if legal(row)]
    for group in itertools.combinations(AXES, strength):
        assert {tuple(r[n] for n in group) for r in rows} == {tuple(r[n] for n in group) for r in everything}
    assert all(map(legal, rows)) and len(rows) < len(everything) / 2


def test_the_same_seed_gives_the_same_rows_and_values_occur_often_enough():
    assert covering_array(AXES, seed=5) == covering_array(AXES, seed=5) != covering_array(AXES, seed=6)
    rows = covering_array(AXES, seed=5, at_least=7)
    for name, values in AXES.items():
        for value in values:
            assert sum(row[name] == value for row in rows) >= 7


def test_axes_that_need_not_meet_take_fewer_rows():
    rows = covering_array(AXES, seed=3, apart=[("c", "e")])
    assert len(rows) < len(covering_array(AXES, seed=3))
    for pair in itertools.combinations(AXES, 2):
        if pair != ("c", "e"):
            assert len({tuple(r[n] for n in pair) for r in rows}) == len(AXES[pair[0]]) * len(AXES[pair[1]])


def test_a_sample_of_what_exists_has_every_pair_of_it():
    everything = list(itertools.product(*AXES.values()))
    chosen = covering_sample(everything, lambda item: tuple(enumerate(item)), seed=1)
    assert len(chosen) < len(everything) / 4
    for i, j in itertools.combinations(range(len(AXES)), 2):
        assert {(r[i], r[j]) for r in chosen} == {(r[i], r[j]) for r in everything}
