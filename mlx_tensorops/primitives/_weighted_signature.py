"""Products with stored weights: what a kernel gets and when a row fits, as rules over the strides and sizes at run time.

Three families share this: whole matrices (``qgemm``), rows of experts (``gather``), and two weight tensors for the same rows
(``gateup``). A variant's options say which: format, rows, indirect, destinations, gate, global.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from ..dtypes import ElementType, element_type
from ..formats import PACK, Format, by_name
from ..policies.weighted import SIZES
from ..rules import Rule, ceildiv, dim, eq, every, maximum, ndim, rule, select, stride
from ..signature import Buffer, Check, Layout, Output, Scalar, Signature
from ..variant import Variant

INT32_LIMIT = 2**31
_SUFFIX = re.compile(r"_(gate|up|\d+)$")
PLAN = ("tile_expert", "tile_row_start", "tile_row_count", "order")
_VECTORS = (*PLAN, "experts", "x_rows", "global_scale")  # of any stride: ids are often broadcast


@dataclass(frozen=True)
class Problem:
    """The options of a variant that say what its operands are."""

    format: str
    rows: str
    indirect: bool
    suffixes: tuple[str, ...]  # of the destinations' names
    gate: str
    global_scale: str

    @property
    def weights(self) -> Format | None:
        """The weights' format, None where they are dense."""
        return by_name(self.format) if self.format else None

    @property
    def stored(self) -> tuple[str, ...]:
        """Suffixes of the results: a gate makes one of two."""
        return ("",) if self.gate else self.suffixes

    def matrix(self, suffix: str) -> tuple[str, ...]:
        """Names of the arrays that make up one weight tensor."""
        fmt = self.weights
        if fmt is None:
            return (f"w{suffix}",)
        return (f"w{suffix}", f"scales{suffix}", *((f"biases{suffix}",) if fmt.biased else ()))


def options_of(spec) -> dict:
    """The part of a variant's options that follows from the spec."""
    found = dict(format=spec.weights.format, rows=spec.rows, indirect=spec.indirect, destinations=spec.destinations, gate=spec.gate,
                 **{"global": spec.weights.global_scale})
    defaults = dict(format="", rows="whole", indirect=False, destinations=1, gate="", **{"global": ""})
    return {axis: value for axis, value in found.items() if value != defaults[axis]}


def suffixes_of(destinations: int) -> tuple[str, ...]:
    """What tells the names of so many weight tensors, and of their results, apart."""
    return {1: ("",), 2: ("_gate", "_up")}.get(destinations) or tuple(f"_{i}" for i in range(destinations))


def problem_of(spec) -> Problem:
    """The problem of a spec."""
    return Problem(spec.weights.format, spec.rows, spec.indirect, suffixes_of(spec.destinations), spec.gate, spec.weights.global_scale)


def problem(v: Variant) -> Problem:
    """The problem of a variant."""
    return Problem(v.option("format", ""), v.option("rows", "whole"), v.option("indirect", False), suffixes_of(v.option("destinations", 1)), v.option("gate", ""),
                   v.option("global", ""))


@lru_cache(maxsize=4096)
def names(p: Problem, epilogue) -> tuple[str, ...]:
    """Names of the inputs, in the order in which kernels take them."""
    found = ["x"]
    for suffix in p.suffixes:
        found += p.matrix(suffix)
        found += [f"global_scale{suffix}"] if p.global_scale else []
        found += [f"bias{suffix}"] if epilogue.bias else []
    found += {"whole": (), "runs": ("experts",), "plan": PLAN}[p.rows]
    found += ["x_rows"] if p.indirect else []
    return (*found, *(("residual",) if epilogue.residual else ()))


def types_of(spec) -> tuple[str, ...]:
    """Element types of the inputs in order, then of the output."""
    extras = dict(zip(spec.epilogue.operands, spec.extras))
    by_stem = {"x": spec.x, "w": spec.weights.stored, "scales": spec.weights.scales, "biases": spec.weights.scales,
               "global_scale": "float32", **extras}
    found = [by_stem.get(stem_of(name), "int32") for name in names(problem_of(spec), spec.epilogue)]
    return (*found, spec.out)


def inputs_of(v: Variant) -> dict[str, ElementType]:
    """The inputs of a variant in order, and their element types."""
    return dict(zip(names(problem(v), v.epilogue), map(element_type, v.types)))


def stem_of(name: str) -> str:
    """An input's name without its destination."""
    return _SUFFIX.sub("", name)


@dataclass(frozen=True)
class Facts:
    """Sizes of one problem as the kernel sees them, and the number of each input."""

    M: Rule
    N: Rule
    K: Rule
    number: dict
    batch: Rule
    tiles: Rule | None  # of a plan
    experts: Rule

    def __hash__(self):
        return id(self)


