"""Rewrites of MSL text that make it C++ for OpenCL. No line moves.

1. ``threadgroup T a[N];`` in a body       -> a reference to storage that all threads of the threadgroup share
2. ``constant T x [[function_constant(n)]];`` -> a constant whose value `defined` gives
3. ``S() thread {}``, ``operator T() thread`` -> without ``thread``: temporaries have no address space here
4. ``thread const T&`` parameters            -> ``const T&``, else temporaries do not bind
5. ``template [[host_name("x")]] ...``       -> without attributes, which cannot stand there
6. ``1.5bf``                                 -> ``__hm::bf(1.5f)``: the front end has no such suffix
7. ``0.5``                                   -> ``0.5f``: what it means in Metal; in a template the front end makes a double of it
8. ``S s = *p;`` for a ``constant S* p``     -> a copy byte by byte: implicit copy constructors do not take constant objects
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from .tokens import ID, NUMBER, PREPROCESSOR, STRING, Token, closing, closing_angle, split, text_of, tokenize

Edit = tuple[int, int, str]

_PLAIN_FLOAT = re.compile(r"(\d+\.\d*|\.\d+)([eE][+-]?\d+)?|\d+[eE][+-]?\d+")
_TYPE_WORDS = {"const", "volatile", "typename", "unsigned", "signed", "struct", "class"}
_MULTIWORD = {"unsigned", "signed", "long", "short", "int", "char"}
_QUALIFIERS = {"thread", "device", "threadgroup", "constant"}


@dataclass
class Rewritten:
    """The new text, and what was learnt on the way."""

    text: str
    threadgroup_variables: list[str] = field(default_factory=list)
    function_constants: dict[str, str] = field(default_factory=dict)
    """name -> index (a number in decimal, else as written)"""
    optional_constants: set[str] = field(default_factory=set)
    """names that the text asks about with is_function_constant_defined"""
    instantiations: dict[str, str] = field(default_factory=dict)
    """host name -> ``f<...>``"""


def rewrite(source: str, tokens: list[Token] | None = None, *, first_id: int = 1) -> Rewritten:
    """Applies the rules to one file."""
    tokens = tokenize(source) if tokens is None else tokens
    result = Rewritten(source)
    edits: list[Edit] = []
    classes = {b.text for a, b in zip(tokens, tokens[1:]) if a.text in ("struct", "class") and b.kind == ID}
    constants = _constant_objects(tokens, classes)
    for i, token in enumerate(tokens):
        if token.kind == PREPROCESSOR:
            edits += _macro_edits(source, token, classes)
        elif token.text == "[[":
            edits += _function_constant(source, tokens, i, result)
        elif token.kind == NUMBER:
            if token.text[-2:] in ("bf", "BF") and token.text[:2] not in ("0x", "0X"):
                edits.append((token.start, token.end, f"__hm::bf({token.text[:-2]}f)"))
            elif _PLAIN_FLOAT.fullmatch(token.text):
                edits.append((token.end, token.end, "f"))
        elif token.kind == ID:
            if token.text == "threadgroup":
                edits += _threadgroup_variable(source, tokens, i, result, first_id)
            elif token.text == "template":
                edits += _instantiation(source, tokens, i, result)
            elif token.text == "thread":
                edits += _thread_qualifier(tokens, i, classes)
            elif token.text == "is_function_constant_defined":
                result.optional_constants |= {t.text for t in tokens[i + 2 : i + 3]}
            elif token.text in constants:
                edits += _copy_of_constant(source, tokens, i, constants[token.text])
    result.text = _apply(source, edits)
    return result


def _constant_objects(tokens: list[Token], classes: set[str]) -> dict[str, str]:
    """Name -> struct, for every ``constant S* name`` and ``constant S& name`` of the text."""
    found = {}
    for i, token in enumerate(tokens):
        if token.text == "constant":
            words = [t for t in tokens[max(0, i - 1) : i + 6] if t.text not in ("const", "constant", "struct")]
            at = next((k for k, t in enumerate(words) if t.text in classes), None)
            if at is not None and at + 2 < len(words) and words[at + 1].text in ("*", "&") and words[at + 2].kind == ID:
                found[words[at + 2].text] = words[at].text
    return found


def _copy_of_constant(source: str, tokens: list[Token], i: int, struct: str) -> list[Edit]:
    first = i - 1 if tokens[i - 1].text == "*" else i
    declares = first >= 3 and tokens[first - 1].text == "=" and tokens[first - 2].kind == ID and tokens[first - 3].text == struct
    last = closing(tokens, i + 1) if declares and tokens[i + 1].text == "[" else i
    if not declares or tokens[last + 1].text != ";":
        return []
    value = source[tokens[first].start : tokens[last].end]
    return [(tokens[first].start, tokens[last].end, f"__hm::copy_of_constant(&({value}))")]


def _apply(source: str, edits: list[Edit]) -> str:
    out, position = [], 0
    for start, end, text in sorted(edits):
        if start < position:
            continue
        out += [source[position:start], text, "\n" * (source.count("\n", start, end) - text.count("\n"))]
        position = end
    out.append(source[position:])
    return "".join(out)


def _macro_edits(source: str, token: Token, classes: set[str]) -> list[Edit]:
    """Rules 3 to 5 inside ``#define``; what ends a line there is a backslash, which must stay."""
    define = re.match(r"#\s*define\s+\w+(\([^)]*\))?", token.text)
    if define is None or ("template" not in token.text and "thread" not in token.text):
        return []
    offset = token.start + define.end()
    inner = tokenize(token.text[define.end() :], preprocessor=False)
    scratch = Rewritten("")
    found: list[Edit] = []
    for i, t in enumerate(inner):
        if t.text == "template":
            found += _instantiation(token.text, inner, i, scratch)
        elif t.text == "thread":
            found += _thread_qualifier(inner, i, classes)
    keep = re.compile(r"[^\\\n]+")
    return [(a + offset, b + offset, text or keep.sub("", source[a + offset : b + offset])) for a, b, text in found]


