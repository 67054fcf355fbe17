// qgemm, engine mpp, dataflow split_k, row nn/ragged
// variant qgemm_mpp_split_k_nn_ragged_f16_u32_f16_f16_f32_relaxed_bm64_bn64_sg2x2_op32x32x32_formataffine4_g64
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
#if __METAL_VERSION__ >= 400
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
#endif
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
  int k_slice;
};

#if __METAL_VERSION__ >= 400

constant constexpr int BM = 64, BN = 64;  // block of C per threadgroup
constant constexpr int SIMDGROUPS_N = 2;
constant constexpr int WM = 32, WN = 32;  // part of the block that one simdgroup owns
constant constexpr int OM = 32, ON = 32, OK = 32;  // one matrix operation
constant constexpr bool RAGGED_M = true, RAGGED_N = true, RAGGED_K = true;

typedef half A;
typedef half B;
typedef float C;
typedef half Scale;  // as stored

constant constexpr int THREADS = 128;
constant constexpr int BK = 32;  // part of K that is staged at a time
// Rows of the staged tiles lie 4 elements further apart than they are long, so that a column is spread over the banks.
constant constexpr int A_LD = BK + 4, B_LD = BN + 4;
constant constexpr int B_K = B_LD, B_N = 1;  // distances in the staged weights
constant constexpr int ROW_STEP = OM;  // from one fragment of a simdgroup to its next: they lie side by side
constant constexpr int SCRATCH_LD = BN + 4;
// Room for twice the elements a lane owns: a layout may have slots that are no matrix element.
constant constexpr int LEFT_SLOTS = 2 * OM * OK / 32, RIGHT_SLOTS = 2 * OK * ON / 32;

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

// Copies a ROWS x COLUMNS window to threadgroup memory: neighbouring threads take neighbouring elements of a stored row.
// Elements at or past `rows` or `columns` become zero, which adds nothing to any product.
template <int ROWS, int COLUMNS, int LD, bool MASK_ROWS, bool MASK_COLUMNS, typename T>
inline void stage(threadgroup T* to, const device T* from, long row_stride, long column_stride, int rows, int columns, int thread_index) {
  static_assert(THREADS % COLUMNS == 0 && ROWS * COLUMNS % THREADS == 0, "every thread copies the same number of elements of one column");
  const int column = thread_index % COLUMNS, first = thread_index / COLUMNS;
  const bool inside = !MASK_COLUMNS || column < columns;
  from += first * row_stride + column * column_stride;
  to += first * LD + column;
#pragma clang loop unroll(full)
  for (int row = 0; row < ROWS; row += THREADS / COLUMNS) {
    T value = T(0.0f);
    if (inside && (!MASK_ROWS || first + row < rows)) value = *from;
    *to = value;
    from += THREADS / COLUMNS * row_stride;
    to += THREADS / COLUMNS * LD;
  }
}

// Brings a BN x BK window of one weight tensor to threadgroup memory, decoded. Outside the matrix it is zero, which adds nothing.
// A thread takes 2 neighbouring packs at a time, whose scale it reads once: windows begin at multiples of 16 weights, groups too.
// K and N are whole groups along the packed axis, so what a thread takes lies inside or outside.
template <bool MASK_N, bool MASK_K>
inline void stage_weights(threadgroup B* to, const device uint* w, long w_row, const device Scale* scales, long scales_row, const device Scale* biases, long biases_row,
                          int column0, int k0, int N, int K, int thread_index) {
  constexpr int ROWS = BK, RUN = 2, RUNS = BN / PACK / RUN;  // as stored
  static_assert(ROWS * RUNS % THREADS == 0 && GROUP % (RUN * PACK) == 0, "every thread decodes as many packs, and a scale serves them all");
  static_assert(B_LD % 4 == 0, "packs are stored as vectors of 4");
  typedef metal::vec<B, 4> B4;
#pragma clang loop unroll(full)
  for (int i = 0; i < ROWS * RUNS / THREADS; ++i) {
    const int at = i * THREADS + thread_index, row = at / RUNS, first = at % RUNS * RUN * PACK;
    const int outer = k0 + row, inner = column0 + first;
    const bool inside = (!MASK_K || outer < K) && (!MASK_N || inner < N);
    const float scale = inside ? scale_value(scales[outer * scales_row + inner / GROUP]) : 0.0f;
    const float bias = inside ? float(biases[outer * biases_row + inner / GROUP]) : 0.0f;
    const device uchar* packed = (const device uchar*)(w + outer * w_row) + inner / PACK * BITS;
    threadgroup B* out = to + row * B_LD + first;
#pragma clang loop unroll(full)
    for (int pack = 0; pack < RUN; ++pack) {
      float values[PACK] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
      if (inside) decode_pack(packed + pack * BITS, values);
#pragma clang loop unroll(full)
      for (int j = 0; j < PACK; ++j) values[j] = inside ? weight_value(values[j], scale, bias) : 0.0f;
#pragma clang loop unroll(full)
      for (int j = 0; j < PACK; j += 4) *(threadgroup B4*)(out + pack * PACK + j) = B4(B(values[j]), B(values[j + 1]), B(values[j + 2]), B(values[j + 3]));
    }
  }
}

// Rows of x and of the result are those of the block.
struct Rows {
  int row0, M;
  int result(int r) const thread { return RAGGED_M && row0 + r >= M ? -1 : row0 + r; }
};

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

template <typename CT>
inline void zero(thread CT& ct) {
#pragma clang loop unroll(full)
  for (ushort i = 0; i < ct.get_capacity(); ++i) {
    ct[i] = 0.0f;
  }
}

// From the f32 accumulator to the value that is rounded: x
struct Epilogue {
  float apply(float x, long row, long column) const thread {
    return x;
  }
};

