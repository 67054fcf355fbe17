// qgemm, engine simdgroup, dataflow vector, row nt/ragged
// variant qgemm_simdgroup_vector_nt_ragged_bf16_u32_u8_f32_bf16_full_bm4_bn8_sg1x2_op4x4x1_formatnvfp4_globalamax
//
// The host guarantees, before this kernel is enqueued:
// - x must have 2 axes
// - w must have 2 axes
// - scales must have 2 axes
// - x and the packed weights must agree in K (4 bits each)
// - K must be a multiple of the group size 16
// - scales must hold one value for each group of 16 weights
// - global_scale must hold one value for each matrix
// - M, N and K must be below 2**31
// - layout: 1 s1.-1 1 == d1.-1 1 <= or s2.-1 1 == d2.-1 1 <= or and s0.-1 1 == d0.-1 1 <= or and and 1 and 1 and
// - 64 threads per threadgroup: 2 simdgroups of 32
// Generated; edit the template, not this file.
#include <metal_stdlib>
using namespace metal;

struct WeightedParams {
  long x_m;
  long x_k;
  long w_row;
  long scales_row;
  int M;
  int N;
  int K;
};

constant constexpr int BM = 4, BN = 8;  // block of C per threadgroup
constant constexpr int SIMDGROUPS_N = 2;
constant constexpr int WM = 4, WN = 4;  // part of the block that one simdgroup owns
constant constexpr int OM = 4, ON = 4, OK = 1;  // one matrix operation
constant constexpr bool RAGGED_M = true, RAGGED_N = true, RAGGED_K = true;

typedef bfloat A;
typedef float B;
typedef bfloat C;

// Weights in format nvfp4: 4-bit codes, 16 of them per scale, first code in the lowest bits.
constant constexpr int PACK = 8, BITS = 4, GROUP = 16;  // PACK codes fill BITS bytes and share a scale

// Exact. Zero and subnormals are counts of 2^-9; the one code past 448 is NaN.
inline float e4m3_value(uint code) {
  const uint magnitude = code & 0x7f;
  uint bits = (magnitude << 20) + (120u << 23);  // exponent bias 7 -> 127
  bits = select(bits, as_type<uint>(float(magnitude) * 0.001953125f), magnitude < 8);
  bits = select(bits, 0x7fc00000u, magnitude == 0x7f);
  return as_type<float>(bits | (code & 0x80) << 24);
}

// Exact, with no subnormal on the way: hardware may flush those. Codes 0 and 1 are the format's own subnormals, 0 and 0.5.
inline float code_value(uint code) {
  const uint magnitude = code & 7;
  uint bits = (magnitude << 22) + (126u << 23);  // exponent bias 1 -> 127
  bits = select(bits, magnitude * (126u << 23), magnitude < 2);
  return as_type<float>(bits | (code & 8) << 28);
}

inline float scale_value(uchar s) { return e4m3_value(s); }

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

inline float weight_value(float code, float scale, float) { return code * scale; }

// A lane's pack of neighbouring weights, along K from (column, k) on. Outside the matrix they are zero, which adds nothing.
// A pack lies inside or outside as a whole, and has one scale.
template <bool MASK_N, bool MASK_K, typename T>
inline void take(thread T* values, const device uint* w, long w_row, const device uchar* scales, long scales_row,
                 int column, int k, int N, int K) {
  const int outer = column, inner = k;
  if ((MASK_N && column >= N) || (MASK_K && k >= K)) {
#pragma clang loop unroll(full)
    for (int i = 0; i < PACK; ++i) values[i] = T(0.0f);
    return;
  }
  const float scale = scale_value(scales[outer * scales_row + inner / GROUP]);
  const float bias = 0.0f;
  float codes[PACK];
  decode_pack((const device uchar*)(w + outer * w_row) + long(inner / PACK) * BITS, codes);
#pragma clang loop unroll(full)
  for (int i = 0; i < PACK; ++i) values[i] = T(weight_value(codes[i], scale, bias));
}

// Lanes split K, a pack each, and take it from every column of their simdgroup: 4 rows of x meet a weight that is read once.
constant constexpr int SUMS = WN, RESULTS = 1;  // sums of a lane per row, and results that it stores
static_assert(BM * WN <= 32, "every result has a lane that stores it");

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

// From the f32 accumulator to the value that is rounded: x, where x is the sum times the global scale
struct Epilogue {
  float factor;

  float apply(float x, long row, long column) const thread {
    x *= factor;
    return x;
  }
};

[[kernel, max_total_threads_per_threadgroup(64)]] void qgemm_simdgroup_vector_nt_ragged_bf16_u32_u8_f32_bf16_full_bm4_bn8_sg1x2_op4x4x1_formatnvfp4_globalamax_9de112fc(
    const device bfloat* __restrict x [[buffer(0)]],
    const device uint* __restrict w [[buffer(1)]],
    const device uchar* __restrict scales [[buffer(2)]],
    const device float* __restrict global_scale [[buffer(3)]],
    device bfloat* __restrict c [[buffer(4)]],
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
  const device uchar* scales_at = scales;
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

  // Lanes come to the end of K at different times, and meet again where their sums are added.
#pragma clang loop unroll(disable)
  for (int k = int(lane) * PACK; k < p.K; k += 32 * PACK) {
    float x_values[BM][PACK];
#pragma clang loop unroll(full)
    for (int r = 0; r < BM; ++r) {
      if (r >= count) continue;
#pragma clang loop unroll(full)
      for (int i = 0; i < PACK; ++i) x_values[r][i] = x_value<true, false, float>(x, numbers[r], p.x_m, k + i, x_k, p.K);
    }
#pragma clang loop unroll(full)
    for (int j = 0; j < SUMS; ++j) {
      float values[PACK];
      take<true, false>(values, w_at, p.w_row, scales_at, p.scales_row, column0 + j, k, p.N, p.K);
#pragma clang loop unroll(full)
      for (int r = 0; r < BM; ++r) {
        if (r >= count) continue;
#pragma clang loop unroll(full)
        for (int i = 0; i < PACK; ++i) sum[r][j] = fma(x_values[r][i], values[i], sum[r][j]);
      }
    }
  }

  // Every lane keeps one of the results.
  float result[RESULTS] = {0.0f};
#pragma clang loop unroll(full)
  for (int r = 0; r < BM; ++r) {
    if (r >= count) continue;
#pragma clang loop unroll(full)
    for (int j = 0; j < SUMS; ++j) {
      const float total = simd_sum(sum[r][j]);
      if (int(lane) == r * SUMS + j) result[0] = total;
    }
  }

  Epilogue finish;
  finish.factor = global_scale[0] / 2688.0f;
  const int column = column0 + int(lane) % SUMS;
#pragma clang loop unroll(full)
  for (int e = 0; e < RESULTS; ++e) {
    const int r = int(lane) / SUMS;
    if (r >= count || column >= p.N) continue;
    const int row = rows.result(first + r);
    // Rounds once, after the epilogue.
    c[long(row) * p.N + column] = C(finish.apply(result[e], row, column));
  }
}