@lru_cache(maxsize=4096)
def _facts(p: Problem, epilogue, transpose: bool, batched: bool) -> Facts:
    number = {name: i for i, name in enumerate(names(p, epilogue))}
    w = number["w" + p.suffixes[0]]
    fmt = p.weights
    N = dim(w, -2) if transpose else dim(w, -1) * 32 // fmt.bits if fmt else dim(w, -1)
    M = {"whole": lambda: dim(0, -2), "runs": lambda: dim(number["experts"], 0), "plan": lambda: dim(number["order"], 0)}[p.rows]()
    return Facts(M, N, dim(0, -1), number, dim(0, 0) if batched else rule(1), dim(number["tile_expert"], 0) if p.rows == "plan" else None,
                 dim(w, 0) if p.rows != "whole" else rule(1))


def work(spec, shapes) -> tuple[int, int]:
    """(flops, bytes) of a problem whose inputs have these shapes, in the order of ``names``: each array counted once."""
    p = problem_of(spec)
    f = _facts(p, spec.epilogue, spec.weights.transpose, spec.batched)
    m, n, k, batch = (r(shapes) for r in (f.M, f.N, f.K, f.batch))
    sizes = [element_type(t).bytes for t in types_of(spec)]
    results = batch * m * n * len(p.stored)
    return 2 * batch * m * n * k * spec.destinations, sum(prod(s) * size for s, size in zip(shapes, sizes)) + results * sizes[-1]


def transposed(v: Variant) -> bool:
    """Whether the weights lie in memory as rows of K."""
    return v.layout[1] == "t"


def given_transposed(v: Variant) -> bool:
    """Whether the weights' shape is ``[N, K]``. Dense weights may be a view whose axes are swapped: in memory they are the other way round."""
    return transposed(v) != v.option("swapped", False)


def any_strides(v: Variant) -> bool:
    """Whether the row takes dense weights of any strides: the same rows that take any x."""
    return not problem(v).format and v.layout[0] == "t"


def facts_of(v: Variant) -> Facts:
    """The facts of a variant's problem."""
    return _facts(problem(v), v.epilogue, given_transposed(v), v.batched)


def _weight_strides(v: Variant, operand: int) -> tuple[Rule, Rule]:
    """(from one row of a stored array in memory to the next, from one element of a row to the next)."""
    swapped = v.option("swapped", False)
    return stride(operand, -1 if swapped else -2), stride(operand, -2 if swapped else -1)


