// C = A B, 64x64 per threadgroup of 4 simdgroups, cooperative tensors filled by coordinates.
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;

kernel void coop(const device half* a [[buffer(0)]], const device half* b [[buffer(1)]], device float* c [[buffer(2)]],
                 constant int3& size [[buffer(3)]], constant int& bug [[buffer(4)]], uint2 group [[threadgroup_position_in_grid]],
                 uint sg [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  const int N = size.y, K = size.z;
  constexpr auto d = matmul2d_descriptor(16, 32, 16, false, false, true, matmul2d_descriptor::mode::multiply_accumulate);
  matmul2d<d, execution_simdgroup> op;
  auto left = op.get_left_input_cooperative_tensor<half, half, float>();
  auto right = op.get_right_input_cooperative_tensor<half, half, float>();
  const int who = bug == 8 ? 0 : sg;
  for (int t = 0; t < 4; ++t) {
    const int r0 = (bug == 9 ? 0 : group.y * 64) + (who >> 1) * 32 + (t >> 1) * 16;
    const int c0 = group.x * 64 + (who & 1) * 32 + (bug == 10 ? (t & 1) : 0);
    if ((t & 1) && bug != 10) continue;
    auto dest = op.get_destination_cooperative_tensor<decltype(left), decltype(right), float>();
    const ushort zeroed = bug == 1 ? 0 : bug == 12 ? dest.get_capacity() - 1 : dest.get_capacity();
    for (ushort i = 0; i < zeroed; ++i) dest[i] = 0.0f;
    for (int k = 0; k < K; k += 16) {
      const ushort fill_left = bug == 4 ? left.get_capacity() + 1 : bug == 2 ? left.get_capacity() / 2 : left.get_capacity();
      for (ushort i = 0; i < fill_left; ++i) {
        const auto at = left.get_multidimensional_index(i);  // @4 capacity
        left[i] = a[(r0 + at[1]) * K + k + at[0] + (bug == 7 ? 16 : 0)];  // @4 capacity @7 out_of_bounds
      }
      for (ushort i = 0; i < right.get_capacity(); ++i) {
        const auto at = right.get_multidimensional_index(i);
        if (bug == 3 && i == 5 && lane == 3) continue;
        right[i] = b[(k + at[1]) * N + c0 + at[0]];  // @13 out_of_bounds
      }
      if (bug == 5 && lane > 19) continue;
      if (bug == 11 && lane == 31 && k == 16) return;
      if (bug == 13) right[0] = b[-1];  // @13 out_of_bounds
      op.run(left, right, dest);  // @1 uninitialised @2 uninitialised @3 uninitialised @5 divergence @11 divergence @12 uninitialised
    }
    for (ushort i = 0; i < dest.get_capacity(); ++i) {
      const auto at = dest.get_multidimensional_index(i);
      c[(r0 + at[1]) * N + c0 + at[0] + (bug == 6 ? N : 0)] = dest[i];  // @6 out_of_bounds @8 race @9 group_race @10 race
    }
  }
}
