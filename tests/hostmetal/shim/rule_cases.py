"""What Apple's compiler rejects and accepts, as far as primary sources say. One row for each rule.

``known``: "verified" where a specification, an SDK header or a compiler's output states the rule, "inferred" where we
conclude it. ``sdk`` and ``dialect`` are where the verdict holds; ``elsewhere`` is a (sdk, dialect) in which the same text
is accepted, so that the test also shows that the switch works. ``says``: part of the message, where it is known. ``lint``:
only :func:`hostmetal.lint`, which reads declarations, sees it; a compile does not.
"""

from __future__ import annotations

from dataclasses import dataclass

PRELUDE = """
#include <metal_stdlib>
using namespace metal;
"""
MPP = """
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;
"""
OPERANDS = """
using TA = tensor<device half, dextents<int, 2>, tensor_inline>;
using TC = tensor<device float, dextents<int, 2>, tensor_inline>;
kernel void k(device half* a [[buffer(0)]], device half* b [[buffer(1)]], device float* c [[buffer(2)]],
              constant int& M [[buffer(3)]], constant int& N [[buffer(4)]], constant int& K [[buffer(5)]],
              device bfloat* bf [[buffer(6)]], device char* i8 [[buffer(7)]], constant int& ld [[buffer(8)]]) {
  TA A(a, dextents<int, 2>(K, M));
  TA B(b, dextents<int, 2>(N, K));
  TC C(c, dextents<int, 2>(N, M));
"""
FRAGMENTS = """
  matmul2d<d, SCOPE> op;
  auto l = op.get_left_input_cooperative_tensor<half, half, float>();
  auto r = op.get_right_input_cooperative_tensor<half, half, float>();
  auto t = op.get_destination_cooperative_tensor<remove_addrspace_t<decltype(l)>, remove_addrspace_t<decltype(r)>, float>();
  op.run(l, r, t);
"""


@dataclass(frozen=True)
class Reject:
    name: str
    text: str
    why: str
    known: str = "verified"
    mpp: bool = False
    sdk: str = "26.4"
    dialect: str = "4.0"
    elsewhere: tuple[str, str] | None = None
    says: str = ""
    lint: bool = False

    def source(self) -> str:
        text = OPERANDS + self.text + "\n}" if self.mpp else self.text
        if "kernel" not in text:
            text += "\nkernel void k(device float* d [[buffer(0)]]) { d[0] = 0; }"
        return (MPP if self.mpp else PRELUDE) + text


def language(name, text, why, known="verified", **more):
    return Reject(name, text, why, known, **more)


def operation(name, text, why, known="verified", **more):
    return Reject(name, text, why, known, mpp=True, **more)


def fragments(name, descriptor, why, scope="execution_simdgroup", known="verified", **more):
    text = f"constexpr auto d = matmul2d_descriptor({descriptor});" + FRAGMENTS.replace("SCOPE", scope)
    return operation(name, text, why, known, **more)


def tile(name, descriptor, why, says, elsewhere=("26.2", "4.0")):
    text = (f"matmul2d<matmul2d_descriptor({descriptor}), execution_simdgroups<4>> op; "
            "auto t = op.get_destination_cooperative_tensor<TA, TA, float>(); op.run(A, B, t);")
    return operation(name, text, why, elsewhere=elsewhere, says=says)


PLAIN = "constexpr auto d = matmul2d_descriptor(16, 32); matmul2d<d, execution_simdgroup> op; "

