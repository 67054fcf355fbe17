"""Quantised products in the emulator: what our kernels and MLX's own for the M5 load, stage and wait for. Counts, no times.

python -m benchmarks.emulated_qgemm           the table, losses included
                             --rows 32 512    other numbers of rows

MLX's kernels come from the headers of the pinned macOS wheel, which is fetched; both sides run the same operands and are checked against
float64 first. ``weight bytes`` is what packed weights and scales cost: each block of rows decodes them again.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import lru_cache

import mlx.core as mx
import numpy as np

import mlx_tensorops as mt
from mlx_tensorops import formats, hostmetal, reference
from mlx_tensorops.hostmetal import build
from mlx_tensorops.hostmetal.kernel import Kernel, Options
from mlx_tensorops.policies import qgemm as table
from mlx_tensorops.primitives import _enqueue, _weighted
from mlx_tensorops.spec import WeightedSpec, WeightSpec
from mlx_tensorops.variant import VariantSet
from tools.maccheck import fetch

ROWS = (32, 64, 128, 256, 512)
N, K = 128, 256
# Format -> MLX's kernel, its header, the group, and how often its source names a byte of packed weights: twice where each of a byte's two
# codes does. A compiler loads it once, so the count is divided by it.
FORMATS = {"nvfp4": ("fp_qmm_t_nax", "fp_quantized_nax.h", 16, 1), "affine4_g64": ("affine_qmm_t_nax", "quantized_nax.h", 64, 2)}
_FOLDER = "mlx/backend/metal/kernels"


@dataclass(frozen=True)
class Line:
    """One kernel on one problem. Bytes and barriers of the whole launch; a barrier counts once per threadgroup."""

    kernel: str
    format: str
    m: int
    weight_bytes: int
    x_bytes: int
    threadgroup_bytes: int
    barriers: int
    macs: int
    words: int
    error: float

    def __str__(self) -> str:
        return (f"{self.format:<12} {self.m:>4}  {self.kernel:<46} {self.weight_bytes:>9,} {self.x_bytes:>9,} {self.threadgroup_bytes:>11,} "
                f"{self.barriers:>6} {self.macs:>11,} {self.words:>4}")


HEADER = f"{'format':<12} {'M':>4}  {'kernel':<46} {'weights B':>9} {'x B':>9} {'threadgr. B':>11} {'barr.':>6} {'MACs':>11} {'words':>4}"


@lru_cache(maxsize=None)
def operands(name: str, m: int):
    """x, packed weights, scales, biases or None, and the product in float64."""
    rng, fmt = np.random.default_rng(m), formats.by_name(name)
    w, scales, biases = formats.quantise(rng.normal(size=(N, K)).astype(np.float32), fmt, scale_type="float16")
    x = rng.normal(size=(m, K)).astype(np.float16)
    return x, w, scales, biases, reference.qgemm(x, w, scales, biases, fmt)


def entries():
    """Our kernels by name: every entry of the policy table, and the 64x64 block in its other forms."""
    found = {}
    for e in table.tables():
        if e.dataflow == "split_k":
            continue
        found.setdefault(f"{e.engine} {e.dataflow} {e.tile.m}x{e.tile.n}" + "".join(f" {a}={v}" for a, v in e.options), e)
    shared = next(e for e in table.TILES if e.tile == table.SHARED and e.options)
    for extra in ((("store", "direct"),), (("x", "device"),), (("store", "direct"), ("x", "device"))):
        options = (*shared.options, *extra)
        found["mpp staged 64x64" + "".join(f" {a}={v}" for a, v in options)] = type(shared)("mpp", "staged", shared.tile, shared.why, options=options)
    return found


def ours(name: str, m: int, label: str) -> Line | None:
    """One of our kernels; None where it does not take the problem."""
    e, fmt = entries()[label], formats.by_name(name)
    x, w, scales, biases, want = operands(name, m)
    spec = WeightedSpec("float16", "float16", WeightSpec(name, "uint32", "float16" if fmt.scale == "float" else "uint8"))
    if _weighted.refusals(spec, e.engine, e.dataflow, e.tile, dict(e.options)) or (e.size == "m4" and m > 4):
        return None
    variants = VariantSet(spec, e.engine, _weighted.rows_of(spec, e.engine, e.dataflow, e.tile, options=dict(e.options)))
    arrays = [mx.array(v) for v in (x, w, scales, biases) if v is not None]
    with hostmetal.active(checked=True), mt.trace() as trace:
        (c,) = _enqueue.launch(variants, arrays)
        mx.eval(c)
    (dispatch,) = trace.dispatches
    counters, cost = dispatch["counters"], _weighted.cost(variants[dispatch["row"]])
    return Line(label, name, m, sum(counters["device_load"][1 : len(arrays)]), counters["device_load"][0],
                counters["threadgroup_load"] + counters["threadgroup_store"], counters["barriers"], counters["macs"],
                cost.accumulator_words + cost.operand_words, _error(np.array(c), want))


def mlx(name: str, m: int) -> Line:
    """MLX 0.32.4's kernel with the block it takes for this many rows: 32 of them up to 32, else 64."""
    kernel, header, group, named = FORMATS[name]
    block = 32 if m <= 32 else 64
    x, w, scales, biases, want = operands(name, m)
    nothing = np.zeros(1, np.float32)
    batch = [np.zeros(1, np.int32), np.ones(1, np.int32), np.zeros(1, np.int64), np.zeros(1, np.int32), np.ones(1, np.int32), *[np.zeros(1, np.int64)] * 3]
    buffers = [w, scales, nothing if biases is None else biases, x, np.zeros((m, N), np.float16), K, N, m, *batch[: 7 if biases is None else 8]]
    result = _mlx_kernel(kernel, header, f"half, {group}, 4, true, false, {block}").dispatch(grid=(N // 64, -(-m // block), 1), threadgroup=(32, 2, 2), buffers=buffers)
    counters = result.counters
    part = (block // 2) * 32  # of C per simdgroup; operands: 32-wide steps of half x and of weights in bfloat or half
    words = part // 32 + (block // 2 * 32 + 32 * 32) * 2 // 4 // 32
    return Line(f"MLX {kernel} {block}x64", name, m, 
                counters.device_load[0] // named + sum(counters.device_load[i] for i in range(1, 2 if biases is None else 3)), counters.device_load[3],
                counters.threadgroup_load + counters.threadgroup_store, counters.barriers, counters.macs, words, _error(result.outputs[4], want))


@lru_cache(maxsize=None)
def _mlx_kernel(kernel: str, header: str, template: str):
    headers = ("utils.h", "steel/gemm/gemm_nax.h", "quantized_utils.h", header)
    source = "#include <metal_stdlib>\n#include <metal_tensor>\n#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>\n"
    source += "".join(f'#include "{_FOLDER}/{h}"\n' for h in headers)
    built = build.build(source, kernel, checked=True, template=template, include=[fetch.mac_mlx() / "include"], family="qgemm")
    return Kernel(built, checked=True, options=Options())


def _error(c, want) -> float:
    return float(np.linalg.norm(c.astype(np.float64) - want) / np.linalg.norm(want))


def lines(m: int) -> list[Line]:
    """Every kernel on problems with this many rows; all of them right."""
    found = []
    for name in FORMATS:
        found += [mlx(name, m), *(line for label in entries() if (line := ours(name, m, label)) is not None)]
    wrong = [line for line in found if line.error > 1e-3]
    if wrong:
        raise AssertionError(f"wrong values: {wrong}")
    return found


def level(found: list[Line]) -> dict[str, Line]:
    """For each format the first of our kernels that is nowhere above MLX on weight bytes and barriers."""
    theirs = {line.format: line for line in found if line.kernel.startswith("MLX")}
    ours_level = [line for line in found if line is not theirs[line.format] and line.weight_bytes <= theirs[line.format].weight_bytes
                  and line.barriers <= theirs[line.format].barriers]
    return {line.format: line for line in reversed(ours_level)}


def paid(line: Line, theirs: Line) -> str:
    """What a kernel pays elsewhere, in multiples of MLX's."""
    parts = [f"{what} x{getattr(line, field) / getattr(theirs, field):.2f}" for field, what in (
        ("x_bytes", "x bytes"), ("threadgroup_bytes", "threadgroup bytes"), ("macs", "MACs"), ("words", "words per lane"))]
    return f"{line.kernel}: " + ", ".join(parts)


def main() -> None:
    """Print the table, and for each M what our kernel that is nowhere above MLX on weights and barriers pays elsewhere."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, metavar="M")
    mx.set_default_device(mx.cpu)
    print(f"emulated (hostmetal, checked build), half x, N = {N}, K = {K}\n{HEADER}")
    for m in parser.parse_args().rows:
        found = lines(m)
        print("\n".join(map(str, found)))
        for name, line in level(found).items():
            print(f"    {name}, M = {m}, level with MLX on weight bytes and barriers: " + paid(line, next(t for t in found if t.format == name)))


if __name__ == "__main__":
    main()
