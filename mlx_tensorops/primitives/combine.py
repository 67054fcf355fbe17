"""Family ``combine``: the weighted sum of the rows that a token's experts gave, in the order of k, rounded once.

No atomics and no tree: the same inputs give the same bits, whatever order threads run in. Plain Metal 3.1.
"""

from __future__ import annotations

from math import prod

from ..cost import Cost
from ..dtypes import INT32, element_type
from ..policies import combine as table
from ..registry import Family
from ..rules import address, ceildiv, dim, eq, every, ndim, rule, stride
from ..signature import Buffer, Check, Output, Scalar, Signature
from ..spec import CombineSpec
from ..variant import Variant
from . import _experts, _gradient

FLOATS = ("float16", "bfloat16", "float32")
_EXTRAS = ("addend", "addend_scores")


def legal(spec: CombineSpec, engine: str) -> list[str]:
    """Reasons why ``engine`` cannot run ``spec``."""
    given = dict(y=spec.y, scores=spec.scores, addend=spec.addend, addend_scores=spec.addend_scores, out=spec.out)
    return [f"{name} is {value}; this engine takes {', '.join(FLOATS)}" for name, value in given.items() if value and value not in FLOATS]


def rows(spec: CombineSpec, engine: str, entries) -> tuple[Variant, ...]:
    """One variant per entry."""
    types = tuple(t for t in (spec.y, spec.scores, spec.addend, spec.addend_scores, spec.out) if t)
    extras = tuple((name, True) for name in _EXTRAS if getattr(spec, name))
    return tuple(Variant("combine", engine, e.dataflow, e.tile, "", "", types, False, size=e.size, options=tuple(sorted((*e.options, *extras))))
                 for e in entries)


def variants() -> tuple[Variant, ...]:
    """Every kernel for one type of everything but the scores, which are often f32."""
    specs = [CombineSpec(t, s, t, *extras) for t in FLOATS for s in {t: 0, "float32": 0} for extras in ((), (t,), (t, s))]
    return tuple(v for spec in specs for v in rows(spec, "simdgroup", table.TILES))


def inputs_of(v: Variant) -> dict:
    """Element types of the inputs by name, in order. What can differ is named by the variant; ids are int32."""
    named = "y", "scores", *(name for name in _EXTRAS if v.option(name, False))
    return dict(zip(named, map(element_type, v.types))) | dict(experts=INT32, experts_count=INT32)


def signature(v: Variant) -> Signature:
    """y [T, k, N], scores [T, k], addend [T, N], addend_scores [T], experts [T, k], experts_count [1] -> c [T, N]."""
    inputs = inputs_of(v)
    number = {name: i for i, name in enumerate(inputs)}
    T, k, N = dim(0, 0), dim(0, 1), dim(0, 2)
    scalars = [Scalar(f"y_{axis}", "long", stride(0, i)) for i, axis in enumerate("tjn")]
    scalars += [Scalar(f"{name}_{axis}", "long", stride(number[name], i)) for name in ("scores", "experts") for i, axis in enumerate("tj")]
    checks = [
        Check(every(eq(ndim(0), 3), eq(ndim(1), 2), eq(dim(1, 0), T), eq(dim(1, 1), k)), "y is [T, k, N] and scores are [T, k]", "reshape them"),
        Check(every(*(eq(ndim(number[name]), axes) for name, axes in (("experts", 2), ("experts_count", 1))), eq(dim(number["experts"], 0), T),
                    eq(dim(number["experts"], 1), k), eq(dim(number["experts_count"], 0), 1)), "experts are [T, k], and their number is [1]", "reshape them"),
        Check(every(T < 2**31, k < 2**31, N < 2**31), "T, k and N must be below 2**31", "split the tokens"),
    ]
    if "addend" in number:
        a = number["addend"]
        scalars += [Scalar("addend_t", "long", stride(a, 0)), Scalar("addend_n", "long", stride(a, 1))]
        checks += [Check(every(eq(ndim(a), 2), eq(dim(a, 0), T), eq(dim(a, 1), N)), "the addend is [T, N]", "reshape it"),
                   Check(k > 0, "k must be at least 1 where something is added to the sum", "the addend alone")]  # a node without input is zero
    if "addend_scores" in number:
        s = number["addend_scores"]
        scalars.append(Scalar("addend_scores_t", "long", stride(s, 0)))
        checks.append(Check(every(eq(ndim(s), 1), eq(dim(s, 0), T)), "the addend's weights are [T]", "reshape them"))
    width = v.option("width", 1)
    out = element_type(v.types[-1])
    return Signature(
        buffers=(*(Buffer(name, kind, number[name]) for name, kind in inputs.items()), Buffer("c", out, 0, output=True)),
        params="CombineParams",
        scalars=(*scalars, Scalar("k", "int", k), Scalar("N", "int", N)),
        outputs=(Output(out, (T, N)),),
        checks=tuple(checks),
        when=_in_vectors(inputs, number, width) if width > 1 else rule(1),
        grid=(ceildiv(N, v.tile.threads * width), T, rule(1)),
        threads=v.tile.threads,
        builtins=("block", "thread_index"),
    )


