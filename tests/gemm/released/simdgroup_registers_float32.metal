// gemm, engine simdgroup, dataflow registers, row nn/ragged
// variant gemm_simdgroup_registers_nn_ragged_f16_f16_f32_full_bm32_bn64_sg1x2_op8x8x8
//
// The host guarantees, before this kernel is enqueued:
// - a and b must have 2 axes
// - the last axis of a and the second last of b must be equal (K)
// - M, N and K must be below 2**31
// - layout: 1 s0.-1 1 == s1.-1 1 == and s0.-2 0 >= and s0.-2 16777216 < and s1.-2 0 >= and s1.-2 16777216 < and and 1 and 1 and
// - 64 threads per threadgroup: 2 simdgroups of 32
// Generated; edit the template, not this file.
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
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

constant constexpr int BM = 32, BN = 64;  // block of C per threadgroup
constant constexpr int SIMDGROUPS_N = 2;
constant constexpr int WM = 32, WN = 32;  // part of the block that one simdgroup owns
constant constexpr int OM = 8, ON = 8, OK = 8;  // one matrix operation
constant constexpr bool RAGGED_M = true, RAGGED_N = true, RAGGED_K = true;

typedef half A;
typedef half B;
typedef float C;

constant constexpr int FRAGMENTS_M = 4, FRAGMENTS_N = 4;  // 8x8 fragments of one simdgroup
typedef half T;  // element of both operands' fragments: theirs, or float where they differ
typedef simdgroup_matrix<T, 8, 8> Fragment;
typedef simdgroup_matrix<float, 8, 8> Sum;

// A lane holds two neighbours of one row of a fragment; x is the column of the first, y the row. Apple does not document
// the map, but MLX's own kernels have relied on it since 2023 (steel/gemm/mma.h).
inline int2 lane_place(uint lane) {
  const int quad = int(lane) / 4;
  return int2((quad & 2) * 2 + int(lane) % 2 * 2, (quad & 4) + int(lane) / 2 % 4);
}

template <typename E>
inline thread metal::vec<E, 2>& lane_elements(thread simdgroup_matrix<E, 8, 8>& fragment) {
  return reinterpret_cast<thread metal::vec<E, 2>&>(fragment.thread_elements());
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

[[kernel, max_total_threads_per_threadgroup(64)]] void gemm_simdgroup_registers_nn_ragged_f16_f16_f32_full_bm32_bn64_sg1x2_op8x8x8_fb180639(
    const device half* __restrict a [[buffer(0)]],
    const device half* __restrict b [[buffer(1)]],
    device float* __restrict c [[buffer(2)]],
    constant GemmParams& p [[buffer(3)]],
    uint3 block [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  // Where this simdgroup works. Simdgroups wholly outside C leave: no other one waits for them.
  const uint2 tile = tile_of(block, p.M, p.N);
  const int row0 = int(tile.y) * BM + int(simdgroup) / SIMDGROUPS_N * WM;
  const int column0 = int(tile.x) * BN + int(simdgroup) % SIMDGROUPS_N * WN;
  if (row0 >= p.M) return;
  if (column0 >= p.N) return;

  // The stride along a contiguous direction is the constant 1, so that its multiplications vanish.
  const long a_m = p.a_m, a_k = 1, b_k = p.b_k, b_n = 1;

  Epilogue finish;
  const int K = p.K;
  const int2 place = lane_place(lane);
  const device A* a_at = a + row0 * a_m;
  const device B* b_at = b + column0 * b_n;

  // Where this lane's elements of A's fragments lie in a step. Rows past the matrix repeat the last one: their
  // products land in elements of C that are never stored.
  int a_lane[FRAGMENTS_M];
#pragma clang loop unroll(full)
  for (int i = 0; i < FRAGMENTS_M; ++i) {
    const int row = i * OM + place.y;
    a_lane[i] = int((RAGGED_M ? min(row, p.M - 1 - row0) : row) * a_m + place.x * a_k);
  }

  // Likewise of B's: columns past the matrix repeat the last one.
  int b_lane[FRAGMENTS_N][2];
#pragma clang loop unroll(full)
  for (int j = 0; j < FRAGMENTS_N; ++j) {
    const int column = j * ON + place.x, last = p.N - 1 - column0;
    b_lane[j][0] = int(place.y * b_k + (RAGGED_N ? min(column, last) : column) * b_n);
    b_lane[j][1] = int(place.y * b_k + (RAGGED_N ? min(column + 1, last) : column + 1) * b_n);
  }

  Fragment left[FRAGMENTS_M], right;
  Sum sum[FRAGMENTS_M][FRAGMENTS_N];
#pragma clang loop unroll(full)
  for (int i = 0; i < FRAGMENTS_M; ++i) {
#pragma clang loop unroll(full)
    for (int j = 0; j < FRAGMENTS_N; ++j) {
      sum[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
  }

  const int steps = K / OK;
#pragma clang loop unroll(disable)
  for (int step = 0; step < steps; ++step) {
#pragma clang loop unroll(full)
    for (int i = 0; i < FRAGMENTS_M; ++i) {
      lane_elements(left[i]) = metal::vec<T, 2>(T(a_at[a_lane[i]]), T(a_at[a_lane[i] + a_k]));
    }
#pragma clang loop unroll(full)
    for (int j = 0; j < FRAGMENTS_N; ++j) {
      lane_elements(right) = metal::vec<T, 2>(T(b_at[b_lane[j][0]]), T(b_at[b_lane[j][1]]));
#pragma clang loop unroll(full)
      for (int i = 0; i < FRAGMENTS_M; ++i) {
        simdgroup_multiply_accumulate(sum[i][j], left[i], right, sum[i][j]);
      }
    }
    a_at += OK * a_k;
    b_at += OK * b_k;
  }

  // The last step of a ragged K: elements past K are zero in both operands, so that no NaN can leak in.
  const int k_left = K - steps * OK;
  if (k_left > 0) {
#pragma clang loop unroll(full)
    for (int i = 0; i < FRAGMENTS_M; ++i) {
      lane_elements(left[i]) = metal::vec<T, 2>(place.x < k_left ? T(a_at[a_lane[i]]) : T(0.0f), place.x + 1 < k_left ? T(a_at[a_lane[i] + a_k]) : T(0.0f));
    }
#pragma clang loop unroll(full)
    for (int j = 0; j < FRAGMENTS_N; ++j) {
      lane_elements(right) = metal::vec<T, 2>(place.y < k_left ? T(b_at[b_lane[j][0]]) : T(0.0f), place.y < k_left ? T(b_at[b_lane[j][1]]) : T(0.0f));
#pragma clang loop unroll(full)
      for (int i = 0; i < FRAGMENTS_M; ++i) {
        simdgroup_multiply_accumulate(sum[i][j], left[i], right, sum[i][j]);
      }
    }
  }

  // Rounds once, after the epilogue.
#pragma clang loop unroll(full)
  for (int i = 0; i < FRAGMENTS_M; ++i) {
#pragma clang loop unroll(full)
    for (int j = 0; j < FRAGMENTS_N; ++j) {
      const int row = row0 + i * OM + place.y, column = column0 + j * ON + place.x;
      const metal::vec<float, 2> x = lane_elements(sum[i][j]);
      if ((!RAGGED_M || row < p.M) && (!RAGGED_N || column < p.N)) c[row * p.c_m + column] = C(finish.apply(x[0], row, column));
      if ((!RAGGED_M || row < p.M) && (!RAGGED_N || column + 1 < p.N)) c[row * p.c_m + column + 1] = C(finish.apply(x[1], row, column + 1));
    }
  }
}
