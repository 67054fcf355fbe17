"""The pool of kernels for rows of experts: a covering array over family, kernel, weights, types, row source, edges and epilogue."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import lcm

import numpy as np

from mlx_tensorops import formats
from mlx_tensorops.epilogues import GATES, Epilogue
from mlx_tensorops.policies import gateup, gather
from mlx_tensorops.primitives import _weighted, weighted_dataflows
from mlx_tensorops.spec import WeightedSpec, WeightSpec
from mlx_tensorops.variant import VariantSet
from tests.cases.tile_plan import routing
from tests.covering import covering_array
from tests.weighted import experts
from tests.weighted.cases import Problem

TABLES = {"gather": gather, "gateup": gateup}
# How weights are coded, and whether a global scale goes with them; then the group's length. "" is dense.
CODES = ("", *dict.fromkeys((f.mode, f.bits, g) for f in formats.BUILT_IN for g in (("", "amax", "prescaled") if f.global_scale else ("",))))
GROUPS = tuple(dict.fromkeys(f.group for f in formats.BUILT_IN))
FORMATS = {(f.mode, f.bits, f.group): f for f in formats.BUILT_IN}
FINISH = {"gather": ("", "relu", "silu", "gelu_erf", "residual"), "gateup": ("", *GATES)}
X_VIEWS = {"n": ("rows", "gap", "offset"), "t": ("every_other", "reversed", "columns")}
# Histograms of rows over experts: kind of routing, experts, rows. Rows are even: two for each token.
HISTOGRAMS = (("uniform", 5, 92), ("skewed", 7, 150), ("one", 3, 70), ("holes", 40, 64), ("out_of_range", 4, 50), ("none", 3, 20), ("uniform", 64, 30),
              ("sorted", 1, 130), ("uniform", 2, 2))


@lru_cache(maxsize=None)
def kernels(family: str) -> dict[str, tuple]:
    """The policy's entries by dataflow and block; which options and operations of a block fit depends on the types. Those that no policy takes
    run in tests/moe/test_butter.py."""
    found: dict[str, tuple] = {}
    for e in TABLES[family].TILES:
        block = f"{e.tile.m}x{e.tile.n}" if e.dataflow == "steel" else str(e.tile.m)
        name = f"{e.dataflow} {block}"
        found[name] = (*found.get(name, ()), e)
    return found


@dataclass(frozen=True)
class Choice:
    """One row of a pool."""

    family: str
    kernel: str
    code: tuple | str
    group: int
    x: str
    out: str
    transpose: bool
    rows: str
    indirect: bool
    strides: str
    edge: str
    bias: str
    finish: str

    @property
    def name(self) -> str:
        """A test id."""
        words = (self.kernel.replace(" ", "_"), self.format.name if self.format else "dense", self.code[2] if self.code else "", self.x, self.out,
                 "nt" if self.transpose else "nn", self.rows, "indirect" * self.indirect, self.strides, self.edge, f"bias_{self.bias}" * bool(self.bias), self.finish)
        return "-".join(word for word in words if word)

    @property
    def format(self):
        """The weights' format, None for dense ones."""
        return FORMATS[*self.code[:2], self.group] if self.code else None

    @property
    def spec(self) -> WeightedSpec:
        """What is asked."""
        fmt, two = self.format, self.family == "gateup"
        if fmt:
            weights = WeightSpec(fmt.name, "uint32", self.x if fmt.scale == "float" else "uint8", self.transpose, self.code[2])
        else:
            weights = WeightSpec("", self.x, transpose=self.transpose)
        plain = self.finish in ("", "residual")
        epilogue = Epilogue(bool(self.bias), None if two or plain else self.finish, self.finish == "residual")
        extras = ((self.x if self.bias == "own" else "float32",) * bool(self.bias)) + ((self.out,) if self.finish == "residual" else ())
        return WeightedSpec(self.x, self.out, weights, rows=self.rows, indirect=self.indirect, destinations=1 + two, gate=self.finish if two else "",
                            block_m=self.block_m if self.rows == "plan" else 0, epilogue=epilogue, extras=extras,
                            op="gather_gateup" if two else "gather_qmm" if fmt else "gather_mm")

    @property
    def block_m(self) -> int:
        """Rows of the block."""
        return kernels(self.family)[self.kernel][0].tile.m

    @property
    def entry(self):
        """The first entry of the block that takes the spec, None where none does."""
        spec = self.spec
        for e in kernels(self.family)[self.kernel]:
            if not _weighted.legal(spec, e.engine) and not _weighted.refusals(spec, e.engine, e.dataflow, e.tile, dict(e.options)):
                return e
        return None

    @property
    def row(self) -> str:
        """The row of the set that must answer."""
        return f"{self.strides}{'t' if self.transpose else 'n'}/{self.edge}"

    @lru_cache(maxsize=None)
    def variants(self) -> VariantSet | None:
        """The kernel under test, in a set of its own; None where it does not exist."""
        e = self.entry
        if e is None:
            return None
        found = [v for v in _weighted.rows_of(self.spec, e.engine, e.dataflow, e.tile, options=dict(e.options)) if v.row == self.row]
        return VariantSet(self.spec, e.engine, tuple(found)) if found else None

    def sizes(self) -> tuple[int, int]:
        """N and K that reach the edge."""
        (v,), fmt = self.variants().rows, self.format
        along = fmt.group if fmt and self.transpose else 1  # K is a multiple of this, N of the other
        across = fmt.group if fmt and not self.transpose else 1
        step = weighted_dataflows.of(v).k_step(v)
        n, k = lcm(v.tile.n, across), lcm(step, along)
        k *= 1 if k > 96 else 2
        if self.edge == "ragged":
            n, k = n + (across if across > 1 else 13), k + (along if along > 1 else 5)
        return n, k

    def problem(self, seed: int, histogram: tuple | None = None, sizes: tuple[int, int] | None = None) -> tuple[Problem, np.ndarray, np.ndarray]:
        """(arrays, expert of each row of the result, row of x that it multiplies) of one of HISTOGRAMS, or of another; the view varies with the seed."""
        kind, count, rows = histogram or HISTOGRAMS[seed % len(HISTOGRAMS)]
        ids = routing(kind, rows, count, np.random.default_rng(seed)).astype(np.int32)
        views = X_VIEWS[self.strides]
        return experts.problem(self.spec, np.sort(ids) if self.rows == "runs" else ids, *(sizes or self.sizes()), seed, experts=count, x_view=views[seed % len(views)])


