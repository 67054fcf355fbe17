"""simd_*, quad_*, atomics and simdgroup_matrix against NumPy."""

import ml_dtypes
import numpy as np
import pytest

from mlx_tensorops import hostmetal

from .support import assert_product, operand

STDLIB = "#include <metal_stdlib>\nusing namespace metal;\n"
NUMPY = {"float": np.float32, "half": np.float16, "int": np.int32, "uint": np.uint32, "short": np.int16, "uchar": np.uint8}

# name -> (call, reference over the lanes of one group); the groups are rows of x
EXCHANGE = {
    "shuffle": ("{p}_shuffle(x, ushort((lane * 3 + 1) % W))", lambda x, w: x[:, (np.arange(w) * 3 + 1) % w]),
    "shuffle_xor": ("{p}_shuffle_xor(x, 2)", lambda x, w: x[:, np.arange(w) ^ 2]),
    "shuffle_down": ("{p}_shuffle_down(x, 1)", lambda x, w: np.concatenate([x[:, 1:], x[:, -1:]], 1)),
    "shuffle_up": ("{p}_shuffle_up(x, 1)", lambda x, w: np.concatenate([x[:, :1], x[:, :-1]], 1)),
    "rotate_down": ("{p}_shuffle_rotate_down(x, 1)", lambda x, w: np.roll(x, -1, 1)),
    "rotate_up": ("{p}_shuffle_rotate_up(x, 1)", lambda x, w: np.roll(x, 1, 1)),
    "broadcast": ("{p}_broadcast(x, 3)", lambda x, w: np.repeat(x[:, 3:4], w, 1)),
    "broadcast_first": ("{p}_broadcast_first(x)", lambda x, w: np.repeat(x[:, :1], w, 1)),
    "fill_down": ("{p}_shuffle_and_fill_down(x, T(7), 1)", lambda x, w: np.concatenate([x[:, 1:], np.full_like(x[:, :1], 7)], 1)),
    "fill_up": ("{p}_shuffle_and_fill_up(x, T(7), 1)", lambda x, w: np.concatenate([np.full_like(x[:, :1], 7), x[:, :-1]], 1)),
    "max": ("{p}_max(x)", lambda x, w: np.repeat(x.max(1, keepdims=True), w, 1)),
    "min": ("{p}_min(x)", lambda x, w: np.repeat(x.min(1, keepdims=True), w, 1)),
    "sum": ("{p}_sum(x)", lambda x, w: np.repeat(x.sum(1, keepdims=True, dtype=x.dtype), w, 1)),
    "product": ("{p}_product(T(x % T(3) + T(1)))", None),
    "inclusive": ("{p}_prefix_inclusive_sum(x)", lambda x, w: x.cumsum(1, dtype=x.dtype)),
    "exclusive": ("{p}_prefix_exclusive_sum(x)", lambda x, w: x.cumsum(1, dtype=x.dtype) - x),
    "and": ("{p}_and(x)", lambda x, w: np.repeat(np.bitwise_and.reduce(x, 1, keepdims=True), w, 1)),
    "or": ("{p}_or(x)", lambda x, w: np.repeat(np.bitwise_or.reduce(x, 1, keepdims=True), w, 1)),
    "xor": ("{p}_xor(x)", lambda x, w: np.repeat(np.bitwise_xor.reduce(x, 1, keepdims=True), w, 1)),
}
BITS = ("and", "or", "xor")


def _kernel(type_name, prefix, width):
    calls = [(n, call) for n, (call, reference) in EXCHANGE.items() if reference is not None and not (n in BITS and type_name in ("float", "half"))]
    body = "\n".join(f"o[{k} * 64 + i] = {call.format(p=prefix)};" for k, (_, call) in enumerate(calls))
    return [n for n, _ in calls], f"""
using T = {type_name};
constant constexpr uint W = {width};
kernel void k(device T* in [[buffer(0)]], device T* o [[buffer(1)]], device uint* votes [[buffer(2)]], uint i [[thread_index_in_threadgroup]]) {{
  const uint lane = i % W;
  T x = in[i];
  {body}
  votes[i] = uint(ulong({prefix}_ballot(lane % 3 == 0).operator {'ulong' if prefix == 'simd' else 'uint'}()));
  votes[64 + i] = {prefix}_all(lane < W) + 2 * {prefix}_any(lane == 99) + 4 * {prefix}_is_first();
}}"""


