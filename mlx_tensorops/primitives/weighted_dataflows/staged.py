"""Dataflow ``staged``: weights are decoded into threadgroup memory once per block and step, next to x; all simdgroups share them.

One template for blocks of 64x64 with four simdgroups and of 16x32 with one, for whole matrices, expert runs and tile plans, and for
one or two weight tensors against the same rows of x.
"""

from __future__ import annotations

from ...cost import Cost
from ...dtypes import element_type
from ...formats import PACK
from ...rules import Rule, ceildiv, rule
from ...variant import SIMD_WIDTH, Variant
from .._weighted_signature import blocks_m, facts_of, names, problem, transposed
from . import EVERY_ROW, Dataflow, decoded_type

# Apple GPUs have 32 KiB since family 4 (Metal feature set tables). 4 KiB stay free for what matmul2d allocates itself:
# nobody has published how much, and a kernel that filled the limit exactly has been reported to give NaN.
THREADGROUP_BYTES = 32768 - 4096

BLOCK_K = (32, 64, 16)
SKEW = (4, 0, 8)  # elements; 4 and 8 are the pitches (36, 40) of shipped kernels with 32-element rows


def _step(v: Variant) -> int:
    return v.option("block_k", BLOCK_K[0])


def _types(v: Variant):
    p = problem(v)
    return element_type(v.types[0]), decoded_type(p.format, v.types[0], v.types[1])


def _staged(v: Variant) -> tuple[int, int]:
    """Bytes of the staged tiles of x and of one weight tensor, each a multiple of 16."""
    skew, step = v.option("skew", SKEW[0]), _step(v)
    x, w = _types(v)
    w_elements = v.tile.n * (step + skew) if transposed(v) else step * (v.tile.n + skew)
    x_elements = v.tile.m * (step + skew) if v.option("x", "staged") == "staged" else 0
    return tuple(-(-elements * size // 16) * 16 for elements, size in ((x_elements, x.bytes), (w_elements, w.bytes)))


def _row_bytes(v: Variant) -> int:
    """Bytes of the block's row numbers, where rows are named by a plan or by runs."""
    return 0 if problem(v).rows == "whole" else 2 * 4 * v.tile.m


def _scratch(v: Variant) -> int:
    """Bytes of the accumulators on their way out; they lie where the operands were."""
    return v.tile.m * (v.tile.n + v.option("skew", SKEW[0])) * 4 if v.option("store", "scratch") == "scratch" else 0


def _threadgroup_bytes(v: Variant) -> int:
    x, w = _staged(v)
    return max(x + w * len(problem(v).suffixes), _scratch(v)) + _row_bytes(v)


def _legal(spec, options) -> list[str]:
    """All tiles fit, in the layout that needs most: rows of K, whose skew comes once for each of the block's rows."""
    tile, step = options["tile"], options.get("block_k", BLOCK_K[0])
    pitch = step + options.get("skew", SKEW[0])
    decoded = decoded_type(spec.weights.format, spec.x, spec.weights.stored)
    x_rows = tile.m if options.get("x", "staged") == "staged" else 0
    size = pitch * (x_rows * element_type(spec.x).bytes + tile.n * spec.destinations * decoded.bytes) + 8 * tile.m
    found = []
    if size > THREADGROUP_BYTES:
        found.append(f"{size} bytes of threadgroup memory; {THREADGROUP_BYTES} are free: stage a smaller part of K")
    if step % tile.op_k:
        found.append(f"steps of {step} are no whole operations of K = {tile.op_k}")
    if options.get("x", "staged") == "device" and spec.rows != "whole":
        found.append("rows that an index names are staged")
    if options.get("x", "staged") == "device" and options.get("read", "coordinate") == "load":
        found.append("rows read from device memory are filled by coordinate")
    return found


def cost(v: Variant, slices: Rule = rule(1)) -> Cost:
    """Work of a launch; each of ``slices`` parts of K stores a result of its own."""
    t, f, p = v.tile, facts_of(v), problem(v)
    x, decoded = _types(v)
    inputs = dict(zip(names(p, v.epilogue), (element_type(name) for name in v.types)))
    step, tensors = _step(v), len(p.suffixes)
    count, steps = blocks_m(v, f) * ceildiv(f.N, t.n) * f.batch, ceildiv(f.K, step)
    staged = count * steps * step  # rows of x and columns of W times this: elements
    scratch = count * slices * (t.m * t.n * 4 * (1 if p.gate else tensors) if _scratch(v) else 0)
    operations = count * steps * (step // t.op_k * t.simdgroups * t.fragments_m * t.fragments_n * tensors)
    device_x = v.option("x", "staged") == "device"
    fmt = p.weights

    def loads(name: str):
        stem = name.removesuffix("_gate").removesuffix("_up")
        if stem == "x":
            return staged * (t.m * x.bytes * (t.simdgroups_n if device_x else 1))
        if stem == "w":
            return staged * t.n // 8 * fmt.bits if fmt else staged * (t.n * decoded.bytes)
        if stem in ("scales", "biases"):
            return staged * t.n // PACK * inputs[name].bytes
        return rule(0)

    return Cost(
        macs=operations * (t.op_m * t.op_n * t.op_k),
        matmul2d=operations,
        operand_bytes=tuple(loads(name) for name in inputs),
        output_bytes=f.M * f.N * f.batch * slices * (1 if p.gate else tensors) * element_type(v.types[-1]).bytes,
        accumulator_words=t.warp_m * t.warp_n // SIMD_WIDTH * tensors,
        operand_words=(t.warp_m * x.bytes + t.op_n * decoded.bytes) * t.op_k // (4 * SIMD_WIDTH),
        barriers=count * (2 * steps + slices * (1 if _scratch(v) else 0) * (1 if p.gate else 2 * tensors - 1)),
        threadgroup_load=staged * (t.simdgroups * ((0 if device_x else t.warp_m * x.bytes) + tensors * t.warp_n * decoded.bytes)) + scratch,
        threadgroup_store=staged * ((0 if device_x else t.m * x.bytes) + tensors * t.n * decoded.bytes) + scratch,
    )


DATAFLOW = Dataflow(
    name="staged",
    engine="mpp",
    template="weighted_mpp_staged.metal.j2",
    text="All threads decode a block's weights into threadgroup memory; every simdgroup fills its cooperative tensors from there.",
    axes={"block_k": BLOCK_K, "skew": SKEW, "read": ("coordinate", "load"), "store": ("scratch", "direct"), "x": ("staged", "device"),
          "panel": (0, 4, 8)},
    rows=EVERY_ROW,
    legal=_legal,
    k_step=_step,
    cost=cost,
    threadgroup_bytes=_threadgroup_bytes,
    builtins=("block", "simdgroup", "thread_index"),
    context=lambda v: dict(
        block_k=_step(v), skew=v.option("skew", SKEW[0]), storage_bytes=_threadgroup_bytes(v) - _row_bytes(v), staged_x_bytes=_staged(v)[0],
        staged_w_bytes=_staged(v)[1], coordinates=v.option("read", "coordinate") == "coordinate", scratch=bool(_scratch(v)),
        device_x=v.option("x", "staged") == "device"),
)
