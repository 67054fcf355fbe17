"""matmul2d on cooperative tensors and on tensors, against an exact product, under every layout."""

import ml_dtypes
import numpy as np
import pytest

from mlx_tensorops import hostmetal

from .support import HEADER, LAYOUTS, assert_product, operand, run

FRAGMENTS = """
kernel void fragments(device {A}* a [[buffer(0)]], device {B}* b [[buffer(1)]], device {C}* c [[buffer(2)]]) {{
  constexpr int M = {M}, N = {N}, K = {K}, steps = 3;
  constexpr auto d = matmul2d_descriptor(M, N, K, {ta}, {tb}, {relaxed}, matmul2d_descriptor::mode::multiply_accumulate);
  matmul2d<d, execution_simdgroup> op;
  auto l = op.get_left_input_cooperative_tensor<{A}, {B}, {C}>();
  auto r = op.get_right_input_cooperative_tensor<{A}, {B}, {C}>();
  auto t = op.get_destination_cooperative_tensor<remove_addrspace_t<decltype(l)>, remove_addrspace_t<decltype(r)>, {C}>();
  for (ushort i = 0; i < t.get_capacity(); ++i) {{
    if (!t.is_valid_element(i)) continue;
    auto x = t.get_multidimensional_index(i);
    t[i] = c[x[1] * N + x[0]];
  }}
  constexpr int width = steps * K;
  for (int k = 0; k < width; k += K) {{
    for (ushort i = 0; i < l.get_capacity(); ++i) {{
      if (!l.is_valid_element(i)) continue;
      auto x = l.get_multidimensional_index(i);
      l[i] = {ta} ? a[(k + x[1]) * M + x[0]] : a[x[1] * width + k + x[0]];
    }}
    for (ushort i = 0; i < r.get_capacity(); ++i) {{
      if (!r.is_valid_element(i)) continue;
      auto x = r.get_multidimensional_index(i);
      r[i] = {tb} ? b[x[1] * width + k + x[0]] : b[(k + x[1]) * N + x[0]];
    }}
    op.run(l, r, t);
  }}
  for (ushort i = 0; i < t.get_capacity(); ++i) {{
    if (!t.is_valid_element(i)) continue;
    auto x = t.get_multidimensional_index(i);
    c[x[1] * N + x[0]] = t[i];
  }}
}}
"""
CASES = [
    ("half", "half", "float", 16, 32, 16, False, False, True),
    ("bfloat", "bfloat", "float", 16, 32, 16, True, True, True),
    ("float", "float", "float", 16, 32, 16, False, True, False),
    ("half", "half", "half", 32, 16, 16, True, False, True),
    ("char", "char", "int", 16, 32, 32, False, True, False),
    ("bfloat", "float", "float", 32, 32, 32, False, False, True),
]


def _problem(A, B, C, M, N, K, ta, tb, seed=0):
    generator = np.random.default_rng(seed)
    a, b = operand(generator, (M, K), A), operand(generator, (K, N), B)
    c = np.ones((M, N)).astype({"float": np.float32, "half": np.float16, "int": np.int32}[C])
    return a, b, c, np.ascontiguousarray(a.T if ta else a), np.ascontiguousarray(b.T if tb else b)


@pytest.mark.parametrize("A, B, C, M, N, K, ta, tb, relaxed", CASES)
@pytest.mark.parametrize("checked", [False, True])
def test_fragments(A, B, C, M, N, K, ta, tb, relaxed, checked):
    if checked and A != "half":
        return  # the checked build shares every line that depends on types
    flag = {True: "true", False: "false"}
    source = FRAGMENTS.format(A=A, B=B, C=C, M=M, N=N, K=K, ta=flag[ta], tb=flag[tb], relaxed=flag[relaxed])
    kernel = hostmetal.compile(HEADER + source, "fragments", checked=checked)
    a, b, c, stored_a, stored_b = _problem(A, B, C, M, N, 3 * K, ta, tb)
    for layout in LAYOUTS:
        result = kernel.dispatch(grid=1, threadgroup=32, buffers=[stored_a, stored_b, c], **layout)
        assert_product(result.outputs[2], a, b, c, C, roundings=1 if C != "half" else 3)  # once a run()
        assert result.counters.matmul2d == 3 and result.counters.macs == 3 * M * N * K


