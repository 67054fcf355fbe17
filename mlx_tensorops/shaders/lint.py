"""Structural checks on rendered Metal text: what a template must keep whatever it computes.

``python -m mlx_tensorops.shaders.lint`` walks every variant of every family and prints what it finds.
"""

from __future__ import annotations

import re
import sys

from .. import registry, signature
from ..rules import rule
from ..variant import Variant
from .render import render

_CAPACITY_LOOP = re.compile(r"\bfor \(.*get_capacity\(\)")
_NO_SUCH_NAMES = ("execution_threadgroup", "static_slice", "get_mask", "opscope_simdgroups")  # seen in betas and comments only
_DESTINATION = re.compile(r"\.run\([^;]*, (\w+)\);")
_COPIED = re.compile(r"\bauto (\w+) = (left|right|c)\w*;")


def lint(variant: Variant) -> list[str]:
    """What is wrong with the text of a variant; empty when nothing is."""
    return lint_text(variant, render(variant).text)


def lint_text(variant: Variant, text: str) -> list[str]:
    """The same for a given text."""
    sign = signature.of(variant)
    found = []
    if not text.isascii():
        found.append("not ASCII: MLX hands sources to Metal as ASCII")
    if "{{" in text or "{%" in text:
        found.append("an unresolved placeholder")
    for name in _NO_SUCH_NAMES:
        if name in text:
            found.append(f"{name} does not exist in any released header")
    if f"max_total_threads_per_threadgroup({sign.threads})" not in text:
        found.append(f"no attribute for {sign.threads} threads per threadgroup")
    if "mode::multiply)" in text or "mode::multiply," in text:
        found.append("mode::multiply: whether it overwrites is undecided; zero and accumulate")
    if _COPIED.search(text):
        found.append("a cooperative tensor is copied: SDK 26.2 copies in the wrong direction")
    lines = text.splitlines()
    for before, line in zip(lines, lines[1:]):
        if "get_capacity()" in line and _CAPACITY_LOOP.search(line) and "unroll(full)" not in before:
            found.append("a loop over get_capacity() without unroll(full)")
    if variant.engine == "mpp":
        found += _cooperative(text)
    elif variant.engine == "simdgroup":
        found += _simdgroup(text, multiplies=registry.family(variant.family).cost(variant).mma8x8 != rule(0))
    if sign.threadgroup_bytes == 0 and re.search(r"\bthreadgroup\s+\w+\s+\w+\s*\[", text):
        found.append("threadgroup memory that the signature does not count")
    for buffer in sign.buffers:
        if not re.search(rf"\b{buffer.name}\b(?!\s*\[\[)", text.split(f"{buffer.name} [[buffer", 1)[-1]):
            found.append(f"argument {buffer.name} is never used")
    for scalar in sign.scalars:
        if not re.search(rf"\b{scalar.c_type} {scalar.name};", text):
            found.append(f"scalar {scalar.name} is not declared")
    return found


def _simdgroup(text: str, multiplies: bool) -> list[str]:
    found = []
    if multiplies and "simdgroup_multiply_accumulate(" not in text:
        found.append("no simdgroup_multiply_accumulate in the body: an empty kernel")
    for word in ("if constexpr", "MetalPerformancePrimitives", "cooperative_tensor", "__METAL_VERSION__"):
        if word in text:
            found.append(f"{word}: engine simdgroup keeps to Metal 3.1, which is C++14 without cooperative tensors")
    return found


def _cooperative(text: str) -> list[str]:
    found = []
    if ".run(" not in text:
        found.append("no matmul2d in the body: an empty kernel")
    if "__METAL_VERSION__ >= 400" not in text:
        found.append("no guard for dialects before 4.0")
    if re.search(r"get_destination_cooperative_tensor<decltype", text):
        found.append("decltype without remove_addrspace_t: rejected by Metal 4.1")
    for use in {use[1]: use for use in reversed(list(_DESTINATION.finditer(text)))}.values():
        if f"zero({use[1]});" not in text[: use.start()]:
            found.append(f"destination {use[1]} is used before it is zeroed")
    return found


def main() -> int:
    """Lint every variant; the exit status is the number of findings, at most 1."""
    count = total = 0
    for family in registry.families().values():
        for variant in family.variants():
            count += 1
            for text in lint(variant):
                total += 1
                print(f"{variant.key}: {text}")
    print(f"{count} variants, {total} findings")
    return min(total, 1)


if __name__ == "__main__":
    sys.exit(main())
