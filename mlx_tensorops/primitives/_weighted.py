"""What the families of products with stored weights have in common: all but their variants and public names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Mapping

from .. import registry
from ..dtypes import matmul2d_since
from ..epilogues import GATES
from ..errors import RuleError, fail
from ..formats import BUILT_IN, by_name, find
from ..resolve import tile_entries
from ..shaders import msl
from ..spec import WeightedSpec, WeightSpec
from ..variant import ALIGNMENTS, Variant
from . import _weighted_signature as shared
from . import weighted_dataflows
from ._dataflow import too_many_words

FLOATS = ("float16", "bfloat16", "float32")


def legal(spec, engine: str) -> list[str]:
    """Reasons why ``engine`` cannot run ``spec``."""
    reasons = []
    for name, value in (("x", spec.x), ("the output", spec.out), *zip(spec.epilogue.operands, spec.extras)):
        if value not in FLOATS:
            reasons.append(f"{name} is {value}; this engine takes {', '.join(FLOATS)}")
    w = spec.weights
    fmt = by_name(w.format) if w.format else None
    if fmt is None and w.stored not in FLOATS:
        reasons.append(f"the weights are {w.stored}; this engine takes {', '.join(FLOATS)}")
    if fmt is not None and w.stored != "uint32":
        reasons.append(f"the packed weights are {w.stored}, not uint32")
    if fmt is not None and w.scales not in (FLOATS if fmt.scale == "float" else ("uint8",)):
        reasons.append(f"the scales are {w.scales}; format {fmt.name} has {'float' if fmt.scale == 'float' else 'uint8'} scales")
    if w.global_scale and not (fmt and fmt.global_scale):
        reasons.append(f"format {w.format or 'dense'} has no global scale")
    if spec.epilogue.scaled:
        reasons.append("alpha and beta")
    if engine == "mpp" and not reasons:
        decoded = weighted_dataflows.decoded_type(w.format, spec.x, w.stored).name
        if matmul2d_since(spec.x, decoded, "float32") is None:
            reasons.append(f"matmul2d has no row {spec.x} x {decoded} -> float32")
    if spec.block_m and engine in ("mpp", "simdgroup") and not reasons and not _of_height(spec, engine, spec.block_m):
        heights = ", ".join(str(m) for m in BLOCK_HEIGHTS if _of_height(spec, engine, m))
        reasons.append(f"the plan's tiles have {spec.block_m} rows, this engine's blocks {heights or 'do not serve plans'}")
    return reasons


BLOCK_HEIGHTS = (4, 8, 16, 32, 64, 128)  # that a refusal looks for


def _of_height(spec, engine: str, block_m: int) -> bool:
    """Whether an entry of the family's policy serves plans of that height."""
    return bool(tile_entries(registry.family(FAMILY_OF[spec.op]), replace(spec, block_m=block_m), engine))


def rows(spec, engine: str, entries) -> tuple[Variant, ...]:
    """The variants of one set: all rows of each policy entry, in the entries' order. Entries that refuse the spec fall out,
    and of several for one row the first is taken."""
    taken = [e for e in entries if not refusals(spec, e.engine, e.dataflow, e.tile, dict(e.options))]
    if not taken:
        fail(spec.op, f"no kernel serves this: {'; '.join(refusals(spec, e.engine, e.dataflow, e.tile, dict(e.options))[0] for e in entries)}", cls=RuleError)
    found: dict[str, Variant] = {}
    for e in taken:
        for v in rows_of(spec, e.engine, e.dataflow, e.tile, size=e.size, options=dict(e.options), alignments=e.alignments):
            found.setdefault(v.row, v)
    return tuple(found.values())


