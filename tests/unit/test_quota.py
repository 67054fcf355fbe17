"""The build quota can be exceeded, and says so."""

from collections import Counter

from tests.conftest import over_quota


def test_excess_and_families_without_a_quota_are_named():
    quota = {"comment": "", "gemm": 3}
    assert over_quota(Counter(gemm=3), quota) == []
    assert over_quota(Counter(gemm=4, moe=1), quota) == ["gemm: 4 kernels compiled, quota 3", "moe: 1 kernels compiled, quota 0"]