TENSORS = """
kernel void tensors(device half* a [[buffer(0)]], device half* b [[buffer(1)]], device half* c [[buffer(2)]],
                    device float* e [[buffer(3)]], constant int3& mnk [[buffer(4)]], uint2 tg [[threadgroup_position_in_grid]]) {
  const int M = mnk.x, N = mnk.y, K = mnk.z;
  using T = tensor<device half, dextents<int, 2>, tensor_inline>;
  T A(a, dextents<int, 2>(K, M)), B(b, dextents<int, 2>(K, N)), C(c, dextents<int, 2>(N, M));
  auto E = tensor(e, dextents<int, 2>(N, M), array<int, 2>({1, N}));
  constexpr auto d = matmul2d_descriptor(64, 32, static_cast<int>(dynamic_extent), false, true, false,
                                         matmul2d_descriptor::mode::multiply);
  matmul2d<d, execution_simdgroups<4>> op;
  auto sA = A.slice(0, tg.y * 64);
  auto sB = B.slice(0, tg.x * 32);
  auto sC = C.slice(tg.x * 32, tg.y * 64);
  op.run(sA, sB, sC);
  auto t = op.get_destination_cooperative_tensor<decltype(sA), decltype(sB), float>();
  for (ushort i = 0; i < t.get_capacity(); ++i)
    if (t.is_valid_element(i)) t[i] = 0;
  op.run(sA, sB, t);
  for (ushort i = 0; i < t.get_capacity(); ++i) {
    if (!t.is_valid_element(i)) continue;
    auto x = t.get_multidimensional_index(i);
    t[i] = 2 * t[i] + x[0] + 100 * x[1];
  }
  t.store(E.slice(tg.x * 32, tg.y * 64));
}
"""


