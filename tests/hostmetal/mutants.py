"""Mutants of clean kernels: one change of an operator, a constant, an index or a barrier at a seeded site."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from mlx_tensorops import hostmetal
from mlx_tensorops.hostmetal.tokens import ID, NUMBER, PUNCTUATION, Token, closing, line_of, tokenize

from .planted_cases import Case

_OPERATORS = {"+": "-", "-": "+", "*": "+", "/": "*", "%": "/", "<": "<=", "<=": "<", ">": ">=", ">>": "<<", "&": "|", "+=": "-=", "==": "!="}


# Mutants that nothing tells from the original: case -> mutant -> why.
EQUIVALENT: dict[str, dict[str, str]] = {
    "local": {
        "line 20: constant: '0' -> '1'": "the loop then starts at 1, and nothing reads s.v[0]",
        "line 21: constant: '0' -> '1'": "s.tag[0] is then read and never written, which the emulator does not see of private memory; it happens to hold 0",
    },
    "tensor": {"line 17: constant: '64' -> '65'": "the view claims a 65th row that no run() of 64 rows touches"},
}


@dataclass(frozen=True)
class Mutant:
    kind: str
    line: int
    before: str
    after: str
    source: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.kind}: {self.before!r} -> {self.after!r}"


def sites(case: Case) -> list[Mutant]:
    """Every change that can be made in the kernel's body, off the lines of planted faults."""
    source = re.sub(r"//[^\n]*", "", case.source)
    lines = source.splitlines()
    tokens = tokenize(source)
    start = next(i for i, t in enumerate(tokens) if t.text == "{" and tokens[i - 1].text == ")")
    end = closing(tokens, start)
    dead = _dead(tokens)
    found = []

    def add(kind: str, first: Token, last: Token, new: str) -> None:
        line = line_of(source, first.start)
        text = lines[line - 1]
        planted = "bug" in text and not (kind == "barrier" and "bug !=" in text and "bug ==" not in text)
        if not planted and not any(a <= first.start < b for a, b in dead) and "auto d =" not in text:
            found.append(Mutant(kind, line, source[first.start : last.end], new, source[: first.start] + new + source[last.end :]))

    for i in range(start + 1, end):
        t, before, after = tokens[i], tokens[i - 1], tokens[i + 1]
        if t.kind == PUNCTUATION and t.text in _OPERATORS and (before.kind in (ID, NUMBER) or before.text in (")", "]")):
            if not (t.text == "<" and _is_template(tokens, i)) and not (t.text in "*&" and after.text in (")", ">", ",")) and not (t.text == ">" and _closes_template(tokens, i)):
                add("operator", t, t, _OPERATORS[t.text])
        elif t.kind == NUMBER and not _is_type_argument(tokens, i):
            value = t.text
            if value.isdigit():
                add("constant", t, t, str(int(value) + 1))
            elif value.endswith("f"):
                add("constant", t, t, "1.5f" if value != "1.5f" else "2.5f")
        elif t.text == "[" and after.text != "(" and before.kind == ID and not _is_declaration(tokens, i):
            close = closing(tokens, i)
            add("index", tokens[i + 1], tokens[close - 1], f"{source[tokens[i + 1].start : tokens[close - 1].end]} + 1")
        elif t.text in ("threadgroup_barrier", "simdgroup_barrier"):
            close = closing(tokens, i + 1)
            add("barrier", t, tokens[close], "")
            add("barrier", t, tokens[close], f"{t.text}(mem_flags::mem_none)")
    return found


def _dead(tokens: list[Token]) -> list[tuple[int, int]]:
    """Spans of text that run only when a fault is planted."""
    spans = []
    for i, t in enumerate(tokens):
        if t.text == "if" and tokens[i + 2].text == "bug" and tokens[i + 3].text == "==":
            first = after = closing(tokens, i + 1) + 1
            while tokens[after].text in ("for", "if", "while"):
                after = closing(tokens, after + 1) + 1
            last = closing(tokens, after) if tokens[after].text == "{" else next(j for j in range(after, len(tokens)) if tokens[j].text == ";")
            spans.append((tokens[first].start, tokens[last].end))
    return spans


def _is_template(tokens: list[Token], i: int) -> bool:
    return tokens[i - 1].text.startswith(("get_", "static_cast", "dextents", "tensor", "matmul2d", "execution", "array", "make_filled"))


def _closes_template(tokens: list[Token], i: int) -> bool:
    return tokens[i + 1].text in ("(", ">", ";") or any(t.text.startswith(("get_", "dextents", "make_filled", "matmul2d", "static_cast")) for t in tokens[max(0, i - 14) : i])


def _is_type_argument(tokens: list[Token], i: int) -> bool:
    """Numbers that are part of a type (template arguments, sizes of arrays) only break the build."""
    return any(t.text in ("dextents", "execution_simdgroups", "matmul2d_descriptor", "make_filled_simdgroup_matrix") for t in tokens[max(0, i - 3) : i]) or _is_declaration(tokens, i - 1)


def _is_declaration(tokens: list[Token], i: int) -> bool:
    j = i
    while j and tokens[j].text not in (";", "{", "}", "(", "="):
        j -= 1
    return tokens[j + 1].text in ("threadgroup", "float", "half")


def draw(cases: list[Case], per_case: int, seed: int) -> list[tuple[Case, Mutant]]:
    generator = random.Random(seed)
    chosen = []
    for case in cases:
        found = sites(case)
        chosen += [(case, m) for m in generator.sample(found, min(per_case, len(found)))]
    return chosen


def survives(case: Case, mutant: Mutant) -> bool:
    """Whether neither the compiler nor a finding nor the result tells the mutant from the original."""
    try:
        kernel = hostmetal.compile(mutant.source, checked=True)
    except hostmetal.CompileError:
        return False
    options = {"timeout": 2.0, **case.options}
    result = kernel.dispatch(grid=case.grid, threadgroup=case.threadgroup, buffers=case.buffers(), allow_findings=True, **options)
    return not result.findings and not case.wrong(result.outputs)
