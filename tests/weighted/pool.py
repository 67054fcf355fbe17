"""The pool of kernels for whole quantised matrices: one covering array over format, types, kernel, options, edges and epilogue."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from math import lcm

from mlx_tensorops import formats
from mlx_tensorops.epilogues import ACTIVATIONS, Epilogue
from mlx_tensorops.policies import qgemm as table
from mlx_tensorops.primitives import _weighted, weighted_dataflows
from mlx_tensorops.spec import WeightedSpec, WeightSpec
from mlx_tensorops.variant import Variant
from tests.covering import covering_array
from tests.weighted import cases

# What a group's codes are, and whether a global scale goes with them; then the group's length.
CODES = tuple(dict.fromkeys((f.mode, f.bits, g) for f in formats.BUILT_IN for g in (("", "amax", "prescaled") if f.global_scale else ("",))))
GROUPS = tuple(dict.fromkeys(f.group for f in formats.BUILT_IN))
FORMATS = {(f.mode, f.bits, f.group): f for f in formats.BUILT_IN}
X = ("float16", "bfloat16", "float32", "tf32")  # tf32: f32 that may lose low bits
OTHER = {"float16": "bfloat16", "bfloat16": "float16", "float32": "bfloat16"}  # type of scales that are not x's
EPILOGUES = ("", "bias", "residual", *ACTIVATIONS, "all")
WIDTHS = (96, 704, 1408, 2880)
ROWS = ("n/aligned", "n/ragged_m", "n/ragged", "t/ragged")  # x with contiguous rows or any strides
EDGES = ("ragged", "k_tail", "k_1040", *(f"n_{n}" for n in WIDTHS))  # sizes that the rows for every size meet
X_VIEWS = {"n": ("rows", "gap", "offset", "vector_rows"), "t": ("every_other", "reversed", "columns")}
NEVER = (("operands", "half_fold"),)  # loses small activations by design; tests/qgemm/test_scales.py shows how many


def kernels() -> dict[str, tuple[table.Entry, ...]]:
    """Every policy entry, reached or not, by engine, dataflow and tile."""
    found: dict[str, tuple] = {}
    for e in table.tables():
        name = f"{e.engine} {e.dataflow} {e.tile.name}"
        found[name] = (*found.get(name, ()), e)
    return found


@lru_cache(maxsize=None)
def options_of(kernel: str) -> tuple[tuple[tuple[str, object], ...], ...]:
    """The entries' own options, and for each value of each axis once that value instead of the last entry's. Entries for one type of x run in
    tests/qgemm/test_flushed_half.py."""
    general = [e for e in kernels()[kernel] if not e.x]
    found, last = [tuple(sorted(e.options)) for e in general], general[-1]
    axes = weighted_dataflows.dataflows()[last.engine, last.dataflow].axes
    found += [tuple(sorted({**dict(last.options), axis: value}.items())) for axis, values in axes.items() for value in values
              if (axis, value) not in NEVER]
    same = {}  # a default that is named is no other kernel
    for options in found:
        same.setdefault(weighted_dataflows.dataflows()[last.engine, last.dataflow].options(dict(options)), options)
    return tuple(same.values())


@dataclass(frozen=True)
class Choice:
    """One row of the pool."""

    kernel: str
    options: tuple
    code: tuple[str, int, str]
    group: int
    x: str
    scales: str
    out: str
    transpose: bool
    row: str
    epilogue: str
    batched: bool
    edges: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """A test id."""
        options = "-".join(f"{axis}_{value}" for axis, value in self.options)
        return "-".join(filter(None, (self.kernel.replace(" ", "_"), options, self.format.name, self.code[2], self.x, self.scales, self.out, ("t" if self.transpose else "n") + self.row.replace("/", "_"),
                                      self.epilogue, "batched" * self.batched)))

    @property
    def format(self) -> formats.Format:
        """The weights' format."""
        return FORMATS[*self.code[:2], self.group]

    @property
    def spec(self) -> WeightedSpec:
        """What is asked."""
        name, x = self.epilogue, "float32" if self.x == "tf32" else self.x
        epilogue = Epilogue(name in ("bias", "all"), "silu" if name == "all" else name if name in ACTIVATIONS else None, name in ("residual", "all"))
        extras = {"bias": ("float32",), "residual": (self.out,), "all": (x, "float32")}.get(name, ())
        scales = "uint8" if self.format.scale != "float" else x if self.scales == "same" else OTHER[x]
        weights = WeightSpec(self.format.name, "uint32", scales, self.transpose, self.code[2])
        return WeightedSpec(x, self.out, weights, batched=self.batched, precision="tf32" if self.x == "tf32" else "exact", epilogue=epilogue, extras=extras)

    @property
    def entry(self) -> table.Entry:
        """Tile, dataflow and engine."""
        return kernels()[self.kernel][0]

    @property
    def variant(self) -> Variant:
        """The kernel under test."""
        e = self.entry
        rows = _weighted.rows_of(self.spec, e.engine, e.dataflow, e.tile, options=dict(self.options))
        return next(v for v in rows if v.row == self._row)

    @property
    def _row(self) -> str:
        return self.row[0] + ("t" if self.transpose else "n") + self.row[1:]

    def exists(self) -> bool:
        """Whether the kernel takes the spec: what ``rows_of`` refuses, asked quickly."""
        e, spec = self.entry, self.spec
        flow = weighted_dataflows.dataflows()[e.engine, e.dataflow]
        served = any("/".join(row) == self._row for row in flow.rows) and self.row[2:] in alignments(self.kernel)
        return (served and not _weighted.legal(spec, e.engine) and not flow.legal(spec, {**dict(self.options), "tile": e.tile})
                and _fits_registers(self.kernel, self.options, spec.x, self.format.mode, self.transpose))

    def legal_edges(self) -> tuple[str, ...]:
        """Edges that exist for the kernel: N holds whole groups where the weights are packed along it."""
        if not self.row.endswith("/ragged"):
            return (self.row[2:],)
        return tuple(e for e in EDGES if self.transpose or not e.startswith("n_") or int(e[2:]) % self.format.group == 0)

    def sizes(self, edge: str) -> tuple[int, int, int]:
        """M, N, K that reach the edge."""
        v, group = self.variant, self.format.group
        along, across = (group, 1) if self.transpose else (1, group)  # K and N are multiples of these
        step = weighted_dataflows.of(v).k_step(v)
        k = lcm(step, along)
        k *= 1 if edge.startswith("n_") or k > 2 * step else 2
        m, n, k_tail = v.tile.m, lcm(v.tile.n, across), k + (along if along > 1 else 5)
        return {"aligned": (m, n, k), "ragged_m": (m + 5, n, k), "ragged": (m + 3, n + (13 if self.transpose else group), k_tail), "k_tail": (m, n, k_tail),
                "k_1040": (m + 1, n, -(-1040 // along) * along)}.get(edge) or (m - 1, int(edge[2:]), k)

    def problem(self, seed: int, sizes: tuple[int, int, int]) -> cases.Problem:
        """Arrays of those sizes; views and repeated weights vary with the seed."""
        views = X_VIEWS[self.row[0]]
        return cases.problem(self.spec, *sizes, seed, x_view=views[seed % len(views)], rows_of_more=seed % 2 == 1, shared_weights=seed % 3 == 2)


@lru_cache(maxsize=None)
def alignments(kernel: str) -> frozenset[str]:
    """Alignments for which a policy entry has the kernel."""
    return frozenset(a for e in kernels()[kernel] for a in e.alignments)


@lru_cache(maxsize=None)
def _fits_registers(kernel: str, options: tuple, x: str, mode: str, transpose: bool) -> bool:
    e, fmt = kernels()[kernel][0], next(f for f in formats.BUILT_IN if f.mode == mode)
    spec = WeightedSpec(x, "float32", WeightSpec(fmt.name, "uint32", x if fmt.scale == "float" else "uint8", transpose), precision="tf32")
    return not _weighted.refusals(spec, e.engine, e.dataflow, e.tile, dict(options))


def axes() -> dict:
    """The axes of the pool; options are numbered, since each kernel has its own."""
    count = max(len(options_of(kernel)) for kernel in kernels())
    return {"kernel": tuple(kernels()), "option": tuple(range(count)), "code": CODES, "group": GROUPS, "x": X, "scales": ("same", "other"), "out": _weighted.FLOATS,
            "transpose": (True, False), "row": ROWS, "epilogue": EPILOGUES, "batched": (False, True)}


def choice_of(row: dict) -> Choice | None:
    """The Choice of a row, or None where no such kernel or problem exists."""
    fmt, options = FORMATS.get((*row["code"][:2], row["group"])), options_of(row["kernel"])
    if fmt is None or row["option"] >= len(options) or fmt.scale != "float" and row["scales"] != "same":
        return None
    choice = Choice(row["kernel"], options[row["option"]], *(row[name] for name in list(row)[2:]))
    return choice if choice.exists() else None


# Builds are dear. Every kernel meets every code, group and option, and every format every type of x; not every option every code.
APART = (("code", "option"), ("group", "option"), ("code", "epilogue"), ("epilogue", "option"))
ALSO = (("code", "group", "x"),)


@lru_cache(maxsize=None)
def pool(strength: int = 2, seed: int = 2026, apart: tuple = APART, also: tuple = ALSO) -> tuple[Choice, ...]:
    """The covering array as choices, every value of every axis at least three times; each with the two edges that its kernel has met least."""
    rows = covering_array(axes(), strength=strength, seed=seed, at_least=3, apart=apart, also=also, limit=8000 if strength == 2 else 12000,
                          legal=lambda row: choice_of(row) is not None)
    met, found = Counter(), []
    for choice in (choice_of(row) for row in rows):
        edges = sorted(choice.legal_edges(), key=lambda edge: met[choice.kernel, edge])[:2]
        met.update((choice.kernel, edge) for edge in edges)
        found.append(replace(choice, edges=(edges[0], edges[-1])))
    return tuple(found)
