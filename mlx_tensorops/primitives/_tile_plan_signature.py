"""Tile plans on the device: what each kernel of the counting sort gets, as rules over its inputs.

The number of experts and the height of a tile come as the two sizes of an input that no kernel reads, so that one build
serves every model.
"""

from __future__ import annotations

from dataclasses import replace

from ..cost import Cost
from ..dtypes import INT32, element_type
from ..policies.tile_plan import WHOLE_EXPERTS, chunk
from ..rules import Rule, ceildiv, dim, eq, every, maximum, ndim, rule, stride
from ..signature import Buffer, Check, Output, Scalar, Signature
from ..variant import SIMD_WIDTH, Variant

INT32_LIMIT = 2**31


def _experts(sizes: int) -> Rule:
    return dim(sizes, 0)


def _block_m(sizes: int) -> Rule:
    return dim(sizes, 1)


def _tiles(ids: int, sizes: int) -> Rule:
    """As many as any ids can need."""
    return ceildiv(dim(ids, 0), _block_m(sizes)) + _experts(sizes)


def _checks(ids: int, sizes: int, *more: Check) -> tuple[Check, ...]:
    return (
        Check(every(eq(ndim(ids), 1), eq(ndim(sizes), 2)), "ids have one axis, and sizes are (num_experts, block_m)", "call tile_plan"),
        # One below the limit is the bin of dropped rows, another the end of the last bin.
        Check(every(_experts(sizes) > 0, _experts(sizes) < INT32_LIMIT - 2, _block_m(sizes) > 0), "num_experts and block_m are at least 1", "call tile_plan"),
        Check(_tiles(ids, sizes) < INT32_LIMIT, "fewer than 2**31 tiles, ceil(rows / block_m) + num_experts", "split the rows, or raise block_m"),
        *more,
    )


def _outputs(*names_and_shapes, read_back: tuple[str, ...] = ()) -> tuple[tuple[Buffer, ...], tuple[Output, ...]]:
    buffers = tuple(Buffer(name, INT32, i, output=True, read_back=name in read_back) for i, (name, _) in enumerate(names_and_shapes))
    return buffers, tuple(Output(INT32, shape) for _, shape in names_and_shapes)


def _tile_outputs(ids: int, sizes: int):
    tiles = (_tiles(ids, sizes),)
    return ("tile_expert", tiles), ("tile_row_start", tiles), ("tile_row_count", tiles)


_ROWS, _IDS_STEP = Scalar("rows", "long", dim(0, 0)), Scalar("ids_step", "long", stride(0, 0))
_CHUNKS = maximum(ceildiv(dim(0, 0), chunk(dim(0, 0))), 1)
_THREAD = ("simdgroup", "lane")
WHOLE_BINS = WHOLE_EXPERTS + 4  # one for dropped rows, one for the end; threadgroup variables begin at multiples of 16 bytes
_STEP_BYTES = 4  # bytes per thread of a counting step: its bin


def _count(v: Variant) -> Signature:
    """ids, sizes -> rank of each row among the rows of its chunk and bin; rows of each chunk in each bin."""
    outputs, results = _outputs(("rank", (dim(0, 0),)), ("counts", (_CHUNKS, _experts(1) + 1)), read_back=("counts",))
    return Signature(
        buffers=(Buffer("ids", element_type(v.types[0]), 0), *outputs), params="CountParams",
        scalars=(_ROWS, _IDS_STEP, Scalar("chunk", "long", chunk(dim(0, 0))), Scalar("experts", "int", _experts(1))),
        outputs=results, checks=_checks(0, 1), when=rule(1), grid=(_CHUNKS, rule(1), rule(1)), threads=v.tile.threads,
        threadgroup_bytes=v.tile.threads * _STEP_BYTES, builtins=("block", *_THREAD), shape_inputs=(1,))


def _scan(v: Variant) -> Signature:
    """counts, ids, sizes -> first position of each chunk's rows in each bin, starts of the bins, tiles, dropped rows."""
    bins = _experts(2) + 1
    outputs, results = _outputs(("base", (dim(0, 0), dim(0, 1))), ("row_start", (bins + 1,)), ("tile_start", (bins + 1,)),
                                *_tile_outputs(1, 2), ("dropped", (rule(1),)), read_back=("row_start", "tile_start"))
    agree = Check(every(eq(ndim(0), 2), eq(dim(0, 1), bins)), "counts have one column per expert and one for dropped rows", "call tile_plan")
    return Signature(
        buffers=(Buffer("counts", INT32, 0), *outputs), params="ScanParams",
        scalars=(Scalar("tiles", "int", _tiles(1, 2)), Scalar("chunks", "int", dim(0, 0)), Scalar("experts", "int", _experts(2)),
                 Scalar("block_m", "int", _block_m(2))),
        outputs=results, checks=_checks(1, 2, agree), when=rule(1), grid=(rule(1),) * 3, threads=v.tile.threads,
        threadgroup_bytes=_sums(v), builtins=_THREAD, shape_inputs=(1, 2))


