// C = A B through matmul2d on inline tensors, then every thread scales what others stored.
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;

kernel void scaled(device half* a [[buffer(0)]], device half* b [[buffer(1)]], device float* c [[buffer(2)]],
                   device float* y [[buffer(3)]], constant int& bug [[buffer(4)]], uint tid [[thread_index_in_threadgroup]],
                   uint lane [[thread_index_in_simdgroup]], uint group [[threadgroup_position_in_grid]]) {
  threadgroup half as[64 * 32];
  constexpr auto d = matmul2d_descriptor(64, 32, static_cast<int>(dynamic_extent));
  matmul2d<d, execution_simdgroups<4>> op;
  for (int e = tid; e < 64 * 32; e += 128)
    if (bug != 6 || e != 100) as[e] = a[group * 64 * 32 + e];
  if (bug != 3) threadgroup_barrier(bug == 7 ? mem_flags::mem_none : mem_flags::mem_threadgroup);
  auto A = tensor<threadgroup half, dextents<int, 2>, tensor_inline>(as, dextents<int, 2>(32, 64));
  auto B = tensor<device half, dextents<int, 2>, tensor_inline>(b, dextents<int, 2>(32, bug == 8 ? 33 : 32));
  auto C = tensor<device float, dextents<int, 2>, tensor_inline>(c + (bug == 5 ? 0 : group * 64 * 32), dextents<int, 2>(32, 64));
  if (bug == 4 && tid >= 64) return;
  op.run(A, B, C);  // @3 race @4 divergence @5 group_race @6 uninitialised @7 barrier_flags
  if (bug == 2) threadgroup_barrier(mem_flags::mem_threadgroup);
  else if (bug == 9) simdgroup_barrier(mem_flags::mem_device);
  else if (bug != 1) threadgroup_barrier(mem_flags::mem_device);
  for (int e = tid; e < 64 * 32; e += 128) {
    const int at = group * 64 * 32 + (64 * 32 - 1 - e);
    y[group * 64 * 32 + e] = 2.0f * c[at];  // @1 race @2 barrier_flags @9 race
  }
}