def _type_end(tokens: list[Token], i: int) -> int | None:
    """Index behind the type that starts at i (no pointer or reference), or None."""
    named = False
    while i < len(tokens):
        t = tokens[i]
        if t.kind != ID:
            break
        if t.text in _MULTIWORD:
            named = True
            i += 1
        elif t.text in _TYPE_WORDS:
            i += 1
        elif t.text == "alignas":
            i = closing(tokens, i + 1) + 1
        elif named:
            break
        else:
            named = True
            i += 1
            while i < len(tokens):
                if tokens[i].text == "<":
                    i = closing_angle(tokens, i) + 1
                elif tokens[i].text == "::":
                    i += 2
                    if i - 1 < len(tokens) and tokens[i - 1].text == "template":
                        i += 1
                else:
                    break
    return i if named and i < len(tokens) else None


def _threadgroup_variable(source: str, tokens: list[Token], i: int, result: Rewritten, first_id: int) -> list[Edit]:
    start = i
    if i and tokens[i - 1].text == ")":  # alignas(16) threadgroup ...
        depth = 0
        for j in range(i - 1, -1, -1):
            depth += {")": 1, "(": -1}.get(tokens[j].text, 0)
            if depth == 0:
                if j and tokens[j - 1].text == "alignas":
                    start = j - 1
                break
    while start and tokens[start - 1].text in ("const", "volatile", "static"):
        start -= 1
    before = tokens[start - 1] if start else None
    if before is not None and before.kind != PREPROCESSOR and before.text not in (";", "{", "}", ":"):
        return []
    type_start = i + 1
    after = _type_end(tokens, type_start)
    if after is None or tokens[after].kind != ID:
        return []
    end = after
    while end < len(tokens) and tokens[end].text != ";":
        end = closing(tokens, end) + 1 if tokens[end].text in ("(", "[", "{", "[[") else end + 1
    if end >= len(tokens) or tokens[after + 1].text not in ("[", "[[", ",", ";"):
        return []  # an initialiser stays as it is: the compiler refuses it, and lint says why
    type_text = text_of(source, tokens[type_start:after])
    out = []
    for declarator in split(tokens[after:end]):
        name = declarator[0].text
        dims, j = "", 1
        while j < len(declarator) and declarator[j].text in ("[", "[["):
            close = closing(declarator, j)
            dims += f"[({text_of(source, declarator[j + 1 : close])})]"
            j = close + 1
        if j != len(declarator):
            return []
        number = first_id + len(result.threadgroup_variables)
        result.threadgroup_variables.append(name)
        out.append(f'threadgroup auto& {name} = __hm::threadgroup_variable<{type_text}{dims}, {number}>("{name}");')
    return [(tokens[start].start, tokens[end].end, " ".join(out))]


def is_threadgroup_variable(source: str, tokens: list[Token], i: int) -> bool:
    """Whether the word ``threadgroup`` at i declares a variable."""
    return bool(_threadgroup_variable(source, tokens, i, Rewritten(""), 1))