def _scatter(v: Variant) -> Signature:
    """ids, rank, base -> order and inverse."""
    outputs, results = _outputs(("order", (dim(0, 0),)), ("inverse", (dim(0, 0),)))
    agree = Check(every(eq(ndim(0), 1), eq(dim(0, 0), dim(1, 0)), eq(ndim(2), 2), dim(2, 1) > 1), "one rank per row, one base per chunk and bin", "call tile_plan")
    return Signature(
        buffers=(Buffer("ids", element_type(v.types[0]), 0), Buffer("rank", INT32, 1), Buffer("base", INT32, 2), *outputs), params="ScatterParams",
        scalars=(_ROWS, _IDS_STEP, Scalar("chunk", "long", chunk(dim(0, 0))), Scalar("experts", "int", dim(2, 1) - 1)),
        outputs=results, checks=(agree,), when=rule(1), grid=(ceildiv(dim(0, 0), v.tile.threads), rule(1), rule(1)),
        threads=v.tile.threads, builtins=("block", *_THREAD))


def _whole(v: Variant) -> Signature:
    """ids, sizes -> the plan."""
    outputs, results = _outputs(*_tile_outputs(0, 1), ("order", (dim(0, 0),)), ("inverse", (dim(0, 0),)), ("dropped", (rule(1),)))
    few = Check(_experts(1) <= WHOLE_EXPERTS, f"at most {WHOLE_EXPERTS} experts", "three launches take any number")
    return Signature(
        buffers=(Buffer("ids", element_type(v.types[0]), 0, optional=True), *outputs), params="WholeParams",
        scalars=(_ROWS, _IDS_STEP, Scalar("tiles", "int", _tiles(0, 1)), Scalar("experts", "int", _experts(1)), Scalar("block_m", "int", _block_m(1))),
        outputs=results, checks=_checks(0, 1, few), when=rule(1), grid=(rule(1),) * 3, threads=v.tile.threads,
        threadgroup_bytes=v.tile.threads * _STEP_BYTES + _sums(v) + 3 * WHOLE_BINS * INT32.bytes, builtins=_THREAD, shape_inputs=(1,))


def _sums(v: Variant) -> int:
    """Bytes of the sums of simdgroups: rows and tiles."""
    return v.tile.threads // SIMD_WIDTH * 2 * INT32.bytes


SIGNATURES = {"count": _count, "scan": _scan, "scatter": _scatter, "whole": _whole}


def signature(v: Variant) -> Signature:
    """Arguments, geometry and preconditions of a variant."""
    return SIGNATURES[v.dataflow](v)


def cost(v: Variant) -> Cost:
    """What one launch does. Loads of inputs, barriers and the traffic of counting steps and prefix sums are exact. What depends on the
    ids counts as nothing: additions to counts, and how often a tile looks at the bins' starts."""
    word, threads = INT32.bytes, v.tile.threads
    rows, steps = dim(0, 0), ceildiv(dim(0, 0), threads)
    step = Cost(**_NOTHING, barriers=steps * 2, threadgroup_load=steps * (threads * threads * _STEP_BYTES),  # every thread reads all bins
                threadgroup_store=steps * (threads * _STEP_BYTES))
    if v.dataflow == "count":
        return replace(step, operand_bytes=(rows * word,), output_bytes=(rows + _CHUNKS * (_experts(1) + 1)) * word)
    if v.dataflow == "scatter":
        return Cost(**_NOTHING | dict(operand_bytes=(rows * word,) * 3, output_bytes=rows * (2 * word)))
    sizes = 2 if v.dataflow == "scan" else 1
    blocks = ceildiv(_experts(sizes) + 1, threads)
    load, store = blocks * (threads * _sums(v)), blocks * _sums(v)  # every thread reads all sums
    if v.dataflow == "scan":
        bins = dim(0, 0) * dim(0, 1)
        return Cost(**_NOTHING | dict(
            operand_bytes=(bins * (2 * word),), output_bytes=(bins + (_experts(2) + 2) * 2 + _tiles(1, 2) * 3 + 1) * word,
            barriers=blocks * 2 + 1, threadgroup_load=load, threadgroup_store=store))
    return replace(step, operand_bytes=(rows * (2 * word),), output_bytes=(_tiles(0, 1) * 3 + rows * 3 + 1) * word,
                   barriers=steps * 2 + blocks * 2 + 2, threadgroup_load=step.threadgroup_load + load, threadgroup_store=step.threadgroup_store + store)


_NOTHING = dict(macs=rule(0), matmul2d=rule(0), operand_bytes=(), output_bytes=rule(0), accumulator_words=0, operand_words=0)
