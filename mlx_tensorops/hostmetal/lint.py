"""What Apple's compiler rejects although the emulator's front end would take it.

Token rules cost little and are applied by every compile; they know plain types only. The rules on declarations read clang's syntax tree
(about a second) and are applied by :func:`lint`. Sources: the Metal Shading Language specification, versions 4.0
and 4.1, sections on language restrictions, address spaces and function attributes.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import headers, precompiled, rewrite, signature, toolchain
from .findings import CompileError, in_metal_words
from .tokens import ID, NUMBER, PREPROCESSOR, Token, closing, closing_angle, line_of, tokenize

_BANNED = {
    "goto": "there is no goto",
    "try": "there are no exceptions", "catch": "there are no exceptions", "throw": "there are no exceptions",
    "virtual": "there are no virtual functions",
    "new": "there is no dynamic memory", "delete": "there is no dynamic memory",
    "dynamic_cast": "there is no run-time type information", "typeid": "there is no run-time type information",
    "double": "there is no double; a plain 1.0 is a float",
    "thread_local": "there is no thread_local", "register": "there is no register",
    "asm": "there is no inline assembly", "__asm__": "there is no inline assembly",
    "std": "there is no C++ standard library; use metal::",
}  # fmt: skip


@dataclass(frozen=True)
class Complaint:
    """One construct that Metal does not have."""

    line: int
    rule: str
    message: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.rule}: {self.message}"


_SPACES = {"device", "constant", "thread", "threadgroup", "object_data", "ray_data"}
_SCALARS = {
    "bool", "char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "half", "float", "bfloat", "size_t", "ptrdiff_t",
    *(f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)),
}  # fmt: skip
_TYPES = _SCALARS | {f"{packed}{name}{n}" for name in _SCALARS for n in (2, 3, 4) for packed in ("", "packed_")}
_DECLARATION_WORDS = {"const", "volatile", "static", "constexpr", "inline", "unsigned", "signed"}


def _lacks_space(tokens: list[Token], i: int) -> bool:
    """Whether ``*`` or ``&`` at i makes a declarator of a plain type that names no address space: ``float* p``."""
    if i + 1 >= len(tokens) or tokens[i + 1].kind != ID:
        return False
    j = i - 1
    while j >= 0 and tokens[j].text in ("const", "volatile"):
        j -= 1
    if j < 0 or tokens[j].text not in _TYPES:
        return False
    while j >= 0 and tokens[j].kind == ID:
        if tokens[j].text in _SPACES:
            return False
        j -= 1
    return j < 0 or tokens[j].text in ("(", ",", ";", "{", "}", "]")


def _program_scope(tokens: list[Token]) -> Iterator[Token]:
    """Names of variables at program scope that are not in the constant address space."""
    i, start = 0, 0
    while i < len(tokens):
        text = tokens[i].text
        if tokens[i].kind == PREPROCESSOR or text == "}":
            i, start = i + 1, i + 1
        elif text in ("(", "[", "[["):
            i = closing(tokens, i) + 1
        elif text == "<" and tokens[i - 1].text in ("template", "vec", "array", "atomic"):
            i = closing_angle(tokens, i) + 1
        elif text == "{" and any(t.text in ("namespace", "extern") for t in tokens[start:i]):
            i, start = i + 1, i + 1
        elif text in (";", "=", "{"):
            words = tokens[start:i]
            end = i
            while end < len(tokens) and tokens[end].text != ";" and not (text == "{" and end > i):
                end = closing(tokens, end) + 1 if tokens[end].text in ("{", "(", "[") else end + 1
            plain = bool(words) and all(t.kind == ID or t.text in ("::", "[", "]", "*", "&", "<", ">", ",") or t.kind == NUMBER for t in words)
            spelled = [t.text for t in words]
            if (text != "{" and plain and len(words) > 1 and spelled[0] in _TYPES | _DECLARATION_WORDS | _SPACES - {"constant"}
                    and "constant" not in spelled and not any(w.isupper() for w in spelled)):
                names = [t for t in words if t.kind == ID]
                yield names[-1]
            i = start = end + 1 if end < len(tokens) and tokens[end].text == ";" else end
        else:
            i += 1


def _constructed_elsewhere(tokens: list[Token]) -> set[str]:
    """Classes with a default constructor of their own, but none for the threadgroup address space."""
    found, fine = set(), set()
    for i, token in enumerate(tokens[:-4]):
        name = tokens[i + 1].text
        if token.text in ("struct", "class") and tokens[i + 2].text == "{":
            for j in range(i + 3, min(closing(tokens, i + 2), len(tokens) - 4)):
                if tokens[j].text == name and tokens[j + 1].text == "(" and tokens[j + 2].text == ")" and tokens[j - 1].text != "~":
                    after = [t.text for t in tokens[j + 3 : j + 5]]
                    (fine if after[0] == "threadgroup" or after == ["=", "default"] else found).add(name)
    return found - fine


def token_complaints(source: str, tokens: list[Token], dialect: str = "4.0") -> list[Complaint]:
    """The rules that need no compiler."""
    found: list[Complaint] = []

    def say(token: Token, rule: str, message: str) -> None:
        found.append(Complaint(line_of(source, token.start), rule, message))

    constructed = _constructed_elsewhere(tokens)
    for token in _program_scope(tokens):
        say(token, "program scope", f"'{token.text}' must be in the constant address space")
    bodies = [(s.body, s.name) for s in signature.kernels(source, tokens)]
    for i, token in enumerate(tokens):
        if token.text in ("*", "&") and dialect < "4.1" and _lacks_space(tokens, i):
            say(token, "address space", f"'{tokens[i + 1].text}' is a pointer or reference without device, constant, thread or threadgroup")
        if token.kind != ID:
            continue
        before = tokens[i - 1].text if i else ""
        after = tokens[i + 1].text if i + 1 < len(tokens) else ""
        if token.text in _BANNED and before not in (".", "->", "::") and not (token.text == "delete" and before == "=") and (token.text != "std" or after == "::"):
            say(token, "keyword", _BANNED[token.text])
        elif token.text == "long" and after in ("long", "double"):
            say(token, "type", f"there is no long {after}")
        elif token.text == "main" and after == "(" and before in ("void", "int"):
            say(token, "name", "no function may be called main")
        elif token.text == "threadgroup" and not any(a < i < b for (a, b), _ in bodies) and rewrite.is_threadgroup_variable(source, tokens, i):
            say(token, "threadgroup", "a threadgroup variable may be declared only in the body of a kernel")
        elif token.text == "threadgroup" and after in constructed and rewrite.is_threadgroup_variable(source, tokens, i):
            say(token, "threadgroup", f"a threadgroup variable cannot be constructed, and {after} has a constructor")
        elif token.text == "threadgroup" and rewrite.has_initialiser(tokens, i):
            say(token, "threadgroup", "a threadgroup variable takes no initialiser")
        elif token.text == "kernel":
            kind = _kernel_type(tokens, i)
            if kind not in (None, "void"):
                say(token, "kernel", f"a kernel returns void, not {kind}")
    return found


def _kernel_type(tokens: list[Token], i: int) -> str | None:
    """The return type after ``kernel`` or ``[[kernel]]``, if a function follows."""
    j = i + 1
    while j < len(tokens) and tokens[j].text != "]" and tokens[j - 1].text != "kernel" and tokens[j].text in (",", "(", ")"):
        j += 1
    depth = 0
    while j < len(tokens) and (tokens[j].text in ("]", ",") or depth):
        j += 1
    if j + 2 < len(tokens) and tokens[j].kind == ID and tokens[j + 1].kind == ID and tokens[j + 2].text == "(":
        return tokens[j].text
    return None


def check_tokens(source: str, tokens: list[Token], dialect: str) -> None:
    """Raises CompileError for what the tokens alone show to be wrong."""
    found = token_complaints(source, tokens, dialect)
    if found:
        lines = tuple(str(c) for c in found)
        raise CompileError("[hostmetal] Metal does not have what this source uses.\n" + "\n".join(f"  {line}" for line in lines), lines)


# ---- rules on declarations, from the text of clang's syntax tree ----
_NODE = re.compile(r"^([|` -]*)(\w+) 0x[0-9a-f]+ (?:(?:parent|prev) 0x[0-9a-f]+ )*<([^>]*)>( [^']*)?(?:'([^']*)'(.*))?")
_PLACE = re.compile(r"(?:line:(?P<line>\d+):\d+|col:\d+|(?P<file>[^\s,:<>]+):(?P<fl>\d+):\d+)")


def _declarations(tree: str) -> Iterator[tuple[int, str, str, int, str, str]]:
    """(depth, node, file, line, words, type) of every node that the source spells; places are relative to the node before."""
    file, line, implicit = "", 0, 1 << 30
    for text in tree.splitlines():
        match = _NODE.match(text)
        if not match:
            continue
        for place in _PLACE.finditer(match[3]):
            if place["file"]:
                file, line = place["file"], int(place["fl"])
            elif place["line"]:
                line = int(place["line"])
        words = match[4] or ""
        own = _PLACE.search(words)
        if own is not None and own["file"]:
            file, line = own["file"], int(own["fl"])
        elif own is not None and own["line"]:
            line = int(own["line"])
        depth = len(match[1]) // 2
        if depth <= implicit:
            implicit = depth if " implicit " in words else 1 << 30
        if implicit > depth:
            yield depth, match[2], file, line, f"{words}{match[6] or ''}", match[5] or ""


def declaration_complaints(tree: str, name: str, dialect: str) -> list[Complaint]:
    """Pointers without address space (an error up to 4.0, generic from 4.1) and program-scope variables outside constant."""
    found = []
    for depth, node, file, line, words, type_text in _declarations(tree):
        if file != name or node not in ("ParmVarDecl", "VarDecl", "FieldDecl", "FunctionDecl"):
            continue
        if "__generic" in type_text and "&&" not in type_text and dialect < "4.1":
            found.append(Complaint(line, "address space", f"'{in_metal_words(type_text)}' has a pointer or reference without device, constant, thread or threadgroup"))
        if node == "VarDecl" and "__constant" not in type_text and (depth == 1 or " static" in words) and " extern" not in words:
            found.append(Complaint(line, "program scope", "a variable at program scope, or static, must be in the constant address space"))
    return list(dict.fromkeys(found))


def lint(
    source: str,
    *,
    dialect: str = "4.0",
    sdk: str = "26.4",
    include: Sequence[str | os.PathLike] = (),
    function_constants: Mapping[int, object] | None = None,
    name: str = "kernel.metal",
) -> tuple[Complaint, ...]:
    """Everything in MSL text that Metal's compiler would refuse, as far as is known; empty when it is fine.

    What the front end itself refuses raises CompileError, as it does in ``compile``.
    """
    from .build import compile_error, literal

    tokens = tokenize(source)
    found = token_complaints(source, tokens, dialect)
    new = rewrite.rewrite(source, tokens)
    others = headers.reachable(source, include)
    flags = list(toolchain.kernel_flags(checked=False, sdk=sdk, dialect=dialect))
    given = {str(k): literal(v) for k, v in (function_constants or {}).items()}
    values = rewrite.defined(new.function_constants | others.function_constants()[0], given, "1")
    if others.files:
        flags.append(f"-I{others.folder()}")
    # Of precompiled headers the tree shows only what is used: ten times less to read.
    flags = [*precompiled.apply(source, flags), "-fsyntax-only", "-Xclang", "-ast-dump", "-fno-color-diagnostics"]
    with tempfile.TemporaryDirectory() as work:
        path = Path(work) / "lint.cl"
        path.write_text(f'{values}#line 1 "{name}"\n{new.text}\n')
        done = toolchain.run([*toolchain.find().clang, *flags, str(path)])
    if done.returncode and not found:
        raise compile_error(name, done.stderr, toolchain.find().name)
    return tuple(sorted({*found, *declaration_complaints(done.stdout, name, dialect)}, key=lambda c: (c.line, c.rule)))
