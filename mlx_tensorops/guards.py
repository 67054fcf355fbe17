"""Shape guards, run on the arrays' shapes before anything is enqueued.

The checks are those of the variant's signature: the graph node runs the same rules again when it is
evaluated, because ``compile(shapeless=True)`` replays it with other sizes.
"""

from __future__ import annotations

from typing import Callable, Sequence

from .errors import ShapeError, fail
from .rules import OPERATORS, Rule

_PYTHON = {
    "==": "==", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">=",
    "+": "+", "-": "-", "*": "*", "//": "//", "%": "%",
}


def compiled(op: str, names: Sequence[str], checks) -> Callable:
    """A function of the inputs' shapes that raises a ShapeError for the first check that fails.

    The checks become one Python expression, so that the warm path pays for arithmetic only.
    """
    passes = _compile(" and ".join(f"({_source(c.rule)})" for c in checks) or "True", len(names))

    def guard(*shapes):
        try:
            if passes(*shapes):
                return
        except IndexError:  # an axis that is not there: the rank check below names it
            pass
        explain_failure(op, names, checks, shapes)

    return guard


def function(rule: Rule, inputs: int) -> Callable:
    """A shape rule as a Python function of the inputs' shapes."""
    return _compile(_source(rule), inputs)


def _compile(text: str, inputs: int) -> Callable:
    arguments = ", ".join(f"d{i}" for i in range(inputs))
    return eval(f"lambda {arguments}: {text}", {"__builtins__": {}, "min": min, "max": max, "len": len})


def explain_failure(op: str, names: Sequence[str], checks, shapes) -> None:
    """Raise the lesson of the first check that these shapes fail."""
    given = ", ".join(f"{n} has shape {tuple(s)}" for n, s in zip(names, shapes))
    for check in checks:
        try:
            holds = check.rule(shapes)
        except IndexError:
            holds = False
        if not holds:
            fail(op, f"{given}: {check.message}", instead=check.instead, cls=ShapeError)


def _source(rule: Rule) -> str:
    """A shape rule as Python text over the names d0, d1, ... ."""
    stack: list[str] = []
    for token in rule.tokens:
        if token in OPERATORS:
            count = OPERATORS[token][0]
            operands = stack[-count:]
            del stack[-count:]
            stack.append(_combine(token, operands))
        elif token[0] == "d":
            operand, axis = token[1:].split(".")
            stack.append(f"d{operand}[{axis}]")
        elif token[0] == "n":
            stack.append(f"len(d{token[1:]})")
        else:
            stack.append(token)
    return stack[-1]


def _combine(token: str, operands: list[str]) -> str:
    if token in _PYTHON:
        return f"({operands[0]} {_PYTHON[token]} {operands[1]})"
    if token in ("and", "or"):  # Python's give an operand, ours give 0 or 1
        return f"(1 if {operands[0]} {token} {operands[1]} else 0)"
    if token == "not":
        return f"(not {operands[0]})"
    if token == "select":
        return f"({operands[1]} if {operands[0]} else {operands[2]})"
    if token == "ceildiv":
        return f"(-(-({operands[0]}) // ({operands[1]})))"
    return f"{token}({operands[0]}, {operands[1]})"
