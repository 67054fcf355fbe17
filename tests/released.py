"""The last release's rendered sources, full files, beside the tests of a family, and what is asked of them.

Within a version they are golden files: a change of a template shows as a diff to be read. Between versions, old and new are executed
side by side. A family's folder says which kernels it keeps (``chosen``); ``python -m tests.<family>.released`` writes them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

import mlx.core as mx
import numpy as np
import pytest

from mlx_tensorops import hostmetal
from mlx_tensorops.primitives import _enqueue
from mlx_tensorops.shaders.render import Source, render
from mlx_tensorops.variant import Variant
from mlx_tensorops.version import __version__


@dataclass(frozen=True)
class Released:
    """One family's files.

    Attributes:
        folder: where they lie.
        chosen: () -> file name -> variant.
        run: variant -> results of one launch of it on arrays of the family's choice.
        reasons: file -> why its results are not bit-equal to the last release's. Empty it when a version is released.
    """

    folder: Path
    chosen: Callable[[], dict[str, Variant]]
    run: Callable[[Variant], list]
    reasons: dict[str, str] = field(default_factory=dict)

    def text(self, name: str) -> str:
        """A file's text."""
        return (self.folder / name).read_text(encoding="ascii")

    def files(self) -> set[str]:
        """Names of the files that exist."""
        return {p.name for p in self.folder.glob("*.metal")}

    def write(self) -> None:
        """Replace the files by what is rendered now."""
        for name in self.files():
            (self.folder / name).unlink()
        for name, variant in self.chosen().items():
            (self.folder / name).write_text(render(variant).text, encoding="ascii")
        (self.folder / "VERSION").write_text(__version__ + "\n")

    def is_golden(self, name: str) -> bool:
        """Whether a file of this version is what is rendered now."""
        return (self.folder / "VERSION").read_text().strip() != __version__ or render(self.chosen()[name]).text == self.text(name)

    def lint(self, name: str) -> None:
        """Address spaces, program scope and the SDK's static assertions, as Metal 4.0 and 4.1 see them; simdgroup kernels from 3.1 on."""
        for dialect, sdk in (("4.0", "26.4"), ("4.1", "27"), *((("3.1", "26.4"),) if self.chosen()[name].engine == "simdgroup" else ())):
            assert hostmetal.lint(self.text(name), dialect=dialect, sdk=sdk) == (), (dialect, sdk)

    def executed(self, name: str, text: str | None = None) -> list[np.ndarray]:
        """The bits of the results of what is rendered now, or of another text."""
        with pytest.MonkeyPatch.context() as patch:
            if text is not None:
                source = Source(text, re.search(r"\]\] void (\w+)\(", text)[1], "")
                patch.setattr(_enqueue, "render", lambda v: source)
            _enqueue.native_set.cache_clear()
            try:
                results = self.run(self.chosen()[name])
            finally:
                _enqueue.native_set.cache_clear()
        return [np.array(c.view(mx.uint8)) for c in results]

    def bit_equal(self, name: str) -> bool:
        """Whether the file, executed, gives the bits that what is rendered now gives."""
        return all(map(np.array_equal, self.executed(name), self.executed(name, self.text(name))))
