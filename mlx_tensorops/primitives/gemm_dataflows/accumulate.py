"""Dataflow ``accumulate``: f32 partial products ``[slices, ..., M, N]`` -> C, in fixed order, with the epilogue. No matrix unit.

Plain Metal 3.1, so it serves both engines.
"""

from __future__ import annotations

from ...cost import Cost
from ...dtypes import FLOAT32, element_type
from ...rules import ceildiv, dim, eq, ndim, rule, select, stride
from ...signature import Buffer, Check, Output, Scalar, Signature
from .._gemm_signature import BATCH_AXES
from . import Dataflow


def _batch(v):
    return tuple(dim(0, axis) for axis in BATCH_AXES) if v.batched else ()


def _depth(v):
    b = _batch(v)
    return b[0] * b[1] * b[2] if b else rule(1)


def _extras(v):
    """(operand, name, element type) of the epilogue's inputs."""
    return [(1 + i, name, element_type(t)) for i, (name, t) in enumerate(zip(v.epilogue.operands, v.types[1:-1]))]


def _scalars(v):
    M, N = dim(0, -2), dim(0, -1)
    for operand, name, _ in _extras(v):
        if name == "scales":
            continue
        yield Scalar(f"{name}_m", "long", select(eq(dim(operand, -2), 1), 0, stride(operand, -2)))
        yield Scalar(f"{name}_n", "long", select(eq(dim(operand, -1), 1), 0, stride(operand, -1)))
        for number, axis in enumerate(BATCH_AXES if v.batched else ()):
            yield Scalar(f"{name}_b{number}", "long", select(eq(dim(operand, axis), 1), 0, stride(operand, axis)))
    yield Scalar("elements", "long", M * N)
    yield Scalar("slice_elements", "long", M * N * _depth(v))
    yield Scalar("N", "int", N)
    yield Scalar("slices", "int", dim(0, 0))
    if v.batched:
        yield Scalar("batch1", "int", _batch(v)[1])
        yield Scalar("batch2", "int", _batch(v)[2])


def _checks(v):
    axes = (*BATCH_AXES, -2, -1) if v.batched else (-2, -1)
    for operand, name, _ in _extras(v):
        if name != "scales":
            fits = eq(ndim(operand), len(axes))
            for axis in axes:
                fits = fits & (eq(dim(operand, axis), 1) | eq(dim(operand, axis), dim(0, axis)))
            yield Check(fits, f"{name} must broadcast to the result", f"reshape {name}")


def _signature(v) -> Signature:
    out = element_type(v.types[-1])
    buffers = [Buffer("partials", FLOAT32, 0)] + [Buffer(name, t, operand) for operand, name, t in _extras(v)]
    return Signature(
        buffers=(*buffers, Buffer("c", out, 0, output=True)),
        params="AccumulateParams",
        scalars=tuple(_scalars(v)),
        outputs=(Output(out, (*_batch(v), dim(0, -2), dim(0, -1))),),
        checks=tuple(_checks(v)),
        when=rule(1),
        grid=(ceildiv(dim(0, -2) * dim(0, -1), v.tile.n), rule(1), _depth(v)),
        threads=v.tile.threads,
        builtins=("block", "thread_index"),
    )


def _cost(v) -> Cost:
    elements = dim(0, -2) * dim(0, -1) * _depth(v)
    return Cost(
        macs=rule(0), matmul2d=rule(0),
        operand_bytes=(elements * dim(0, 0) * FLOAT32.bytes,),
        output_bytes=elements * element_type(v.types[-1]).bytes,
        accumulator_words=1, operand_words=1,
    )


DATAFLOW = Dataflow(
    name="accumulate",
    engine="simdgroup",
    template="gemm_simdgroup_accumulate.metal.j2",
    text="Adds the slices of a split K in order, one element per thread.",
    rows=(("nn", "aligned"),),
    types=lambda spec: ("float32", *spec.extras, spec.out),
    signature=_signature,
    cost=_cost,
    context=lambda v: dict(epilogue_operands=[(name, t) for _, name, t in _extras(v)]),
    adds_slices=True,
)
