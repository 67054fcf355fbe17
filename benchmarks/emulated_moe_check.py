"""Holds the formulas of ``emulated_moe`` against the emulator's counters, at sizes that it can run: python -m benchmarks.emulated_moe --check"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import mlx.core as mx
import numpy as np

import mlx_tensorops as mt
from mlx_tensorops import formats, hostmetal, reference
from mlx_tensorops.hostmetal import build
from mlx_tensorops.hostmetal.kernel import Kernel, Options
from tools.maccheck import fetch

from . import emulated_moe as table
from .emulated_moe import Model, Work

SMALL = Model("small", experts=8, top_k=2, hidden=256, width=128, format="nvfp4")
# (format, tokens): below 4 rows per expert, below 64, and above, by every decoder of the models.
CASES = (("nvfp4", 8), ("affine4_g64", 64), ("mxfp4", 288))
# Format -> prefix of MLX's kernels, and how often their sources name a byte of packed weights, in tiles and row by row, and an activation row
# by row. A compiler loads each once, so that counts are divided by it.
SOURCES = {"nvfp4": ("fp", 1, 4, 1), "mxfp4": ("fp", 1, 4, 1), "affine4_g64": ("affine", 2, 4, 2)}
_FOLDER = "mlx/backend/metal/kernels"


def model_of(format: str) -> Model:
    """The small model in a format."""
    return replace(SMALL, format=format)


@lru_cache(maxsize=None)
def layer(format: str, tokens: int):
    """(x, scores, ids, stored weights of gate, up and down, the same in float64)."""
    model = model_of(format)
    rng, fmt = np.random.default_rng(tokens), formats.by_name(format)
    e, h, i = model.experts, model.hidden, model.width
    stored = [formats.quantise(rng.normal(size=shape).astype(np.float32) / 16, fmt, scale_type="float16") for shape in ((e, i, h), (e, i, h), (e, h, i))]
    dense = [formats.dequantise(*parts, fmt) for parts in stored]
    x = rng.normal(size=(tokens, h)).astype(np.float16)
    scores = rng.random((tokens, model.top_k)).astype(np.float32)
    return x, scores, table.routing(model, tokens), stored, dense


def ours(format: str, tokens: int) -> Work:
    """The layer through ``switch_glu``, counted; multiply-adds on the matrix unit only. The result is right."""
    x, scores, ids, stored, dense = layer(format, tokens)
    fmt = formats.by_name(format)
    weights = [tuple(mx.array(part) for part in parts if part is not None) for parts in stored]
    arrays = [mx.array(a) for a in (x, ids, scores)]
    mx.eval(*arrays, *(part for parts in weights for part in parts))
    with hostmetal.active(checked=True), mt.trace() as trace:
        y = mt.switch_glu(arrays[0], *weights, arrays[1], arrays[2], mode=fmt.mode, group_size=fmt.group, bits=fmt.bits, engine="mpp")
        mx.eval(y)
    want, size = _layer(x, ids, scores, dense)
    error = np.abs(reference.to_float64(y) - want) / size
    assert error.max() < 2e-3, error.max()
    found = Work(launches=len(trace.dispatches))
    per_tensor = 3 if fmt.biased else 2
    for dispatch in trace.dispatches:
        tensors = {"gather_gateup": 2, "gather_qmm": 1}.get(dispatch["op"], 0)
        if tensors:
            c = dispatch["counters"]
            codes = sum(c["device_load"][1 + t * per_tensor] for t in range(tensors))
            found += Work(x_bytes=c["device_load"][0], w_bytes=codes, macs=c["macs"], barrier_arrivals=c["barriers"] * dispatch["threads"][0] // 32)
    return found


def _layer(x, ids, scores, dense):
    """(the layer in float64, the size of its terms)."""
    gate, up, down = dense
    total = np.zeros((len(x), down.shape[1]))
    size = np.zeros_like(total)
    for t, row in enumerate(x.astype(np.float64)):
        for e, score in zip(ids[t], scores[t]):
            g, u = gate[e] @ row, up[e] @ row
            hidden = g / (1 + np.exp(-g)) * u
            total[t] += score * (down[e] @ hidden)
            size[t] += score * (np.abs(down[e]) @ np.abs(hidden))
    return total, np.maximum(size, 1e-3)


def predicted(format: str, tokens: int) -> Work:
    """What the formulas say of the same, in the same terms."""
    model = model_of(format)
    counts = table.counts_of(model, tokens)
    work = table.our_layer(model, counts)
    block_m = table.plan_table.block_m(sum(counts), model.experts)
    macs = 0
    for tensors, n, k in ((2, model.width, model.hidden), (1, model.hidden, model.width)):
        v = table.entry_of(model, block_m, tensors)
        if v.dataflow == "staged":
            steps = -(-k // v.option("block_k", 32)) * v.option("block_k", 32)
            macs += tensors * table.rows_issued(v, counts)[0] * -(-n // v.tile.n) * v.tile.n * steps
    return replace(work, macs=macs, intermediate_bytes=0, wasted_fragments=0)


def mlx(format: str, tokens: int) -> tuple[Work, Work]:
    """(MLX's kernel for gate, counted; what the formula says of it). The product is right."""
    x, _, ids, stored, dense = layer(format, tokens)
    model, (kind, named_in_tiles, named_by_rows, x_named) = model_of(format), SOURCES[format]
    order = np.argsort(ids.reshape(-1), kind="stable")
    experts, rows = ids.reshape(-1)[order], x[order // model.top_k]
    counts, n, k = table.counts_of(model, tokens), model.width, model.hidden
    want = np.stack([dense[0][e] @ row for e, row in zip(experts, rows.astype(np.float64))])
    run = _by_rows if len(rows) // model.experts < 4 else _in_tiles
    result, y, x_at, w_at = run(model, kind, rows, stored[0], experts, counts, n, k)
    assert np.abs(y - want).max() < 2e-3 * np.abs(want).max()
    c = result.counters
    by_rows = run is _by_rows
    found = Work(1 if by_rows else 2, 0, c.device_load[x_at] // (x_named if by_rows else 1), c.device_load[w_at] // (named_by_rows if by_rows else named_in_tiles),
                 c.macs, c.barriers * (2 if by_rows else 4))
    formula = (table.mlx_rows if by_rows else table.mlx_grouped)(model, counts, n, k)
    return found, replace(formula, intermediate_bytes=0, wasted_fragments=0, macs=0 if by_rows else formula.macs)


def _in_tiles(model: Model, kind: str, x, stored, experts, counts, n: int, k: int):
    w, scales, biases = stored
    m, block = len(x), 32 if len(x) // model.experts < 64 else 64
    group = formats.by_name(model.format).group
    kernel = _compiled(f"{kind}_gather_qmm_rhs_nax", "quantized_nax.h" if kind == "affine" else "fp_quantized_nax.h",
                       f"half, {group}, 4, {block}, 64, 64, 2, 2, true", True, ((200, m % block == 0), (201, n % 64 == 0), (202, k % 64 == 0)))
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    buffers = [x, w, scales, np.zeros(1, np.float32) if biases is None else biases, offsets, np.zeros((m, n), np.float16), m, n, k, model.experts]
    grid = (-(-n // 64), min(m, -(-m // block) + model.experts - 1), 1)
    result = kernel.dispatch(grid=grid, threadgroup=(32, 2, 2), buffers=buffers)
    return result, result.outputs[5], 0, 1


def _by_rows(model: Model, kind: str, x, stored, experts, counts, n: int, k: int):
    w, scales, biases = stored
    m = len(x)
    fast = k % 512 == 0
    kernel = _compiled(f"{kind}_gather_qmv{'_fast' if fast else ''}", "quantized.h" if kind == "affine" else "fp_quantized.h",
                       f"half, {formats.by_name(model.format).group}, 4", False, ())

    def strides(*values):
        return np.array(values, np.int64)

    stored_strides = [strides(n * part.shape[-1], part.shape[-1], 1) for part in (w, scales, biases) if part is not None]
    buffers = [w, scales, np.zeros(1, np.float32) if biases is None else biases, x, np.arange(m, dtype=np.uint32), experts.astype(np.uint32),
               np.zeros((m, n), np.float16), k, n, 1, np.array((m, 1, k), np.int32), strides(k, k, 1), 1, np.array(w.shape, np.int32), *stored_strides,
               1, np.array((m,), np.int32), strides(1), strides(1)]
    result = kernel.dispatch(grid=(1, -(-n // 8), m), threadgroup=(32, 2, 1), buffers=buffers)
    return result, result.outputs[6], 3, 0


@lru_cache(maxsize=None)
def _compiled(kernel: str, header: str, template: str, nax: bool, constants: tuple):
    headers = ("utils.h", "steel/gemm/gemm_nax.h" if nax else "steel/gemm/gemm.h", "quantized_utils.h", header)
    source = "#include <metal_stdlib>\n#include <metal_math>\n"
    source += "#include <metal_tensor>\n#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>\n" if nax else ""
    source += "".join(f'#include "{_FOLDER}/{h}"\n' for h in headers)
    built = build.build(source, kernel, checked=True, template=template, function_constants=dict(constants), include=[fetch.mac_mlx() / "include"], family="gather")
    return Kernel(built, checked=True, options=Options())


def main() -> None:
    """Run every case and compare."""
    mx.set_default_device(mx.cpu)
    for format, tokens in CASES:
        for who, (found, formula) in (("ours", (ours(format, tokens), predicted(format, tokens))), ("MLX", mlx(format, tokens))):
            if found != formula:
                raise AssertionError(f"{who}, {format}, {tokens} tokens: counted {found}, by formula {formula}")
            print(f"{format}, {tokens} tokens, {who}: every count as predicted")


if __name__ == "__main__":
    main()
