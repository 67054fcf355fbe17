"""The pool of dense kernels: one covering array over dataflow, layout, edges, types, options, epilogue and batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import mlx.core as mx
import numpy as np

from mlx_tensorops.epilogues import ACTIVATIONS, Epilogue
from mlx_tensorops.policies import gemm as table
from mlx_tensorops.primitives import gemm, gemm_dataflows
from mlx_tensorops.spec import GemmSpec
from mlx_tensorops.variant import Variant
from tests.cases.gemm import make
from tests.covering import covering_array

OPERANDS = (("float16", "float16"), ("bfloat16", "bfloat16"), ("float32", "float32"), ("float16", "bfloat16"), ("float32", "float16"))
EPILOGUES = ("", "bias", "residual", "scaled", *ACTIVATIONS)
LAYOUTS = ("nn", "nt", "tn", "tt", "strided")
EDGES = ("aligned", "ragged_m", "ragged")
VIEWS = {"coordinate": {"n": "rows", "t": "columns"}, "nax": {"n": "vector_rows", "t": "vector_columns"}}  # by fill style


@lru_cache(maxsize=None)
def entries() -> dict[str, table.Entry]:
    """Every policy entry, reached or not, by a readable name."""
    found = {}
    for e in (*table.TILES, *table.UNREACHED):
        options = "".join(f" {axis}={value}" for axis, value in e.options)
        found[f"{e.engine} {e.dataflow} {e.tile.name}{options}"] = e
    return found


def options_of(entry: table.Entry) -> list[tuple[tuple[str, object], ...]]:
    """The entry's own options, and for each value of each axis once that value instead."""
    flow = gemm_dataflows.dataflows()[entry.engine, entry.dataflow]
    base = dict(entry.options)
    varied = [tuple(sorted({**base, axis: value}.items())) for axis, values in flow.axes.items() for value in values]
    return list(dict.fromkeys([tuple(sorted(base.items())), *varied]))


@lru_cache(maxsize=None)
def _variants(entry_name: str, operands, out: str, precision: str, epilogue: str, batched: bool, options) -> dict[str, Variant]:
    entry = entries()[entry_name]
    rank = 3 if batched else 2
    spec = GemmSpec(*operands, out, rank, rank, precision, _epilogue(epilogue), _extras(epilogue, out))
    flow = gemm_dataflows.dataflows()[entry.engine, entry.dataflow]
    if gemm.legal(spec, entry.engine) or flow.legal(spec, dict(options)):
        return {}
    return {v.row: v for v in gemm.rows_of(spec, entry.engine, entry.dataflow, entry.tile, options=dict(options))}


def _epilogue(name: str) -> Epilogue:
    return Epilogue(name == "bias", name if name in ACTIVATIONS else None, name in ("residual", "scaled"), name == "scaled")


def _extras(name: str, out: str) -> tuple[str, ...]:
    return {"bias": ("float32",), "residual": (out,), "scaled": (out, "float32")}.get(name, ())


@dataclass(frozen=True)
class Choice:
    """One row of the pool."""

    entry: str
    options: tuple
    layout: str
    edge: str
    operands: tuple[str, str]
    out: str
    precision: str
    epilogue: str
    batched: bool

    @property
    def variant(self) -> Variant:
        """The kernel under test."""
        return _variants(self.entry, self.operands, self.out, self.precision, self.epilogue, self.batched, self.options)[f"{self.layout}/{self.edge}"]

    @property
    def name(self) -> str:
        """A test id."""
        return self.variant.key

    def problem(self, seed: int, sizes: tuple[int, int, int] | None = None) -> tuple[list[mx.array], dict]:
        """(kernel inputs, epilogue operands by name); M, N, K reach exactly this row, unless a row for all sizes is given some."""
        v, rng = self.variant, np.random.default_rng(seed)
        step = gemm_dataflows.of(v).k_step(v)
        m, n, k = v.tile.m, v.tile.n, 2 * step
        if self.edge == "ragged_m":
            m = v.tile.m + 5
        elif self.edge == "ragged":
            m, n, k = sizes or (v.tile.m + 3, v.tile.n + 13, 2 * step + 5)
        lead = (1, 2, 3) if self.batched else ()
        a_view, b_view = ("every_other", "gap") if self.layout == "strided" else (VIEWS[v.option("fill", "coordinate")][side] for side in self.layout)
        a = make(a_view, m, k, self.operands[0], rng, lead=lead)
        # Without leading axes of its own, b would let the batches fold into M.
        b = make(b_view, k, n, self.operands[1], rng, lead=lead)
        arrays, extra = [a, b], {}
        for name, kind in zip(v.epilogue.operands, v.types[2:-1]):
            if name == "scales":
                extra |= {"alpha": 0.5, "beta": -2.0}
                arrays.append(mx.array([0.5, -2.0], mx.float32))
            else:
                extra[name] = make("rows", 1 if name == "bias" else m, n, kind, rng)
                arrays.append(extra[name].reshape((1,) * len(lead) + extra[name].shape))
        return arrays, extra


RASTERS = ((), (("swizzle", 1),), (("panel", 4),))


def axes(strength: int) -> dict:
    """The axes of the pool. In the pairwise one, options of a dataflow other than the order of blocks are left to its own tests
    and to the 3-wise array; they are numbered, since each dataflow has its own."""
    count = len(RASTERS) if strength == 2 else max(len(options_of(e)) for e in entries().values())
    return {"entry": tuple(entries()), "option": tuple(range(count)), "layout": LAYOUTS, "edge": EDGES, "operands": OPERANDS,
            "out": gemm.FLOATS, "precision": ("exact", "tf32"), "epilogue": EPILOGUES, "batched": (False, True)}


def choice_of(row: dict, strength: int) -> Choice | None:
    """The Choice of a row, or None where no such kernel exists."""
    if row["precision"] == "tf32" and "float32" not in row["operands"]:
        return None
    options = _options(row["entry"], strength)
    if row["option"] >= len(options):
        return None
    made = (row["entry"], row["operands"], row["out"], row["precision"], row["epilogue"], row["batched"], options[row["option"]])
    if f"{row['layout']}/{row['edge']}" not in _variants(*made):
        return None
    return Choice(row["entry"], options[row["option"]], row["layout"], row["edge"], *made[1:6])


@lru_cache(maxsize=None)
def _options(entry_name: str, strength: int):
    entry = entries()[entry_name]
    if strength > 2:
        return options_of(entry)
    flow = gemm_dataflows.dataflows()[entry.engine, entry.dataflow]
    return [tuple(sorted({**dict(entry.options), **dict(raster)}.items())) for raster in RASTERS if all(axis in flow.axes for axis, _ in raster)]


@lru_cache(maxsize=None)
def pool(strength: int = 2, seed: int = 2026) -> tuple[Choice, ...]:
    """The covering array as choices; every value of every axis at least three times."""
    rows = covering_array(axes(strength), strength=strength, seed=seed, at_least=3, legal=lambda row: choice_of(row, strength) is not None)
    return tuple(choice_of(row, strength) for row in rows)