def has_initialiser(tokens: list[Token], i: int) -> bool:
    """Whether the word ``threadgroup`` at i starts ``threadgroup T x = ...`` or ``threadgroup T x{...}``."""
    after = _type_end(tokens, i + 1)
    if after is None or tokens[after].kind != ID or (i and tokens[i - 1].text not in (";", "{", "}")):
        return False
    j = after + 1
    while j < len(tokens) and tokens[j].text == "[":
        j = closing(tokens, j) + 1
    return j < len(tokens) and tokens[j].text in ("=", "{")


def _function_constant(source: str, tokens: list[Token], i: int, result: Rewritten) -> list[Edit]:
    """The statement whose attribute starts at i: its words may be macros (``STEEL_CONST bool x``)."""
    if tokens[i + 1].text != "function_constant" or tokens[i - 1].kind != ID:
        return []
    close = closing(tokens, i)
    if close + 1 >= len(tokens) or tokens[close + 1].text != ";":
        return []  # on a parameter: the argument is bound or it is null
    start = i - 1
    while start and tokens[start - 1].kind == ID:
        start -= 1
    index, name = text_of(source, tokens[i + 3 : close - 2]), tokens[i - 1].text
    result.function_constants[name] = str(int(index, 0)) if re.fullmatch(r"0[xX][0-9a-fA-F]+", index) else index
    words = [t.text for t in tokens[start : i - 1]]
    kind = [w for w in words if w in _MULTIWORD] or [w for w in words if w != "const"][-1:]  # a bfloat or a vector is made of a number by a cast alone
    if "constant" in words and "constexpr" not in words:
        words.insert(words.index("constant") + 1, "constexpr")
    return [(tokens[start].start, tokens[close + 1].end, f"{' '.join(words)} {name} = ({' '.join(kind)})(__HM_FC_{name});")]


def defined(names: Mapping[str, str], values: Mapping[str, str], other: str) -> str:
    """Lines that give function constants their values, and say which have one: ``other`` stands for those without.

    Text, not options: precompiled headers want the same options. By name, which is what is_function_constant_defined has.
    """
    return "".join(f"#define __HM_FC_{name} {values.get(index, other)}\n#define __HM_FC_HAS_{name} {int(index in values)}\n"
                   for name, index in sorted(names.items()))


def _instantiation(source: str, tokens: list[Token], i: int, result: Rewritten) -> list[Edit]:
    edits: list[Edit] = []
    host_name = None
    j = i + 1
    while j < len(tokens) and tokens[j].text == "[[":
        close = closing(tokens, j)
        if close >= len(tokens):
            return []
        attribute = tokens[j + 1 : close - 1]
        if attribute and attribute[0].text == "host_name":
            host_name = "".join(t.text[1:-1] for t in attribute if t.kind == STRING)
        edits.append((tokens[j].start, tokens[close].end, ""))
        j = close + 1
    if not edits:
        return []
    if host_name and j + 1 < len(tokens) and tokens[j].text == "decltype":
        close = closing(tokens, j + 1)
        result.instantiations[host_name] = text_of(source, tokens[j + 2 : close])
    return edits


def _thread_qualifier(tokens: list[Token], i: int, classes: set[str]) -> list[Edit]:
    token = tokens[i]
    drop = [(token.start, token.end, "")]
    before = tokens[i - 1].text if i else ""
    after = tokens[i + 1].text if i + 1 < len(tokens) else ""
    if before == ")" or (before == "const" and i > 1 and tokens[i - 2].text == ")"):  # rule 3
        depth = 0
        for j in range(i - 1, -1, -1):
            depth += {")": 1, "(": -1}.get(tokens[j].text, 0)
            if depth == 0 and tokens[j].text == "(":
                name = tokens[j - 1] if j else None
                if name is not None and name.text in classes:
                    return drop
                for k in range(j - 1, max(j - 12, -1), -1):
                    if tokens[k].text == "operator":
                        return drop if tokens[j - 1].kind == ID and tokens[j + 1].text == ")" and k < j - 1 else []
                    if tokens[k].text in (";", "{", "}"):
                        break
                return []
        return []
    start = i - 1 if before == "const" else i
    if before == "const" or after == "const":  # rule 4
        if start and tokens[start - 1].text in ("(", ","):
            end = _type_end(tokens, i + 1)
            if end is not None and tokens[end].text == "&":
                return drop
    return []
