// Reverses blocks of 128 through threadgroup memory. One text holds the clean kernel (bug == 0) and its faults:
// `// @n kind` marks a line on which fault n is to be reported.
#include <metal_stdlib>
using namespace metal;

kernel void stage(const device float* x [[buffer(0)]], device float* y [[buffer(1)]], constant int& bug [[buffer(2)]],
                  uint tid [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]]) {
  threadgroup float tile[128];
  const int at = group * 128 + tid;
  if (bug == 12 && tid == 5) return;
  const int from = bug == 1 ? at + 1 : bug == 2 ? at - 1 : at;
  const float value = x[from];  // @1 out_of_bounds @2 out_of_bounds
  if (bug != 3 || tid != 77) tile[bug == 9 ? tid + 1 : tid] = value;  // @9 out_of_bounds
  if (bug == 11 && tid < 32)
    threadgroup_barrier(mem_flags::mem_threadgroup);  // @11 divergence
  if (bug == 5) threadgroup_barrier(mem_flags::mem_none);
  else if (bug == 6) threadgroup_barrier(mem_flags::mem_device);
  else if (bug == 13) simdgroup_barrier(mem_flags::mem_threadgroup);
  else if (bug != 4) threadgroup_barrier(mem_flags::mem_threadgroup);  // @11 divergence @12 divergence
  const int source = bug == 10 ? 128 - tid : 127 - tid;
  const float other = tile[source];  // @3 uninitialised @4 race @5 barrier_flags @6 barrier_flags @10 out_of_bounds @13 race
  if (bug == 14) tile[tid] = other;  // @14 race
  const int to = bug == 7 && at == 511 ? 512 : bug == 8 ? at & 127 : at;
  y[to] = other;  // @7 out_of_bounds @8 group_race
}
