"""Shared by all tests: the build quota, and a clean trace of what the environment asked for."""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from pathlib import Path

import pytest

QUOTA = Path(__file__).with_name("quota.json")


def pytest_configure(config):
    # Workers of pytest-xdist inherit the controller's log through the environment.
    if not hasattr(config, "workerinput") and not os.environ.get("MLX_TENSOROPS_BUILD_LOG"):
        handle, path = tempfile.mkstemp(prefix="mlx_tensorops_builds_")
        os.close(handle)
        os.environ["MLX_TENSOROPS_BUILD_LOG"] = path
    for switch in ("MLX_TENSOROPS_ENGINE", "MLX_TENSOROPS_FLUSHES_HALF"):
        os.environ.pop(switch, None)


def builds() -> Counter:
    """Kernels compiled so far in this run, per family."""
    text = Path(os.environ["MLX_TENSOROPS_BUILD_LOG"]).read_text()
    return Counter(line.split("\t")[0] for line in text.splitlines())


def over_quota(done: Counter, quota: dict) -> list[str]:
    """Families that compiled more than their quota, or that have none."""
    return [f"{family}: {count} kernels compiled, quota {quota.get(family, 0)}" for family, count in sorted(done.items())
            if count > quota.get(family, 0)]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    if hasattr(session.config, "workerinput"):
        return
    done = builds()
    print(f"\nkernels compiled in this run: {dict(sorted(done.items())) or 'none (all cached)'}")
    excess = over_quota(done, json.loads(QUOTA.read_text()))
    if excess:
        print("BUILD QUOTA EXCEEDED\n  " + "\n  ".join(excess))
        session.exitstatus = 1
