// gemm, engine mpp, dataflow register_direct, row nn/ragged
// variant gemm_mpp_register_direct_nn_ragged_f16_f16_f16_relaxed_bm64_bn128_sg2x4_op16x32x16
//
// The host guarantees, before this kernel is enqueued:
// - a and b must have 2 axes
// - the last axis of a and the second last of b must be equal (K)
// - M, N and K must be below 2**31
// - layout: 1 s0.-1 1 == s1.-1 1 == and s0.-2 0 >= and s0.-2 16777216 < and s1.-2 0 >= and s1.-2 16777216 < and and 1 and 1 and
// - 256 threads per threadgroup: 8 simdgroups of 32
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

constant constexpr int BM = 64, BN = 128;  // block of C per threadgroup
constant constexpr int SIMDGROUPS_N = 4;
constant constexpr int WM = 32, WN = 32;  // part of the block that one simdgroup owns
constant constexpr int OM = 16, ON = 32, OK = 16;  // one matrix operation
constant constexpr bool RAGGED_M = true, RAGGED_N = true, RAGGED_K = true;

typedef half A;
typedef half B;
typedef half C;

constant constexpr int BK = 256;  // K between two barriers

// Room for twice the elements a lane owns: a layout may have slots that are no matrix element.
constant constexpr int LEFT_SLOTS = 2 * OM * OK / 32, RIGHT_SLOTS = 2 * OK * ON / 32;
typedef int Offset;  // element offset inside one fragment
typedef Offset LeftPlaces[LEFT_SLOTS], RightPlaces[RIGHT_SLOTS];

// Where this lane's slots of a fragment lie, counted from the fragment's origin. Queried once, outside the
// K loop. Coordinate [0] is the stored column, [1] the stored row. Rows and columns past the matrix repeat
// the last one: their products land in elements of C that are never stored.
template <bool CLAMP_ROWS, bool CLAMP_COLUMNS, typename CT, typename Offset>
inline void locate(thread CT& ct, thread Offset* at, long row_stride, long column_stride, int rows, int columns) {
#pragma clang loop unroll(full)
  for (ushort i = 0; i < ct.get_capacity(); ++i) {
    const auto index = ct.get_multidimensional_index(i);
    const bool valid = ct.is_valid_element(i);  // other slots read element (0, 0), clamped, and are ignored
    int row = valid ? int(index[1]) : 0, column = valid ? int(index[0]) : 0;
    if (CLAMP_ROWS) row = min(row, rows - 1);
    if (CLAMP_COLUMNS) column = min(column, columns - 1);
    at[i] = Offset(row * row_stride + column * column_stride);
  }
}

// From device or threadgroup memory.
template <typename CT, typename Pointer, typename Offset>
inline void fill(thread CT& ct, Pointer origin, thread const Offset* at) {
#pragma clang loop unroll(full)
  for (ushort i = 0; i < ct.get_capacity(); ++i) {
    ct[i] = origin[at[i]];
  }
}

// The last step of a ragged K: elements past K are zero in both operands, so that no NaN can leak in.
template <int K_COORDINATE, typename CT, typename T, typename Offset>
inline void fill_tail(thread CT& ct, const device T* origin, thread const Offset* at, int k_left) {
#pragma clang loop unroll(full)
  for (ushort i = 0; i < ct.get_capacity(); ++i) {
    const auto index = ct.get_multidimensional_index(i);
    const bool inside = ct.is_valid_element(i) && int(index[K_COORDINATE]) < k_left;
    T value = T(0.0f);
    if (inside) value = origin[at[i]];
    ct[i] = value;
  }
}

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

typedef A LeftValues[LEFT_SLOTS];
typedef B RightValues[RIGHT_SLOTS];

// Device memory -> registers.
template <typename CT, typename T, typename Offset>
inline void read(thread CT& ct, thread T* values, const device T* origin, thread const Offset* at) {
#pragma clang loop unroll(full)
  for (ushort i = 0; i < ct.get_capacity(); ++i) {
    values[i] = origin[at[i]];
  }
}

