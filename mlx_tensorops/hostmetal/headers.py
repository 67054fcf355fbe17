"""Headers of other projects: found from the ``#include "..."`` lines, rewritten into a folder of the cache."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import cache, rewrite
from .signature import Signature, kernels
from .tokens import tokenize

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)
_IDS_PER_FILE = 1000


@dataclass
class Headers:
    """The headers that a source reaches in the given folders."""

    files: dict[str, str] = field(default_factory=dict)
    """path as included -> text"""

    def folder(self) -> str:
        """A folder of the cache that holds the rewritten files."""
        key = cache.key_of("headers", sorted(self.files.items()), Path(rewrite.__file__).read_bytes())

        def make(work: Path, target: Path) -> None:
            for number, (name, text) in enumerate(sorted(self.files.items())):
                copy = target / name
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_text(rewrite.rewrite(text, first_id=_IDS_PER_FILE * (number + 1)).text)

        return str(cache.obtain(f"headers-{key}", make))

    def kernels(self) -> list[Signature]:
        return [s for text in self.files.values() if "kernel" in text for s in kernels(text, tokenize(text))]

    def function_constants(self) -> tuple[dict[str, str], set[str]]:
        """name -> index, and the names that are asked about, as of one text (see rewrite.Rewritten)."""
        found, asked = {}, set()
        for text in self.files.values():
            if "function_constant" in text:
                new = rewrite.rewrite(text)
                found |= new.function_constants
                asked |= new.optional_constants
        return found, asked


def reachable(source: str, folders: Sequence[str | os.PathLike]) -> Headers:
    """Follows quoted includes, relative to the folders or to the including file."""
    headers = Headers()
    pending = [(name, "") for name in _INCLUDE.findall(source)]
    while pending:
        name, parent = pending.pop()
        for candidate in (name, os.path.normpath(os.path.join(parent, name))):
            path = next((p for p in (Path(folder) / candidate for folder in folders) if p.is_file()), None)
            if path is not None:
                if candidate not in headers.files:
                    headers.files[candidate] = path.read_text()
                    pending += [(n, os.path.dirname(candidate)) for n in _INCLUDE.findall(headers.files[candidate])]
                break
    return headers
