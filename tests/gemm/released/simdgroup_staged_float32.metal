// gemm, engine simdgroup, dataflow staged, row nn/ragged
// variant gemm_simdgroup_staged_nn_ragged_f16_f16_f32_full_bm64_bn64_sg2x2_op8x8x8
//
// The host guarantees, before this kernel is enqueued:
// - a and b must have 2 axes
// - the last axis of a and the second last of b must be equal (K)
// - M, N and K must be below 2**31
// - layout: 1 s0.-1 1 == s1.-1 1 == and s0.-2 0 >= and s0.-2 16777216 < and s1.-2 0 >= and s1.-2 16777216 < and and 1 and 1 and
// - 128 threads per threadgroup: 4 simdgroups of 32
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

constant constexpr int BM = 64, BN = 64;  // block of C per threadgroup
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

// Tiles lie in threadgroup memory as their operands do in device memory: K_FAST where neighbours differ in K. The skew
// keeps rows of a tile from starting in the same bank.
constant constexpr int BK = 16, THREADS = 128, SKEW = 8;
constant constexpr bool A_K_FAST = true, B_K_FAST = false;
constant constexpr int A_PITCH = (A_K_FAST ? BK : BM) + SKEW, B_PITCH = (B_K_FAST ? BK : BN) + SKEW;
constant constexpr int A_OUTER = A_K_FAST ? A_PITCH : 1, A_STEP = A_K_FAST ? 1 : A_PITCH;
constant constexpr int B_OUTER = B_K_FAST ? B_PITCH : 1, B_STEP = B_K_FAST ? 1 : B_PITCH;