// From the lanes' fragments to rows of f32 in threadgroup memory.
template <typename CT>
inline void put(thread CT& ct, threadgroup float* scratch) {
#pragma clang loop unroll(full)
  for (ushort i = 0; i < ct.get_capacity(); ++i) {
    const auto index = ct.get_multidimensional_index(i);
    if (ct.is_valid_element(i)) scratch[int(index[1]) * SCRATCH_LD + int(index[0])] = ct[i];
  }
}

// From there to the result, neighbouring threads to neighbouring columns. Rounds once, after the epilogue.
template <typename R, typename E>
inline void store_block(const threadgroup float* scratch, device C* c, long c_m, thread const R& rows, int column0, int N, int thread_index, thread const E& finish) {
  static_assert(THREADS % BN == 0 || BN % THREADS == 0, "threads and columns divide");
  for (int at = thread_index; at < BM * BN; at += THREADS) {
    const int r = at / BN, column = column0 + at % BN, row = rows.result(r);
    if (row >= 0 && (!RAGGED_N || column < N)) c[row * c_m + column] = C(finish.apply(scratch[r * SCRATCH_LD + at % BN], row, column));
  }
}

// Which block of C a threadgroup computes: the grid as it is
inline uint2 tile_of(uint3 block, int M, int N) {
  return block.xy;
}

#endif  // __METAL_VERSION__ >= 400

[[kernel, max_total_threads_per_threadgroup(128)]] void qgemm_mpp_split_k_nn_ragged_f16_u32_f16_f16_f32_relaxed_bm64_bn64_sg2x2_op32x32x32_formataffine4_g64_b541ad67(
    const device half* __restrict x [[buffer(0)]],
    const device uint* __restrict w [[buffer(1)]],
    const device half* __restrict scales [[buffer(2)]],
    const device half* __restrict biases [[buffer(3)]],
    device float* __restrict c [[buffer(4)]],
    constant WeightedParams& p [[buffer(5)]],
    uint3 block [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint thread_index [[thread_index_in_threadgroup]]) {
#if __METAL_VERSION__ >= 400
  constexpr auto descriptor = mpp::tensor_ops::matmul2d_descriptor(
      32, 32, 32,
      /*transpose_left=*/false, /*transpose_right=*/false, /*relaxed_precision=*/true,
      mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate);
  mpp::tensor_ops::matmul2d<descriptor, execution_simdgroup> op;

  // Where this threadgroup works. Its simdgroups wait for each other, so all of them leave or none does.
  const uint2 tile = tile_of(block, p.M, p.N);
  const int row0 = int(tile.y) * BM, column0 = int(tile.x) * BN;
  const Rows rows = {row0, p.M};
  // This threadgroup's slice of K, whole steps of it. Another kernel adds the slices up.
  const int first_k = int(block.z) * p.k_slice, last_k = min(first_k + p.k_slice, p.K);
  c += long(block.z) * p.M * p.N;
  const device uint* w_at = w;
  const device half* scales_at = scales;
  const device half* biases_at = biases;
  const long x_k = 1;  // the constant 1 where x is contiguous, so that its multiplications vanish

  threadgroup float4 storage[1088];
  threadgroup A* staged_x = reinterpret_cast<threadgroup A*>(storage);
  threadgroup B* staged_w = reinterpret_cast<threadgroup B*>(storage + 288);
  threadgroup float* scratch = reinterpret_cast<threadgroup float*>(storage);  // after the last operand was read

  // The part of the block that this simdgroup owns.
  const int warp_row = int(simdgroup) / SIMDGROUPS_N * WM, warp_column = int(simdgroup) % SIMDGROUPS_N * WN;

  auto left0 = op.get_left_input_cooperative_tensor<A, B, float>();
  auto right = op.get_right_input_cooperative_tensor<A, B, float>();
  typedef remove_addrspace_t<decltype(left0)> Left;
  typedef remove_addrspace_t<decltype(right)> Right;
  auto c00 = op.get_destination_cooperative_tensor<Left, Right, float>();

  // All fragments of a staged operand have one layout; only their origins differ.
  ushort left_at[LEFT_SLOTS], right_at[RIGHT_SLOTS];
  locate<false, false>(left0, left_at, A_LD, 1, 0, 0);
  locate<false, false>(right, right_at, B_LD, 1, 0, 0);

  zero(c00);
  #pragma clang loop unroll(disable)
  for (int k0 = first_k; k0 < last_k; k0 += BK) {
    stage<BM, BK, A_LD, RAGGED_M, RAGGED_K>(staged_x, x + row0 * p.x_m + k0 * x_k, p.x_m, x_k, p.M - row0, p.K - k0, int(thread_index));
    stage_weights<RAGGED_N, RAGGED_K>(staged_w, w_at, p.w_row, scales_at, p.scales_row, biases_at, p.biases_row, column0, k0, p.N, p.K, int(thread_index));
    threadgroup_barrier(mem_flags::mem_threadgroup);  // the tiles are complete
  #pragma clang loop unroll(full)
    for (int k = 0; k < BK; k += OK) {
      fill(left0, staged_x + (warp_row) * A_LD + k, left_at);
      fill(right, staged_w + (warp_column) * B_N + k * B_K, right_at);
      op.run(left0, right, c00);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);  // nobody reads the tiles any more
  }

  Epilogue finish;
  put(c00, scratch + (warp_row) * SCRATCH_LD + warp_column);
  threadgroup_barrier(mem_flags::mem_threadgroup);  // the whole block lies in scratch
  store_block(scratch, c, p.N, rows, column0, p.N, int(thread_index), finish);

#endif  // __METAL_VERSION__ >= 400: older dialects get an empty stub, which no engine ever selects
}
