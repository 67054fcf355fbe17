"""Tests marked exhaustive: too many kernels for the fast suite, whose pool draws from the same ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]


def items():
    for path in sorted(TESTS.rglob("test_*.py")):
        if "mark.exhaustive" in path.read_text():
            yield str(path.relative_to(TESTS)), lambda p=path: _run(p)


def _run(path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-n", "0", "-m", "exhaustive", "-p", "no:cacheprovider", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=540, cwd=TESTS.parent)
    assert done.returncode == 0, done.stdout[-3000:]
