// gemm, engine mpp, dataflow staged, row nn/ragged
// variant gemm_mpp_staged_nn_ragged_f16_f16_f16_relaxed_bm64_bn64_sg2x2_op32x32x32
//
// The host guarantees, before this kernel is enqueued:
// - a and b must have 2 axes
// - the last axis of a and the second last of b must be equal (K)
// - M, N and K must be below 2**31
// - layout: 1 s0.-1 1 == s1.-1 1 == and s0.-2 0 >= and s0.-2 16777216 < and s1.-2 0 >= and s1.-2 16777216 < and and 1 and 1 and
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

constant constexpr int BM = 64, BN = 64;  // block of C per threadgroup
constant constexpr int SIMDGROUPS_N = 2;
constant constexpr int WM = 32, WN = 32;  // part of the block that one simdgroup owns
constant constexpr int OM = 32, ON = 32, OK = 32;  // one matrix operation
constant constexpr bool RAGGED_M = true, RAGGED_N = true, RAGGED_K = true;

typedef half A;
typedef half B;
typedef half C;

constant constexpr int THREADS = 128;
constant constexpr int BK = 32;  // part of K that is staged at a time
// Staged tiles keep the order in which the operand is stored; their rows lie 4 elements further apart than they are
// long, so that a column is spread over the banks.
constant constexpr int A_ROWS = BM, A_COLUMNS = BK, A_LD = A_COLUMNS + 4;
constant constexpr int B_ROWS = BK, B_COLUMNS = BN, B_LD = B_COLUMNS + 4;
constant constexpr int A_M = A_LD, A_K = 1;  // distances in the staged tiles
constant constexpr int B_K = B_LD, B_N = 1;
constant constexpr int SCRATCH_LD = BN + 4;
// Room for twice the elements a lane owns: a layout may have slots that are no matrix element.
constant constexpr int LEFT_SLOTS = 2 * OM * OK / 32, RIGHT_SLOTS = 2 * OK * ON / 32;

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

// From the lanes' fragments to rows of f32 in threadgroup memory.
template <typename CT>
inline void put(thread CT& ct, threadgroup float* scratch) {
#pragma clang loop unroll(full)
  for (ushort i = 0; i < ct.get_capacity(); ++i) {
    const auto index = ct.get_multidimensional_index(i);
    if (ct.is_valid_element(i)) scratch[int(index[1]) * SCRATCH_LD + int(index[0])] = ct[i];
  }
}

// From there to C, neighbouring threads to neighbouring columns. Rounds once, after the epilogue.
template <bool MASK_ROWS, bool MASK_COLUMNS, typename T, typename E>
inline void store_block(const threadgroup float* scratch, device T* c, long c_m, int row0, int column0, int M, int N, int thread_index, thread const E& finish) {
  static_assert(THREADS % BN == 0, "every thread stores one column");
  const int in_block = thread_index % BN, column = column0 + in_block;
  if (MASK_COLUMNS && column >= N) return;
  for (int i = thread_index / BN; i < BM; i += THREADS / BN) {
    const int row = row0 + i;
    if (!MASK_ROWS || row < M) c[row * c_m + column] = T(finish.apply(scratch[i * SCRATCH_LD + in_block], row, column));
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

[[kernel, max_total_threads_per_threadgroup(128)]] void gemm_mpp_staged_nn_ragged_f16_f16_f16_relaxed_bm64_bn64_sg2x2_op32x32x32_d1f926b2(
    const device half* __restrict a [[buffer(0)]],
    const device half* __restrict b [[buffer(1)]],
    device half* __restrict c [[buffer(2)]],
    constant GemmParams& p [[buffer(3)]],
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

  // The stride along a contiguous direction is the constant 1, so that its multiplications vanish.
  const long a_m = p.a_m, a_k = 1, b_k = p.b_k, b_n = 1;

  Epilogue finish;

  threadgroup float4 storage[1088];
  threadgroup A* staged_a = reinterpret_cast<threadgroup A*>(storage);
  threadgroup B* staged_b = reinterpret_cast<threadgroup B*>(storage + 288);
  threadgroup float* scratch = reinterpret_cast<threadgroup float*>(storage);  // after the last operand was read

  // The part of the block that this simdgroup owns.
  const int warp_row = int(simdgroup) / SIMDGROUPS_N * WM, warp_column = int(simdgroup) % SIMDGROUPS_N * WN;
  threadgroup A* warp_a = staged_a + warp_row * A_M;
  threadgroup B* warp_b = staged_b + warp_column * B_N;

  auto left0 = op.get_left_input_cooperative_tensor<A, B, float>();
  auto right = op.get_right_input_cooperative_tensor<A, B, float>();
  typedef remove_addrspace_t<decltype(left0)> Left;
  typedef remove_addrspace_t<decltype(right)> Right;
  auto c00 = op.get_destination_cooperative_tensor<Left, Right, float>();
  zero(c00);

  // All fragments of an operand have one layout; only their origins differ.
  ushort left_at[LEFT_SLOTS], right_at[RIGHT_SLOTS];
  locate<false, false>(left0, left_at, A_LD, 1, 0, 0);
  locate<false, false>(right, right_at, B_LD, 1, 0, 0);

  a += row0 * a_m;
  b += column0 * b_n;
#pragma clang loop unroll(disable)
  for (int k_left = p.K; k_left > 0; k_left -= BK) {
    stage<A_ROWS, A_COLUMNS, A_LD, RAGGED_M, RAGGED_K>(staged_a, a, a_m, a_k, p.M - row0, k_left, thread_index);
    stage<B_ROWS, B_COLUMNS, B_LD, RAGGED_K, RAGGED_N>(staged_b, b, b_k, b_n, k_left, p.N - column0, thread_index);
    a += BK * a_k;
    b += BK * b_k;
    threadgroup_barrier(mem_flags::mem_threadgroup);  // both tiles are complete
#pragma clang loop unroll(full)
    for (int k = 0; k < BK; k += OK) {
      fill(left0, warp_a + 0 * OM * A_M + k * A_K, left_at);
      fill(right, warp_b + 0 * ON * B_N + k * B_K, right_at);
      op.run(left0, right, c00);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);  // nobody reads the tiles any more
  }

  put(c00, scratch + (warp_row + 0 * OM) * SCRATCH_LD + warp_column + 0 * ON);
  threadgroup_barrier(mem_flags::mem_threadgroup);  // the whole block lies in scratch
  store_block<RAGGED_M, RAGGED_N>(scratch, c, p.c_m, row0, column0, p.M, p.N, int(thread_index), finish);
#endif  // __METAL_VERSION__ >= 400: older dialects get an empty stub, which no engine ever selects
}
