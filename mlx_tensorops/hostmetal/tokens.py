"""Tokens of MSL text, with their places. Comments and blanks are skipped; a preprocessor line is one token."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .findings import CompileError

ID, NUMBER, STRING, PUNCTUATION, PREPROCESSOR = "id", "number", "string", "punctuation", "preprocessor"

_TOKEN = re.compile(
    r"""
      (?P<blank>\s+|\\\n|//(?:[^\n\\]|\\.|\\\n)*|/\*.*?\*/)
    | (?P<id>[A-Za-z_]\w*)
    | (?P<number>\.?\d(?:[eEpP][+-]|['\w.])*)
    | (?P<string>"(?:[^"\\\n]|\\.|\\\n)*"|'(?:[^'\\\n]|\\.)+')
    | (?P<punctuation>::|->|\+\+|--|<<=|>>=|<=|>=|==|!=|&&|\|\||[-+*%&|^]=|/=|/(?!\*)|\[\[|\.\.\.|[-+*%&|^~!<>=?:;,.(){}\[\]\#@])
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_LINE = re.compile(r"(?:[^\n\\/]|\\.|\\\n|/(?![/*])|/\*.*?\*/)*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    text: str
    start: int
    end: int


def line_of(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def tokenize(text: str, *, preprocessor: bool = True) -> list[Token]:
    """Tokens of ``text``. ``>>`` and ``]]`` stay split: only a parser knows what they close.

    With ``preprocessor=False`` a ``#`` is ordinary punctuation (for the body of a macro).
    """
    tokens: list[Token] = []
    position, length = 0, len(text)
    fresh = True  # only blanks so far on this line
    while position < length:
        match = _TOKEN.match(text, position)
        if match is None:
            _refuse(text, position)
        kind, end = match.lastgroup, match.end()
        piece = text[position:end]
        if kind == "blank":
            fresh = fresh or "\n" in piece
        elif piece == "#" and fresh and preprocessor:
            end = _LINE.match(text, position).end()
            tokens.append(Token(PREPROCESSOR, text[position:end], position, end))
            fresh = True
        else:
            tokens.append(Token(kind, piece, position, end))
            fresh = False
        position = end
    return tokens


def _refuse(text: str, position: int) -> None:
    rest = text[position : position + 2]
    line = line_of(text, position)
    if rest == "/*":
        raise CompileError(f"[hostmetal] line {line}: this comment never ends.")
    if rest[:1] in ('"', "'"):
        raise CompileError(f"[hostmetal] line {line}: this string never ends.")
    raise CompileError(f"[hostmetal] line {line}: {rest[:1]!r} is no character of MSL.\n  instead: keep kernel text pure ASCII")


OPENING = {"(": ")", "[": "]", "{": "}", "[[": "]"}
CLOSING = {")", "]", "}"}


def closing(tokens: list[Token], start: int) -> int:
    """Index of the token that closes the bracket at ``start`` (for ``[[`` the second ``]``); len(tokens) if none."""
    depth = 0
    for i in range(start, len(tokens)):
        text = tokens[i].text
        if tokens[i].kind == PUNCTUATION:
            if text in OPENING:
                depth += 2 if text == "[[" else 1
            elif text in CLOSING:
                depth -= 1
                if depth == 0:
                    return i
    return len(tokens)


def closing_angle(tokens: list[Token], start: int) -> int:
    """Index of the ``>`` that closes the template argument list opened at ``start``; len(tokens) if it is none."""
    depth, i = 0, start
    while i < len(tokens):
        text = tokens[i].text
        if text in OPENING:
            i = closing(tokens, i)
        elif text in CLOSING or text in (";", "{"):
            break
        elif text == "<":
            depth += 1
        elif text == ">":
            depth -= 1
            if depth == 0:
                return i
        elif text == ">=" or text == ">>=":
            break
        i += 1
    return len(tokens)


def split(tokens: list[Token], separator: str = ",") -> list[list[Token]]:
    """Splits at separators outside every bracket and template argument list."""
    parts: list[list[Token]] = [[]]
    i = 0
    while i < len(tokens):
        text = tokens[i].text
        end = i
        if text in OPENING:
            end = closing(tokens, i)
        elif text == "<" and i and tokens[i - 1].kind == ID:
            close = closing_angle(tokens, i)
            end = close if close < len(tokens) else i
        if text == separator:
            parts.append([])
        else:
            parts[-1].extend(tokens[i : end + 1])
        i = end + 1
    return parts if parts != [[]] else []


def text_of(source: str, tokens: list[Token]) -> str:
    """The source text that the tokens span, on one line and without comments."""
    out: list[str] = []
    for before, token in zip([None, *tokens], tokens):
        if before is not None and before.end != token.start:
            out.append(" ")
        out.append(token.text)
    return "".join(out)