@pytest.mark.parametrize("type_name, prefix", [("float", "simd"), ("int", "simd"), ("half", "simd"), ("uchar", "simd"), ("uint", "quad"), ("float", "quad")])
def test_group_functions(type_name, prefix):
    width = 32 if prefix == "simd" else 4
    names, source = _kernel(type_name, prefix, width)
    dtype = NUMPY[type_name]
    x = np.random.default_rng(7).integers(0, 7, 64).astype(dtype)  # small integers: exact in every type and order
    kernel = hostmetal.compile(STDLIB + source, "k")
    for seed in (0, 1):
        out = kernel.dispatch(grid=1, threadgroup=64, buffers=[x, np.zeros((len(names), 64), dtype), np.zeros(128, np.uint32)], order_seed=seed).outputs
        rows = x.reshape(-1, width)
        for k, name in enumerate(names):
            assert np.array_equal(np.asarray(out[1])[k].reshape(rows.shape), EXCHANGE[name][1](rows, width)), name
        lanes = np.arange(64) % width
        mask = sum(1 << i for i in range(width) if i % 3 == 0)
        assert np.all(np.asarray(out[2])[:64] == mask)
        assert np.array_equal(np.asarray(out[2])[64:], 1 + 4 * (lanes == 0))


MORE = """
kernel void k(device float4* v [[buffer(0)]], device bfloat* b [[buffer(1)]], device float* o [[buffer(2)]], uint i [[thread_index_in_threadgroup]]) {
  float4 s = simd_sum(v[i]);
  if (i == 0) { o[0] = s.x; o[1] = s.w; }
  float4 m = simd_shuffle_xor(v[i], 1);
  o[2 + i] = m.y;
  float t = simd_max(b[i]);  // bfloat arguments become float
  if (i == 0) o[34] = t;
  o[35 + i] = simd_prefix_inclusive_product(i < 4 ? 2.0f : 1.0f);
  o[67 + i] = simd_shuffle_and_fill_down(float(i), float(100 + i), 3, 8);
}
"""


def test_vectors_bfloat_and_modulo():
    v = np.arange(128, dtype=np.float32).reshape(32, 4)
    b = np.arange(-32, 0).astype(ml_dtypes.bfloat16)
    out = np.asarray(hostmetal.compile(STDLIB + MORE, "k").dispatch(grid=1, threadgroup=32, buffers=[v, b, np.zeros(99, np.float32)]).outputs[2])
    assert out[0] == v[:, 0].sum() and out[1] == v[:, 3].sum() and out[34] == -1
    assert np.array_equal(out[2:34], v[np.arange(32) ^ 1, 1])
    assert np.array_equal(out[35:67], 2.0 ** np.minimum(np.arange(32) + 1, 4))
    lanes = np.arange(32)
    assert np.array_equal(out[67:], np.where(lanes % 8 + 3 < 8, lanes + 3, 100 + lanes + 3 - 8))


ATOMICS = """
kernel void k(device atomic_uint* a [[buffer(0)]], device atomic_float* f [[buffer(1)]], device int* o [[buffer(2)]],
              uint i [[thread_position_in_grid]], uint t [[thread_index_in_threadgroup]]) {
  threadgroup atomic_int local;
  if (t == 0) atomic_store_explicit(&local, 0, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  atomic_fetch_add_explicit(&local, int(t), memory_order_relaxed);
  atomic_fetch_add_explicit(&a[0], 1u, memory_order_relaxed);
  atomic_fetch_max_explicit(&a[1], i, memory_order_relaxed);
  atomic_fetch_min_explicit(&a[2], i + 5, memory_order_relaxed);
  atomic_fetch_or_explicit(&a[3], 1u << (i % 32), memory_order_relaxed);
  atomic_fetch_xor_explicit(&a[4], i, memory_order_relaxed);
  atomic_fetch_add_explicit(&f[0], 0.5f, memory_order_relaxed);
  uint seen = atomic_load_explicit(&a[5], memory_order_relaxed);  // a product by compare-and-swap
  while (!atomic_compare_exchange_weak_explicit(&a[5], &seen, seen + 2 * i, memory_order_relaxed, memory_order_relaxed)) {}
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (t == 0) o[i / 64] = atomic_load_explicit(&local, memory_order_relaxed);
}
"""