@pytest.mark.parametrize("M, N, K", [(128, 64, 96), (100, 40, 50)])
@pytest.mark.parametrize("checked", [False, True])
def test_tensor_operands(M, N, K, checked):
    generator = np.random.default_rng(1)
    a, b = operand(generator, (M, K), "half"), operand(generator, (N, K), "half")
    kernel = hostmetal.compile(HEADER + TENSORS, checked=checked)
    tiles = (-(-N // 32), -(-M // 64))
    for layout in LAYOUTS:
        c, e = np.zeros((M, N), np.float16), np.zeros((M, N), np.float32)
        result = kernel.dispatch(grid=tiles, threadgroup=128, buffers=[a, b, c, e, np.array([M, N, K, 0], np.int32)], **layout)
        assert_product(result.outputs[2], a, b.T, c, "half")
        rows, columns = np.arange(M) % 64, np.arange(N) % 32
        half_product = (np.asarray(result.outputs[3]).astype(np.float64) - columns[None] - 100 * rows[:, None]) / 2
        assert np.max(np.abs(half_product - a.astype(np.float64) @ b.T.astype(np.float64))) < 1e-3
        assert result.counters.matmul2d == 2 * tiles[0] * tiles[1]


MIXED = """
kernel void mixed(device char* a [[buffer(0)]], device char* b [[buffer(1)]], device int* c [[buffer(2)]],
                  device half* x [[buffer(3)]], device half* w [[buffer(4)]], device float* y [[buffer(5)]],
                  device half* p [[buffer(6)]], device half* q [[buffer(7)]], device float* o [[buffer(8)]],
                  uint lane [[thread_index_in_simdgroup]]) {
  { // a left fragment with a right tensor (int8, K = 32)
    constexpr auto d = matmul2d_descriptor(16, 32, 32, false, true, false, matmul2d_descriptor::mode::multiply_accumulate);
    matmul2d<d, execution_simdgroup> op;
    auto l = op.get_left_input_cooperative_tensor<char, char, int>();
    auto B = tensor(b, extents<int, 32, 32>());
    auto t = op.get_destination_cooperative_tensor<remove_addrspace_t<decltype(l)>, remove_addrspace_t<decltype(B)>, int>();
    l.load(tensor(a, dextents<int, 2>(32, 16)));
    t.load(tensor(c, dextents<int, 2>(32, 16)));
    op.run(l, B, t);
    t.store(tensor(c, dextents<int, 2>(32, 16)));
  }
  { // one thread: 1 x 32 times 32 x 16, operand and result in thread memory
    constexpr auto d = matmul2d_descriptor(1, 16, 32);
    matmul2d<d, execution_thread> op;
    half mine[32];
    float out[16];
    for (int i = 0; i < 32; ++i) mine[i] = x[lane * 32 + i];
    auto X = tensor((thread half*)mine, extents<int, 32, 1>());
    auto W = tensor(w, extents<int, 16, 32>());
    auto Y = tensor((thread float*)out, extents<int, 16, 1>());
    op.run(X, W, Y);
    for (int i = 0; i < 16; ++i) y[lane * 16 + i] = out[i];
  }
  { // 8 rows, operands in threadgroup memory
    threadgroup half ps[8 * 16];
    threadgroup half qs[16 * 32];
    for (uint i = lane; i < 8 * 16; i += 32) ps[i] = p[i];
    for (uint i = lane; i < 16 * 32; i += 32) qs[i] = q[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    auto P = tensor<threadgroup half, extents<int, 16, 8>, tensor_inline>(ps, extents<int, 16, 8>());
    auto Q = tensor<threadgroup half, extents<int, 32, 16>, tensor_inline>(qs, extents<int, 32, 16>());
    matmul2d<matmul2d_descriptor(8, 32, 16), execution_simdgroup> op;
    auto t = op.get_destination_cooperative_tensor<remove_addrspace_t<decltype(P)>, remove_addrspace_t<decltype(Q)>, float>();
    op.run(P, Q, t);
    t.store(tensor(o, dextents<int, 2>(32, 8)));
  }
}
"""


@pytest.mark.parametrize("checked", [False, True])
def test_mixed_operands(checked):
    generator = np.random.default_rng(2)
    a, b = operand(generator, (16, 32), "char"), operand(generator, (32, 32), "char")
    x, w = operand(generator, (32, 32), "half"), operand(generator, (32, 16), "half")
    p, q = operand(generator, (8, 16), "half"), operand(generator, (16, 32), "half")
    c, y, o = np.full((16, 32), 7, np.int32), np.zeros((32, 16), np.float32), np.zeros((8, 32), np.float32)
    kernel = hostmetal.compile(HEADER + MIXED, checked=checked)
    for layout in LAYOUTS:
        outputs = kernel.dispatch(grid=1, threadgroup=32, buffers=[a, b, c, x, w, y, p, q, o], **layout).outputs
        assert_product(outputs[2], a, b.T, c, "int")
        assert_product(outputs[5], x, w, y, "float")
        assert_product(outputs[8], p, q, o, "float")


CHAINED = """
kernel void chained(device half* a [[buffer(0)]], device half* b [[buffer(1)]], device half* v [[buffer(2)]],
                    device float* o [[buffer(3)]], device float* rows [[buffer(4)]], device float* columns [[buffer(5)]],
                    device float* scaled [[buffer(6)]], device int* compatible [[buffer(7)]], uint lane [[thread_index_in_simdgroup]]) {
  constexpr auto first = matmul2d_descriptor(16, 32, 16);
  matmul2d<first, execution_simdgroup> op;
  auto A = tensor(a, extents<int, 16, 16>());
  auto B = tensor(b, extents<int, 32, 16>());
  auto s = op.get_destination_cooperative_tensor<remove_addrspace_t<decltype(A)>, remove_addrspace_t<decltype(B)>, half>();
  op.run(A, B, s);
  constexpr auto second = matmul2d_descriptor(16, 32, 32);
  matmul2d<second, execution_simdgroup> then;
  auto l = then.get_left_input_cooperative_tensor<half, half, float>(s);
  auto V = tensor(v, extents<int, 32, 32>());
  auto t = then.get_destination_cooperative_tensor<remove_addrspace_t<decltype(l)>, remove_addrspace_t<decltype(V)>, float>();
  then.run(l, V, t);
  t.store(tensor(o, extents<int, 32, 16>()));
  const bool reusable = then.is_compatible_as_left_input<half, half, float>(s);
  if (lane == 0) compatible[0] = reusable;

  using L = remove_addrspace_t<decltype(l)>;
  using R = remove_addrspace_t<decltype(V)>;
  auto r = then.get_row_reduction_destination_cooperative_tensor<L, R, float>();
  auto q = then.get_column_reduction_destination_cooperative_tensor<L, R, float>();
  reduce_rows(t, r, reduction_operation::max, reduction_operation_identity<float>::max_identity);
  reduce_columns(t, q);
  r.store(tensor(rows, extents<int, 16>()));
  q.store(tensor(columns, extents<int, 32>()));
  if (is_iterator_compatible(t, r))
    for (auto it = t.begin(); it != t.end(); ++it)
      if (t.is_valid_element(it)) *it = *it - *r.map_iterator(t, it);
  t.store(tensor(scaled, extents<int, 32, 16>()));
}
"""


@pytest.mark.parametrize("checked", [False, True])
def test_chained_products_and_reductions(checked):
    generator = np.random.default_rng(3)
    a, b, v = (np.abs(operand(generator, shape, "half")) for shape in ((16, 16), (16, 32), (32, 32)))
    v = -v  # all products negative: a maximum that starts from 0 is wrong
    zeros = [np.zeros(n, np.float32) for n in ((16, 32), 16, 32, (16, 32))]
    kernel = hostmetal.compile(HEADER + CHAINED, checked=checked)
    for layout in LAYOUTS:
        outputs = kernel.dispatch(grid=1, threadgroup=32, buffers=[a, b, v, *zeros, np.zeros(1, np.int32)], **layout).outputs
        s = (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16).astype(np.float64)
        exact = s @ v.astype(np.float64)
        product = np.asarray(outputs[3], np.float64)
        assert np.max(np.abs(product - exact)) < 0.1  # a rounding of s to half may go the other way
        assert np.array_equal(np.asarray(outputs[4]), product.max(1))
        assert np.max(np.abs(np.asarray(outputs[5]) - product.sum(0))) < 1e-3
        assert np.max(np.abs(np.asarray(outputs[6]) - (product - product.max(1, keepdims=True)))) < 1e-4
        if layout["layout"] == "nax":
            assert outputs[7][0] == 1
        if layout["layout"] == "permuted":
            assert outputs[7][0] == 0


FORMATS = """
kernel void formats(device half* a [[buffer(0)]], device uchar* b [[buffer(1)]], device float* c [[buffer(2)]], device FORMAT* unused [[buffer(3)]]) {
  constexpr auto d = matmul2d_descriptor(16, 32, 64, false, true);
  matmul2d<d, execution_simdgroup> op;
  auto A = tensor(a, extents<int, 64, 16>());
  auto B = tensor<device FORMAT, dextents<int, 2>, tensor_inline>((device FORMAT*)b, dextents<int, 2>(128, 32)).slice(64, 0);
  auto C = tensor(c, extents<int, 32, 16>());
  op.run(A, B, C);
}
"""
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
FORMAT_VALUES = {
    "int4b_format": ("26.4", "4.0", 4, np.r_[0:8, -8:0]),
    "uint4b_format": ("26.4", "4.0", 4, np.arange(16)),
    "int2b_format": ("27", "4.1", 2, np.array([0, 1, -2, -1])),
    "metal_fp4_e2m1_format": ("27", "4.1", 4, np.r_[E2M1, -E2M1]),
    "metal_fp8_e4m3_format": ("27", "4.1", 8, np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)),
    "metal_fp8_e5m2_format": ("27", "4.1", 8, np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e5m2).astype(np.float64)),
}