REJECTED = [
    language("R1", "float f(float* p) { return *p; }", "pointer without address space", lint=True),
    language("R2", "kernel void k(device float* d [[buffer(0)]]) { thread float* t = d; }", "device to thread"),
    language("R3", "kernel void k(device float* d [[buffer(0)]], threadgroup float* s [[threadgroup(0)]]) { d = (device float*)s; }", "cast between address spaces"),
    language("R4", "void g(thread float& x); kernel void k(device float* d [[buffer(0)]]) { g(d[0]); }", "device lvalue does not bind to thread&"),
    language("R5", "kernel void k(thread float* p [[buffer(0)]]) {}", "kernel pointer argument in thread space"),
    language("R6", "float g_scale = 2.0f;", "program-scope variable not in constant", lint=True),
    language("R7", "constant float tab[2] = {1, 2}; kernel void k(device float* d [[buffer(0)]]) { tab[0] = 3; }", "store to constant"),
    language("R9", "void h() { threadgroup float s[4]; s[0] = 1; }", "threadgroup variable outside a kernel body"),
    language("R10", "struct V { float x; V() { x = 0; } }; kernel void k(device float* d [[buffer(0)]]) { threadgroup V v; d[0] = v.x; }", "constructor in threadgroup memory"),
    language("R11", "double x() { double y = 1.0; return y; }", "no double"),
    language("R12", "struct B { virtual int f(); };", "no virtual"),
    language("R13", "void f() { try { } catch (...) { } }", "no exceptions"),
    language("R14", "void f() { goto e; e:; }", "no goto"),
    language("R15", "int f() { return std::min(1, 2); }", "no std"),
    language("R16", "kernel int k(device float* d [[buffer(0)]]) { return 1; }", "kernel must return void"),
    language("R17", "half4 f(float4 v) { half4 h = v; return h; }", "implicit vector conversion"),
    language("R18", "bfloat f(float x) { return x; }", "float to bfloat is explicit only"),
    language("R19", "float f(half h, bfloat b) { return h + b; }", "half and bfloat have no common type"),
    language("R20", "bfloat f(bfloat b) { return abs(b); }", "math on bfloat returns float"),
    language("R21", "void f(float4 v) { v.xx = float2(1, 2); }", "duplicate in a written swizzle"),
    language("R22", "float2 f(float4 v) { return v.xg; }", "mixed swizzle sets"),
    language("R23", "void f(float4 v) { thread float2* p = &v.xy; }", "address of a swizzle"),
    language("R24", "float f(half h) { return as_type<float>(h); }", "as_type between sizes"),
    language("R25", "void f() { int device = 0; }", "reserved word"),
    language("R26", "kernel void k(device float* p [[buffer(31)]]) {}", "buffer index above 30", "inferred"),
    language("R27", "int n = 8; constant int m = n;", "program-scope variable not in constant", lint=True),
    language("R28", "struct S { float v[2]; thread float& at(int i) { return v[i]; } };", "trailing thread missing", dialect="4.1"),
    tile("R29", "8, 8", "neither M nor N a multiple of 16", "At least one of M or N must be a multiple of 16"),
    tile("R30", "24, 20", "N not a multiple of 8", "N must be a multiple of 8"),
    tile("R31", "16, 32, 24", "static K not a multiple of 16", "K must be dynamic or a multiple of 16"),
    fragments("R32", "16, 16, 16", "none of M, N, K is 32", says="At least one of M, N, or K must be 32"),
    fragments("R33", "64, 32, 16", "M neither 16 nor 32", says="M must be 16 or 32"),
    fragments("R34", "16, 32, 16", "cooperative inputs need one simdgroup", scope="execution_simdgroups<4>", says="Input cooperative tensors require a single SIMD group"),
    fragments("R35", "16, 32", "cooperative inputs need a static K", says="Inner dimension cannot be dynamic with input cooperative tensors"),
    operation("R36", PLAIN + "auto H = tensor(a, dextents<int, 2>(K, M)); auto F = tensor(bf, dextents<int, 2>(N, K)); auto T = tensor(bf, dextents<int, 2>(K, M)); auto G = tensor(b, dextents<int, 2>(N, K)); "
              "auto t = op.get_destination_cooperative_tensor<remove_addrspace_t<decltype(H)>, remove_addrspace_t<decltype(F)>, float>(); op.run(T, G, t);",
              "operand types differ from those recorded", elsewhere=("26.1", "4.0"), says="Input types must match cooperative tensor types"),
    operation("R37", PLAIN + "op.run(A.slice(0, 0), B.slice(0, 0), C);", "temporaries do not bind"),
    operation("R38", PLAIN + "tensor<device half, dextents<uint, 2>, tensor_inline> U(a, dextents<uint, 2>(K, M)); op.run(U, B, C);", "index type not int", says="Index type must be int"),
    operation("R39", PLAIN + "auto T3 = tensor(a, dextents<int, 3>(K, M, 1)); op.run(T3, B, C);", "rank 3", says="Operand must have rank 2"),
    operation("R40", PLAIN + "auto t = op.get_destination_cooperative_tensor<TA, TA, float>(); auto H = tensor(a, dextents<int, 2>(N, M)); t.store(H);", "store needs the same element type"),
    operation("R41", "tensor<device half, dextents<int, 2>, tensor_offset> t(a, dextents<int, 2>(K, M));", "tag used as a descriptor"),
    operation("R42", "auto s = A.static_slice<16, 16>(0, 0);", "no such member"),
    operation("R43", "constexpr auto d = matmul2d_descriptor(16, 32); matmul2d<d, execution_threadgroup> op;", "no such scope"),
    operation("R44", PLAIN + "auto P = tensor(i8, dextents<int, 2>(K, M)); auto Q = tensor(i8, dextents<int, 2>(N, K)); op.run(P, Q, C);", "int8 with int8 gives int32 only", says="Unsupported type"),
    operation("R45a", "threadgroup half s[512]; auto S = tensor(s, dextents<int, 2>(16, 1)); matmul2d<matmul2d_descriptor(1, 16), execution_thread> op; op.run(S, B, C);", "threadgroup operand of one thread", says="Unsupported address space"),
    operation("R45b", "half s[512]; auto S = tensor((thread half*)s, dextents<int, 2>(16, 16)); " + PLAIN + "op.run(S, B, C);", "thread operand of a simdgroup", says="Unsupported address space"),
    operation("R46a", PLAIN + "auto t = op.get_destination_cooperative_tensor<TA, TA, float>(); constexpr int n = t.get_capacity();", "capacity is no constant"),
    operation("R46b", PLAIN + "auto t = op.get_destination_cooperative_tensor<TA, TA, float>(); float v[t.get_capacity()]; v[0] = 0;", "capacity is no array bound"),
    operation("R47", "matmul2d<matmul2d_descriptor(3, 32), execution_thread> op; op.run(A, B, C);", "thread scope: M is 1, 2, 4 or a multiple of 8", elsewhere=("26.2", "4.0"), says="M must be 1, 2, 4, or a multiple of 8 with execution_thread"),
    operation("R48", "constexpr auto d = matmul2d_descriptor(16, 32, 16, false, false, matmul2d_descriptor::mode::multiply);", "arguments out of order", "inferred"),
    operation("R49", "", "MPP is empty below Metal 4", dialect="3.2", elsewhere=("26.4", "4.0")),
    operation("R50", PLAIN + "const auto constA = A; op.run(constA, B, C);", "const operand", "inferred"),
    operation("R51", "constexpr auto d = matmul2d_descriptor(16, 32, 16); matmul2d<d, execution_simdgroup> op; auto l = op.get_left_input_cooperative_tensor<half, half, float>(); "
              "auto r = op.get_right_input_cooperative_tensor<half, half, float>(); auto t = op.get_destination_cooperative_tensor<decltype(l), decltype(r), float>(); op.run(l, r, t);",
              "decltype carries thread from 4.1 on", dialect="4.1", elsewhere=("26.4", "4.0")),
    language("R52", "kernel void k(const constant float* p [[buffer(0)]]) { const device float* q = p; }", "an input of fewer than 8 elements is bound as constant"),
    operation("R53", "matmul2d<matmul2d_descriptor(1, 16, 32), execution_thread> op; auto t = op.get_destination_cooperative_tensor<TA, TA, float>(); op.run(A, B, t);", "one thread has no cooperative destination", says="destination cannot be cooperative tensor"),
    operation("R54", PLAIN + "auto H = tensor((const device half*)a, dextents<int, 2>(K, M)); op.run(H, B, C);", "const element type", "inferred", says="Unsupported type"),
    operation("R55", "constexpr auto d = matmul2d_descriptor(16, 32, 16); matmul2d<d, execution_simdgroup> op; auto l = op.get_left_input_cooperative_tensor<half, half, half>(); "
              "auto r = op.get_right_input_cooperative_tensor<half, half, half>(); auto t = op.get_destination_cooperative_tensor<remove_addrspace_t<decltype(l)>, remove_addrspace_t<decltype(r)>, float>(); op.run(l, r, t);",
              "recorded destination type differs", says="Input types must match cooperative tensor types"),
    operation("R56", "constexpr auto d = matmul2d_descriptor(16, 32, 16); matmul2d<d, execution_simdgroup> op; auto l = op.get_left_input_cooperative_tensor<half, half, float>();",
              "no input cooperative tensors before 26.2", sdk="26.1", elsewhere=("26.2", "4.0")),
    operation("R57", "float x = reduction_operation_identity<float>::max_identity; c[0] = x;", "the header misses the call parentheses", "inferred", sdk="26.0", elsewhere=("26.2", "4.0")),
    operation("bfloat-26.0", PLAIN + "auto P = tensor(bf, dextents<int, 2>(K, M)); auto Q = tensor(bf, dextents<int, 2>(N, K)); op.run(P, Q, C);", "bfloat rows arrive in 26.1", sdk="26.0", elsewhere=("26.1", "4.0"), says="Unsupported type"),
    operation("uint8-26.2", PLAIN + "auto P = tensor((device uchar*)i8, dextents<int, 2>(K, M)); op.run(P, B, C);", "uint8 rows arrive in 26.4", sdk="26.2", elsewhere=("26.4", "4.0"), says="Unsupported type"),
]

