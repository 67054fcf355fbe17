"""Mutants of the clean kernels are noticed: by a finding, a wrong result, or the compiler. Survivors are explained."""

import pytest

from .mutants import EQUIVALENT, draw, survives
from .planted_cases import CASES
from .test_planted import FAULTS

SEED = 20
PER_CASE = 6
MUTANTS = draw([case for case in CASES if case.name != "fatal"], PER_CASE, SEED)


def test_half_as_many_again():
    assert len(MUTANTS) >= len(FAULTS) / 2


@pytest.mark.parametrize("case, mutant", MUTANTS, ids=lambda v: getattr(v, "name", str(v)))
def test_mutant_is_noticed(case, mutant):
    assert survives(case, mutant) == (str(mutant) in EQUIVALENT.get(case.name, {})), f"{case.name}, {mutant}"
