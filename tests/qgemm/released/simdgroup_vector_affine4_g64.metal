// qgemm, engine simdgroup, dataflow vector, row nn/ragged
// variant qgemm_simdgroup_vector_nn_ragged_f16_u32_f16_f16_f16_full_bm4_bn64_sg1x2_op4x32x1_formataffine4_g64
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
// - 64 threads per threadgroup: 2 simdgroups of 32
// Generated; edit the template, not this file.
#include <metal_stdlib>
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

constant constexpr int BM = 4, BN = 64;  // block of C per threadgroup
constant constexpr int SIMDGROUPS_N = 2;
constant constexpr int WM = 4, WN = 32;  // part of the block that one simdgroup owns
constant constexpr int OM = 4, ON = 32, OK = 1;  // one matrix operation
constant constexpr bool RAGGED_M = true, RAGGED_N = true, RAGGED_K = true;

typedef half A;
typedef float B;
typedef half C;

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

// Lanes split the columns in packs, and K: 4 rows of x meet a weight that is read once.
constant constexpr int LANES_N = WN / PACK, LANES_K = 32 / LANES_N;
constant constexpr int SUMS = PACK, RESULTS = BM;  // sums of a lane per row, and results that it stores
static_assert(LANES_K == PACK, "of the lanes that share a pack, each stores one column");

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

[[kernel, max_total_threads_per_threadgroup(64)]] void qgemm_simdgroup_vector_nn_ragged_f16_u32_f16_f16_f16_full_bm4_bn64_sg1x2_op4x32x1_formataffine4_g64_f65badac(
    const device half* __restrict x [[buffer(0)]],
    const device uint* __restrict w [[buffer(1)]],
    const device half* __restrict scales [[buffer(2)]],
    const device half* __restrict biases [[buffer(3)]],
    device half* __restrict c [[buffer(4)]],
    constant WeightedParams& p [[buffer(5)]],
    uint3 block [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
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
  int numbers[BM];  // rows of x
#pragma clang loop unroll(full)
  for (int r = 0; r < BM; ++r) numbers[r] = r < count ? rows.number(first + r) : -1;
  float sum[BM][SUMS];
#pragma clang loop unroll(full)
  for (int r = 0; r < BM; ++r) {
#pragma clang loop unroll(full)
    for (int i = 0; i < SUMS; ++i) {
      sum[r][i] = 0.0f;
    }
  }

#pragma clang loop unroll(disable)
  for (int k = int(lane) / LANES_N; k < p.K; k += LANES_K) {
    float x_values[BM];
#pragma clang loop unroll(full)
    for (int r = 0; r < BM; ++r) {
      if (r >= count) continue;
      x_values[r] = x_value<true, false, float>(x, numbers[r], p.x_m, k, x_k, p.K);
    }
    {
      float values[PACK];
      take<true, false>(values, w_at, p.w_row, scales_at, p.scales_row, biases_at, p.biases_row, column0 + int(lane) % LANES_N * PACK, k, p.N, p.K);
#pragma clang loop unroll(full)
      for (int r = 0; r < BM; ++r) {
        if (r >= count) continue;
#pragma clang loop unroll(full)
        for (int i = 0; i < PACK; ++i) sum[r][i] = fma(x_values[r], values[i], sum[r][i]);
      }
    }
  }

  // The lanes of a pack add what they have; each keeps one column of it.
  float result[RESULTS] = {0.0f};
#pragma clang loop unroll(full)
  for (int r = 0; r < BM; ++r) {
    if (r >= count) continue;
#pragma clang loop unroll(full)
    for (int i = 0; i < SUMS; ++i) {
      float total = sum[r][i];
#pragma clang loop unroll(full)
      for (int apart = LANES_N; apart < 32; apart *= 2) total += simd_shuffle_xor(total, ushort(apart));
      if (int(lane) / LANES_N == i) result[r] = total;
    }
  }

  Epilogue finish;
  const int column = column0 + int(lane) % LANES_N * PACK + int(lane) / LANES_N;
#pragma clang loop unroll(full)
  for (int e = 0; e < RESULTS; ++e) {
    const int r = e;
    if (r >= count || column >= p.N) continue;
    const int row = rows.result(first + r);
    // Rounds once, after the epilogue.
    c[long(row) * p.N + column] = C(finish.apply(result[e], row, column));
  }
}
