"""Vectors: constructors, operators, every swizzle, packed types, bfloat, as_type, alignment and size."""

import importlib.util
from itertools import product

import ml_dtypes
import numpy as np

from mlx_tensorops.hostmetal import toolchain

from .support import run

STDLIB = "#include <metal_stdlib>\nusing namespace metal;\n"


def test_the_swizzle_tables_are_what_their_generator_writes():
    spec = importlib.util.spec_from_file_location("make_swizzles", toolchain.INCLUDE / "make_swizzles.py")
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    for name, text in generator.tables().items():
        assert (toolchain.INCLUDE / name).read_text() == text


def _swizzles(components):
    for letters in ("xyzw", "rgba"):
        for length in (2, 3, 4):
            yield from ((letters, picked) for picked in product(range(components), repeat=length))


def test_every_swizzle_reads_and_writes():
    """Reads all of them from one vector; writes all that have no duplicate, one after the other."""
    reads, expected, writes, written = [], [], [], []
    for n in (2, 3, 4):
        for letters, picked in _swizzles(n):
            name = "".join(letters[i] for i in picked)
            reads += [f"o[{len(expected) + k}] = v{n}.{name}[{k}];" for k in range(len(picked))]
            expected += [n * 10 + i for i in picked]
            if len(set(picked)) == len(picked):
                values = ", ".join(str(float(k + 1)) for k in range(len(picked)))
                writes.append(f"{{ float{n} v(0); v.{name} = float{len(picked)}({values}); for (int i = 0; i < {n}; ++i) w[{len(written)} + i] = v[i]; }}")
                written += [picked.index(i) + 1 if i in picked else 0 for i in range(n)]
    # Many functions: the compiler's time grows with the square of one function's variables.
    statements = [*reads, *writes]
    blocks = [statements[i : i + 100] for i in range(0, len(statements), 100)]
    functions = "".join(
        f"__attribute__((noinline)) void f{k}(device float* o, device float* w, float2 v2, float3 v3, float4 v4) {{ {' '.join(block)} }}\n"
        for k, block in enumerate(blocks))
    calls = " ".join(f"f{k}(o, w, float2(20, 21), float3(30, 31, 32), float4(40, 41, 42, 43));" for k in range(len(blocks)))
    source = f"{functions} kernel void k(device float* o [[buffer(0)]], device float* w [[buffer(1)]]) {{ {calls} }}"
    out = run(source, [np.zeros(len(expected), np.float32), np.zeros(len(written), np.float32)], kernel="k", header=STDLIB, threadgroup=1)
    assert np.array_equal(out[0], expected) and np.array_equal(out[1], written)


VECTORS = """
struct P { int2 a; float4 b; packed_float3 c; };
kernel void k(device float* o [[buffer(0)]], device int* n [[buffer(1)]], constant P& p [[buffer(2)]], device packed_half3* h [[buffer(3)]]) {
  int i = 0;
  float2 a(1, 2); float3 b(a, 3); float4 c(b, 4), d(5, b), e(a, a), f(a, 6, 7), g(6, a, 7), q(6, 7, a), r(8);
  for (int k = 0; k < 4; ++k) { o[i++] = c[k]; o[i++] = d[k]; o[i++] = e[k]; o[i++] = f[k]; o[i++] = g[k]; o[i++] = q[k]; o[i++] = r[k]; }
  float4 s = c * 2 + d / c - (1 - e); s += 1; s *= c; s.xy += float2(10); s.zw -= 1.0f; ++s; s = -s;
  for (int k = 0; k < 4; ++k) o[i++] = s[k];
  int4 m(7, -8, 9, 10); m = (m % 4) ^ (m << 2) | (m >> 1) & ~m;
  for (int k = 0; k < 4; ++k) o[i++] = m[k];
  bool4 less = c < d; o[i++] = all(less); o[i++] = any(!less); o[i++] = (c == c).z;
  half4 x = half4(c) * 0.5h; float4 y = float4(x); bfloat4 z = bfloat4(c * 1.001f); y += float4(z);
  for (int k = 0; k < 4; ++k) o[i++] = y[k];
  float4 t = select(c, d, less); float4 u = true ? t : float4(0); o[i++] = u.x + t.w;
  float4 w = p.b; w.xz = p.b.zx; o[i++] = w.x; o[i++] = w.z; o[i++] = p.a.y; float3 v = p.c; o[i++] = v.y + p.c.z;
  h[1] = packed_half3(half3(v)); h[2] = h[1] * 2.0h; h[3] = h[1]; h[3].xy = h[1].yx; h[3] += half3(1);
  o[i++] = dot(b, v); o[i++] = length(a); o[i++] = cross(b, v).x; o[i++] = normalize(b).z; o[i++] = distance(a, c.zw);
  o[i++] = as_type<float>(as_type<uint>(1.5f) + 1u); uint2 bits = as_type<uint2>(half4(1, 2, 3, 4)); n[0] = bits.x; n[1] = bits.y;
  float8_check(n);
}
"""
SIZES = """
void float8_check(device int* n) {
  n[2] = sizeof(float3); n[3] = sizeof(packed_float3); n[4] = alignof(half4); n[5] = alignof(packed_half4); n[6] = sizeof(bool3);
  n[7] = sizeof(bfloat3); n[8] = sizeof(metal::vec<half, 8>); n[9] = sizeof(array<int, 3>);
}
"""


