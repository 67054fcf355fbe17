// 32x32 blocks, 32x8 threads, a matrix whose sides are no multiples of 32.
#include <metal_stdlib>
using namespace metal;

kernel void transpose(const device half* x [[buffer(0)]], device half* y [[buffer(1)]], constant int2& size [[buffer(2)]],
                      constant int& bug [[buffer(3)]], uint2 tid [[thread_position_in_threadgroup]],
                      uint2 group [[threadgroup_position_in_grid]]) {
  threadgroup half tile[32][33];
  const int rows = size.x, cols = size.y;
  for (int i = tid.y; i < 32; i += 8) {
    const int r = group.y * 32 + i, c = group.x * 32 + tid.x;
    half value = 0.0h;
    if ((r < rows && c < cols) || bug == 4) value = x[r * cols + c];  // @4 out_of_bounds
    if (bug == 7 && i == 30) continue;
    const int row = bug == 2 ? i + 1 : i, col = bug == 3 && tid.x == 31 ? 33 : tid.x;
    tile[row][col] = value;  // @2 local_overrun @3 local_overrun
  }
  if (bug == 8) threadgroup_barrier(mem_flags::mem_device);
  else if (bug != 1) threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int i = tid.y; i < 32; i += 8) {
    const int r = group.x * 32 + i, c = group.y * 32 + tid.x;
    if ((r < cols && c < rows) || bug == 5)
      y[bug == 6 ? c * rows + r : r * rows + c] =  // @5 out_of_bounds @6 group_race
          tile[tid.x][i];  // @1 race @7 uninitialised @8 barrier_flags
  }
}
