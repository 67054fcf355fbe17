// Sums of 128 values by a tree in threadgroup memory.
#include <metal_stdlib>
using namespace metal;

kernel void reduce(const device float* x [[buffer(0)]], device float* y [[buffer(1)]], constant int& bug [[buffer(2)]],
                   uint tid [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]]) {
  threadgroup float part[128];
  if (bug != 6 || tid < 100) part[tid] = x[group * 128 + tid];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint s = bug == 3 ? 128 : 64; s > 0; s >>= 1) {
    const bool mine = bug == 5 ? tid <= s : tid < s;
    if (mine) {
      part[tid] += part[tid + s];  // @1 race @3 out_of_bounds @5 race @6 uninitialised @9 barrier_flags
      if (bug == 2) threadgroup_barrier(mem_flags::mem_threadgroup);  // @2 divergence
    }
    if (bug == 9 && s == 32) threadgroup_barrier(mem_flags::mem_none);
    else if (bug != 1 && (bug != 4 || s > 1) && bug != 2) threadgroup_barrier(mem_flags::mem_threadgroup);  // @10 divergence
    if (bug == 10 && tid == 127 && s == 16) return;
  }
  if (bug == 2) threadgroup_barrier(mem_flags::mem_threadgroup);  // @2 divergence
  const float sum = part[0];  // @4 race
  if (tid == 0 || bug == 7) y[bug == 8 ? group / 2 : group] = sum;  // @7 race @8 group_race
}