// Copies BK steps of OUTER rows of A or columns of B; neighbouring threads take neighbouring elements. Zero outside the
// matrix, so that no NaN can leak in.
template <bool K_FAST, int OUTER, int PITCH, bool MASK_OUTER, bool MASK_K, typename E>
inline void stage(threadgroup T* tile, const device E* origin, long outer_stride, long k_stride, int outer_left, int k_left, uint thread_index) {
#pragma clang loop unroll(full)
  for (int i = 0; i < OUTER * BK / THREADS; ++i) {
    const int at = i * THREADS + int(thread_index);
    const int outer = K_FAST ? at / BK : at % OUTER, k = K_FAST ? at % BK : at / OUTER;
    T value = T(0.0f);
    if ((!MASK_OUTER || outer < outer_left) && (!MASK_K || k < k_left)) value = T(origin[int(outer * outer_stride + k * k_stride)]);
    tile[K_FAST ? outer * PITCH + k : k * PITCH + outer] = value;
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

[[kernel, max_total_threads_per_threadgroup(128)]] void gemm_simdgroup_staged_nn_ragged_f16_f16_f32_full_bm64_bn64_sg2x2_op8x8x8_051a77e0(
    const device half* __restrict a [[buffer(0)]],
    const device half* __restrict b [[buffer(1)]],
    device float* __restrict c [[buffer(2)]],
    constant GemmParams& p [[buffer(3)]],
    uint3 block [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint thread_index [[thread_index_in_threadgroup]]) {
  threadgroup T a_tile[(A_K_FAST ? BM : BK) * A_PITCH];
  threadgroup T b_tile[(B_K_FAST ? BN : BK) * B_PITCH];
  // Where this threadgroup works. Its simdgroups wait for each other, so all of them leave or none does.
  const uint2 tile = tile_of(block, p.M, p.N);
  const int row0 = int(tile.y) * BM, column0 = int(tile.x) * BN;

  // The stride along a contiguous direction is the constant 1, so that its multiplications vanish.
  const long a_m = p.a_m, a_k = 1, b_k = p.b_k, b_n = 1;

  Epilogue finish;
  const int K = p.K;
  const int2 place = lane_place(thread_index % 32);
  const int own_row = int(simdgroup) / SIMDGROUPS_N * WM, own_column = int(simdgroup) % SIMDGROUPS_N * WN;
  threadgroup const T* a_part = a_tile + own_row * A_OUTER;
  threadgroup const T* b_part = b_tile + own_column * B_OUTER;
  a += row0 * a_m;
  b += column0 * b_n;

  Fragment left[FRAGMENTS_M], right;
  Sum sum[FRAGMENTS_M][FRAGMENTS_N];
#pragma clang loop unroll(full)
  for (int i = 0; i < FRAGMENTS_M; ++i) {
#pragma clang loop unroll(full)
    for (int j = 0; j < FRAGMENTS_N; ++j) {
      sum[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
  }

  const int steps = K / BK;
#pragma clang loop unroll(disable)
  for (int step = 0; step < steps; ++step) {
    stage<A_K_FAST, BM, A_PITCH, RAGGED_M, false>(a_tile, a, a_m, a_k, p.M - row0, BK, thread_index);
    stage<B_K_FAST, BN, B_PITCH, RAGGED_N, false>(b_tile, b, b_n, b_k, p.N - column0, BK, thread_index);
    threadgroup_barrier(mem_flags::mem_threadgroup);  // the tiles are written
#pragma clang loop unroll(full)
    for (int k = 0; k < BK; k += OK) {
#pragma clang loop unroll(full)
      for (int i = 0; i < FRAGMENTS_M; ++i) {
        simdgroup_load(left[i], a_part + i * OM * A_OUTER + k * A_STEP, ulong(A_PITCH), ulong2(0), !A_K_FAST);
      }
#pragma clang loop unroll(full)
      for (int j = 0; j < FRAGMENTS_N; ++j) {
        simdgroup_load(right, b_part + j * ON * B_OUTER + k * B_STEP, ulong(B_PITCH), ulong2(0), B_K_FAST);
#pragma clang loop unroll(full)
        for (int i = 0; i < FRAGMENTS_M; ++i) {
          simdgroup_multiply_accumulate(sum[i][j], left[i], right, sum[i][j]);
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);  // and read: the next step may overwrite them
    a += BK * a_k;
    b += BK * b_k;
  }

  const int k_left = K - steps * BK;
  if (k_left > 0) {
    stage<A_K_FAST, BM, A_PITCH, RAGGED_M, true>(a_tile, a, a_m, a_k, p.M - row0, k_left, thread_index);
    stage<B_K_FAST, BN, B_PITCH, RAGGED_N, true>(b_tile, b, b_n, b_k, p.N - column0, k_left, thread_index);
    threadgroup_barrier(mem_flags::mem_threadgroup);  // the tiles are written
#pragma clang loop unroll(full)
    for (int k = 0; k < BK; k += OK) {
#pragma clang loop unroll(full)
      for (int i = 0; i < FRAGMENTS_M; ++i) {
        simdgroup_load(left[i], a_part + i * OM * A_OUTER + k * A_STEP, ulong(A_PITCH), ulong2(0), !A_K_FAST);
      }
#pragma clang loop unroll(full)
      for (int j = 0; j < FRAGMENTS_N; ++j) {
        simdgroup_load(right, b_part + j * ON * B_OUTER + k * B_STEP, ulong(B_PITCH), ulong2(0), B_K_FAST);
#pragma clang loop unroll(full)
        for (int i = 0; i < FRAGMENTS_M; ++i) {
          simdgroup_multiply_accumulate(sum[i][j], left[i], right, sum[i][j]);
        }
      }
    }
  }

  // Rounds once, after the epilogue.
#pragma clang loop unroll(full)
  for (int i = 0; i < FRAGMENTS_M; ++i) {
#pragma clang loop unroll(full)
    for (int j = 0; j < FRAGMENTS_N; ++j) {
      const int row = row0 + own_row + i * OM + place.y, column = column0 + own_column + j * ON + place.x;
      const metal::vec<float, 2> x = lane_elements(sum[i][j]);
      if ((!RAGGED_M || row < p.M) && (!RAGGED_N || column < p.N)) c[row * p.c_m + column] = C(finish.apply(x[0], row, column));
      if ((!RAGGED_M || row < p.M) && (!RAGGED_N || column + 1 < p.N)) c[row * p.c_m + column + 1] = C(finish.apply(x[1], row, column + 1));
    }
  }
}