def _in_vectors(inputs, number, width: int):
    """Whether every thread's neighbours are whole aligned vectors."""
    N = dim(0, 2)
    conditions = [eq(N % width, 0)]
    for name in ("y", "addend"):
        if name in number:
            i = number[name]
            axes = range(2 if name == "y" else 1)
            conditions += [eq(stride(i, -1), 1), *(eq(stride(i, a) % width, 0) for a in axes), eq(address(i) % (width * inputs[name].bytes), 0)]
    return every(*conditions)


def context(v: Variant) -> dict:
    """What the template may name beside the usual."""
    return dict(types_by_name=inputs_of(v), c=element_type(v.types[-1]), width=v.option("width", 1))


def cost(v: Variant) -> Cost:
    """What one launch does: bytes are exact; threads that share a score, or its expert's id, read it each."""
    T, k, N = dim(0, 0), dim(0, 1), dim(0, 2)
    width = v.option("width", 1)
    threads = T * ceildiv(N, width)
    loads = dict(y=T * k * N, addend=T * N, scores=threads * k, addend_scores=threads, experts=threads * k, experts_count=threads)
    return Cost(
        macs=T * k * N, matmul2d=rule(0),
        operand_bytes=tuple(loads[name] * kind.bytes for name, kind in inputs_of(v).items()),
        output_bytes=T * N * element_type(v.types[-1]).bytes, accumulator_words=width, operand_words=width,
    )


def work(spec: CombineSpec, shapes) -> tuple[int, int]:
    """(flops, bytes) of a problem: each array counted once."""
    tokens, k, n = shapes[0]
    types = [t for t in (spec.y, spec.scores, spec.addend, spec.addend_scores, "int32", "int32") if t]
    return 2 * tokens * k * n, sum(prod(s) * element_type(t).bytes for s, t in zip(shapes, types)) + tokens * n * element_type(spec.out).bytes


def composed(mx, y, scores, addend=None, addend_scores=None, valid=None):
    """The same of MLX operations, in f32: the oracle of gradients, and what engine mlx runs. ``valid``: where experts exist; None: everywhere."""
    f32 = mx.float32
    scores = scores.astype(f32) if valid is None else mx.where(valid, scores.astype(f32), 0)
    total = y.astype(f32) * scores[..., None]
    total = total.squeeze(-2) if total.shape[-2] == 1 else total.sum(axis=-2)  # MLX 0.32.4 crashes on a compiled shapeless sum of one element
    if addend is None:
        return total
    extra = addend.astype(f32)
    return total + (extra if addend_scores is None else extra * addend_scores.astype(f32)[..., None])


def gradient(v: Variant, primals, cotangents, argnums):
    """The formula's gradient, composed of MLX operations."""
    import mlx.core as mx

    names = tuple(inputs_of(v))

    def formula(*arrays):
        given = dict(zip(names, arrays))
        valid = _experts.in_range(mx, given.pop("experts"), given.pop("experts_count"))
        return [composed(mx, **given, valid=valid)]

    return _gradient.of(formula, primals, cotangents, argnums)


FAMILY = Family(
    name="combine",
    op="switch_glu",
    spec=CombineSpec,
    templates={("simdgroup", "ordered"): "combine_simdgroup_ordered.metal.j2"},
    legal=legal,
    rows=rows,
    signature=signature,
    context=context,
    cost=cost,
    variants=variants,
    gradient=gradient,
    describe={},
    fast_route=False,
    public={},
    work=work,
)
