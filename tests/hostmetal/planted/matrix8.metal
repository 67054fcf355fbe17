// C = A B with 8x8 simdgroup matrices; one simdgroup makes 8 rows of C.
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;

kernel void matrix8(const device half* a [[buffer(0)]], const device half* b [[buffer(1)]], device float* c [[buffer(2)]],
                    constant int3& size [[buffer(3)]], constant int& bug [[buffer(4)]], uint group [[threadgroup_position_in_grid]],
                    uint sg [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup half as[4][8 * 8];
  const int N = size.y, K = size.z;
  const int row = (bug == 5 ? 0 : group * 32) + (bug == 4 ? 0 : sg * 8);
  for (int n = 0; n < N; n += 8) {
    simdgroup_float8x8 acc = make_filled_simdgroup_matrix<float, 8>(0.0f);
    for (int k = 0; k < K; k += 8) {
      for (int e = lane; e < 64; e += 32)
        if (bug != 6 || e != 63) as[sg][e] = a[(row + e / 8) * K + k + e % 8];
      if (bug != 3) simdgroup_barrier(mem_flags::mem_threadgroup);
      simdgroup_half8x8 left, right;
      simdgroup_load(left, as[sg], 8);  // @3 race @6 uninitialised
      simdgroup_load(right, b + k * N + n + (bug == 1 ? 8 : 0), N);  // @1 out_of_bounds
      if (bug == 2 && lane < 5) continue;
      simdgroup_multiply_accumulate(acc, left, right, acc);  // @2 divergence
      simdgroup_barrier(mem_flags::mem_threadgroup);  // @2 divergence
    }
    simdgroup_store(acc, c + (row + (bug == 7 ? 8 : 0)) * N + n, N);  // @4 race @5 group_race @7 out_of_bounds @2 divergence
  }
}