def test_vector_arithmetic_and_memory():
    p = np.zeros(48, np.uint8)
    p[:8], p[16:32], p[32:44] = (np.frombuffer(x.tobytes(), np.uint8) for x in (
        np.array([3, 4], np.int32), np.array([1, 2, 3, 4], np.float32), np.array([5, 6, 7], np.float32)))
    h = np.zeros((4, 3), np.float16)
    out = run(SIZES + VECTORS, [np.zeros(80, np.float32), np.zeros(10, np.int32), p, h], header=STDLIB, threadgroup=1)
    o = np.asarray(out[0])
    a, b = np.array([1.0, 2]), np.array([1.0, 2, 3])
    c, d, e = np.array([1.0, 2, 3, 4]), np.array([5.0, 1, 2, 3]), np.array([1.0, 2, 1, 2])
    table = np.stack([c, d, e, [1, 2, 6, 7], [6, 1, 2, 7], [6, 7, 1, 2], [8] * 4], 1)
    assert np.array_equal(o[:28].reshape(4, 7), table)
    s = (c * 2 + d / c - (1 - e) + 1) * c
    s += [10, 10, -1, -1]
    assert np.allclose(o[28:32], -(s + 1), rtol=1e-6)
    m = np.array([7, -8, 9, 10])
    assert np.array_equal(o[32:36], (np.fmod(m, 4) ^ (m << 2)) | (m >> 1) & ~m)
    assert np.array_equal(o[36:39], [0, 1, 1])
    assert np.array_equal(o[39:43], c / 2 + (c.astype(np.float32) * np.float32(1.001)).astype(ml_dtypes.bfloat16).astype(np.float32))
    assert np.array_equal(o[43:48], [5 + 4, 3, 1, 4, 6 + 7])
    v = np.array([5.0, 6, 7])
    assert np.allclose(o[48:54], [b @ v, np.hypot(1, 2), np.cross(b, v)[0], 3 / np.sqrt(14), np.sqrt(8), 1.5 + 2.0**-23], rtol=1e-6, atol=0)
    assert np.array_equal(out[1][:2].view(np.float16), [1, 2, 3, 4])
    assert list(out[1][2:]) == [16, 12, 8, 2, 4, 8, 16, 12]
    assert np.array_equal(out[3], [[0, 0, 0], [5, 6, 7], [10, 12, 14], [7, 6, 8]])


BFLOAT = """
kernel void k(device bfloat* x [[buffer(0)]], device bfloat* o [[buffer(1)]], device float* f [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  bfloat a = x[2 * i], b = x[2 * i + 1];
  o[6 * i] = a + b; o[6 * i + 1] = a - b; o[6 * i + 2] = a * b; o[6 * i + 3] = a / b; o[6 * i + 4] = -a; o[6 * i + 5] = a * 3;
  bfloat c = a; c += b; c *= 0.5f;
  f[4 * i] = c; f[4 * i + 1] = a * 1.5f; f[4 * i + 2] = (a < b) + 2 * (a >= b) + 4 * (a == b); f[4 * i + 3] = i & 1 ? a : b;
}
"""