ACCEPTED_LANGUAGE = """
constant constexpr int A1 = 4;
struct A1S { static constant constexpr const int W = 2; };
float a2(device const float* p) { return *p; }
float a2(threadgroup const float* p) { return *p; }
void a3() { auto add = [&](thread float& x) { x += 1; }; float y = 0; add(y); }
void a4() { half4 h = half4(float4(1)); float4 f = float4(h); bfloat4 b = bfloat4(f); f = float4(b); }
float a5() { float x = half(2); half y = 2.0f; float z = bfloat(1.0bf); return x + y + z; }
void a6() { ushort u = as_type<ushort>(half(1)); uint2 w = as_type<uint2>(half4(0)); w.x += u; }
struct A9B { float x; };
struct A9 : A9B { float y; };
template <typename T> int a10() { if constexpr (sizeof(T) == 2) { return 2; } else { return 4; } }
constant bool a8 [[function_constant(200)]];
struct A25 { float v[2]; thread float& at(int i) thread { return v[i]; } };
template <typename T> [[kernel]] void a7(device T* p [[buffer(0)]]) { p[0] = T(a8 ? 1 : 2); }
template [[host_name("k_f32")]] [[kernel]] decltype(a7<float>) a7<float>;
kernel void a11(device float* d [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  threadgroup float s[64];
  s[i & 63] = d[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  d[i] = s[63 - (i & 63)];
}
kernel void a12(device float* d [[buffer(0)]], device half* h [[buffer(1)]]) {
  simdgroup_float8x8 acc = make_filled_simdgroup_matrix<float, 8>(0.f);
  simdgroup_half8x8 a, b;
  simdgroup_load(a, h);
  simdgroup_load(b, h, 8, ulong2(0, 0), true);
  simdgroup_multiply_accumulate(acc, a, b, acc);
  simdgroup_store(acc, d);
}
"""
ACCEPTED_OPERATIONS = OPERANDS + """
  auto A13 = tensor(a, dextents<int, 2>(K, M), array<int, 2>({1, ld}));
  threadgroup half s[512];
  auto A14 = tensor<threadgroup half, extents<int, 32, 16>, tensor_inline>(s, extents<int, 32, 16>());
  {  // A15, A22, A23
    constexpr auto d = matmul2d_descriptor(16, 32, 16, false, false, true, matmul2d_descriptor::mode::multiply_accumulate);
    matmul2d<d, execution_simdgroup> op;
    auto l = op.get_left_input_cooperative_tensor<half, half, float>();
    auto r = op.get_right_input_cooperative_tensor<half, half, float>();
    using L = metal::remove_addrspace_t<decltype(l)>;
    auto t = op.get_destination_cooperative_tensor<L, metal::remove_addrspace_t<decltype(r)>, float>();
    for (ushort i = 0; i < t.get_capacity(); ++i)
      if (t.is_valid_element(i)) { auto rc = t.get_multidimensional_index(i); t[i] = rc[0] + rc[1]; }
    op.run(l, r, t);
    t.store(C.slice(1, 2));  // A20
  }
  {  // A16, A21
    matmul2d<matmul2d_descriptor(64, 32, static_cast<int>(dynamic_extent)), execution_simdgroups<4>> op;
    auto sA = A.slice(0, 1); auto sB = B.slice(1, 0); auto sC = C.slice(1, 1);
    op.run(sA, sB, sC);
    constexpr auto d = matmul2d_descriptor(64, 32);
    matmul2d<d, execution_simdgroups<4>>{}.run(sA, sB, sC);
  }
  {  // A17
    constexpr auto d = matmul2d_descriptor(16, 32, 32);
    matmul2d<d, execution_simdgroup> op;
    auto l = op.get_left_input_cooperative_tensor<char, char, int>();
    auto R = tensor<device char, dextents<int, 2>, tensor_inline>(i8, dextents<int, 2>(N, K));
    auto t = op.get_destination_cooperative_tensor<metal::remove_addrspace_t<decltype(l)>, metal::remove_addrspace_t<decltype(R)>, int>();
    op.run(l, R, t);
  }
  {  // A18
    matmul2d<matmul2d_descriptor(8, 32, 16), execution_simdgroup> op;
    auto P = tensor<threadgroup half, extents<int, 16, 8>, tensor_inline>(s, extents<int, 16, 8>());
    auto Q = tensor<threadgroup half, extents<int, 32, 16>, tensor_inline>(s, extents<int, 32, 16>());
    auto t = op.get_destination_cooperative_tensor<metal::remove_addrspace_t<decltype(P)>, metal::remove_addrspace_t<decltype(Q)>, float>();
    op.run(P, Q, t);
  }
  {  // A19
    matmul2d<matmul2d_descriptor(1, 16, 32), execution_thread> op;
    half x[32];
    float y[16];
    for (int i = 0; i < 32; ++i) x[i] = 0;
    auto X = tensor((thread half*)x, extents<int, 32, 1>());
    auto Y = tensor((thread float*)y, extents<int, 16, 1>());
    op.run(X, B, Y);
  }
  const device half* cw = a;
  device half* w = const_cast<device half*>(cw);  // A24
  w[0] = A13.get(0, 0) + A14.get(0, 0);
}
"""
