"""Dataflow ``staged``: weights are decoded into threadgroup memory once per block and step, next to x; all simdgroups share them.

One template for blocks of 64x64 with four simdgroups and of 16x32 with one, for whole matrices, expert runs and tile plans, and for
one or two weight tensors against the same rows of x.
"""

from __future__ import annotations

from math import gcd

from ...cost import Cost
from ...dtypes import FLOAT16, FLOAT32, ElementType, element_type
from ...formats import PACK, by_name
from ...rules import Rule, ceildiv, every, rule, stride
from ...variant import SIMD_WIDTH, Variant
from .._dataflow import too_much_memory
from .._gemm_signature import STRIDE_LIMIT
from .._weighted_signature import blocks_m, facts_of, operand_bytes, output_bytes, problem, transposed
from . import EVERY_ROW, Dataflow, decoded_type

BLOCK_K = (32, 64, 16)
SKEW = (4, 0, 8)  # elements; 4 and 8 are the pitches (36, 40) of shipped kernels with 32-element rows

# What the matrix unit multiplies. "native": x as it is, weights as decoded_type says. "half_scaled": x as half, each row times a power of
# two of its own; half activations meet the weights of "native", others meet half weights. Policy takes it for half activations where the
# hardware flushes half subnormals; for others it is there in case bf16 operands fail their probe. No weight is scaled: those that are half
# themselves (affine beside half activations, dense) lose there what is subnormal. "half_fold": both as half, times 2^-14 whatever they hold,
# as the source of this dataflow does for bf16: activations of 0.01 become subnormal and lose most of their bits, so that it stands here to
# be compared with and no policy takes it.
OPERANDS = ("native", "half_scaled", "half_fold")


# Most rows at the end of an expert's that are multiplied without the matrix unit, where a fragment would be padded for them.
TAILS = (0, 4)


def _step(v: Variant) -> int:
    return v.option("block_k", BLOCK_K[0])


def _operand_types(operands: str, format_name: str, x: str, stored: str) -> tuple[ElementType, ElementType]:
    decoded = decoded_type(format_name, x, stored)
    if operands == "native":
        return element_type(x), decoded
    return FLOAT16, decoded if x == FLOAT16.name else FLOAT16


def _types(v: Variant) -> tuple[ElementType, ElementType]:
    """Element types of x and the weights where the matrix unit reads them."""
    return _operand_types(v.option("operands", "native"), problem(v).format, v.types[0], v.types[1])


