"""Reading Mach-O files: what they need, define, export and import, and nanobind's ABI tag."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import lief

_EXTERNAL, _KIND, _DEBUG = 0x01, 0x0E, 0xE0  # n_type of <mach-o/nlist.h>
_UNDEFINED = 0x00
_TAG = re.compile(rb"nanobind_system_\w+|v\d+_system_lib\w+")  # since nanobind 3, and before


class MachO:
    """One file. Keeps lief's container alive, which its members do not."""

    def __init__(self, path: Path):
        self._file = lief.MachO.parse(str(path))
        if self._file is None:
            raise ValueError(f"{path} is not a Mach-O file")
        self._binary = self._file.at(0)

    def undefined(self) -> set[str]:
        return {name for name, kind in self._external() if kind == _UNDEFINED}

    def defined(self) -> set[str]:
        return {name for name, kind in self._external() if kind != _UNDEFINED}

    def exports(self) -> set[str]:
        return {symbol.name for symbol in self._binary.exported_symbols}

    def imports(self) -> dict[str, set[str]]:
        """Symbol names by file name of the library they are bound to."""
        bound: dict[str, set[str]] = defaultdict(set)
        for symbol in self._binary.imported_symbols:
            if symbol.has_binding_info and symbol.binding_info.has_library:
                bound[Path(symbol.binding_info.library.name).name].add(symbol.name)
        return bound

    def _external(self):
        for symbol in self._binary.symbols:
            if symbol.raw_type & _EXTERNAL and not symbol.raw_type & _DEBUG:
                yield symbol.name, symbol.raw_type & _KIND


def needed(objects: list[Path]) -> set[str]:
    """What these objects together do not define themselves."""
    files = [MachO(path) for path in objects]
    return set().union(*(f.undefined() for f in files)) - set().union(*(f.defined() for f in files))


def nanobind_tag(path: Path) -> str:
    """The tag that must be equal in two extensions for them to share types."""
    tags = {match.decode() for match in _TAG.findall(path.read_bytes())}
    if len(tags) != 1:
        raise ValueError(f"{path.name} has {len(tags)} nanobind tags: {sorted(tags)}")
    return tags.pop()
