// C = A B, 64x64 per threadgroup of 4 simdgroups, operands staged through threadgroup memory.
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;

kernel void staged(const device half* a [[buffer(0)]], const device half* b [[buffer(1)]], device float* c [[buffer(2)]],
                   constant int3& size [[buffer(3)]], constant int& bug [[buffer(4)]], uint2 group [[threadgroup_position_in_grid]],
                   uint tid [[thread_index_in_threadgroup]], uint sg [[simdgroup_index_in_threadgroup]]) {
  threadgroup half As[64 * 32], Bs[32][72];
  const int N = size.y, K = size.z;
  constexpr auto d = matmul2d_descriptor(16, 32, 16, false, false, true, matmul2d_descriptor::mode::multiply_accumulate);
  matmul2d<d, execution_simdgroup> op;
  auto left = op.get_left_input_cooperative_tensor<half, half, float>();
  auto right = op.get_right_input_cooperative_tensor<half, half, float>();
  auto c0 = op.get_destination_cooperative_tensor<decltype(left), decltype(right), float>();
  auto c1 = op.get_destination_cooperative_tensor<decltype(left), decltype(right), float>();
  for (ushort i = 0; i < c0.get_capacity(); ++i) c0[i] = c1[i] = 0.0f;
  const int row0 = (sg >> 1) * 32, col0 = (sg & 1) * 32;
  for (int k0 = 0; k0 < K; k0 += 32) {
    if (bug != 1) threadgroup_barrier(mem_flags::mem_threadgroup);  // @7 divergence
    for (int e = tid; e < 64 * 32; e += 128)
      if (bug != 3 || e % 32 != 31) As[e] = a[(group.y * 64 + e / 32) * K + k0 + e % 32];  // @1 race @8 race
    for (int e = tid; e < (bug == 4 ? 33 : 32) * 64; e += 128)
      Bs[e / 64][e % 64 + (bug == 5 ? 16 : 0)] = b[(k0 + e / 64) * N + group.x * 64 + e % 64];  // @4 local_overrun @5 local_overrun
    if (bug == 6) threadgroup_barrier(mem_flags::mem_none);
    else if (bug == 8 && sg == 3) simdgroup_barrier(mem_flags::mem_threadgroup);
    else if (bug != 2) threadgroup_barrier(mem_flags::mem_threadgroup);  // @8 divergence
    for (int kk = 0; kk < 32; kk += 16) {
      for (ushort i = 0; i < right.get_capacity(); ++i) {
        const auto at = right.get_multidimensional_index(i);
        right[i] = Bs[kk + at[1]][col0 + at[0]];  // @2 race @6 barrier_flags
      }
      for (ushort i = 0; i < left.get_capacity(); ++i) {
        const auto at = left.get_multidimensional_index(i);
        left[i] = As[(row0 + at[1]) * 32 + kk + at[0]];  // @2 race @3 uninitialised @6 barrier_flags
      }
      op.run(left, right, c0);
      for (ushort i = 0; i < left.get_capacity(); ++i) {
        const auto at = left.get_multidimensional_index(i);
        left[i] = As[(row0 + 16 + at[1]) * 32 + kk + at[0]];
      }
      op.run(left, right, c1);
    }
    if (bug == 7 && sg == 1) threadgroup_barrier(mem_flags::mem_threadgroup);  // @7 divergence
  }
  const int r = group.y * 64 + row0, q = (bug == 9 ? 0 : group.x * 64) + col0, stride = bug == 10 ? N + 1 : N;
  for (ushort i = 0; i < c0.get_capacity(); ++i) {
    const auto at = c0.get_multidimensional_index(i);
    c[(r + at[1]) * stride + q + at[0]] = c0[i];  // @9 group_race @10 out_of_bounds
    c[(r + 16 + at[1]) * stride + q + at[0]] = c1[i];  // @10 out_of_bounds
  }
}