// Registers -> cooperative tensor.
template <typename CT, typename T>
inline void put(thread CT& ct, thread const T* values) {
#pragma clang loop unroll(full)
  for (ushort i = 0; i < ct.get_capacity(); ++i) {
    ct[i] = values[i];
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

[[kernel, max_total_threads_per_threadgroup(256)]] void gemm_mpp_register_direct_nn_ragged_f16_f16_f16_relaxed_bm64_bn128_sg2x4_op16x32x16_88338bec(
    const device half* __restrict a [[buffer(0)]],
    const device half* __restrict b [[buffer(1)]],
    device half* __restrict c [[buffer(2)]],
    constant GemmParams& p [[buffer(3)]],
    uint3 block [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
#if __METAL_VERSION__ >= 400
  constexpr auto descriptor = mpp::tensor_ops::matmul2d_descriptor(
      16, 32, 16,
      /*transpose_left=*/false, /*transpose_right=*/false, /*relaxed_precision=*/true,
      mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate);
  mpp::tensor_ops::matmul2d<descriptor, execution_simdgroup> op;

  // Where this simdgroup works. Others wait for it at a barrier, so only whole threadgroups leave.
  const uint2 tile = tile_of(block, p.M, p.N);
  const int row0 = int(tile.y) * BM + int(simdgroup) / SIMDGROUPS_N * WM;
  const int column0 = int(tile.x) * BN + int(simdgroup) % SIMDGROUPS_N * WN;

  // The stride along a contiguous direction is the constant 1, so that its multiplications vanish.
  const long a_m = p.a_m, a_k = 1, b_k = p.b_k, b_n = 1;

  Epilogue finish;

  auto left = op.get_left_input_cooperative_tensor<A, B, float>();
  auto right = op.get_right_input_cooperative_tensor<A, B, float>();
  typedef remove_addrspace_t<decltype(left)> Left;
  typedef remove_addrspace_t<decltype(right)> Right;
  auto c00 = op.get_destination_cooperative_tensor<Left, Right, float>();
  zero(c00);
  auto c10 = op.get_destination_cooperative_tensor<Left, Right, float>();
  zero(c10);

  const device A* a0 = a + (row0 + 0 * OM) * a_m;
  LeftPlaces a0_at;
  locate<RAGGED_M, false>(left, a0_at, a_m, a_k, p.M - row0 - 0 * OM, OK);
  const device A* a1 = a + (row0 + 1 * OM) * a_m;
  LeftPlaces a1_at;
  locate<RAGGED_M, false>(left, a1_at, a_m, a_k, p.M - row0 - 1 * OM, OK);
  const device B* b0 = b + (column0 + 0 * ON) * b_n;
  RightPlaces b0_at;
  locate<false, RAGGED_N>(right, b0_at, b_k, b_n, OK, p.N - column0 - 0 * ON);

#pragma clang loop unroll(disable)
  for (int first = 0; first < p.K; first += BK) {
    // Orders no memory: it only keeps the simdgroups of a threadgroup at the same place in A and B, so that their loads
    // meet in the caches.
    threadgroup_barrier(mem_flags::mem_none);
    const int steps = min(BK, p.K - first) / OK;
#pragma clang loop unroll(disable)
    for (int step = 0; step < steps; ++step) {
      LeftValues a0_values;
      read(left, a0_values, a0, a0_at);
      a0 += OK * a_k;
      LeftValues a1_values;
      read(left, a1_values, a1, a1_at);
      a1 += OK * a_k;
      RightValues b0_values;
      read(right, b0_values, b0, b0_at);
      b0 += OK * b_k;
      // Changes no value. MLX and Butter keep a volatile local alive over a step to hold register pressure down: its accesses
      // may not be merged or moved past each other, so the compiler does not interleave the fragments of several steps.
      volatile int fence = step;
      (void)fence;
      put(right, b0_values);
      put(left, a0_values);
      op.run(left, right, c00);
      put(left, a1_values);
      op.run(left, right, c10);
    }
  }

  const int k_left = p.K % OK;
  if (RAGGED_K && k_left > 0) {
    fill_tail<1>(right, b0, b0_at, k_left);
    fill_tail<0>(left, a0, a0_at, k_left);
    op.run(left, right, c00);
    fill_tail<0>(left, a1, a1_at, k_left);
    op.run(left, right, c10);
  }

  store<RAGGED_M, RAGGED_N>(c00, c, p.c_m, row0 + 0 * OM, column0 + 0 * ON, p.M, p.N, finish);
  store<RAGGED_M, RAGGED_N>(c10, c, p.c_m, row0 + 1 * OM, column0 + 0 * ON, p.M, p.N, finish);
#endif  // __METAL_VERSION__ >= 400: older dialects get an empty stub, which no engine ever selects
}
