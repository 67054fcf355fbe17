"""The Metal headers, parsed once per set of flags: parsing them is two thirds of a small kernel's compile.

A source gets the headers that it includes itself and no others, so that a forgotten include still fails.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from . import cache, toolchain

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<([^>\n]+)>", re.MULTILINE)
_STDLIB = ("metal_stdlib",)
_TENSORS = ("metal_stdlib", "metal_tensor", "MetalPerformancePrimitives/MetalPerformancePrimitives.h")
_PRELUDE = ("-include", str(toolchain.INCLUDE / "hm_rt.h"))
# Headers are judged by content: a checkout gives them new times and leaves what they say.
_BY_CONTENT = ("-Xclang", "-fvalidate-ast-input-files-content")


def apply(program: str, flags: Sequence[str]) -> list[str]:
    """The flags with the prelude taken from a precompiled header, where the program's includes allow one."""
    flags = list(flags)
    included = set(_INCLUDE.findall(program))
    headers = next((headers for headers in (_TENSORS, _STDLIB) if included.issuperset(headers)), None)
    # Function constants are macros, which clang wants to be the same in both compiles.
    if headers is None or any(flag.startswith("-D__HM_FC_") for flag in flags):
        return flags
    at = flags.index(_PRELUDE[0])
    key = cache.key_of(flags, headers, toolchain.find().name, toolchain.content_hash(toolchain.INCLUDE))
    without = flags[:at] + flags[at + 2:]
    text = f'#include "{_PRELUDE[1]}"\n' + "".join(f"#include <{name}>\n" for name in headers)
    source = cache.obtain(f"metal-{key}.h", lambda work, target: target.write_text(text))  # the compiled form refers to it
    path = cache.obtain(f"metal-{key}.pch", lambda work, target: _compile(source, target, without))
    return without + [*_BY_CONTENT, "-Xclang", "-include-pch", "-Xclang", str(path)] if path.stat().st_size else flags


def _compile(source: Path, target: Path, flags: Sequence[str]) -> None:
    """An empty file stands for a compiler that cannot do it: kernels then parse the headers themselves."""
    done = toolchain.run([*toolchain.find().clang, *flags, *_BY_CONTENT, "-c", "-Xclang", "-emit-pch", str(source), "-o", str(target)])
    if done.returncode:
        target.write_bytes(b"")
