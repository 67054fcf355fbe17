"""Kernels that MLX ships (headers of the mlx-metal wheel, fetched when the tests run) and what they must compute.

Nobody here wrote these kernels: they judge the emulator. The oracles are NumPy, in float64.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

_KERNELS = "mlx/backend/metal/kernels"
_NAX = "#include <metal_tensor>\n#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>\n"
F16, F32 = np.float16, np.float32


@dataclass(frozen=True)
class MlxCase:
    name: str
    headers: tuple[str, ...]
    kernel: str
    template: str
    make: Callable[[np.random.Generator], tuple[list[Any], dict[int, np.ndarray]]]
    """buffers in the order of their indices, and the wanted content of some"""
    grid: tuple[int, ...]
    threadgroup: tuple[int, ...]
    tolerance: float = 1e-5
    constants: dict[int, object] = field(default_factory=dict)
    nax: bool = False
    """relies on the lane map of M5-class GPUs"""
    threads: tuple[int, ...] | None = None
    text: str = ""
    """kernels that MLX makes from a template when it runs"""
    known: dict[tuple[str, int], str] = field(default_factory=dict)
    """faults that are there, by hand: kind and line -> why the result is right all the same"""

    @property
    def source(self) -> str:
        lines = [f'#include "{_KERNELS}/{h}"' for h in ("utils.h", *self.headers)]
        return "#include <metal_stdlib>\n#include <metal_math>\n" + (_NAX if "nax" in self.name else "") + "\n".join(lines) + "\n" + self.text


def _i(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def _q(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def _normal(rng, *shape, dtype=F32):
    return rng.standard_normal(shape).astype(dtype)


def _f64(x):
    return np.asarray(x, np.float64)


def _softmax(rows, n, dtype):
    def make(rng):
        x = _normal(rng, rows, n, dtype=dtype)
        e = np.exp(_f64(x) - _f64(x).max(-1, keepdims=True))
        return [x, np.zeros_like(x), n], {1: e / e.sum(-1, keepdims=True)}

    return make


def _logsumexp(rng):
    x = _normal(rng, 3, 90)
    return [x, np.zeros(3, F32), 90], {1: np.log(np.exp(_f64(x)).sum(-1))}


def _sort(rng):
    x = _normal(rng, 2, 300)
    return [x, np.zeros_like(x), 300, 1, 1, 300, 300], {1: np.sort(x, -1)}


def _scan(rng):
    x = rng.integers(-9, 9, (2, 300)).astype(F32)
    return [x, np.zeros_like(x), np.array(300, np.uint64)], {1: np.cumsum(_f64(x), -1)}


def _transposed_copy(rng):
    x = _normal(rng, 20, 37)
    return [x, np.zeros((37, 20), F16), _q(1, 37)], {1: x.T.astype(F16)}


def _all_reduce(rng):
    x = rng.integers(-9, 9, 4000).astype(F32)
    return [x, np.zeros(1, F32), np.array(4000, np.uint64), np.array(4000, np.uint64)], {1: _f64(x).sum(keepdims=True)}


def _row_reduce(rng):
    x = rng.integers(-9, 9, (8, 500)).astype(F32)
    return [x, np.zeros(8, F32), np.array(500, np.uint64), np.array(8, np.int64)], {1: _f64(x).max(-1)}


def _gemv(rng):
    m, k = 70, 130
    a, v = _normal(rng, m, k), _normal(rng, k)
    return [a, v, v, np.zeros(m, F32), k, m, k, 1.0, 0.0, 1, _i(1), _q(0), _q(0), _q(0), 1], {3: _f64(a) @ _f64(v)}


def _binary(rng):
    a, b = _normal(rng, 301), _normal(rng, 301)
    return [a, b, np.zeros_like(a), np.array(301, np.uint32)], {2: _f64(a) * _f64(b)}


def _unary(rng):
    a = _normal(rng, 301)
    return [a, np.zeros_like(a), np.array(301, np.uint32)], {1: np.exp(_f64(a))}


def _ternary(rng):
    c, a, b = rng.integers(0, 2, 301).astype(bool), _normal(rng, 301), _normal(rng, 301)
    return [c, a, b, np.zeros_like(a), np.array(301, np.uint32)], {3: np.where(c, a, b)}


def _attention_reference(q, k, v, scale):
    s = np.einsum("bhqd,bhkd->bhqk", _f64(q), _f64(k)) * scale
    p = np.exp(s - s.max(-1, keepdims=True))
    return np.einsum("bhqk,bhkd->bhqd", p / p.sum(-1, keepdims=True), _f64(v))


def _sdpa_vector(rng):
    h, n, d = 2, 70, 64
    q, k, v = _normal(rng, 1, h, 1, d, dtype=F16), _normal(rng, 1, h, n, d, dtype=F16), _normal(rng, 1, h, n, d, dtype=F16)
    none16, none = np.zeros(1, F16), np.zeros(1, bool)
    size = [np.array(x, np.uint64) for x in (n * d, d, n * d, d)]
    return [q, k, v, np.zeros_like(q), 1, n, *size, d**-0.5, none, none16, 0, 0, 0, none16, h], {3: _attention_reference(q, k, v, d**-0.5)}


def _gather(rng):
    x, index = _normal(rng, 40, 16), rng.integers(0, 40, 24).astype(np.uint32)
    b = [x, np.zeros((24, 16), F32), _i(40, 16), _q(16, 1), np.array(2, np.uint64), _i(1, 16), _i(0), _i(24), _q(1), np.array([True]), 1, index]
    return b, {1: x[index]}


_GATHER_TEXT = """
[[kernel]] void gather_rows(const device float* src [[buffer(0)]], device float* out [[buffer(1)]], const constant int* src_shape [[buffer(2)]],
    const constant int64_t* src_strides [[buffer(3)]], const constant size_t& src_ndim [[buffer(4)]], const constant int* slice_sizes [[buffer(5)]],
    const constant int* axes [[buffer(6)]], const constant int* idx_shapes [[buffer(7)]], const constant int64_t* idx_strides [[buffer(8)]],
    const constant bool* idx_contigs [[buffer(9)]], const constant int& idx_ndim [[buffer(10)]], const device uint32_t* idx0 [[buffer(20)]],
    uint3 index [[thread_position_in_grid]], uint3 grid_dim [[threads_per_grid]]) {
  Indices<uint32_t, 1> idxs{{{idx0}}, idx_shapes, idx_strides, idx_contigs, idx_ndim};
  return gather_impl<float, uint32_t, 1, 1, int>(src, out, src_shape, src_strides, src_ndim, slice_sizes, axes, idxs, index, grid_dim);
}
"""


def _gemm_params(m, n, k, lda, ldb, bm, bn, bk, ldd=None, stride_b=0):
    tiles_n, tiles_m = -(-n // bn), -(-m // bm)
    return struct.pack("<8i3q3i4x", m, n, k, lda, ldb, ldd or n, tiles_n, tiles_m, m * k, stride_b or n * k, m * n, 0, k // bk, 1)


def _gemm(m, n, k, bm, bn, bk, nt, dtype):
    def make(rng):
        a, b = _normal(rng, m, k, dtype=dtype), _normal(rng, *((n, k) if nt else (k, n)), dtype=dtype)
        none = np.zeros(1, dtype)
        buffers = [a, b, none, np.zeros((m, n), dtype), _gemm_params(m, n, k, k, k if nt else n, bm, bn, bk), bytes(32), _i(1), _q(0, 0)]
        return buffers, {3: _f64(a) @ (_f64(b).T if nt else _f64(b))}

    return make


def _shorter(make):
    def without_batch(rng):
        buffers, wanted = make(rng)
        return buffers[:6], wanted

    return without_batch


def _gemm_constants(m, n, k, bm, bn, bk, **more):
    return {10: False, 100: False, 110: False, 200: m % bm == 0, 201: n % bn == 0, 202: k % bk == 0, **more}


def _steel(kind, m, n, k, tile, nt, dtype, tolerance):
    bm, bn, bk, wm, wn = tile
    nax = kind == "nax"
    header = ("steel/gemm/gemm_nax.h", "steel/gemm/kernels/steel_gemm_fused_nax.h") if nax else ("steel/gemm/gemm.h", "steel/gemm/kernels/steel_gemm_fused.h")
    name = {F16: "half", F32: "float"}[dtype]
    template = f"{name}, {bm}, {bn}, {bk}, {wm}, {wn}, false, {'true' if nt else 'false'}, float"
    return MlxCase(f"steel_fused_{kind}_{name}_{'nt' if nt else 'nn'}_{m}x{n}x{k}", header, "gemm", template, _gemm(m, n, k, bm, bn, bk, nt, dtype),
                   (-(-n // bn), -(-m // bm), 1), (32, wn, wm), tolerance, _gemm_constants(m, n, k, bm, bn, bk), nax)


def _splitk(nax):
    m, n, k, parts, (bm, bn, bk) = 64, 64, 128, 2, (64, 64, 64) if nax else (32, 32, 16)

    def make(rng):
        a, b = _normal(rng, m, k, dtype=F16), _normal(rng, k, n, dtype=F16)
        size = k // parts
        params = struct.pack("<13i", m, n, k, k, n, n, n // bn, m // bm, parts, m * n, size, 0, size // bk)
        halves = np.stack([_f64(a)[:, i * size : (i + 1) * size] @ _f64(b)[i * size : (i + 1) * size] for i in range(parts)])
        return [a, b, np.zeros((parts, m, n), F32), params], {2: halves}

    return make


def _gather_mm_rhs(nax):
    m, n, k, groups, (bm, bn, bk) = 80, 64, 64, 3, (64, 64, 64) if nax else (32, 32, 16)

    def make(rng):
        a, b = _normal(rng, m, k, dtype=F16), _normal(rng, groups, k, n, dtype=F16)
        ends = (0, 20, 50, m)
        wanted = np.concatenate([_f64(a)[s:e] @ _f64(b)[g] for g, (s, e) in enumerate(zip(ends, ends[1:]))])
        return [a, b, _i(*ends), np.zeros((m, n), F16), _gemm_params(m, n, k, k, n, bm, bn, bk, stride_b=n * k), groups], {3: wanted}

    return make


def _segmented(rng):
    m, n, k = 32, 32, 64
    a, b = _normal(rng, m, k), _normal(rng, k, n)
    wanted = np.stack([_f64(a)[:, s:e] @ _f64(b)[s:e] for s, e in ((0, 16), (16, 64))])
    return [a, b, np.array([0, 16, 16, 64], np.uint32), np.zeros((2, m, n), F32), _gemm_params(m, n, k, k, n, 32, 32, 16)], {3: wanted}


def _attention(bq, bk):
    h, ql, kl, d = 2, 40, 50, 64

    def make(rng):
        q, k, v = _normal(rng, 1, h, ql, d, dtype=F16), _normal(rng, 1, h, kl, d, dtype=F16), _normal(rng, 1, h, kl, d, dtype=F16)
        nq, nk = -(-ql // bq), -(-kl // bk)
        params = struct.pack("<6if7i12q", 1, h, d, ql, kl, 1, d**-0.5, nq, nk, ql // bq, kl // bk, ql % bq, kl % bk, kl - ql,
                             *(h * ql * d, ql * d, d), *(h * kl * d, kl * d, d), *(h * kl * d, kl * d, d), *(h * ql * d, ql * d, d))
        return [q, k, v, np.zeros_like(q), params, bytes(24), np.zeros(1, F32), np.zeros(1, F16), np.zeros(1, F32)], {3: _attention_reference(q, k, v, d**-0.5)}

    return make


def _attention_constants(bq, bk):
    return {200: 40 % bq == 0, 201: 50 % bk == 0, 300: False, 301: False, 302: False, 303: False, 304: False}


def _quantised(mode, group, bits, m, n, k, gather=False):
    """x (m, k) times the transpose of a quantised (n, k) matrix; quantised by MLX itself, on the CPU."""

    def make(rng):
        import mlx.core as mx

        x = _normal(rng, m, k, dtype=F16)
        groups = 2 if gather else 1
        w = mx.array(_normal(rng, groups * n, k, dtype=F16))
        with mx.stream(mx.cpu):
            parts = mx.quantize(w, group, bits, mode=mode)
            dense = _f64(np.array(mx.dequantize(*parts, group_size=group, bits=bits, mode=mode).astype(mx.float32))).reshape(groups, n, k)
        packed = [np.array(p) for p in parts]
        y = np.zeros((m, n), F16)
        if gather:
            return [x, packed[0], packed[1], np.zeros(1, F32), _i(0, m // 3, m), y, m, n, k, groups], {5: np.concatenate([_f64(x)[: m // 3] @ dense[0].T, _f64(x)[m // 3 :] @ dense[1].T])}
        third = packed[2] if mode == "affine" else np.zeros(1, F32)
        batch = [0, _i(1), _q(0), 0, _i(1), _q(0), _q(0)]
        return [packed[0], packed[1], third, x, y, k, n, m, *batch], {4: _f64(x) @ dense[0].T}

    return make


def _with_bias_strides(make):
    def longer(rng):
        buffers, wanted = make(rng)
        return [*buffers, _q(0)], wanted

    return longer


_GEMM, _GEMM_NAX = "steel/gemm/gemm.h", "steel/gemm/gemm_nax.h"
_QUANT, _FP_QUANT = "quantized.h", "fp_quantized.h"
CASES = [
    MlxCase("softmax", ("softmax.h",), "softmax_single_row", "float, float", _softmax(3, 100, F32), (3,), (32,)),
    MlxCase("softmax_looped", ("softmax.h",), "softmax_looped", "half, float", _softmax(2, 700, F16), (2,), (1024,), 2e-3),
    MlxCase("logsumexp", ("logsumexp.h",), "logsumexp", "float", _logsumexp, (3,), (32,)),
    MlxCase("sort", ("sort.h",), "block_sort", "float, float, false, 128, 4", _sort, (1, 2), (128,), 0.0),
    MlxCase("scan", ("scan.h",), "contiguous_scan", "float, float, CumSum<float>, 4, true, false", _scan, (1, 2), (96,),
            known={("uninitialised", 335): "sums of simdgroups that do not exist are read; an exclusive scan gives them to nobody"}),
    MlxCase("copy", ("copy.h",), "copy_g_nd2", "float, half", _transposed_copy, (2, 3), (16, 16), 0.0, threads=(20, 37)),
    MlxCase("all_reduce", ("atomic.h", "reduction/ops.h", "reduce_utils.h", "reduce.h"), "all_reduce", "float, float, Sum<float>", _all_reduce, (1,), (128,)),
    MlxCase("row_reduce", ("atomic.h", "reduction/ops.h", "reduce_utils.h", "reduce.h"), "row_reduce_simple", "float, float, Max<float>", _row_reduce, (1, 2), (64,)),
    MlxCase("gemv", ("gemv.h",), "gemv", "float, 4, 1, 1, 32, 4, 4, false, false", _gemv, (5, 1, 1), (32, 1, 4),
            known={("race", 242): "a block at the edge moves back inside and writes some sums again, with equal values"}),
    MlxCase("binary", ("binary_ops.h", "binary.h"), "binary_vv", "float, float, Multiply, 2", _binary, (3,), (64,), threads=(151,)),
    MlxCase("unary", ("unary_ops.h", "unary.h"), "unary_v", "float, float, Exp, 2", _unary, (3,), (64,), threads=(151,)),
    MlxCase("ternary", ("ternary_ops.h", "ternary.h"), "ternary_v", "float, Select, false, false, 2", _ternary, (3,), (64,), threads=(151,)),
    MlxCase("sdpa_vector", ("sdpa_vector.h",), "sdpa_vector", "half, 64, 64", _sdpa_vector, (2, 1, 1), (1024,), 2e-3,
            {20: False, 21: False, 22: False, 23: False, 24: False, 25: False, 26: 0}),
    MlxCase("gather", ("indexing/gather.h",), "gather_rows", "", _gather, (24, 1, 1), (1, 1, 16), 0.0, text=_GATHER_TEXT),
    _steel("simdgroup", 64, 64, 32, (32, 32, 16, 2, 2), False, F16, 1e-3),
    _steel("simdgroup", 50, 70, 40, (32, 32, 16, 2, 2), True, F32, 1e-5),
    _steel("nax", 64, 64, 128, (64, 64, 64, 2, 2), False, F16, 1e-3),
    _steel("nax", 100, 72, 100, (64, 64, 64, 2, 2), True, F16, 1e-3),
    MlxCase("splitk", (_GEMM, "steel/gemm/kernels/steel_gemm_splitk.h"), "gemm_splitk", "half, float, 32, 32, 16, 2, 2, false, false, true, true", _splitk(False), (2, 2, 2), (32, 2, 2)),
    MlxCase("splitk_nax", (_GEMM_NAX, "steel/gemm/kernels/steel_gemm_splitk_nax.h"), "gemm_splitk_nax", "half, 64, 64, 64, 2, 2, false, false, float", _splitk(True), (2, 1, 1), (32, 2, 2),
            constants=_gemm_constants(64, 64, 128, 64, 64, 64), nax=True),
    MlxCase("gather_mm", (_GEMM, "steel/gemm/kernels/steel_gemm_gather.h"), "gather_mm_rhs", "half, 32, 32, 16, 2, 2, false, false, float", _gather_mm_rhs(False), (2, 6, 1), (32, 2, 2), 1e-3,
            _gemm_constants(80, 64, 64, 32, 32, 16)),
    MlxCase("gather_mm_nax", (_GEMM_NAX, "steel/gemm/kernels/steel_gemm_gather_nax.h"), "gather_mm_rhs_nax", "half, 64, 64, 64, 2, 2, false, false, float", _gather_mm_rhs(True), (1, 5, 1), (32, 2, 2), 1e-3,
            _gemm_constants(80, 64, 64, 64, 64, 64), True),
    MlxCase("segmented", (_GEMM, "steel/gemm/kernels/steel_gemm_segmented.h"), "segmented_mm", "float, 32, 32, 16, 2, 2, false, false, float", _segmented, (1, 1, 2), (32, 2, 2),
            constants=_gemm_constants(32, 32, 64, 32, 32, 16) | {199: True, 200: True, 201: True}),
    MlxCase("thin_nax", (_GEMM_NAX, "steel/gemm/kernels/steel_gemm_thin_nax.h"), "gemm_thin_nax", "half, 1, 2, 1, 2, 2, true", _shorter(_gemm(16, 128, 128, 16, 64, 64, True, F16)), (2, 1, 1), (32, 4, 1), 1e-3,
            _gemm_constants(16, 128, 128, 16, 64, 64)),
    MlxCase("attention", ("steel/attn/kernels/steel_attention.h",), "attention", "half, 32, 32, 64, 64, 4, 1, half, float", _attention(32, 32), (2, 2, 1), (32, 4, 1), 2e-3, _attention_constants(32, 32)),
    MlxCase("attention_nax", ("steel/attn/kernels/steel_attention_nax.h",), "attention_nax", "half, 64, 32, 64, 64, 4, 1, half, float", _attention(64, 32), (1, 2, 1), (32, 4, 1), 2e-3,
            _attention_constants(64, 32), True),
    MlxCase("qmm", (_GEMM, "quantized_utils.h", _QUANT), "affine_qmm_t", "half, 64, 4, true, false", _with_bias_strides(_quantised("affine", 64, 4, 32, 64, 128)), (2, 1, 1), (32, 2, 2), 2e-3),
    MlxCase("fp_qmm", (_GEMM, "quantized_utils.h", _FP_QUANT), "fp_qmm_t", "half, 32, 4, true, false", _quantised("mxfp4", 32, 4, 32, 64, 128), (2, 1, 1), (32, 2, 2), 2e-3),
    MlxCase("qmm_nax", (_GEMM_NAX, "quantized_utils.h", "quantized_nax.h"), "affine_qmm_t_nax", "half, 64, 4, true, false", _with_bias_strides(_quantised("affine", 64, 4, 64, 64, 128)), (1, 1, 1), (32, 2, 2),
            2e-3, nax=True),
    MlxCase("fp_gather_qmm_nax", (_GEMM_NAX, "quantized_utils.h", "fp_quantized_nax.h"), "fp_gather_qmm_rhs_nax", "half, 16, 4, 64, 64, 64, 2, 2, true", _quantised("nvfp4", 16, 4, 96, 64, 128, gather=True),
            (1, 3, 1), (32, 2, 2), 2e-3, {200: True, 201: True, 202: True}, True),
]
