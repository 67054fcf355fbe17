"""What a kernel's text says about its arguments, and the entry function made from that."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import lesson
from .findings import CompileError
from .tokens import ID, NUMBER, PREPROCESSOR, PUNCTUATION, Token, closing, closing_angle, line_of, split, text_of

_LANE = "__hm_cur->"


def _triple(field: str) -> str:
    return ", ".join(f"{_LANE}{field}[{i}]" for i in range(3))


def _scalar(value: str) -> str:
    return f"{value}, 0, 0"


_ALL_SIMDGROUPS = f"({_LANE}full_group_size[0] * {_LANE}full_group_size[1] * {_LANE}full_group_size[2] + 31) / 32"
BUILTINS = {
    "thread_position_in_grid": ", ".join(f"{_LANE}group_position[{i}] * {_LANE}full_group_size[{i}] + {_LANE}thread_position[{i}]" for i in range(3)),
    "thread_position_in_threadgroup": _triple("thread_position"),
    "threadgroup_position_in_grid": _triple("group_position"),
    "threads_per_threadgroup": _triple("group_size"),
    "dispatch_threads_per_threadgroup": _triple("full_group_size"),
    "threadgroups_per_grid": _triple("groups"),
    "threads_per_grid": _triple("threads"),
    "grid_size": _triple("threads"),
    "grid_origin": "0, 0, 0",
    "thread_index_in_threadgroup": _scalar(f"{_LANE}thread_index"),
    "thread_index_in_simdgroup": _scalar(f"{_LANE}lane"),
    "thread_index_in_quadgroup": _scalar(f"({_LANE}thread_index & 3)"),
    "simdgroup_index_in_threadgroup": _scalar(f"{_LANE}simdgroup"),
    "quadgroup_index_in_threadgroup": _scalar(f"({_LANE}thread_index / 4)"),
    "simdgroups_per_threadgroup": _scalar(f"{_LANE}simdgroups"),
    "quadgroups_per_threadgroup": _scalar(f"({_LANE}simdgroups * 8)"),
    "dispatch_simdgroups_per_threadgroup": _scalar(_ALL_SIMDGROUPS),
    "dispatch_quadgroups_per_threadgroup": _scalar(f"({_ALL_SIMDGROUPS}) * 8"),
    "threads_per_simdgroup": _scalar("32"),
    "thread_execution_width": _scalar("32"),
}


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel. ``index`` is n of ``[[buffer(n)]]`` or ``[[threadgroup(n)]]``."""

    name: str
    type: str
    role: str
    """"buffer", "threadgroup" or the name of a built-in attribute"""
    index: int = -1
    space: str = ""
    writable: bool = False
    reference: bool = False


@dataclass(frozen=True)
class Signature:
    name: str
    line: int
    parameters: tuple[Parameter, ...]
    template: str
    """``typename T, int N`` of a templated kernel, else empty"""
    max_threads: str
    """the expression in max_total_threads_per_threadgroup, else empty"""
    body: tuple[int, int] = (0, 0)
    """indices of the tokens { and }"""

    @property
    def buffers(self) -> tuple[Parameter, ...]:
        return tuple(sorted((p for p in self.parameters if p.role == "buffer"), key=lambda p: p.index))


def kernels(source: str, tokens: list[Token]) -> list[Signature]:
    """Every kernel function that the text defines."""
    found = []
    for i, token in enumerate(tokens):
        if token.text == "void" and i + 2 < len(tokens) and tokens[i + 1].kind == ID:
            opening = i + 2
            attributes = []
            while tokens[opening].text == "[[":  # kernel void f [[host_name("x")]] (...)
                opening = closing(tokens, opening) + 1
                if opening >= len(tokens):
                    break
            if opening < len(tokens) and tokens[opening].text == "(":
                close = closing(tokens, opening)
                attributes, head = _head(tokens, i)
                if close + 1 < len(tokens) and tokens[close + 1].text == "{" and _is_kernel(attributes, tokens[head:i]):
                    found.append(_signature(source, tokens, i, opening, close, head, attributes))
    return found


def _head(tokens: list[Token], i: int) -> tuple[list[list[Token]], int]:
    """Attributes in front of ``void`` and the index where the declaration starts."""
    attributes: list[list[Token]] = []
    j = i
    while j:
        before = tokens[j - 1]
        if before.text == "]" and j > 1 and tokens[j - 2].text == "]":
            k = j - 2
            while k and tokens[k].text != "[[":
                k -= 1
            attributes += split(tokens[k + 1 : j - 2])
            j = k
        elif before.text in ("kernel", "inline", "static", "extern"):
            j -= 1
        elif before.text == ">":
            k, depth = j - 1, 0
            while k >= 0:
                depth += {">": 1, "<": -1}.get(tokens[k].text, 0)
                if depth == 0:
                    break
                k -= 1
            if k < 1 or tokens[k - 1].text != "template":
                break
            j = k - 1
        else:
            break
    return attributes, j


def _is_kernel(attributes: list[list[Token]], head: list[Token]) -> bool:
    return any(a and a[0].text == "kernel" for a in attributes) or any(t.text == "kernel" for t in head)


