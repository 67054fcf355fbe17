"""MLX's own kernels run right in the emulator, and clean in its checked build."""

import os

import numpy as np
import pytest

from mlx_tensorops import hostmetal
from tools.maccheck import fetch

from .mlx_cases import CASES


@pytest.fixture(scope="session")
def include():
    """The headers of the macOS wheel. Without a network nothing is known; in CI that is a failure."""
    try:
        return fetch.mac_mlx() / "include"
    except fetch.Unreachable as error:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"mlx-metal is not reachable: {error}")


def _error(outputs, wanted):
    return max(np.abs(np.asarray(outputs[i], np.float64) - w).max() / max(1.0, np.abs(w).max()) for i, w in wanted.items())


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_runs_right_and_clean(include, case):
    kernel = hostmetal.compile(case.source, case.kernel, checked=True, template=case.template or None, function_constants=case.constants, include=[include])
    buffers, wanted = case.make(np.random.default_rng(3))
    launch = dict(grid=case.grid, threadgroup=case.threadgroup, threads=case.threads, buffers=buffers)
    result = kernel.dispatch(**launch, allow_findings=True)
    assert {(f.kind, f.line) for f in result.findings} == set(case.known), [str(f) for f in result.findings]
    assert _error(result.outputs, wanted) <= case.tolerance
    if case.nax:  # hard-codes the lane map of M5-class GPUs: wrong under another legal one
        other = kernel.dispatch(**launch, layout="permuted", allow_findings=True)
        assert not _error(other.outputs, wanted) <= case.tolerance
