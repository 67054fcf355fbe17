"""The innermost K loop of a kernel as LLVM sees it at -O1: what is left in it besides loads and matrix operations."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from pathlib import Path

from mlx_tensorops.hostmetal import rewrite, toolchain

OPAQUE = Path(__file__).with_name("opaque")
_BLOCK = re.compile(r"^(?:(\d+|[\w.]+):.*)$")
_TARGET = re.compile(r"label %([\w.]+)")
_OPCODE = re.compile(r"^\s+(?:%[\w.]+ = )?(?:(?:tail|musttail|notail) )?(\w+)")
INTEGER = frozenset("add sub mul sdiv udiv srem urem shl lshr ashr and or xor icmp select trunc sext zext".split())


def instructions(source: str, kernel: str) -> Counter:
    """How many instructions of the innermost loop around the matrix operations have each opcode."""
    blocks = _blocks(_function(_llvm(source), kernel))
    loop, inner = {}, _cycle(blocks)
    while inner:  # peel loops until none is left around the matrix operations
        loop, header = inner, next(n for n in inner if any(n in blocks[other][1] for other in blocks if other not in inner))
        inner = _cycle({name: blocks[name] for name in loop if name != header})
    assert loop, "no loop around the matrix operations"
    return Counter(opcode for name in loop for line in blocks[name][0] for opcode in _OPCODE.findall(line))


def _llvm(source: str) -> str:
    flags = [f for f in toolchain.kernel_flags(checked=False, sdk="26.4", dialect="4.0") if f not in ("-O2", "-gline-tables-only")]
    flags.append("-Dinline=inline __attribute__((always_inline))")  # GPU compilers inline every helper; at -O1 clang may not
    with tempfile.TemporaryDirectory() as folder:
        text, out = Path(folder, "kernel.cl"), Path(folder, "kernel.ll")
        text.write_text(rewrite.rewrite(source).text)
        done = toolchain.run([*toolchain.find().clang, f"-I{OPAQUE}", *flags, "-O1", "-S", "-emit-llvm", str(text), "-o", str(out)])
        assert done.returncode == 0, done.stderr
        return out.read_text()


def _function(text: str, kernel: str) -> list[str]:
    return re.search(rf"^define [^\n]*{kernel}[^\n]*\n(.*?)^}}", text, re.M | re.S)[1].splitlines()


def _blocks(lines: list[str]) -> dict[str, tuple[list[str], set[str]]]:
    """Name -> (instructions, successors)."""
    found, name = {}, "entry"
    for line in lines:
        label = _BLOCK.match(line)
        if label:
            name = label[1]
        elif line.strip():
            body, targets = found.setdefault(name, ([], set()))
            body.append(line)
            if _OPCODE.findall(line)[:1] in (["br"], ["switch"]):
                targets.update(_TARGET.findall(line))
    return found


def _cycle(blocks: dict) -> set[str]:
    """The blocks that lie on a cycle through a matrix operation, or none."""
    after = {name: {t for t in targets if t in blocks} for name, (_, targets) in blocks.items()}
    before = {name: {other for other in blocks if name in after[other]} for name in blocks}
    for work in (n for n, (body, _) in blocks.items() if any("@opaque_run" in line for line in body)):
        both = _reached(after, work) & _reached(before, work)
        if work in both:
            return both
    return set()


def _reached(edges: dict[str, set[str]], start: str) -> set[str]:
    """What lies one edge or more behind ``start``."""
    found, todo = set(), list(edges[start])
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += edges[node]
    return found