@pytest.mark.parametrize("name", FORMAT_VALUES)
def test_packed_right_operands(name):
    sdk, dialect, bits, values = FORMAT_VALUES[name]
    generator = np.random.default_rng(9)
    usable = np.flatnonzero(np.isfinite(values))
    codes = generator.choice(usable, (32, 128)).astype(np.uint8)
    codes[0, 64:] = np.resize(usable, 64)
    packed = sum(codes[:, k :: 8 // bits].astype(np.uint8) << (k * bits) for k in range(8 // bits)).astype(np.uint8)
    a, c = operand(generator, (16, 64), "half"), np.zeros((16, 32), np.float32)
    kernel = hostmetal.compile(HEADER + FORMATS.replace("FORMAT", name), "formats", sdk=sdk, dialect=dialect)
    out = kernel.dispatch(grid=1, threadgroup=32, buffers=[a, packed, c, np.zeros(8, np.uint8)]).outputs[2]
    assert_product(out, a, values[codes[:, 64:]].T, c, "float")
    with pytest.raises(hostmetal.CompileError):
        hostmetal.compile(HEADER + FORMATS.replace("FORMAT", name), "formats", sdk="26.2" if sdk == "26.4" else "26.4", dialect="4.0")


HANDLES = """
kernel void handles(tensor<device half, dextents<int, 2>> A [[buffer(0)]], tensor<device half, dextents<int, 2>> B [[buffer(1)]],
                    tensor<device float, dextents<int, 2>> C [[buffer(2)]]) {
  matmul2d<matmul2d_descriptor(16, 32), execution_simdgroup> op;
  auto rows = A.slice(0, 4);
  static_assert(has_tensor_offset_v<decltype(rows)> && is_tensor_handle_v<decltype(rows)>);
  op.run(rows, B, C);
}
"""


def _handle(array):
    head = np.zeros(32, np.int64)
    head[: array.ndim] = array.shape[::-1]
    head[16 : 16 + array.ndim] = np.array(array.strides[::-1]) // array.itemsize
    return np.concatenate([head.view(np.uint8), array.reshape(-1).view(np.uint8)])


def test_handles_as_kernel_arguments():
    generator = np.random.default_rng(10)
    a, b, c = operand(generator, (20, 48), "half"), operand(generator, (48, 32), "half"), np.zeros((16, 32), np.float32)
    outputs = run(HANDLES, [_handle(a), _handle(b), _handle(c)], kernel="handles")
    assert_product(outputs[2][256:].view(np.float32).reshape(16, 32), a[4:], b, c, "float")
