// Kernels that are right on one machine and wrong on another: each fault shows under one switch only.
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;

// C = A B, one 16x32x16 product. how: 0 by coordinate; 1 by the lane map of M5-class GPUs; 2 by coordinate, but for the
// capacity of that map; 3 by coordinate, without zeroing the destination.
template <class T, bool RELAXED, matmul2d_descriptor::mode MODE>
void product(const device T* a, const device T* b, device float* c, int how, ushort lane) {
  constexpr auto d = matmul2d_descriptor(16, 32, 16, false, false, RELAXED, MODE);
  matmul2d<d, execution_simdgroup> op;
  auto left = op.template get_left_input_cooperative_tensor<T, T, float>();
  auto right = op.template get_right_input_cooperative_tensor<T, T, float>();
  auto dest = op.template get_destination_cooperative_tensor<decltype(left), decltype(right), float>();
  const int row = ((lane >> 2) & 4) | ((lane >> 1) & 3), col = ((lane >> 2 & 2) | (lane & 1)) * 4;
  if (how != 3)
    for (ushort i = 0; i < (how == 2 ? 16 : dest.get_capacity()); ++i) dest[i] = 0.0f;
  for (ushort i = 0; i < (how == 2 ? 8 : left.get_capacity()); ++i) {
    const auto at = left.get_multidimensional_index(i);
    if (how != 1 && !left.is_valid_element(i)) continue;
    left[i] = how == 1 ? a[(row + i / 4 * 8) * 16 + col + i % 4] : a[at[1] * 16 + at[0]];
  }
  for (ushort i = 0; i < (how == 2 ? 16 : right.get_capacity()); ++i) {
    const auto at = right.get_multidimensional_index(i);
    if (how != 1 && !right.is_valid_element(i)) continue;
    right[i] = how == 1 ? b[(row + i % 8 / 4 * 8) * 32 + col + i % 4 + i / 8 * 16] : b[at[1] * 32 + at[0]];
  }
  op.run(left, right, dest);
  for (ushort i = 0; i < (how == 2 ? 16 : dest.get_capacity()); ++i) {
    const auto at = dest.get_multidimensional_index(i);
    if (how == 1) c[(row + i % 8 / 4 * 8) * 32 + col + i % 4 + i / 8 * 16] = dest[i];
    else if (dest.is_valid_element(i)) c[at[1] * 32 + at[0]] = dest[i];
  }
}

kernel void half_product(const device half* a [[buffer(0)]], const device half* b [[buffer(1)]], device float* c [[buffer(2)]],
                         constant int& how [[buffer(3)]], ushort lane [[thread_index_in_simdgroup]]) {
  product<half, true, matmul2d_descriptor::mode::multiply_accumulate>(a, b, c, how, lane);
}
kernel void overwriting(const device half* a [[buffer(0)]], const device half* b [[buffer(1)]], device float* c [[buffer(2)]],
                        constant int& how [[buffer(3)]], ushort lane [[thread_index_in_simdgroup]]) {
  product<half, true, matmul2d_descriptor::mode::multiply>(a, b, c, how, lane);
}
kernel void float_product(const device float* a [[buffer(0)]], const device float* b [[buffer(1)]], device float* c [[buffer(2)]],
                          constant int& how [[buffer(3)]], ushort lane [[thread_index_in_simdgroup]]) {
  product<float, true, matmul2d_descriptor::mode::multiply_accumulate>(a, b, c, how, lane);
}

// Compacts even numbers: how 0 sorts by position, 1 takes places in the order of arrival.
kernel void compact(const device int* x [[buffer(0)]], device int* y [[buffer(1)]], device atomic_int* places [[buffer(2)]],
                    constant int& how [[buffer(3)]], uint at [[thread_position_in_grid]]) {
  if (x[at] % 2) return;
  int place = 0;
  if (how == 1) place = atomic_fetch_add_explicit(places, 1, memory_order_relaxed);
  else
    for (uint i = 0; i < at; ++i) place += x[i] % 2 == 0;
  y[place] = x[at];
}