def rows_of(spec, engine: str, dataflow: str, tile, *, size: str = "", options: Mapping[str, Any] = {},
            alignments: tuple[str, ...] = ALIGNMENTS) -> tuple[Variant, ...]:
    """The variants of one dataflow and tile, one per layout and alignment it serves."""
    reasons = refusals(spec, engine, dataflow, tile, options)
    if reasons:
        fail(spec.op, f"dataflow {dataflow}: {'; '.join(reasons)}", cls=RuleError)
    flow = weighted_dataflows.dataflows()[engine, dataflow]
    served = [right for right in _orders(spec) if not _refusals(spec, flow, right, tile, options)]
    return tuple(_variant(spec, flow, tile, row, size, options) for row in _rows(spec, flow) if row[0][1] in served and row[1] in alignments)


def _own_order(spec) -> str:
    return "t" if spec.weights.transpose else "n"


def _orders(spec) -> tuple[str, ...]:
    """Letters of the orders in which the weights may lie in memory. Strides are known at run time only, and dense weights often come as
    a view with swapped axes: mlx-lm's layers of experts pass ``weight.swapaxes(-1, -2)``."""
    own = _own_order(spec)
    return (own,) if spec.weights.format else (own, "nt"[own == "n"])


def _rows(spec, flow) -> list[tuple[str, str]]:
    """The dataflow's rows for how the weights may lie in memory. Rows of experts have no block without a predicate; one row for any
    strides is enough."""
    own = _own_order(spec)
    return [row for row in flow.rows if row[0][1] in (_orders(spec) if row[0][0] == "n" else own) and (row[1] != "aligned" or spec.rows == "whole")]


def refusals(spec, engine: str, dataflow: str, tile, options: Mapping[str, Any]) -> list[str]:
    """Reasons why a tile of a dataflow is not registered for a spec, whatever the order in which the weights lie in memory."""
    flow = weighted_dataflows.dataflows()[engine, dataflow]
    found = [_refusals(spec, flow, right, tile, options) for right in _orders(spec)]
    return found[0] if all(found) else []


def _refusals(spec, flow, right: str, tile, options: Mapping[str, Any]) -> list[str]:
    stored = replace(spec, weights=replace(spec.weights, transpose=right == "t"))
    found = flow.legal(stored, {**options, "tile": tile})
    if spec.rows == "plan" and spec.block_m and tile.m != spec.block_m:
        found = [*found, f"the plan's tiles have {spec.block_m} rows, this block {tile.m}"]
    first = next(row for row in _rows(spec, flow) if row[0][1] == right)
    return [*found, *too_many_words(flow.cost(_variant(spec, flow, tile, first, "", options)))]


def _variant(spec, flow, tile, row: tuple[str, str], size: str, options: Mapping[str, Any]) -> Variant:
    # As for dense products: no meaning for half types, and the only setting anyone has measured there.
    relaxed = flow.engine == "mpp" and ("float32" not in spec.operands or spec.precision == "tf32")
    swapped = {} if row[0][1] == _own_order(spec) else {"swapped": True}
    named = (*flow.options(options), *shared.options_of(spec).items(), *swapped.items())
    return Variant(FAMILY_OF[spec.op], flow.engine, flow.name, tile, *row, shared.types_of(spec), relaxed, spec.batched, spec.epilogue, size,
                   tuple(sorted(named)))


FAMILY_OF = {"quantized_matmul": "qgemm", "gather_qmm": "gather", "gather_mm": "gather", "gather_gateup": "gateup"}


def matrix_variants(table) -> tuple[Variant, ...]:
    """Every kernel of a table for whole matrices and plain products; epilogues, batches, output types and group sizes multiply these."""
    specs = [WeightedSpec(x, x, weights) for x in FLOATS for weights in _stored(x, (True, False))]
    return _reached(table, specs)


def expert_variants(table, ops: tuple[str, ...]) -> tuple[Variant, ...]:
    """The same for rows of experts: both row sources, two weight tensors and their gate where the operation has them."""
    specs = []
    for op in ops:
        two = op == "gather_gateup"
        for x in FLOATS:
            weights = [w for w in _stored(x, (True,)) if op != "gather_mm"] + [WeightSpec("", x)] * (op != "gather_qmm")
            specs += [WeightedSpec(x, x, w, rows=rows, destinations=1 + two, gate="swiglu" * two, op=op) for w in weights for rows in ("runs", "plan")]
    return _reached(table, specs)


