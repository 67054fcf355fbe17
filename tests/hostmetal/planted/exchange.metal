// Threads hand values to their neighbours through device memory.
#include <metal_stdlib>
using namespace metal;

kernel void exchange(const device int* x [[buffer(0)]], device int* y [[buffer(1)]], device int* z [[buffer(2)]],
                     constant int& bug [[buffer(3)]], uint tid [[thread_index_in_threadgroup]],
                     uint group [[threadgroup_position_in_grid]]) {
  const uint base = group * 64, at = base + tid;
  y[bug == 3 ? (at & ~1u) : at] = 2 * x[at];  // @3 race
  if (bug == 2) threadgroup_barrier(mem_flags::mem_threadgroup);
  else if (bug == 6) simdgroup_barrier(mem_flags::mem_device);
  else if (bug == 9) threadgroup_barrier(mem_flags::mem_none);
  else if (bug != 1) threadgroup_barrier(mem_flags::mem_device);
  const uint neighbour = bug == 5 ? (at + 255) % 256 : base + (tid + 33) % 64;
  const int other = y[neighbour];  // @1 race @2 barrier_flags @5 group_race @6 race @9 barrier_flags
  if (bug == 4) y[at] = 0;  // @4 race
  if (bug == 10 && group > 0) y[tid] = 1;  // @10 group_race
  z[bug == 7 ? tid : at] = other;  // @7 group_race
  if (bug == 8 && group == 3) z[64] += 1;  // @8 group_race
}
