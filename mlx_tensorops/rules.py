"""A tiny expression language over the facts of an operation's inputs.

A rule says how something follows from the inputs: an output's size, the launch grid, a scalar the
kernel needs, whether a row of a VariantSet fits. It is written once, here, and evaluated twice: in
Python on shapes (guards, explain) and in C++ on the real arrays when the graph runs, because MLX
knows strides, offsets and, under ``compile(shapeless=True)``, even sizes only then.

    grid_x = ceildiv(dim(1, -1), 128)
    grid_x.program()        # "d1.-1 128 ceildiv": the postfix text that C++ reads
    grid_x(((64, 32), (32, 300)))   # 3

Shape rules use ``dim`` and ``ndim``. Layout rules may also use ``stride`` (elements) and ``address``
(bytes); those have no value before the graph runs.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Callable, Sequence, Union

from .errors import RuleError, fail

# Name -> (number of operands, Python meaning). cpp/rules.cpp implements the same names; a test compares.
OPERATORS: dict[str, tuple[int, Callable[..., int]]] = {
    "+": (2, operator.add),
    "-": (2, operator.sub),
    "*": (2, operator.mul),
    "//": (2, operator.floordiv),
    "%": (2, operator.mod),
    "ceildiv": (2, lambda a, b: -(-a // b)),
    "min": (2, min),
    "max": (2, max),
    "==": (2, lambda a, b: int(a == b)),
    "!=": (2, lambda a, b: int(a != b)),
    "<": (2, lambda a, b: int(a < b)),
    "<=": (2, lambda a, b: int(a <= b)),
    ">": (2, lambda a, b: int(a > b)),
    ">=": (2, lambda a, b: int(a >= b)),
    "and": (2, lambda a, b: int(bool(a) and bool(b))),
    "or": (2, lambda a, b: int(bool(a) or bool(b))),
    "not": (1, lambda a: int(not a)),
    "select": (3, lambda c, a, b: a if c else b),
}

RuleLike = Union["Rule", int, bool]


@dataclass(frozen=True)
class Rule:
    """A postfix program. Build one with the functions of this module and Python's operators."""

    tokens: tuple[str, ...]

    def program(self) -> str:
        """The text that C++ parses."""
        return " ".join(self.tokens)

    def shape_only(self) -> bool:
        """Whether the value follows from shapes alone."""
        return not any(t[0] in "sp" and t not in OPERATORS for t in self.tokens)

    def __call__(self, shapes: Sequence[Sequence[int]], strides: Sequence[Sequence[int]] | None = None,
                 addresses: Sequence[int] | None = None) -> int:
        """Value of the rule for these inputs. Facts that were not given are an error."""
        stack: list[int] = []
        for token in self.tokens:
            if token in OPERATORS:
                count, meaning = OPERATORS[token]
                operands = stack[-count:]
                del stack[-count:]
                stack.append(meaning(*operands))
            else:
                stack.append(_fact(token, shapes, strides, addresses, self))
        return stack[-1]

    def __add__(self, other: RuleLike) -> Rule: return _apply("+", self, other)
    def __radd__(self, other: RuleLike) -> Rule: return _apply("+", other, self)
    def __sub__(self, other: RuleLike) -> Rule: return _apply("-", self, other)
    def __rsub__(self, other: RuleLike) -> Rule: return _apply("-", other, self)
    def __mul__(self, other: RuleLike) -> Rule: return _apply("*", self, other)
    def __rmul__(self, other: RuleLike) -> Rule: return _apply("*", other, self)
    def __floordiv__(self, other: RuleLike) -> Rule: return _apply("//", self, other)
    def __mod__(self, other: RuleLike) -> Rule: return _apply("%", self, other)
    def __lt__(self, other: RuleLike) -> Rule: return _apply("<", self, other)
    def __le__(self, other: RuleLike) -> Rule: return _apply("<=", self, other)
    def __gt__(self, other: RuleLike) -> Rule: return _apply(">", self, other)
    def __ge__(self, other: RuleLike) -> Rule: return _apply(">=", self, other)
    def __and__(self, other: RuleLike) -> Rule: return _apply("and", self, other)
    def __or__(self, other: RuleLike) -> Rule: return _apply("or", self, other)
    def __invert__(self) -> Rule: return _apply("not", self)

    # == stays identity-of-value (dataclass), so that rules can be compared and hashed; use eq() and ne().


def rule(value: RuleLike) -> Rule:
    """A constant as a rule; a rule as itself."""
    return value if isinstance(value, Rule) else Rule((str(int(value)),))


def dim(operand: int, axis: int) -> Rule:
    """Size of an axis of an input; a negative axis counts from the end."""
    return Rule((f"d{operand}.{axis}",))


def stride(operand: int, axis: int) -> Rule:
    """Stride of an axis of an input, in elements; known when the graph runs."""
    return Rule((f"s{operand}.{axis}",))


def address(operand: int) -> Rule:
    """Address of an input's first element, in bytes; known when the graph runs."""
    return Rule((f"p{operand}",))


def ndim(operand: int) -> Rule:
    """Number of axes of an input."""
    return Rule((f"n{operand}",))


def eq(a: RuleLike, b: RuleLike) -> Rule:
    """1 if equal, else 0."""
    return _apply("==", a, b)


def ne(a: RuleLike, b: RuleLike) -> Rule:
    """1 if different, else 0."""
    return _apply("!=", a, b)


def ceildiv(a: RuleLike, b: RuleLike) -> Rule:
    """Quotient rounded up."""
    return _apply("ceildiv", a, b)


def minimum(a: RuleLike, b: RuleLike) -> Rule:
    """The smaller one."""
    return _apply("min", a, b)


def maximum(a: RuleLike, b: RuleLike) -> Rule:
    """The larger one."""
    return _apply("max", a, b)


def select(condition: RuleLike, yes: RuleLike, no: RuleLike) -> Rule:
    """``yes`` where the condition is not 0, else ``no``; all three are evaluated."""
    return _apply("select", condition, yes, no)


def every(*conditions: RuleLike) -> Rule:
    """1 if all conditions hold; 1 for none."""
    result = rule(1)
    for index, condition in enumerate(conditions):
        result = rule(condition) if index == 0 else result & condition
    return result


def _apply(name: str, *operands: RuleLike) -> Rule:
    tokens: tuple[str, ...] = ()
    for operand in operands:
        tokens += rule(operand).tokens
    return Rule(tokens + (name,))


def _fact(token: str, shapes, strides, addresses, whole: Rule) -> int:
    kind, rest = token[0], token[1:]
    if kind.isdigit() or kind == "-":
        return int(token)
    if kind == "p":
        if addresses is None:
            fail("rules", f"'{whole.program()}' needs addresses, which exist only when the graph runs", cls=RuleError)
        return addresses[int(rest)]
    if kind == "n":
        return len(shapes[int(rest)])
    operand, axis = rest.split(".")
    table = shapes if kind == "d" else strides
    if table is None:
        fail("rules", f"'{whole.program()}' needs strides, which exist only when the graph runs", cls=RuleError)
    return table[int(operand)][int(axis)]
