"""Variant -> the kernel's arguments, launch geometry and preconditions, as rules over its inputs.

The order of ``buffers`` is the order of Metal's buffer indices; the scalar block comes last.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from .dtypes import ElementType
from .errors import RuleError, fail
from .rules import Rule

C_TYPES = {"int": ("i", 4), "long": ("q", 8)}  # Metal's name -> (letter of the extension's scalar format, bytes)


@dataclass(frozen=True)
class Buffer:
    """One array argument: input or output number ``operand``.

    ``optional``: an input that the kernel does not touch where it has no elements. Where any other input has none, nothing
    runs and the outputs are zeros. ``read_back``: an output that a thread reads after another one wrote it.
    """

    name: str
    element: ElementType
    operand: int
    output: bool = False
    optional: bool = False
    read_back: bool = False

    @property
    def role(self) -> str:
        return "output" if self.output else "optional" if self.optional else "input"


@dataclass(frozen=True)
class Scalar:
    """One field of the scalar block, and the rule that gives its value."""

    name: str
    c_type: str
    rule: Rule

    def __post_init__(self):
        if self.c_type not in C_TYPES:
            fail("signature", f"scalar {self.name} has type {self.c_type!r}", nearest=", ".join(C_TYPES), cls=RuleError)


@dataclass(frozen=True)
class Check:
    """A precondition on shapes, with the lesson it teaches when it fails."""

    rule: Rule
    message: str
    instead: str

    def __post_init__(self):
        if not self.rule.shape_only():
            fail("signature", f"check '{self.message}' reads strides or addresses", cls=RuleError)


@dataclass(frozen=True)
class Layout:
    """A precondition on strides, which are known when the graph is evaluated, with its lesson."""

    rule: Rule
    message: str
    instead: str


@dataclass(frozen=True)
class Output:
    """Element type and shape rules of one output."""

    element: ElementType
    shape: tuple[Rule, ...]


@dataclass(frozen=True)
class Signature:
    """Everything the host must know to launch one kernel.

    Attributes:
        params: name of the scalar struct in the shader.
        when: layout rule; the row is taken only where it gives 1.
        grid: threadgroups along x, y, z.
        threads: threads per threadgroup along x.
        threadgroup_bytes: static threadgroup memory of the kernel.
        layouts: what every kernel of the set asks of strides, with the lesson of an evaluation where none of them fits.
        shape_inputs: numbers of the inputs that have no buffer: the rules read their sizes, the kernel nothing.
        builtins: names of the thread and threadgroup indices the kernel reads, from ``shaders.msl.BUILTINS``.
    """

    buffers: tuple[Buffer, ...]
    params: str
    scalars: tuple[Scalar, ...]
    outputs: tuple[Output, ...]
    checks: tuple[Check, ...]
    when: Rule
    grid: tuple[Rule, Rule, Rule]
    threads: int
    threadgroup_bytes: int = 0
    builtins: tuple[str, ...] = ("block", "simdgroup")
    shape_inputs: tuple[int, ...] = ()
    layouts: tuple[Layout, ...] = ()

    @property
    def inputs(self) -> int:
        """Number of input arrays."""
        return len({b.operand for b in self.buffers if not b.output}) + len(self.shape_inputs)

    def bindings(self) -> list[tuple]:
        """Buffer table in the extension's form: position = buffer index."""
        table: list[tuple] = [(b.role, b.operand) for b in self.buffers]
        letters = "".join(C_TYPES[s.c_type][0] for s in self.scalars)
        table.append(("scalars", letters, [s.rule.program() for s in self.scalars]))
        return table


@lru_cache(maxsize=4096)  # rendering, guard, manifest and launch all ask for it
def of(variant) -> Signature:
    """The signature of a variant, from its family."""
    from . import registry

    return registry.family(variant.family).signature(variant)