def test_bfloat_rounds_to_nearest_even():
    generator = np.random.default_rng(4)
    x = generator.standard_normal(128).astype(ml_dtypes.bfloat16)
    x[:6] = [np.inf, 1, 3e38, 3e38, 1e-40, 2]
    out = run(BFLOAT, [x, np.zeros(384, ml_dtypes.bfloat16), np.zeros(256, np.float32)], header=STDLIB, threadgroup=32, grid=2)
    a, b = x[::2].astype(np.float32), x[1::2].astype(np.float32)
    bf = ml_dtypes.bfloat16
    with np.errstate(over="ignore"):
        expected = np.stack([a + b, a - b, a * b, a / b, -a, a * 3], 1).astype(bf)
        halved = ((a + b).astype(bf).astype(np.float32) * np.float32(0.5)).astype(bf)
        floats = np.stack([halved.astype(np.float32), a * np.float32(1.5), (a < b) + 2 * (a >= b) + 4 * (a == b), np.where(np.arange(64) & 1, a, b)], 1)
    assert np.array_equal(np.asarray(out[1]).reshape(64, 6), expected)
    assert np.array_equal(np.asarray(out[2]).reshape(64, 4), floats)


MATRICES = """
struct P { float4x4 m; };
kernel void k(device float* o [[buffer(0)]], constant P& p [[buffer(1)]], device half4x4* h [[buffer(2)]], device uint* w [[buffer(3)]]) {
  int i = 0;
  float4x4 m = p.m;
  float4 v(1, 2, 3, 4);
  float4 a = m * v, b = v * m;
  float4x4 q = m * transpose(m) + float4x4(2.0f) - 0.5f * m;
  for (int k = 0; k < 4; ++k) { o[i++] = a[k]; o[i++] = b[k]; }
  for (int c = 0; c < 4; ++c) for (int r = 0; r < 4; ++r) o[i++] = q[c][r];
  float2x3 s = float2x3(float3(1, 2, 3), float3(4, 5, 6));
  float3 t = s * float2(1, 10); o[i++] = t.z; o[i++] = (t * s).y; o[i++] = determinant(m); o[i++] = determinant(float2x2(1, 2, 3, 4));
  h[0] = half4x4(m); o[i++] = h[0][1][2];
  w[0] = pack_float_to_unorm4x8(float4(0, 0.5f, 1, 2)); w[1] = pack_float_to_snorm2x16(float2(-1, 0.25f));
  float4 u = unpack_snorm4x8_to_float(0x8180007fu); for (int k = 0; k < 4; ++k) o[i++] = u[k];
}
"""


def test_matrices_and_packing():
    m = np.random.default_rng(11).standard_normal((4, 4)).astype(np.float32)  # as stored: m[column, row]
    out = run(MATRICES, [np.zeros(33, np.float32), m, np.zeros((4, 4), np.float16), np.zeros(2, np.uint32)], header=STDLIB, threadgroup=1)
    o, M, v = np.asarray(out[0]), m.T.astype(np.float64), np.arange(1.0, 5)
    assert np.allclose(o[0:8:2], M @ v, rtol=1e-5, atol=1e-5) and np.allclose(o[1:8:2], v @ M, rtol=1e-5, atol=1e-5)
    assert np.allclose(o[8:24].reshape(4, 4).T, M @ M.T + 2 * np.eye(4) - 0.5 * M, rtol=1e-5, atol=1e-5)
    t = np.array([41.0, 52, 63])
    assert np.allclose(o[24:28], [t[2], t @ [4, 5, 6], np.linalg.det(M), -2], rtol=1e-5, atol=1e-5)
    assert o[28] == np.float16(m[1, 2]) and np.array_equal(out[2], m.astype(np.float16))
    assert list(out[3]) == [0xFFFF8000, (8192 << 16 | 0x8001) & 0xFFFFFFFF]
    assert np.array_equal(o[29:33], np.array([1, 0, -1, -1], np.float32))
