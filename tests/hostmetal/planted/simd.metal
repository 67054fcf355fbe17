// Operations of simdgroups and quadgroups, 4 simdgroups to a threadgroup.
#include <metal_stdlib>
using namespace metal;

kernel void simd(const device float* x [[buffer(0)]], device float* y [[buffer(1)]], constant int& bug [[buffer(2)]],
                 uint tid [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                 uint sg [[simdgroup_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]]) {
  threadgroup float part[4];
  float v = x[group * 128 + tid];
  if (bug == 1 && lane < 16) v = simd_max(v);  // @1 divergence
  const float sum = simd_sum(v);  // @1 divergence
  if (bug == 2)
    for (uint i = 0; i < lane / 16; ++i) v += simd_shuffle(v, ushort(0));  // @2 divergence
  v += simd_shuffle_xor(v, ushort(1));  // @2 divergence @3 divergence
  if (bug == 3 && lane == 7) v += simd_prefix_inclusive_sum(v);  // @3 divergence
  if (bug == 4 && lane > 3) simdgroup_barrier(mem_flags::mem_none);  // @4 divergence
  v += simd_broadcast(v, ushort(3));  // @3 divergence @4 divergence
  if (lane == 0) part[bug == 9 ? sg + 1 : sg] = sum;  // @9 out_of_bounds
  if (bug == 5 && sg == 2) return;
  if (bug == 6 && sg == 1) threadgroup_barrier(mem_flags::mem_threadgroup);  // @6 divergence
  if (bug == 7 && lane == 9) v += simd_sum(v);  // @7 deadlock
  if (bug != 10) threadgroup_barrier(mem_flags::mem_threadgroup);  // @5 divergence @6 divergence @7 deadlock
  if (bug == 8 && lane % 4 != 0) v += quad_sum(v);  // @8 divergence
  v += quad_shuffle_xor(v, ushort(1));  // @8 divergence
  y[group * 128 + tid] = v + part[3] + sum;  // @9 uninitialised @10 race
}
