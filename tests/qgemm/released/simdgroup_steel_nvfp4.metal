// qgemm, engine simdgroup, dataflow steel, row nt/ragged
// variant qgemm_simdgroup_steel_nt_ragged_bf16_u32_u8_f32_bf16_full_bm64_bn64_sg2x2_op8x8x8_formatnvfp4_globalamax
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
  int M;
  int N;
  int K;
};

constant constexpr int BM = 64, BN = 64;  // block of C per threadgroup
constant constexpr int SIMDGROUPS_N = 2;
constant constexpr int WM = 32, WN = 32;  // part of the block that one simdgroup owns
constant constexpr int OM = 8, ON = 8, OK = 8;  // one matrix operation
constant constexpr bool RAGGED_M = true, RAGGED_N = true, RAGGED_K = true;

typedef bfloat A;
typedef bfloat B;
typedef bfloat C;

constant constexpr int FRAGMENTS_M = 4, FRAGMENTS_N = 4;  // 8x8 fragments of one simdgroup
typedef bfloat T;  // element of both operands' fragments: theirs, or float where they differ
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

// A step is 32 elements of K, four products. Each product adds 8 of them, and which 8 is free as long as both operands agree: every lane
// takes a pack of one column of weights, whose elements t and t + 4 go into product t, so that no weight is read or decoded by two lanes.
// The fragment of weights is the left operand. A lane ends with 4 columns of two neighbouring rows per fragment.
constant constexpr int STEP = 32, PRODUCTS = 4, LANE_ROWS = 2, OWNED = FRAGMENTS_N;

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

[[kernel, max_total_threads_per_threadgroup(128)]] void qgemm_simdgroup_steel_nt_ragged_bf16_u32_u8_f32_bf16_full_bm64_bn64_sg2x2_op8x8x8_formatnvfp4_globalamax_1e45fabb(
    const device bfloat* __restrict x [[buffer(0)]],
    const device uint* __restrict w [[buffer(1)]],
    const device uchar* __restrict scales [[buffer(2)]],
    const device float* __restrict global_scale [[buffer(3)]],
    device bfloat* __restrict c [[buffer(4)]],
    constant WeightedParams& p [[buffer(5)]],
    uint3 block [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const int2 place = lane_place(lane);
  const int lane_row = place.x;  // in a fragment: the first row of x that is this lane's
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
  int numbers[FRAGMENTS_M][LANE_ROWS];  // rows of x in this lane's places
#pragma clang loop unroll(full)
  for (int i = 0; i < FRAGMENTS_M; ++i) {
#pragma clang loop unroll(full)
    for (int e = 0; e < LANE_ROWS; ++e) {
      const int r = i * OM + lane_row + e;
      numbers[i][e] = !RAGGED_M || r < count ? rows.number(first + r) : -1;
    }
  }

  Fragment rows_of_x[FRAGMENTS_M][PRODUCTS], weights;
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
      #pragma clang loop unroll(full)
      for (int t = 0; t < PRODUCTS; ++t) {
        const int k = k0 + place.y * PRODUCTS + t;
        lane_elements(rows_of_x[i][t]) = metal::vec<T, 2>(x_value<RAGGED_M, false, T>(x, numbers[i][0], p.x_m, k, x_k, p.K),
                                                         x_value<RAGGED_M, false, T>(x, numbers[i][1], p.x_m, k, x_k, p.K));
      }
    }
    #pragma clang loop unroll(full)
    for (int j = 0; j < FRAGMENTS_N; ++j) {
      T values[PACK];
      take<RAGGED_N, false>(values, w_at, p.w_row, scales_at, p.scales_row, column0 + j * ON + place.y, k0 + place.x / 2 * PACK, p.N, p.K);
      #pragma clang loop unroll(full)
      for (int t = 0; t < PRODUCTS; ++t) {
        lane_elements(weights) = metal::vec<T, 2>(values[t], values[t + PRODUCTS]);
        #pragma clang loop unroll(full)
        for (int i = 0; i < FRAGMENTS_M; ++i) {
          simdgroup_multiply_accumulate(sum[i][j], weights, rows_of_x[i][t], sum[i][j]);
        }
      }
    }
  }
  // The last step of a ragged K: elements past K are zero in both operands, so that no NaN can leak in.
  if (whole_steps < p.K) {
    const int k0 = whole_steps;
    #pragma clang loop unroll(full)
    for (int i = 0; i < FRAGMENTS_M; ++i) {
      #pragma clang loop unroll(full)
      for (int t = 0; t < PRODUCTS; ++t) {
        const int k = k0 + place.y * PRODUCTS + t;
        lane_elements(rows_of_x[i][t]) = metal::vec<T, 2>(x_value<RAGGED_M, true, T>(x, numbers[i][0], p.x_m, k, x_k, p.K),
                                                         x_value<RAGGED_M, true, T>(x, numbers[i][1], p.x_m, k, x_k, p.K));
      }
    }
    #pragma clang loop unroll(full)
    for (int j = 0; j < FRAGMENTS_N; ++j) {
      T values[PACK];
      take<RAGGED_N, true>(values, w_at, p.w_row, scales_at, p.scales_row, column0 + j * ON + place.y, k0 + place.x / 2 * PACK, p.N, p.K);
      #pragma clang loop unroll(full)
      for (int t = 0; t < PRODUCTS; ++t) {
        lane_elements(weights) = metal::vec<T, 2>(values[t], values[t + PRODUCTS]);
        #pragma clang loop unroll(full)
        for (int i = 0; i < FRAGMENTS_M; ++i) {
          simdgroup_multiply_accumulate(sum[i][j], weights, rows_of_x[i][t], sum[i][j]);
        }
      }
    }
  }

  Epilogue finish;
  finish.factor = global_scale[0] / 2688.0f;
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
        const int j = owned, at = e, column = column0 + owned * ON + place.y;
        if (RAGGED_N && column >= p.N) continue;
        c[long(row) * p.N + column] = C(finish.apply(lane_elements(sum[i][j])[at], row, column));
      }
    }
  }
}
