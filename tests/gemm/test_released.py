"""Golden files of this version; bit-equality with those of the last one."""

import re

import numpy as np
import pytest

from mlx_tensorops import hostmetal
from mlx_tensorops.primitives import gemm_dataflows
from tests.gemm.released import RELEASED

CHOSEN = RELEASED.chosen()


def test_every_dataflow_has_its_files():
    assert RELEASED.files() == set(CHOSEN)
    assert {(v.engine, v.dataflow) for v in CHOSEN.values()} == set(gemm_dataflows.dataflows())


@pytest.mark.parametrize("name", CHOSEN)
def test_golden(name):
    assert RELEASED.is_golden(name), "read the diff, then: python -m tests.gemm.released"


@pytest.mark.parametrize("name", [n for n in CHOSEN if n.endswith("float16.metal")])
def test_lint_at_both_dialects(name):
    RELEASED.lint(name)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CHOSEN)
def test_lint_at_every_sdk(name):
    for sdk in ("26.2", "26.4", "27"):
        assert hostmetal.lint(RELEASED.text(name), sdk=sdk) == (), sdk


def test_the_lint_can_fail():
    text = RELEASED.text("mpp_direct_float16.metal")
    stray = text.replace("int M, int N) {\n", "int M, int N) {\n  const float* stray = 0;\n", 1)
    assert stray != text and hostmetal.lint(stray)
    with pytest.raises(hostmetal.CompileError, match="must be 32"):
        hostmetal.lint(re.sub(r"matmul2d_descriptor\(\s*16, 32, 16,", "matmul2d_descriptor(16, 16, 16,", text))


@pytest.mark.parametrize("name", [n for n in CHOSEN if n.endswith("float16.metal")])
def test_bit_equal_to_the_last_release(name):
    assert RELEASED.bit_equal(name) != (name in RELEASED.reasons), f"listed: {RELEASED.reasons.get(name)}"


def test_the_comparison_can_fail():
    name = "mpp_direct_float16.metal"
    wrong = RELEASED.text(name).replace("step < steps;", "step + 1 < steps;")
    assert not np.array_equal(RELEASED.executed(name)[0], RELEASED.executed(name, wrong)[0])
