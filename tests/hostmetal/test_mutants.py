"""Mutants of the clean kernels are noticed: by a finding, a wrong result, or the compiler. Survivors are explained."""

import pytest

from mlx_tensorops import hostmetal

from .mutants import draw
from .planted_cases import CASES
from .test_planted import FAULTS

SEED = 20
PER_CASE = 6
MUTANTS = draw([case for case in CASES if case.name != "fatal"], PER_CASE, SEED)

# Mutants that compute the same without breaking a rule: case, mutant -> why.
EQUIVALENT: dict[tuple[str, str], str] = {}


def test_half_as_many_again():
    assert len(MUTANTS) >= len(FAULTS) / 2


@pytest.mark.parametrize("case, mutant", MUTANTS, ids=lambda v: getattr(v, "name", str(v)))
def test_mutant_is_noticed(case, mutant):
    try:
        kernel = hostmetal.compile(mutant.source, checked=True)
        options = {"timeout": 2.0, **case.options}
        result = kernel.dispatch(grid=case.grid, threadgroup=case.threadgroup, buffers=case.buffers(), allow_findings=True, **options)
        survived = not result.findings and not case.wrong(result.outputs)
    except hostmetal.CompileError:
        survived = False
    assert survived == ((case.name, str(mutant)) in EQUIVALENT), f"{case.name}, {mutant}"