def _staged(v: Variant) -> tuple[int, int]:
    """Bytes of the staged tiles of x and of one weight tensor, each a multiple of 16."""
    skew, step = v.option("skew", SKEW[0]), _step(v)
    x, w = _types(v)
    w_elements = v.tile.n * (step + skew) if transposed(v) else step * (v.tile.n + skew)
    x_elements = v.tile.m * (step + skew) if v.option("x", "staged") == "staged" else 0
    return tuple(-(-elements * size // 16) * 16 for elements, size in ((x_elements, x.bytes), (w_elements, w.bytes)))


def _run(v: Variant) -> int:
    """Neighbouring packs that a thread decodes with one look at their scale."""
    packs, rows = (_step(v) // PACK, v.tile.n) if transposed(v) else (v.tile.n // PACK, _step(v))
    return gcd(problem(v).weights.group // PACK, packs, max(packs * rows // v.tile.threads, 1))


def _row_bytes(v: Variant) -> int:
    """Bytes of the block's row numbers, where rows are named by a plan or by runs, and of the rows' factors."""
    return 4 * v.tile.m * ((2 if problem(v).rows != "whole" else 0) + _scaled(v))


def _scaled(v: Variant) -> bool:
    return v.option("operands", "native") == "half_scaled"


def _scratch(v: Variant) -> int:
    """Bytes of the accumulators on their way out; they lie where the operands were."""
    return v.tile.m * (v.tile.n + v.option("skew", SKEW[0])) * 4 if v.option("store", "scratch") == "scratch" else 0


def _threadgroup_bytes(v: Variant) -> int:
    x, w = _staged(v)
    return max(x + w * len(problem(v).suffixes), _scratch(v)) + _row_bytes(v)


def _legal(spec, options) -> list[str]:
    """Everything fits, in the layout that needs most: rows of K, whose skew comes once for each of the block's rows."""
    chosen = {axis: options.get(axis, values[0]) for axis, values in AXES.items()}
    tile, step, skew, device_x = options["tile"], chosen["block_k"], chosen["skew"], chosen["x"] == "device"
    whole = spec.rows == "whole"
    x, w = _operand_types(chosen["operands"], spec.weights.format, spec.x, spec.weights.stored)
    staged = (step + skew) * ((0 if device_x else tile.m * x.bytes) + tile.n * spec.destinations * w.bytes)
    scratch = tile.m * (tile.n + skew) * 4 if chosen["store"] == "scratch" else 0
    size = max(staged, scratch) + 4 * tile.m * ((0 if whole else 2) + (chosen["operands"] == "half_scaled"))
    found = too_much_memory(size)
    if step % tile.op_k:
        found.append(f"steps of {step} are no whole operations of K = {tile.op_k}")
    if not device_x and tile.threads % step:
        found.append(f"{tile.threads} threads copy no whole rows of {step}")
    if device_x and not whole:
        found.append("rows that an index names are staged")
    if device_x and chosen["read"] == "load":
        found.append("rows read from device memory are filled by coordinate")
    if device_x and chosen["operands"] != "native":
        found.append("rows that are scaled are staged")
    if not whole and (chosen["panel"] or chosen["swizzle"]):
        found.append("blocks of experts' rows are walked in the plan's order")
    if chosen["swizzle"] and chosen["panel"]:
        found.append("one order of blocks at a time")
    if chosen["tail"] and (whole or chosen["operands"] == "half_fold" or tile.threads % tile.n):
        found.append("the last rows of experts leave the matrix unit as they are, each column to one thread of several")
    return found + _half_refused(spec, chosen["operands"])


def _half_refused(spec, operands: str) -> list[str]:
    """Why operands cannot be staged as half."""
    found = []
    if operands == "native" or operands == "half_scaled" and spec.x == FLOAT16.name:
        return found
    fmt = by_name(spec.weights.format) if spec.weights.format else None
    # E2M1 times E4M3 is 0 or from 2^-10 to 2688: normal, exact.
    if fmt is None or (fmt.codes, fmt.scale) != ("e2m1", "e4m3"):
        found.append(f"weights {f'of format {fmt.name}' if fmt else 'that are dense'} may lie outside half's range")
    if spec.x == FLOAT32.name and spec.precision == "exact":
        found.append("half holds 11 bits of an f32 activation; precision='tf32' allows that")
    if operands == "half_fold" and spec.x != "bfloat16":
        found.append("the fixed factors are those of bf16 activations")
    return found


def cost(v: Variant, slices: Rule = rule(1)) -> Cost:
    """Work of a launch; each of ``slices`` parts of K stores a result of its own."""
    t, f, p = v.tile, facts_of(v), problem(v)
    x, decoded = _types(v)
    step, tensors = _step(v), len(p.suffixes)
    count, steps = blocks_m(v, f) * ceildiv(f.N, t.n) * f.batch, ceildiv(f.K, step)
    staged = count * steps * step  # rows of x and columns of W times this: elements
    scratch = count * slices * (t.m * t.n * 4 * len(p.stored) if _scratch(v) else 0)
    operations = count * steps * (step // t.op_k * t.simdgroups * t.fragments_m * t.fragments_n * tensors)
    device_x = v.option("x", "staged") == "device"
    scaled = 4 if _scaled(v) else 0  # bytes of a factor
    loaded_x = staged * (t.m * (t.simdgroups_n if device_x else 1)) + (count * f.K * t.m if scaled else 0)
    return Cost(
        macs=operations * (t.op_m * t.op_n * t.op_k),
        matmul2d=operations,
        operand_bytes=operand_bytes(v, loaded_x, staged * t.n, PACK * (_run(v) if p.weights else 1)),
        output_bytes=output_bytes(v, f) * slices,
        accumulator_words=(t.warp_m * t.warp_n // SIMD_WIDTH + -(-v.option("tail", 0) * t.n // t.threads)) * tensors,
        operand_words=(t.warp_m * x.bytes + t.op_n * decoded.bytes) * t.op_k // (4 * SIMD_WIDTH),
        barriers=count * (2 * steps + slices * ((2 * len(p.stored) - 1 if _scratch(v) else 0) + (1 if scaled else 0))),
        threadgroup_load=staged * (t.simdgroups * ((0 if device_x else t.warp_m * x.bytes) + tensors * t.warp_n * decoded.bytes) + t.m * scaled)
        + count * slices * (t.m * t.n * tensors * scaled) + scratch,
        threadgroup_store=staged * ((0 if device_x else t.m * x.bytes) + tensors * t.n * decoded.bytes) + count * slices * (t.m * scaled) + scratch,
    )


def _fits(v: Variant, f) -> Rule:
    """Offsets of a fragment of x fit 32 bits where its lanes keep them; the rows for any strides keep 64."""
    if v.option("x", "staged") == "staged" or v.layout[0] != "n":
        return rule(1)
    return every(stride(0, -2) >= 0, stride(0, -2) < STRIDE_LIMIT)


def _context(v: Variant) -> dict:
    x, w = _types(v)
    return dict(
        a=x, b=w, stored_x=element_type(v.types[0]), operands=v.option("operands", "native"), scaled=_scaled(v),
        block_k=_step(v), skew=v.option("skew", SKEW[0]), storage_bytes=_threadgroup_bytes(v) - _row_bytes(v), staged_x_bytes=_staged(v)[0],
        staged_w_bytes=_staged(v)[1], coordinates=v.option("read", "coordinate") == "coordinate", scratch=bool(_scratch(v)),
        device_x=v.option("x", "staged") == "device", tail=v.option("tail", 0), run=_run(v) if problem(v).weights else 1,
        offset_type="int" if v.layout[0] == "n" else "long")


AXES = {"block_k": BLOCK_K, "skew": SKEW, "read": ("coordinate", "load"), "store": ("scratch", "direct"), "x": ("staged", "device"),
        "operands": OPERANDS, "tail": TAILS, "swizzle": (0, 1, 2, 3), "panel": (0, 4, 8)}

DATAFLOW = Dataflow(
    name="staged",
    engine="mpp",
    template="weighted_mpp_staged.metal.j2",
    text="All threads decode a block's weights into threadgroup memory; every simdgroup fills its cooperative tensors from there.",
    axes=AXES,
    rows=EVERY_ROW,
    legal=_legal,
    k_step=_step,
    cost=cost,
    threadgroup_bytes=_threadgroup_bytes,
    fits=_fits,
    builtins=("block", "simdgroup", "thread_index"),
    context=_context,
)