@pytest.mark.parametrize("checked", [False, True])
def test_atomics_under_several_orders(checked):
    kernel = hostmetal.compile(STDLIB + ATOMICS, "k", checked=checked)
    for seed in range(4):
        a = np.array([0, 0, 2**31, 0, 0, 0], np.uint32)
        out = kernel.dispatch(grid=2, threadgroup=64, buffers=[a, np.zeros(1, np.float32), np.zeros(2, np.int32)], order_seed=seed).outputs
        n = np.arange(128)
        assert list(out[0]) == [128, 127, 5, 2**32 - 1, np.bitwise_xor.reduce(n), 2 * n.sum()]
        assert out[1][0] == 64 and list(out[2]) == [np.arange(64).sum()] * 2


MATRIX = """
kernel void k(device T* a [[buffer(0)]], device T* b [[buffer(1)]], device float* c [[buffer(2)]], device float* o [[buffer(3)]],
              device T* p [[buffer(4)]], uint lane [[thread_index_in_simdgroup]]) {
  simdgroup_matrix<T, 8, 8> A, B;
  simdgroup_float8x8 C, D;
  simdgroup_load(A, a, 16, ulong2(8, 2));
  simdgroup_load(B, b, 24, ulong2(0, 0), true);
  simdgroup_load(C, c);
  simdgroup_multiply_accumulate(D, A, B, C);
  simdgroup_store(D, o);
  simdgroup_multiply(D, A, B);
  simdgroup_store(D, o + 64, 8, ulong2(0, 0), true);
  simdgroup_store(simdgroup_float8x8(3.0f), o + 128);
  simdgroup_store(make_filled_simdgroup_matrix<float, 8>(4.0f), o + 192);
  D = make_filled_simdgroup_matrix<float, 8>(0);
  D.thread_elements()[0] = lane;
  D.thread_elements()[1] = lane + 100;
  threadgroup float s[64];
  simdgroup_store(D, s);
  simdgroup_barrier(mem_flags::mem_threadgroup);
  simdgroup_load(C, s);
  simdgroup_store(C, o + 256);
  simdgroup_store(A, p);
}
"""


@pytest.mark.parametrize("type_name, checked", [("half", True), ("bfloat", False), ("float", False)])
def test_simdgroup_matrix(type_name, checked):
    generator = np.random.default_rng(8)
    a, b = operand(generator, (10, 16), type_name), operand(generator, (8, 24), type_name)
    c = generator.standard_normal((8, 8)).astype(np.float32)
    kernel = hostmetal.compile(STDLIB + f"using T = {type_name};" + MATRIX, "k", checked=checked)
    result = kernel.dispatch(grid=1, threadgroup=32, buffers=[a, b, c, np.zeros((5, 8, 8), np.float32), np.zeros((8, 8), a.dtype)])
    o = np.asarray(result.outputs[3])
    A, B = a[2:10, 8:16], b[:8, :8].T
    assert_product(o[0], A, B, c, "float")
    assert_product(o[1].T, A, B, np.zeros((8, 8)), "float")
    assert np.array_equal(o[2], 3 * np.eye(8)) and np.all(o[3] == 4)
    lane = np.arange(32)
    row, column = (lane // 4 & 4) + lane // 2 % 4, (lane // 4 & 2) * 2 + lane % 2 * 2
    expected = np.zeros((8, 8))
    expected[row, column], expected[row, column + 1] = lane, lane + 100
    assert np.array_equal(o[4], expected)
    assert np.array_equal(result.outputs[4], A)
    assert result.counters.mma8x8 == 2 and result.counters.macs == 1024
