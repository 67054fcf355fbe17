"""Fixtures for the tests of other projects: ``pytest -p mlx_tensorops.hostmetal.pytest_plugin``.

    def test_add(metal):
        kernel = metal.compile(Path("add.metal").read_text(), "add")
        result = kernel.dispatch(grid=4, threadgroup=64, buffers=[x, y])    # any finding fails the test

``metal`` compiles with access checks and runs every dispatch under each layout of ``--metal-layouts``; results must
not depend on it. ``metal_active`` emulates the kernels of mlx_tensorops for one test.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from . import Kernel, Result, active, compile


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("hostmetal", "Metal kernels on this CPU (emulated)")
    group.addoption("--metal-layouts", default="nax,strict,permuted", help="lane maps of cooperative tensors to run every dispatch under")
    group.addoption("--metal-fast", action="store_true", help="without access checks")


class _EveryLayout:
    """A kernel whose dispatch runs once per layout and returns the first result."""

    def __init__(self, kernel: Kernel, layouts: tuple[str, ...]):
        self.kernel, self.layouts = kernel, layouts

    def dispatch(self, **arguments: Any) -> Result:
        import numpy as np

        if "layout" in arguments:
            return self.kernel.dispatch(**arguments)
        results = [self.kernel.dispatch(layout=layout, **arguments) for layout in self.layouts]
        for layout, other in zip(self.layouts[1:], results[1:]):
            for p, a, b in zip(self.kernel.buffers, results[0].outputs, other.outputs):
                if p.writable and np.asarray(a).tobytes() != np.asarray(b).tobytes():
                    pytest.fail(f"{self.kernel.name}: buffer '{p.name}' differs between layouts {self.layouts[0]} and {layout}: the kernel relies on a lane map")
        return results[0]


class Metal:
    """What the ``metal`` fixture gives."""

    def __init__(self, checked: bool, layouts: tuple[str, ...]):
        self.checked, self.layouts = checked, layouts

    def compile(self, source: str, kernel: str | None = None, **options: Any) -> _EveryLayout:
        return _EveryLayout(compile(source, kernel, **{"checked": self.checked, **options}), self.layouts)


@pytest.fixture(scope="session")
def metal(pytestconfig: pytest.Config) -> Metal:
    return Metal(not pytestconfig.getoption("--metal-fast"), tuple(pytestconfig.getoption("--metal-layouts").split(",")))


@pytest.fixture
def metal_active(pytestconfig: pytest.Config) -> Iterator[Any]:
    with active(checked=not pytestconfig.getoption("--metal-fast")) as chosen:
        yield chosen
