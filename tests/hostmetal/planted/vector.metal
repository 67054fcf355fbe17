// Vector loads and stores of half data.
#include <metal_stdlib>
using namespace metal;

struct pair { int a; int b; };

kernel void vector(const device half* x [[buffer(0)]], device half* y [[buffer(1)]], constant int& bug [[buffer(2)]],
                   uint at [[thread_position_in_grid]], uint tid [[thread_index_in_threadgroup]]) {
  threadgroup half tile[4 * 64 + 8];
  const uint i = at * 4;
  const half4 v = *(const device half4*)(x + i + (bug == 1 ? 1 : bug == 2 ? 2 : 0));  // @1 misaligned @2 misaligned
  *(threadgroup half4*)(tile + tid * 4 + (bug == 3 ? 1 : 0)) = v;  // @3 misaligned
  half4 w = *(threadgroup half4*)(tile + tid * 4 + (bug == 4 ? 2 : 0));  // @4 misaligned
  if (bug == 5) w.x = half((*(const device float4*)(x + i)).x);  // @5 misaligned
  if (bug == 6) w.x = half(((const device pair*)(x + i + 1))->b);  // @6 misaligned
  *(device half4*)(y + i + (bug == 7 ? 2 : bug == 8 ? 3 : 0)) = w;  // @7 misaligned @8 misaligned
  if (bug == 9) *(device half4*)(y + i + 4) = w;  // @9 race
  if (bug == 10 && at == 127) *(device half2*)(y + i + 4) = half2(0.0h);  // @10 out_of_bounds
}
