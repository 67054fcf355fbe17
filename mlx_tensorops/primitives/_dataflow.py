"""What a dataflow is: one way for operands to reach the matrix unit. Each is a module of a package of dataflows."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass, field
from typing import Any, Callable, Mapping

from ..cost import Cost
from ..errors import RuleError, fail
from ..rules import Rule, rule
from ..signature import Signature
from ..variant import ALIGNMENTS, Variant

# Every layout and alignment a set can have, first fit first; the strided row takes any strides and stands last.
EVERY_ROW = (*((layout, alignment) for alignment in ALIGNMENTS for layout in ("nn", "nt", "tn", "tt")), ("strided", "ragged"))


@dataclass(frozen=True)
class Dataflow:
    """One dataflow: its template, the axes it has, and what follows from a variant of it.

    Attributes:
        name: also the middle of the template's name.
        engine: "mpp" or "simdgroup".
        template: file in ``shaders``.
        text: one sentence: what reaches the matrix unit how.
        axes: option -> its values, the default first. A Variant names only options that are not at their default.
        rows: (layout, alignment) rows it can serve, in the order in which they are tried.
        legal: spec, options -> reasons why this dataflow cannot run it (beyond the family's).
        k_step: variant -> multiple of K that its unpredicated rows need.
        cost: variant -> Cost.
        threadgroup_bytes: variant -> static threadgroup memory.
        context: variant -> further values its template may name.
        fits: variant, facts of the problem -> rule beyond layout and alignment that its rows need.
        builtins: see Signature; a function of the variant where they depend on an axis.
        k_slice: variant -> length of the slices of K that threadgroups take, or None: each takes all of K. A sliced variant's
            output has one more axis in front, the slices.
        adds_slices: whether it is the pass after a sliced variant: its first input is that one's output.
        types: spec -> element types of the inputs in order, then of the output.
        signature: variant -> Signature, where the usual one of a matrix product does not fit.
    """

    name: str
    engine: str
    template: str
    text: str
    cost: Callable[[Variant], Cost]
    axes: Mapping[str, tuple] = field(default_factory=dict)
    rows: tuple[tuple[str, str], ...] = EVERY_ROW
    legal: Callable[[Any, Mapping[str, Any]], list[str]] = lambda spec, options: []
    k_step: Callable[[Variant], int] = lambda v: v.tile.op_k
    threadgroup_bytes: Callable[[Variant], int] = lambda v: 0
    context: Callable[[Variant], dict] = lambda v: {}
    fits: Callable[[Variant, Any], Rule] = lambda v, f: rule(1)
    builtins: tuple[str, ...] | Callable[[Variant], tuple[str, ...]] = ("block", "simdgroup")
    k_slice: Callable[[Variant], Rule] | None = None
    adds_slices: bool = False
    types: Callable[[Any], tuple[str, ...]] = lambda spec: (spec.a, spec.b, *spec.extras, spec.out)
    signature: Callable[[Variant], Signature] | None = None

    def options(self, chosen: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
        """Chosen axis values as a Variant stores them: checked, defaults left out, sorted."""
        for axis, value in chosen.items():
            if value not in self.axes.get(axis, ()):
                fail("dataflow", f"{self.name} has no {axis} = {value!r}", cls=RuleError,
                     nearest=", ".join(f"{a} in {v}" for a, v in self.axes.items()))
        return tuple(sorted((axis, value) for axis, value in chosen.items() if value != self.axes[axis][0]))


def discover(name: str, path) -> Mapping[tuple[str, str], Dataflow]:
    """(engine, name) -> dataflow, of every module of the package ``name``."""
    found = {}
    for info in sorted(pkgutil.iter_modules(path), key=lambda m: m.name):
        if not info.name.startswith("_"):
            flow = importlib.import_module(f"{name}.{info.name}").DATAFLOW
            found[flow.engine, flow.name] = flow
    return found


# 32-bit registers of a lane that fragments may take. A thread has 128 (public reverse engineering of Apple's instruction
# set); a quarter stays for addresses, the loop and the epilogue.
WORDS_LIMIT = 96


def too_many_words(cost: Cost) -> list[str]:
    """The reason why a variant of this cost would spill registers, if it would. Depends on tile and types, not on the row."""
    words = cost.accumulator_words + cost.operand_words
    if words <= WORDS_LIMIT:
        return []
    return [f"{words} words per lane ({cost.accumulator_words} of C, {cost.operand_words} of A and B) where {WORDS_LIMIT} fit; "
            "a smaller part of C per simdgroup would"]


# Apple GPUs have 32 KiB since family 4 (Metal feature set tables). 4 KiB stay free for what matmul2d allocates itself:
# nobody has published how much, and a kernel that filled the limit exactly has been reported to give NaN.
THREADGROUP_BYTES = 32768 - 4096


def too_much_memory(size: int) -> list[str]:
    """The reason why a kernel with so many bytes of threadgroup memory cannot run, if it cannot."""
    return [f"{size} bytes of threadgroup memory; {THREADGROUP_BYTES} are free: stage a smaller part of K"] if size > THREADGROUP_BYTES else []
