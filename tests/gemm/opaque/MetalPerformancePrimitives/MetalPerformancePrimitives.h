// The names of MetalPerformancePrimitives that our templates use, with nothing behind them: a compiler's output then holds
// the template's own instructions and no emulator's. Capacities are constants, as the back end of a real GPU knows them.
#pragma once

extern "C" int opaque_coordinate(uint slot, uint axis) __attribute__((const));
extern "C" void opaque_run(void* left, void* right, void* destination);

template <class T, int CAPACITY>
struct opaque_cooperative_tensor {
  T slots[CAPACITY];
  ushort get_capacity() const thread { return CAPACITY; }
  thread T& operator[](uint i) thread { return slots[i]; }
  bool is_valid_element(uint) const thread { return true; }
  metal::array<int, 2> get_multidimensional_index(uint i) const thread { return {opaque_coordinate(i, 0), opaque_coordinate(i, 1)}; }
};

namespace mpp { namespace tensor_ops {
struct matmul2d_descriptor {
  enum class mode { multiply, multiply_accumulate };
  int m, n, k;
  constexpr matmul2d_descriptor(int m, int n, int k, bool, bool, bool, mode) : m(m), n(n), k(k) {}
  constexpr operator ulong() const { return ulong(m) | ulong(n) << 16 | ulong(k) << 32; }
};

template <ulong SIZES, class Scope>
struct matmul2d {
  static constexpr constant int M = SIZES & 0xffff, N = SIZES >> 16 & 0xffff, K = SIZES >> 32;
  template <class L, class R, class D> opaque_cooperative_tensor<L, M * K / 32> get_left_input_cooperative_tensor() const thread { return {}; }
  template <class L, class R, class D> opaque_cooperative_tensor<R, K * N / 32> get_right_input_cooperative_tensor() const thread { return {}; }
  template <class L, class R, class D> opaque_cooperative_tensor<D, M * N / 32> get_destination_cooperative_tensor() const thread { return {}; }
  template <class L, class R, class D> void run(thread L& left, thread R& right, thread D& destination) const thread {
    opaque_run(&left, &right, &destination);
  }
};
}}  // namespace mpp::tensor_ops
