"""The policy's arithmetic at its thresholds."""

from __future__ import annotations

import pytest

from mlx_tensorops.policies import cpu_gemm


@pytest.mark.parametrize("m, n, k, batch, cpu", [(0, 5, 5, 1, False), (1, 1, 255, 1, False), (1, 1, 256, 1, True), (4, 4, 4, 1, False), (4, 4, 4, 512, True),
                                                 (8, 16, 16, 1, True), (1, 4096, 4096, 1, True), (2048, 2048, 2048, 1, True)])
def test_linux(m, n, k, batch, cpu):
    assert cpu_gemm.prefer_cpu(m, n, k, ("float16", "float16"), batch=batch) is cpu


@pytest.mark.parametrize("system", ("Darwin", "Windows"))
def test_unmeasured_systems_keep_mlx(system):
    assert not cpu_gemm.prefer_cpu(1024, 1024, 1024, system=system)
    assert cpu_gemm.choose(1024, 1024, 1024, system=system).why.startswith("unmeasured")


def test_every_entry_says_why_and_can_be_reached():
    reached = {cpu_gemm.choose(1, 1, k, system=s) for s in ("Linux", "Darwin") for k in (0, 255, 256, 2047, 2048, 10**6)}
    assert reached == set(cpu_gemm.TABLE)
    assert all(e.why for e in cpu_gemm.TABLE)