# Formats that the lists of variants name: MLX's default of each mode. Other bits and group sizes change constants and one decoder; tests build all.
LISTED = tuple(f for f in BUILT_IN if f == find("formats", f.mode, None, None))


def _stored(x: str, transposes) -> list[WeightSpec]:
    return [WeightSpec(f.name, "uint32", x if f.scale == "float" else "uint8", t) for f in LISTED for t in transposes]


def _reached(table, specs) -> tuple[Variant, ...]:
    found: dict[str, Variant] = {}
    for entry in table.tables():
        for spec in specs:
            if entry.x in ("", spec.x) and not refusals(spec, entry.engine, entry.dataflow, entry.tile, dict(entry.options)):
                found |= {v.key: v for v in rows(spec, entry.engine, (entry,))}
    return tuple(found.values())


def signature(v: Variant):
    """Arguments, geometry and preconditions of a variant."""
    return shared.signature(v, weighted_dataflows.of(v))


def context(v: Variant) -> dict:
    """What the templates may name beside the general values."""
    p, flow = shared.problem(v), weighted_dataflows.of(v)
    inputs = shared.inputs_of(v)
    stored = inputs["w" + p.suffixes[0]]
    decoded = weighted_dataflows.decoded_type(p.format, v.types[0], stored.name)
    return dict(
        b=decoded, fmt=p.weights, stored=stored, scale_type=inputs.get("scales" + p.suffixes[0]),
        biased=bool(p.weights and p.weights.biased), rows=p.rows, indirect=p.indirect, suffixes=p.suffixes, gate=p.gate,
        gate_text=GATES[p.gate].msl if p.gate else "", global_scale=p.global_scale, slices=flow.k_slice is not None,
        stored_suffixes=p.stored, matrix_names={suffix: p.matrix(suffix) for suffix in p.suffixes},
        weights_at={suffix: _weights_at(v, p, suffix) for suffix in p.suffixes},
        stacked=v.batched or p.rows != "whole", matrix_number="matrix" if v.batched else "expert", transpose_left=False, transpose_right=shared.transposed(v),
        descriptor=msl.descriptor(m=v.tile.op_m, n=v.tile.op_n, k=v.tile.op_k, transpose_right=shared.transposed(v), relaxed_precision=v.relaxed),
        x_k="1" if v.layout[0] == "n" else "p.x_k", types_by_name=inputs, operands="native",
    ) | flow.context(v)


def _weights_at(v: Variant, p, suffix: str) -> str:
    """Arguments that say where a weight tensor lies: pointers and strides."""
    found = [f"{name}_at, p.{name}_row" for name in p.matrix(suffix)]
    found += [] if p.format else [f"p.w{suffix}_step" if shared.any_strides(v) else "1"]
    return ", ".join(found)


def cost(v: Variant):
    """What one launch does."""
    return weighted_dataflows.of(v).cost(v)


def gradient(v: Variant, primals, cotangents, argnums):
    """The formula's gradient to x and the epilogue's operands, composed of MLX operations."""
    from . import _weighted_gradient

    return _weighted_gradient.of(v, primals, cotangents, argnums)


def family(name: str, op: str, *, variants, describe: Mapping[str, str], public: Mapping[str, str]) -> registry.Family:
    """A family of these products; see registry.Family."""
    return registry.Family(
        name=name, op=op, spec=WeightedSpec, templates={key: flow.template for key, flow in weighted_dataflows.dataflows().items()},
        legal=legal, rows=rows, signature=signature, context=context, cost=cost, variants=variants, gradient=gradient, work=shared.work,
        describe=describe, fast_route=False, public=public)
