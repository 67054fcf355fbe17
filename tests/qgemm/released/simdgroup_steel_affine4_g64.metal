// qgemm, engine simdgroup, dataflow steel, row nn/ragged
// variant qgemm_simdgroup_steel_nn_ragged_f16_u32_f16_f16_f16_full_bm64_bn64_sg2x2_op8x8x8_formataffine4_g64
//
// The host guarantees, before this kernel is enqueued:
// - x must have 2 axes
// - w must have 2 axes
// - scales must have 2 axes
// - biases must have 2 axes
// - x and the packed weights must agree in K (4 bits each)
// - N must be a multiple of the group size 64
// - scales must hold one value for each group of 64 weights
// - biases must hold one value for each group of 64 weights
// - M, N and K must be below 2**31
// - layout: 1 s1.-1 1 == d1.-1 1 <= or s2.-1 1 == d2.-1 1 <= or and s3.-1 1 == d3.-1 1 <= or and s0.-1 1 == d0.-1 1 <= or and and 1 and 1 and
// - 128 threads per threadgroup: 4 simdgroups of 32
// Generated; edit the template, not this file.
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;

struct WeightedParams {
  long x_m;
  long x_k;
  long w_row;
  long scales_row;
  long biases_row;
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
typedef float B;
typedef half C;

constant constexpr int FRAGMENTS_M = 4, FRAGMENTS_N = 4;  // 8x8 fragments of one simdgroup
typedef float T;  // element of both operands' fragments: theirs, or float where they differ
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

// Weights in format affine4_g64: 4-bit codes, 64 of them per scale, first code in the lowest bits.
constant constexpr int PACK = 8, BITS = 4, GROUP = 64;  // PACK codes fill BITS bytes and share a scale

inline float code_value(uint code) { return float(code); }

template <typename S>
inline float scale_value(S s) { return float(s); }

// The 8 codes of one pack as unscaled values. Rows of packed weights start on a word, so pack i starts at a multiple of
// 4 bytes from one: words can be read.
inline void decode_pack(const device uchar* packed, thread float* values) {
  const uint low = *(const device uint*)packed, high = low >> 16;
#pragma clang loop unroll(full)
  for (int i = 0; i < PACK / 2; ++i) {
    values[i] = code_value(low >> i * BITS & 15u);
    values[i + PACK / 2] = code_value(high >> i * BITS & 15u);
  }
}

// Rounds once.
inline float weight_value(float code, float scale, float bias) { return fma(code, scale, bias); }

// A lane's pack of neighbouring weights, along N from (column, k) on. Outside the matrix they are zero, which adds nothing.
// A pack lies inside or outside as a whole, and has one scale.
template <bool MASK_N, bool MASK_K, typename T>
inline void take(thread T* values, const device uint* w, long w_row, const device half* scales, long scales_row,
                 const device half* biases, long biases_row, int column, int k, int N, int K) {
  const int outer = k, inner = column;
  if ((MASK_N && column >= N) || (MASK_K && k >= K)) {
#pragma clang loop unroll(full)
    for (int i = 0; i < PACK; ++i) values[i] = T(0.0f);
    return;
  }
  const float scale = scale_value(scales[outer * scales_row + inner / GROUP]);
  const float bias = float(biases[outer * biases_row + inner / GROUP]);
  float codes[PACK];
  decode_pack((const device uchar*)(w + outer * w_row) + long(inner / PACK) * BITS, codes);
#pragma clang loop unroll(full)
  for (int i = 0; i < PACK; ++i) values[i] = T(weight_value(codes[i], scale, bias));
}

// A step is 8 rows of weights, one per row of a fragment. Which columns a fragment takes is free: every lane owns 8 neighbours,
// two of each fragment, and so takes its packs alone. A lane ends with these columns of one row per fragment.
constant constexpr int STEP = 8, LANE_ROWS = 1, OWNED = 2 * FRAGMENTS_N;

// Rows of the result and of x by position, -1 for none. Both are the position itself.
struct Rows {
  int result(int at) const thread {
    return at;
  }