def axes() -> dict:
    """The axes of the pool."""
    names = dict.fromkeys(name for family in TABLES for name in kernels(family))
    return {"family": tuple(TABLES), "kernel": tuple(names), "code": CODES, "group": GROUPS, "x": _weighted.FLOATS, "out": _weighted.FLOATS,
            "transpose": (True, False), "rows": ("plan", "runs"), "indirect": (False, True), "strides": ("n", "t"), "edge": ("ragged_m", "ragged"),
            "bias": ("", "own", "float32"), "finish": tuple(dict.fromkeys(name for names in FINISH.values() for name in names))}


def choice_of(row: dict) -> Choice | None:
    """The Choice of a row, or None where no such kernel exists."""
    if row["kernel"] not in kernels(row["family"]) or row["finish"] not in FINISH[row["family"]]:
        return None
    if row["code"] and (*row["code"][:2], row["group"]) not in FORMATS or not row["code"] and row["group"] != GROUPS[0]:
        return None
    choice = Choice(**row)
    return choice if choice.variants() else None


# Builds are dear: tests/weighted pairs codings with types and kernels, and its kernels stage weights by the same parts. Here every kernel meets every
# family, row source, edge, stride and layout, and every coding and type occurs with every family and row source.
APART = (("kernel", "code"), ("kernel", "group"), ("kernel", "finish"), ("kernel", "bias"), ("code", "finish"), ("code", "bias"), ("code", "out"),
         ("code", "edge"), ("code", "strides"), ("code", "indirect"), ("group", "finish"), ("kernel", "out"), ("code", "x"), ("kernel", "x"))
AT_LEAST = 2


@lru_cache(maxsize=None)
def pool(strength: int = 2, seed: int = 3, apart: tuple = APART) -> tuple[Choice, ...]:
    """The covering array as choices; every value of every axis at least AT_LEAST times."""
    rows = covering_array(axes(), strength=strength, seed=seed, at_least=AT_LEAST, apart=apart, limit=2500, legal=lambda row: choice_of(row) is not None)
    return tuple(choice_of(row) for row in rows)
