// gemm, engine mpp, dataflow tensor, row nn/ragged
// variant gemm_mpp_tensor_nn_ragged_f16_f16_f32_relaxed_bm64_bn128_sg1x1x4_op64x128xK
//
// The host guarantees, before this kernel is enqueued:
// - a and b must have 2 axes
// - the last axis of a and the second last of b must be equal (K)
// - M, N and K must be below 2**31
// - layout: 1 s0.-1 1 == s1.-1 1 == and s0.-2 0 >= and s0.-2 16777216 < and s1.-2 0 >= and s1.-2 16777216 < and and 1 and d0.-2 64 min 1 == s0.-2 d0.-1 >= or d0.-2 64 min 1 - s0.-2 * d0.-1 + 1073741824 < and d0.-1 1 == s1.-2 d1.-1 128 min >= or and d0.-1 1 - s1.-2 * d1.-1 128 min + 1073741824 < and and
// - 128 threads per threadgroup: 4 simdgroups of 32
// Generated; edit the template, not this file.
#include <metal_stdlib>
#if __METAL_VERSION__ >= 400
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
#endif
using namespace metal;

struct GemmParams {
  long a_m;
  long a_k;
  long b_k;
  long b_n;
  long c_m;
  int M;
  int N;
  int K;
};

#if __METAL_VERSION__ >= 400

constant constexpr int BM = 64, BN = 128;  // block of C per threadgroup, and one matrix operation
constant constexpr int SIMDGROUPS = 4;  // of a threadgroup: all of them execute the operation together
constant constexpr bool RAGGED_M = true, RAGGED_N = true;

typedef half A;
typedef half B;
typedef float C;

// Views of operands in device memory, over non-const elements: matmul2d has no row for const ones.
typedef tensor<device A, dextents<int, 2>, tensor_inline> Left;
typedef tensor<device B, dextents<int, 2>, tensor_inline> Right;

template <typename CT>
inline void zero(thread CT& ct) {
#pragma clang loop unroll(full)
  for (ushort i = 0; i < ct.get_capacity(); ++i) {
    ct[i] = 0.0f;
  }
}

// Rounds once, after the epilogue. `row0` and `column0` place the fragment in C.
template <bool MASK_ROWS, bool MASK_COLUMNS, typename CT, typename T, typename E>
inline void store(thread CT& ct, device T* c, long c_m, int row0, int column0, int M, int N, thread const E& finish) {
#pragma clang loop unroll(full)
  for (ushort i = 0; i < ct.get_capacity(); ++i) {
    const auto index = ct.get_multidimensional_index(i);
    const int row = row0 + int(index[1]), column = column0 + int(index[0]);
    const bool inside = (!MASK_ROWS || row < M) && (!MASK_COLUMNS || column < N);
    if (ct.is_valid_element(i) && inside) c[row * c_m + column] = T(finish.apply(ct[i], row, column));
  }
}

// From the f32 accumulator to the value that is rounded: x
struct Epilogue {

  float apply(float x, long row, long column) const thread {
    return x;
  }
};

// Which block of C a threadgroup computes: the grid as it is
inline uint2 tile_of(uint3 block, int M, int N) {
  return block.xy;
}

#endif  // __METAL_VERSION__ >= 400

[[kernel, max_total_threads_per_threadgroup(128)]] void gemm_mpp_tensor_nn_ragged_f16_f16_f32_relaxed_bm64_bn128_sg1x1x4_op64x128xK_71b2f26b(
    const device half* __restrict a [[buffer(0)]],
    const device half* __restrict b [[buffer(1)]],
    device float* __restrict c [[buffer(2)]],
    constant GemmParams& p [[buffer(3)]],
    uint3 block [[threadgroup_position_in_grid]]) {
#if __METAL_VERSION__ >= 400
  constexpr auto descriptor = mpp::tensor_ops::matmul2d_descriptor(
      64, 128, static_cast<int>(metal::dynamic_extent),
      /*transpose_left=*/false, /*transpose_right=*/false, /*relaxed_precision=*/true,
      mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate);
  mpp::tensor_ops::matmul2d<descriptor, execution_simdgroups<SIMDGROUPS>> op;

  // Where this threadgroup works. Its simdgroups wait for each other, so all of them leave or none does.
  const uint2 tile = tile_of(block, p.M, p.N);
  const int row0 = int(tile.y) * BM, column0 = int(tile.x) * BN;

  // The stride along a contiguous direction is the constant 1, so that its multiplications vanish.
  const long a_m = p.a_m, a_k = 1, b_k = p.b_k, b_n = 1;

  Epilogue finish;

  auto result = op.get_destination_cooperative_tensor<Left, Right, float>();
  zero(result);

  // Views begin at this block, by 64-bit pointers. Their extents end where the matrix ends: past them the operation
  // reads zeros. Extents and strides are written innermost first.
  device A* left_origin = const_cast<device A*>(a + row0 * a_m);
  device B* right_origin = const_cast<device B*>(b + column0 * b_n);
  const int rows = min(BM, p.M - row0), columns = min(BN, p.N - column0);
  Left left(left_origin, dextents<int, 2>(p.K, rows), array<int, 2>({1, int(a_m)}));
  Right right(right_origin, dextents<int, 2>(columns, p.K), array<int, 2>({1, int(b_k)}));
  op.run(left, right, result);

  store<RAGGED_M, RAGGED_N>(result, c, p.c_m, row0, column0, p.M, p.N, finish);
#endif  // __METAL_VERSION__ >= 400: older dialects get an empty stub, which no engine ever selects
}