  int number(int at) const thread {
    return at;
  }
};

// One element of x, zero where there is none.
template <bool MASK_ROW, bool MASK_K, typename T>
inline T x_value(const device A* x, int number, long x_m, int k, long x_k, int K) {
  return (MASK_ROW && number < 0) || (MASK_K && k >= K) ? T(0.0f) : T(x[number * x_m + k * x_k]);
}

// From the f32 accumulator to the value that is rounded: x
struct Epilogue {
  float apply(float x, long row, long column) const thread {
    return x;
  }
};

[[kernel, max_total_threads_per_threadgroup(128)]] void qgemm_simdgroup_steel_nn_ragged_f16_u32_f16_f16_f16_full_bm64_bn64_sg2x2_op8x8x8_formataffine4_g64_34568b9e(
    const device half* __restrict x [[buffer(0)]],
    const device uint* __restrict w [[buffer(1)]],
    const device half* __restrict scales [[buffer(2)]],
    const device half* __restrict biases [[buffer(3)]],
    device half* __restrict c [[buffer(4)]],
    constant WeightedParams& p [[buffer(5)]],
    uint3 block [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const int2 place = lane_place(lane);
  const int lane_row = place.y;  // in a fragment: the first row of x that is this lane's
  // Where this simdgroup works. No other waits for it, so one that has nothing to do leaves.
  const int column0 = int(block.x) * BN + int(simdgroup) % SIMDGROUPS_N * WN;
  if (column0 >= p.N) return;
  const int part = int(simdgroup) / SIMDGROUPS_N * WM;  // first of its rows in the block
  const long x_k = 1;  // the constant 1 where x is contiguous, so that its multiplications vanish
  const Rows rows = {};
  const int first = int(block.y) * BM + part, count = min(p.M - first, WM);
  if (count <= 0) return;
  const device uint* w_at = w;
  const device half* scales_at = scales;
  const device half* biases_at = biases;
  int numbers[FRAGMENTS_M][LANE_ROWS];  // rows of x in this lane's places
#pragma clang loop unroll(full)
  for (int i = 0; i < FRAGMENTS_M; ++i) {
#pragma clang loop unroll(full)
    for (int e = 0; e < LANE_ROWS; ++e) {
      const int r = i * OM + lane_row + e;
      numbers[i][e] = !RAGGED_M || r < count ? rows.number(first + r) : -1;
    }
  }

  Fragment rows_of_x[FRAGMENTS_M], weights;
  Sum sum[FRAGMENTS_M][FRAGMENTS_N];
#pragma clang loop unroll(full)
  for (int i = 0; i < FRAGMENTS_M; ++i) {
#pragma clang loop unroll(full)
    for (int j = 0; j < FRAGMENTS_N; ++j) {
      sum[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
  }

  const int whole_steps = p.K / STEP * STEP;
#pragma clang loop unroll(disable)
  for (int k0 = 0; k0 < whole_steps; k0 += STEP) {
    #pragma clang loop unroll(full)
    for (int i = 0; i < FRAGMENTS_M; ++i) {
      const int k = k0 + place.x;
      lane_elements(rows_of_x[i]) = metal::vec<T, 2>(x_value<RAGGED_M, false, T>(x, numbers[i][0], p.x_m, k, x_k, p.K),
                                                     x_value<RAGGED_M, false, T>(x, numbers[i][0], p.x_m, k + 1, x_k, p.K));
    }
    #pragma clang loop unroll(full)
    for (int owned = 0; owned < OWNED; owned += PACK) {
      T values[PACK];
      take<RAGGED_N, false>(values, w_at, p.w_row, scales_at, p.scales_row, biases_at, p.biases_row, column0 + place.x / 2 * OWNED + owned, k0 + place.y, p.N, p.K);
      #pragma clang loop unroll(full)
      for (int e = 0; e < PACK; e += 2) {
        const int j = (owned + e) / 2;
        lane_elements(weights) = metal::vec<T, 2>(values[e], values[e + 1]);
        #pragma clang loop unroll(full)
        for (int i = 0; i < FRAGMENTS_M; ++i) {
          simdgroup_multiply_accumulate(sum[i][j], rows_of_x[i], weights, sum[i][j]);
        }
      }
    }
  }
  // The last step of a ragged K: elements past K are zero in both operands, so that no NaN can leak in.
  if (whole_steps < p.K) {
    const int k0 = whole_steps;
    #pragma clang loop unroll(full)
    for (int i = 0; i < FRAGMENTS_M; ++i) {
      const int k = k0 + place.x;
      lane_elements(rows_of_x[i]) = metal::vec<T, 2>(x_value<RAGGED_M, true, T>(x, numbers[i][0], p.x_m, k, x_k, p.K),
                                                     x_value<RAGGED_M, true, T>(x, numbers[i][0], p.x_m, k + 1, x_k, p.K));
    }
    #pragma clang loop unroll(full)
    for (int owned = 0; owned < OWNED; owned += PACK) {
      T values[PACK];
      take<RAGGED_N, true>(values, w_at, p.w_row, scales_at, p.scales_row, biases_at, p.biases_row, column0 + place.x / 2 * OWNED + owned, k0 + place.y, p.N, p.K);
      #pragma clang loop unroll(full)
      for (int e = 0; e < PACK; e += 2) {
        const int j = (owned + e) / 2;
        lane_elements(weights) = metal::vec<T, 2>(values[e], values[e + 1]);
        #pragma clang loop unroll(full)
        for (int i = 0; i < FRAGMENTS_M; ++i) {
          simdgroup_multiply_accumulate(sum[i][j], rows_of_x[i], weights, sum[i][j]);
        }
      }
    }
  }

  Epilogue finish;
  // Rounds once, after the epilogue.
#pragma clang loop unroll(full)
  for (int i = 0; i < FRAGMENTS_M; ++i) {
#pragma clang loop unroll(full)
    for (int e = 0; e < LANE_ROWS; ++e) {
      const int r = i * OM + lane_row + e;
      if (RAGGED_M && r >= count) continue;
      const int row = rows.result(first + r);
#pragma clang loop unroll(full)
      for (int owned = 0; owned < OWNED; ++owned) {
        const int j = owned / 2, at = owned % 2, column = column0 + place.x / 2 * OWNED + owned;
        if (RAGGED_N && column >= p.N) continue;
        c[long(row) * p.N + column] = C(finish.apply(lane_elements(sum[i][j])[at], row, column));
      }
    }
  }
}