def operand_bytes(v: Variant, x: Rule, weights: Rule, per_scale: int = PACK) -> tuple[Rule, ...]:
    """Bytes loaded per input where so many elements of x are, and so many of each weight tensor, ``per_scale`` of them for one look at their scale."""
    fmt = problem(v).weights

    def loaded(name: str, element: ElementType) -> Rule:
        stem = stem_of(name)
        if stem == "w" and fmt:
            return weights // PACK * fmt.bits
        elements = {"x": x, "w": weights, "scales": weights // per_scale, "biases": weights // per_scale}.get(stem)
        return rule(0) if elements is None else elements * element.bytes

    return tuple(loaded(name, element) for name, element in inputs_of(v).items())


def output_bytes(v: Variant, f: Facts) -> Rule:
    """Bytes of all results."""
    return f.M * f.N * f.batch * (len(problem(v).stored) * element_type(v.types[-1]).bytes)


def blocks_m(v: Variant, f: Facts) -> Rule:
    """Blocks of rows: of the result, or the plan's tiles."""
    return f.tiles if f.tiles is not None else ceildiv(f.M, v.tile.m)


def signature(v: Variant, flow) -> Signature:
    """Arguments, geometry and preconditions of a variant of dataflow ``flow``."""
    if flow.signature is not None:
        return flow.signature(v)
    p, f = problem(v), facts_of(v)
    out = element_type(v.types[-1])
    slices = (slices_of(v, flow, f),) if flow.k_slice else ()
    shape = (*slices, *((dim(0, 0),) if v.batched else ()), f.M, f.N)
    return Signature(
        buffers=(*(Buffer(name, element, i) for i, (name, element) in enumerate(inputs_of(v).items())),
                 *(Buffer(f"c{suffix}", out, i, output=True) for i, suffix in enumerate(p.stored))),
        params="WeightedParams",
        scalars=tuple(_scalars(v, flow, p, f)),
        outputs=(Output(out, shape),) * len(p.stored),
        checks=checks(p, v.epilogue, given_transposed(v), v.batched),
        layouts=_layouts(p, f),
        when=every(SIZES[v.size](f), _layout_fits(v, p, f), _alignment_fits(v, flow, f), flow.fits(v, f)),
        grid=_grid(v, f, slices[0] if slices else rule(1)),
        threads=v.tile.threads,
        threadgroup_bytes=flow.threadgroup_bytes(v),
        builtins=flow.builtins(v) if callable(flow.builtins) else flow.builtins,
    )


def _grid(v: Variant, f: Facts, slices: Rule) -> tuple[Rule, Rule, Rule]:
    """Threadgroups along x, y, z; a swizzle of 2**s rows widens x and pads y (raster.metal.j2 undoes it)."""
    swizzle = v.option("swizzle", 0)
    return ceildiv(f.N, v.tile.n) * 2**swizzle, ceildiv(blocks_m(v, f), 2**swizzle), f.batch * slices


def slices_of(v: Variant, flow, f: Facts) -> Rule:
    """Number of slices of K that threadgroups take."""
    return maximum(ceildiv(f.K, flow.k_slice(v)), 1)


def _scalars(v: Variant, flow, p: Problem, f: Facts):
    yield Scalar("x_m", "long", stride(0, -2))
    yield Scalar("x_k", "long", stride(0, -1))
    stacked = v.batched or p.rows != "whole"
    for suffix in p.suffixes:
        for name in p.matrix(suffix):
            row, step = _weight_strides(v, f.number[name])
            yield Scalar(f"{name}_row", "long", row)
            if any_strides(v):
                yield Scalar(f"{name}_step", "long", step)
            if stacked:
                yield Scalar(f"{name}_matrix", "long", _broadcast(f.number[name], -3))
        if v.epilogue.bias:
            bias = f.number[f"bias{suffix}"]
            yield Scalar(f"bias{suffix}_m", "long", _broadcast(bias, -2))
            yield Scalar(f"bias{suffix}_n", "long", _broadcast(bias, -1))
            if v.batched:
                yield Scalar(f"bias{suffix}_matrix", "long", _broadcast(bias, -3))
    if v.epilogue.residual:
        residual = f.number["residual"]
        yield Scalar("residual_m", "long", _broadcast(residual, -2))
        yield Scalar("residual_n", "long", _broadcast(residual, -1))
        if v.batched:
            yield Scalar("residual_matrix", "long", _broadcast(residual, -3))
    if v.batched:
        yield Scalar("x_matrix", "long", _broadcast(0, -3))
    for name, operand in f.number.items():
        if stem_of(name) in _VECTORS and p.rows != "whole":
            yield Scalar(f"{name}_step", "long", stride(operand, 0))
    yield Scalar("M", "int", f.M)
    yield Scalar("N", "int", f.N)
    yield Scalar("K", "int", f.K)
    if p.rows != "whole":
        yield Scalar("experts_count", "int", dim(f.number["w" + p.suffixes[0]], 0))
        yield Scalar("x_count", "int", dim(0, 0))
    if p.rows != "whole" and not p.indirect:
        yield Scalar("rows_per_x", "int", maximum(f.M // maximum(dim(0, 0), 1), 1))
    if flow.k_slice:
        yield Scalar("k_slice", "int", flow.k_slice(v))


def _broadcast(operand: int, axis: int) -> Rule:
    """A stride that is 0 where the axis has one element."""
    return select(eq(dim(operand, axis), 1), 0, stride(operand, axis))


@lru_cache(maxsize=None)
def checks(p: Problem, epilogue, transpose: bool, batched: bool) -> tuple[Check, ...]:
    """Preconditions on shapes; the same for every row of a set."""
    f = _facts(p, epilogue, transpose, batched)
    fmt, stacked = p.weights, batched or p.rows != "whole"
    axes = 3 if stacked else 2
    found = [Check(eq(ndim(0), 3 if batched else 2), f"x must have {3 if batched else 2} axes", 'engine="auto" takes every rank')]
    for suffix in p.suffixes:
        for name in p.matrix(suffix):
            found.append(Check(eq(ndim(f.number[name]), axes), f"{name} must have {axes} axes", "reshape it"))
        w = f.number[f"w{suffix}"]
        if suffix != p.suffixes[0]:
            found.append(Check(every(*(eq(dim(w, a), dim(f.number["w" + p.suffixes[0]], a)) for a in range(axes))),
                               "both weight tensors must have one shape", "compute them one by one"))
        if fmt is None:
            found.append(Check(eq(dim(w, -1 if transpose else -2), f.K), "x and the weights must agree in K", "transpose=False takes weights stored [K, N]"))
            continue
        along, across = (f.K, dim(w, -2)) if transpose else (dim(w, -1) * 32 // fmt.bits, dim(w, -2))
        agrees = eq(dim(w, -1) * 32, f.K * fmt.bits) if transpose else eq(dim(w, -2), f.K)
        found += [
            Check(agrees, f"x and the packed weights must agree in K ({fmt.bits} bits each)", "transpose=False takes weights packed along N"),
            Check(eq(along % fmt.group, 0), f"{'K' if transpose else 'N'} must be a multiple of the group size {fmt.group}", "pad the weights"),
        ]
        for name in p.matrix(suffix)[1:]:
            n = f.number[name]
            found.append(Check(every(eq(dim(n, -1) * fmt.group, along), eq(dim(n, -2), across), *((eq(dim(n, 0), dim(w, 0)),) if stacked else ())),
                               f"{name} must hold one value for each group of {fmt.group} weights", "quantize again"))
        if p.global_scale:
            g = f.number[f"global_scale{suffix}"]
            found.append(Check(every(eq(ndim(g), 1), eq(dim(g, 0), dim(w, 0) if p.rows != "whole" else 1)),
                               f"global_scale{suffix} must hold one value for each matrix", "pass the tensor's amax"))
    if batched:
        found.append(Check(eq(dim(f.number["w"], 0), dim(0, 0)), "x and the weights must have one number of matrices", "broadcast them"))
    if p.rows == "plan":
        tiles = [dim(f.number[name], 0) for name in PLAN[:3]]
        found.append(Check(every(*(eq(ndim(f.number[name]), 1) for name in PLAN), eq(tiles[0], tiles[1]), eq(tiles[0], tiles[2])),
                           "a plan's three tile arrays must have one length", "build it with tile_plan"))
    if p.rows != "whole" and not p.indirect:
        found.append(Check(every(dim(0, 0) > 0, eq(f.M % maximum(dim(0, 0), 1), 0)) | eq(f.M, 0), "the rows of the result must be a multiple of x's", "pass lhs_indices"))
    if p.indirect:
        found.append(Check(every(eq(ndim(f.number["x_rows"]), 1), eq(dim(f.number["x_rows"], 0), f.M)), "x_rows must name one row of x for each row", "flatten it"))
    found.append(Check(every(f.M < INT32_LIMIT, f.N < INT32_LIMIT, f.K < INT32_LIMIT), "M, N and K must be below 2**31", 'split the product, or engine="auto"'))
    for suffix in p.suffixes if epilogue.bias else ():
        bias = f.number[f"bias{suffix}"]
        if p.rows != "whole":
            fits = every(eq(ndim(bias), 2), eq(dim(bias, 0), dim(f.number[f"w{suffix}"], 0)), eq(dim(bias, 1), f.N))
            found.append(Check(fits, f"bias{suffix} must be [experts, N]", f"reshape bias{suffix}"))
        else:
            found.append(_broadcasts("bias", bias, f, batched))
    if epilogue.residual:
        found.append(_broadcasts("residual", f.number["residual"], f, batched))
    if epilogue:  # a node without K is filled with zeros
        found.append(Check(f.K > 0, "K must be at least 1 where bias, activation or residual are computed in the same kernel", "trace the graph again where K = 0"))
    return tuple(found)


def _broadcasts(name: str, operand: int, f: Facts, batched: bool) -> Check:
    result = {-2: f.M, -1: f.N, **({-3: dim(0, 0)} if batched else {})}
    return Check(every(eq(ndim(operand), 3 if batched else 2), *(eq(dim(operand, a), 1) | eq(dim(operand, a), size) for a, size in result.items())),
                 f"{name} must broadcast to the result", f"reshape {name}")


def _layout_fits(v: Variant, p: Problem, f: Facts) -> Rule:
    """Packed rows are read in whole packs: the last axis of every stored array is contiguous. Dense weights are contiguous along either axis."""
    along = -2 if v.option("swapped", False) else -1
    conditions = [] if any_strides(v) else [_contiguous_along(f.number[name], along) for suffix in p.suffixes for name in p.matrix(suffix)]
    conditions += [_contiguous_along(0, -1)] if v.layout[0] == "n" else []
    return every(*conditions)


def _contiguous_along(operand: int, axis: int) -> Rule:
    return eq(stride(operand, axis), 1) | (dim(operand, axis) <= 1)


def _layouts(p: Problem, f: Facts) -> tuple[Layout, ...]:
    """What no row does without: packed words that follow each other. Scales and biases were made so (``_weights.for_kernels``); a copy of
    the words would be one of all weights, in every call."""
    return () if p.weights is None else tuple(
        Layout(_contiguous_along(f.number[f"w{suffix}"], -1), f"w{suffix}, the packed weights, are not contiguous along their last axis",
               'mx.contiguous(w), once, before the calls; engine="mlx" copies in each') for suffix in p.suffixes)


def _alignment_fits(v: Variant, flow, f: Facts) -> Rule:
    if v.alignment == "ragged":
        return rule(1)
    conditions = [eq(f.N % v.tile.n, 0), eq(f.K % flow.k_step(v), 0)]
    if v.alignment == "aligned":
        conditions.append(eq(f.M % v.tile.m, 0))
    return every(*conditions)
