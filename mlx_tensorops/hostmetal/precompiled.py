"""The Metal headers, parsed once per set of flags: parsing them is two thirds of a small kernel's compile.

A source gets the headers that it includes itself and no others, so that a forgotten include still fails.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ..errors import lesson
from . import cache, toolchain
from .findings import ToolchainError

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<([^>\n]+)>", re.MULTILINE)
_STDLIB = ("metal_stdlib",)
_TENSORS = ("metal_stdlib", "metal_tensor", "MetalPerformancePrimitives/MetalPerformancePrimitives.h")
_PRELUDE = ("-include", str(toolchain.INCLUDE / "hm_rt.h"))
# Headers are judged by content: a checkout gives them new times and leaves what they say.
_BY_CONTENT = ("-Xclang", "-fvalidate-ast-input-files-content")
# Compilers that cannot do it, or could not this time (a full disk, little memory): kernels then parse the headers
# themselves. Kept for the life of the process only, since the reason may pass.
_refused: set[str] = set()


def apply(program: str, flags: Sequence[str]) -> list[str]:
    """The flags with the prelude taken from a precompiled header, where the program's includes allow one."""
    flags = list(flags)
    included = set(_INCLUDE.findall(program))
    headers = next((headers for headers in (_TENSORS, _STDLIB) if included.issuperset(headers)), None)
    if headers is None:
        return flags
    at = flags.index(_PRELUDE[0])
    key = cache.key_of(flags, headers, toolchain.find().name, toolchain.content_hash(toolchain.INCLUDE))
    without = flags[:at] + flags[at + 2:]
    if key in _refused:
        return flags
    text = f'#include "{_PRELUDE[1]}"\n' + "".join(f"#include <{name}>\n" for name in headers)
    source = cache.obtain(f"metal-{key}.h", lambda work, target: target.write_text(text))  # the compiled form refers to it
    try:
        path = cache.obtain(f"metal-{key}.pch", lambda work, target: _compile(source, target, without))
    except ToolchainError:
        _refused.add(key)
        return flags
    return without + [*_BY_CONTENT, "-Xclang", "-include-pch", "-Xclang", str(path)]


def _compile(source: Path, target: Path, flags: Sequence[str]) -> None:
    done = toolchain.run([*toolchain.find().clang, *flags, *_BY_CONTENT, "-c", "-Xclang", "-emit-pch", str(source), "-o", str(target)])
    if done.returncode:
        raise ToolchainError(lesson("hostmetal", f"the headers cannot be precompiled: {done.stderr.strip()[-1000:]}"))