def _signature(source: str, tokens: list[Token], i: int, opening: int, close: int, head: int, attributes: list[list[Token]]) -> Signature:
    template, max_threads = "", ""
    if tokens[head].text == "template":
        template = text_of(source, tokens[head + 2 : closing_angle(tokens, head + 1)])
    for attribute in attributes:
        if attribute and attribute[0].text == "max_total_threads_per_threadgroup":
            max_threads = text_of(source, attribute[2:-1])
    name = tokens[i + 1]
    line = line_of(source, name.start)
    inner = [t for t in tokens[opening + 1 : close] if t.kind != PREPROCESSOR]
    parameters: list[Parameter] = []
    free = {"buffer": 0, "threadgroup": 0}
    for part in split(inner):
        parameters.append(_parameter(source, part, free, name.text, line))
    body = (close + 1, closing(tokens, close + 1))
    return Signature(name.text, line, tuple(parameters), template, max_threads, body)


def _parameter(source: str, part: list[Token], free: dict[str, int], kernel: str, line: int) -> Parameter:
    bare, attributes = [], []
    i = 0
    while i < len(part):
        if part[i].text == "[[":
            close = closing(part, i)
            attributes += split(part[i + 1 : close - 1])
            i = close + 1
        else:
            bare.append(part[i])
            i += 1
    dims = next((i for i, t in enumerate(bare) if t.text == "["), None)
    if dims:  # an array parameter is a pointer
        bare = [*bare[: dims - 1], Token(PUNCTUATION, "*", bare[dims].start, bare[dims].end), bare[dims - 1]]
    if not bare or bare[-1].kind != ID:
        raise CompileError(lesson("hostmetal", f"kernel {kernel}, line {line}: the parameter '{text_of(source, part)}' has no name"))
    name, type_tokens = bare[-1].text, bare[:-1]
    words = [t.text for t in type_tokens]
    space = next((w for w in words if w in ("device", "constant", "threadgroup", "thread")), "")
    indirect = any(w in ("*", "&") for w in words)
    role, index = "", -1
    for attribute in attributes:
        word = attribute[0].text
        if word in ("buffer", "threadgroup"):
            role, index = word, _integer(source, attribute[2:-1], kernel, line)
        elif word in BUILTINS:
            role = word
        elif word not in ("function_constant", "maybe_unused", "raster_order_group"):
            raise CompileError(lesson("hostmetal", f"kernel {kernel}, line {line}: parameter '{name}' has the attribute {word}, which the emulator does not have",
                                      nearest=", ".join(["buffer(n)", "threadgroup(n)", *BUILTINS])))
    if not role:
        if not indirect and "tensor" not in words:
            raise CompileError(lesson("hostmetal", f"kernel {kernel}, line {line}: parameter '{name}' has neither an address space nor an attribute",
                                      instead=f"constant {' '.join(words)}& {name} [[buffer(n)]]"))
        role = "threadgroup" if space == "threadgroup" else "buffer"
        index = free[role]
    if role in free:
        if indirect and space not in ("device", "constant", "threadgroup"):
            raise CompileError(lesson("hostmetal", f"kernel {kernel}, line {line}: parameter '{name}' points into the {space or 'generic'} address space",
                                      nearest="device, constant or threadgroup"))
        if index > 30:
            raise CompileError(lesson("hostmetal", f"kernel {kernel}, line {line}: parameter '{name}' has index {index}", nearest="0 to 30"))
        free[role] = max(free[role], index + 1)
    # A write needs a device pointer to something that is not const; `T* const` is still writable.
    star = max((i for i, w in enumerate(words) if w in ("*", "&")), default=0)
    writable = role == "buffer" and space == "device" and "const" not in words[:star]
    return Parameter(name, text_of(source, [t for t in type_tokens if t.text not in ("__restrict", "restrict")]), role, index, space, writable, "&" in words)


def _integer(source: str, tokens: list[Token], kernel: str, line: int) -> int:
    if len(tokens) == 1 and tokens[0].kind == NUMBER and re.fullmatch(r"\d+", tokens[0].text):
        return int(tokens[0].text)
    raise CompileError(lesson("hostmetal", f"kernel {kernel}, line {line}: the index '{text_of(source, tokens)}' is no integer literal"))


def entry(signature: Signature, instance: str) -> str:
    """The C function that the runtime calls once per thread, and the one that tells the declared thread limit.

    The kernel is named from the global namespace: metal may have a function of its name.
    """
    arguments = []
    for i, p in enumerate(signature.parameters):
        type_name = f"P::at<{i}>"
        if p.role == "buffer":
            arguments.append(f"__hm::argument<{type_name}>::from(b[{p.index}])")
        elif p.role == "threadgroup":
            arguments.append(f"__hm::argument<{type_name}>::from((unsigned long)__hm_threadgroup_argument({p.index}))")
        else:
            arguments.append(f"__hm::builtin<{type_name}>::from({BUILTINS[p.role]})")
    joined = ",\n    ".join(arguments)
    limit = signature.max_threads or "0"
    quiet = '__attribute__((no_sanitize("thread", "alignment", "array-bounds")))'
    if signature.template and signature.max_threads:
        limits = f"template <{signature.template}> struct __hm_limits {{ static constexpr __constant unsigned threads = {limit}; }};"
        limit = f"__hm_limits{instance[instance.index('<'):]}::threads" if "<" in instance else "0"
    else:
        limits = ""
    return (
        f'\n{limits}\nextern "C" {quiet} unsigned hm_max_threads() {{ return {limit}; }}\n'
        f'extern "C" {quiet} void hm_kernel(__private unsigned long* b) {{\n'
        f"  using P = __hm::parameters<decltype(::{instance})>;\n  ::{instance}(\n    {joined});\n}}\n"
    )
