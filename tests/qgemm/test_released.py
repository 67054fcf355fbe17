"""Golden files of this version's kernels for quantised weights; bit-equality with those of the last one."""

import numpy as np
import pytest

from mlx_tensorops.primitives import weighted_dataflows
from tests.qgemm.released import RELEASED

CHOSEN = RELEASED.chosen()


def test_every_dataflow_has_its_files():
    assert RELEASED.files() == set(CHOSEN)
    assert {(v.engine, v.dataflow) for v in CHOSEN.values()} == set(weighted_dataflows.dataflows())


@pytest.mark.parametrize("name", CHOSEN)
def test_golden(name):
    assert RELEASED.is_golden(name), "read the diff, then: python -m tests.qgemm.released"


@pytest.mark.parametrize("name", [n if n.endswith("nvfp4.metal") else pytest.param(n, marks=pytest.mark.exhaustive) for n in CHOSEN])
def test_lint_at_both_dialects(name):
    RELEASED.lint(name)


@pytest.mark.parametrize("name", [n for n in CHOSEN if n.endswith("nvfp4.metal")])
def test_bit_equal_to_the_last_release(name):
    assert RELEASED.bit_equal(name) != (name in RELEASED.reasons), f"listed: {RELEASED.reasons.get(name)}"


def test_the_comparison_can_fail():
    name = "mpp_staged_nvfp4.metal"
    wrong = RELEASED.text(name).replace("inner / GROUP]", "inner / GROUP / 2]")
    assert not np.array_equal(RELEASED.executed(name)[0], RELEASED.executed(name, wrong)[0])
