"""The public ``tile_plan``: who builds a plan, and how."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from .. import device, plans, resolve, select, tracing
from ..errors import DTypeError, EngineError, ShapeError, fail
from ..plans import OP, TilePlan, positive
from ..policies import tile_plan as table
from ..spec import TilePlanSpec
from ..variant import VariantSet
from . import _enqueue, _tile_plan_mlx
from ._axes import merged
from .tile_plan import FAMILY, ID_TYPES

BUILDERS = ("auto", "host", *select.ENGINES)


def tile_plan(expert_ids=None, *, num_experts=None, block_m=None, builder="auto", offsets=None, rows=None, stream=None) -> TilePlan:
    """Sort rows by expert and cut them into tiles: what every expert kernel of this package walks.

    Args:
        expert_ids: one expert id per row, any shape and integer type; a row is a place in the flattened array. NumPy arrays and lists
            are sorted on the host and checked; an ``mx.array`` is never evaluated.
        num_experts: ids are 0 .. num_experts - 1.
        block_m: most rows of a tile; default: 4, 64 or 128 by the number of rows per expert.
        builder: "auto"; "host" (NumPy; evaluates an ``mx.array``); or an engine: "simdgroup", "cpu", "mlx".
        offsets: instead of ids, for rows that are sorted already: expert e owns rows ``offsets[e] .. offsets[e + 1] - 1``.
        rows: number of rows where offsets are an ``mx.array``; those past the last offset count as dropped.
        stream: MLX stream or device; default: the current one.

    Returns:
        TilePlan. The same arrays, bit for bit, from every builder.

    Raises:
        TensorOpsError: an id that the host knows is out of range; the message names the first. On the device such rows are
            dropped: counted in ``plan.dropped``, and their results are zeros.
        EngineError: the named engine does not exist or cannot run this here; the text says why.

    Engine notes: on Metal the kernels of family ``tile_plan`` build the plan, emulated inside ``hostmetal.active()``; on CPU streams
    the native engine; elsewhere a composition of MLX operations. Kernels and native engine work under ``mx.compile``, also
    shapeless: a replay sorts the ids it gets, block_m stays what it was when traced.
    """
    import mlx.core as mx

    _check(expert_ids, builder, offsets, rows, stream)
    if offsets is not None:
        offsets, experts, block_m, rows, on_host = _sorted(offsets, num_experts, block_m, rows)
        if on_host:
            return plans.from_offsets(offsets, block_m)
        with mx.stream(mx.default_device() if stream is None else stream):
            return TilePlan(*_tile_plan_mlx.from_offsets(offsets, rows, block_m), experts, block_m)
    ids, num_experts, block_m, on_host = _asked(expert_ids, num_experts, block_m, builder)
    if on_host:
        return plans.from_ids(ids, num_experts, block_m)
    decision = _decide(ids, builder, stream)
    if tracing.recording:
        tracing.call(OP, decision, (ids.shape,))
    ids = mx.stop_gradient(ids)  # MLX sends zeros back through indices, and no builder has a use for them
    return TilePlan(*_BUILD[decision.engine](ids, num_experts, block_m, decision.spec, stream), num_experts, block_m)


def describe(expert_ids=None, *, num_experts=None, block_m=None, builder="auto", offsets=None, rows=None, stream=None):
    """(decision, shapes) of the call ``tile_plan`` would make: the part that explain() needs."""
    _check(expert_ids, builder, offsets, rows, stream)
    if offsets is not None:
        offsets, experts, block_m, rows, on_host = _sorted(offsets, num_experts, block_m, rows)
        decision = replace(_decide(offsets, "mlx", stream), why="the rows are sorted already: MLX operations cut them into tiles")
        if on_host:
            plans.known_counts(offsets)
            decision = replace(decision, engine="host", why="the offsets are known here: NumPy checks them")
        return decision, ((rows,), (experts, block_m))
    ids, num_experts, block_m, on_host = _asked(expert_ids, num_experts, block_m, builder)
    shapes = (ids.size,), (num_experts, block_m)
    decision = _decide(ids, "auto" if on_host else builder, stream)
    if on_host:
        plans.known_ids(ids, num_experts)
        return replace(decision, engine="host", why="the ids are known here: NumPy sorts and checks them", variants=None), shapes
    if decision.variants is None or table.in_one_launch(ids.size, num_experts):
        return decision, shapes
    count, *after = _stages(decision.spec)
    entry = table.STAGES[0]
    why = f"{decision.why}; {' and '.join(s.rows[0].key for s in after)} follow"
    return replace(decision, why=why, variants=count, source={(entry.dataflow, entry.tile): entry.why}), shapes


def _check(expert_ids, builder: str, offsets, rows, stream) -> None:
    """Refuse what does not go together."""
    device.is_gpu(stream)  # refuses what is no stream, also where NumPy builds the plan
    if not isinstance(builder, str) or builder not in BUILDERS:
        fail(OP, f"builder {builder!r} is unknown", nearest=", ".join(BUILDERS), cls=EngineError)
    if (expert_ids is None) == (offsets is None):
        fail(OP, "expects either expert_ids or offsets", instead="tile_plan(ids, num_experts=8), or tile_plan(offsets=offsets)")
    if offsets is None and rows is not None:
        fail(OP, f"rows = {rows} with expert_ids, which are as many as they are", instead="leave rows out: it goes with offsets")
    if offsets is not None and builder != "auto":
        fail(OP, f"builder {builder!r} with offsets, whose rows need no sorting", nearest='builder="auto"')


def _asked(expert_ids, num_experts, block_m, builder: str) -> tuple:
    """(ids, experts, rows of a tile, whether NumPy builds the plan), checked; ids are an mx.array unless NumPy does."""
    import mlx.core as mx

    if num_experts is None:
        fail(OP, "num_experts is missing", instead="pass the number of experts of the layer")
    num_experts = positive("num_experts", num_experts)
    on_host = builder == "host" or (builder == "auto" and not isinstance(expert_ids, mx.array))
    if on_host:
        ids = plans.host_integers("expert_ids", expert_ids)
    else:
        ids = _integers(mx, "expert_ids", expert_ids)
    block_m = table.block_m(ids.size, num_experts) if block_m is None else positive("block_m", block_m)
    plans.tile_count(ids.size, num_experts, block_m)
    return ids, num_experts, block_m, on_host


def _integers(mx, name: str, values):
    """An mx.array of integers."""
    array = values if isinstance(values, mx.array) else mx.array(plans.host_integers(name, values))
    if not mx.issubdtype(array.dtype, mx.integer):
        fail(OP, f"{name} is {_name(array.dtype)}", nearest="an integer type", instead=f"{name}.astype(mx.int32)", cls=DTypeError)
    return array


def _decide(ids, builder: str, stream) -> resolve.Decision:
    name = _name(ids.dtype)
    spec = TilePlanSpec(name if name in ID_TYPES else "int32")
    context = _enqueue.context(stream)
    if builder == "auto" and context.emulated:
        return replace(resolve.resolve(FAMILY.name, spec, "simdgroup", context), why="emulation is active: kernels are to be seen running")
    return resolve.resolve(FAMILY.name, spec, builder, context)


def _simdgroup(ids, num_experts: int, block_m: int, spec: TilePlanSpec, stream) -> list:
    """The kernels."""
    import mlx.core as mx

    if _enqueue.emulator() is not None:
        stream = _enqueue.cpu_stream(stream)
    with mx.stream(mx.default_device() if stream is None else stream):
        flat = merged(mx, ids, 0)
        if _name(flat.dtype) not in ID_TYPES:
            flat = _tile_plan_mlx.bounded(flat, num_experts)
        sizes = mx.broadcast_to(mx.array(0, mx.uint8), (num_experts, block_m))  # one byte, there for its shape
    if table.in_one_launch(ids.size, num_experts):
        return _enqueue.launch(_whole(spec), (flat, sizes), stream)
    count, scan, scatter = _stages(spec)
    rank, counts = _enqueue.launch(count, (flat, sizes), stream)
    base, _, _, *tiles, dropped = _enqueue.launch(scan, (counts, flat, sizes), stream)
    order, inverse = _enqueue.launch(scatter, (flat, rank, base), stream)
    return [*tiles, order, inverse, dropped]


def _cpu(ids, num_experts: int, block_m: int, spec: TilePlanSpec, stream) -> list:
    """The native CPU engine."""
    from . import _cpu as engine

    return engine.tile_plan()(ids, num_experts, block_m, stream)


def _mlx(ids, num_experts: int, block_m: int, spec: TilePlanSpec, stream) -> tuple:
    """MLX operations."""
    import mlx.core as mx

    with mx.stream(mx.default_device() if stream is None else stream):
        return _tile_plan_mlx.from_ids(ids, num_experts, block_m)


_BUILD = {"simdgroup": _simdgroup, "cpu": _cpu, "mlx": _mlx}


@lru_cache(maxsize=None)
def _whole(spec: TilePlanSpec) -> VariantSet:
    return VariantSet(spec, "simdgroup", FAMILY.rows(spec, "simdgroup", (table.WHOLE,)))


@lru_cache(maxsize=None)
def _stages(spec: TilePlanSpec) -> tuple[VariantSet, ...]:
    return tuple(VariantSet(spec, "simdgroup", FAMILY.rows(spec, "simdgroup", (entry,))) for entry in table.STAGES)


def _sorted(offsets, num_experts, block_m, rows) -> tuple:
    """(offsets, experts, rows of a tile, rows, whether NumPy builds the plan) of rows that are sorted already, checked."""
    import mlx.core as mx

    on_host = not isinstance(offsets, mx.array)
    offsets = plans.host_integers("offsets", offsets) if on_host else _integers(mx, "offsets", offsets)
    if offsets.ndim != 1 or offsets.size < 2:
        fail(OP, f"offsets has shape {offsets.shape}", nearest="(num_experts + 1,)", cls=ShapeError)
    experts = offsets.size - 1
    if num_experts is not None and num_experts != experts:
        fail(OP, f"offsets has {offsets.size} elements, but num_experts = {num_experts}", nearest=f"num_experts = {experts}", cls=ShapeError)
    if on_host:
        if rows is not None and rows != offsets[-1]:
            fail(OP, f"rows = {rows}, but offsets end at {offsets[-1]}", nearest=str(offsets[-1]), cls=ShapeError)
        rows = int(offsets[-1])
    elif rows is None:
        fail(OP, "rows is missing: offsets are an mx.array, which is not evaluated", instead="pass rows=x.shape[0], or offsets as a NumPy array")
    else:
        rows = positive("rows", rows, least=0)
    block_m = table.block_m(rows, experts) if block_m is None else positive("block_m", block_m)
    plans.tile_count(rows, experts, block_m)
    return offsets, experts, block_m, rows, on_host


def _name(dtype) -> str:
    return str(dtype).rsplit(".", 1)[-1]
