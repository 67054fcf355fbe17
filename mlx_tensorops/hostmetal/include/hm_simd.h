// <metal_simdgroup>: data exchange, reductions, scans and votes over the 32 threads of a simdgroup.
#pragma once
#include "hm_collective.h"
#pragma clang system_header

namespace metal {

// As in Metal's declarations, bfloat arguments become float.
#define HM_GROUP_EXCHANGE(name, how)                                                            \
  template <class T, __hm::group_type<T> = 0>                                                   \
  HM_FUNC T name(T value, ushort k, unsigned line = __builtin_LINE()) {                         \
    return __hm::exchanged<HM_SIMDGROUP, __hm::pick::how>(#name, value, value, k, 32, line);     \
  }                                                                                             \
  template <class T, __hm::only_bfloat<T> = 0>                                                  \
  HM_FUNC float name(T value, ushort k, unsigned line = __builtin_LINE()) {                     \
    return name(static_cast<float>(value), k, line);                                            \
  }
HM_GROUP_EXCHANGE(simd_shuffle, lane)
HM_GROUP_EXCHANGE(simd_shuffle_xor, bitwise_xor)
HM_GROUP_EXCHANGE(simd_shuffle_down, down)
HM_GROUP_EXCHANGE(simd_shuffle_up, up)
HM_GROUP_EXCHANGE(simd_shuffle_rotate_down, rotate_down)
HM_GROUP_EXCHANGE(simd_shuffle_rotate_up, rotate_up)
HM_GROUP_EXCHANGE(simd_broadcast, broadcast)
#undef HM_GROUP_EXCHANGE

// Where the shift runs past a group of `modulo` threads, the value comes from `filling`.
#define HM_GROUP_FILL(name, how)                                                                \
  template <class T, __hm::group_type<T> = 0>                                                   \
  HM_FUNC T name(T value, type_identity_t<T> filling, ushort delta, ushort modulo = 32,       \
                 unsigned line = __builtin_LINE()) {                                            \
    return __hm::exchanged<HM_SIMDGROUP, __hm::pick::how>(#name, value, filling, delta, modulo, line); \
  }
HM_GROUP_FILL(simd_shuffle_and_fill_down, fill_down)
HM_GROUP_FILL(simd_shuffle_and_fill_up, fill_up)
#undef HM_GROUP_FILL

#define HM_GROUP_REDUCE(name, f)                                                                \
  template <class T, __hm::group_type<T> = 0>                                                   \
  HM_FUNC T name(T value, unsigned line = __builtin_LINE()) {                                   \
    return __hm::reduced<HM_SIMDGROUP, __hm::f>(#name, value, line);                                  \
  }                                                                                             \
  template <class T, __hm::only_bfloat<T> = 0>                                                  \
  HM_FUNC float name(T value, unsigned line = __builtin_LINE()) {                               \
    return name(static_cast<float>(value), line);                                               \
  }
HM_GROUP_REDUCE(simd_sum, add)
HM_GROUP_REDUCE(simd_product, multiply_by)
HM_GROUP_REDUCE(simd_max, maximum)
HM_GROUP_REDUCE(simd_min, minimum)
#undef HM_GROUP_REDUCE
#define HM_GROUP_BITS(name, f)                                                                  \
  template <class T, __hm::group_bits<T> = 0>                                                   \
  HM_FUNC T name(T value, unsigned line = __builtin_LINE()) {                                   \
    return __hm::reduced<HM_SIMDGROUP, __hm::f>(#name, value, line);                                  \
  }
HM_GROUP_BITS(simd_and, bit_and)
HM_GROUP_BITS(simd_or, bit_or)
HM_GROUP_BITS(simd_xor, bit_xor)
#undef HM_GROUP_BITS

#define HM_GROUP_SCAN(name, f, inclusive, identity)                                             \
  template <class T, __hm::group_type<T> = 0>                                                   \
  HM_FUNC T name(T value, unsigned line = __builtin_LINE()) {                                   \
    return __hm::scanned<HM_SIMDGROUP, __hm::f, inclusive>(#name, value, T(identity), line);          \
  }                                                                                             \
  template <class T, __hm::only_bfloat<T> = 0>                                                  \
  HM_FUNC float name(T value, unsigned line = __builtin_LINE()) {                               \
    return name(static_cast<float>(value), line);                                               \
  }
HM_GROUP_SCAN(simd_prefix_inclusive_sum, add, true, 0)
HM_GROUP_SCAN(simd_prefix_exclusive_sum, add, false, 0)
HM_GROUP_SCAN(simd_prefix_inclusive_product, multiply_by, true, 1)
HM_GROUP_SCAN(simd_prefix_exclusive_product, multiply_by, false, 1)
#undef HM_GROUP_SCAN

struct simd_vote {
  using vote_t = ulong;
  vote_t bits;
  HM_FUNC explicit simd_vote(vote_t b = 0) : bits(b) {}
  HM_FUNC explicit operator vote_t() const { return bits; }
  HM_FUNC bool all() const { return bits == 0xffffffffu; }
  HM_FUNC bool any() const { return bits != 0; }
};
HM_FUNC simd_vote simd_ballot(bool yes, unsigned line = __builtin_LINE()) {
  const uint mine = static_cast<uint>(yes) << __hm_cur->lane;
  return simd_vote(__hm::reduced<HM_SIMDGROUP, __hm::bit_or>("simd_ballot", mine, line));
}
HM_FUNC simd_vote simd_active_threads_mask(unsigned line = __builtin_LINE()) {
  return simd_ballot(true, line);
}
HM_FUNC bool simd_all(bool yes, unsigned line = __builtin_LINE()) {
  return __hm::reduced<HM_SIMDGROUP, __hm::bit_and>("simd_all", static_cast<uint>(yes), line) != 0;
}
HM_FUNC bool simd_any(bool yes, unsigned line = __builtin_LINE()) {
  return __hm::reduced<HM_SIMDGROUP, __hm::bit_or>("simd_any", static_cast<uint>(yes), line) != 0;
}
HM_FUNC bool simd_is_first(unsigned line = __builtin_LINE()) {
  const uint me = __hm_cur->thread_index;
  return __hm::reduced<HM_SIMDGROUP, __hm::minimum>("simd_is_first", me, line) == me;
}
template <class T, __hm::group_type<T> = 0>
HM_FUNC T simd_broadcast_first(T value, unsigned line = __builtin_LINE()) {
  const uint first = __hm::reduced<HM_SIMDGROUP, __hm::minimum>("simd_broadcast_first", __hm_cur->thread_index, line);
  return simd_broadcast(value, static_cast<ushort>(first & 31), line);
}

}  // namespace metal

// The compiler's own names, which MLX's overloads call.
HM_FUNC ushort __metal_get_thread_index_in_simdgroup(ushort) { return static_cast<ushort>(__hm_cur->lane); }
HM_FUNC ushort __metal_get_simdgroup_size(ushort) { return 32; }
#define HM_INTRINSIC(name) \
  template <class... A> HM_FUNC auto __metal_##name(A... a) { return metal::name(a...); }
HM_INTRINSIC(simd_shuffle)
HM_INTRINSIC(simd_shuffle_xor)
HM_INTRINSIC(simd_shuffle_down)
HM_INTRINSIC(simd_shuffle_up)
HM_INTRINSIC(simd_shuffle_rotate_down)
HM_INTRINSIC(simd_shuffle_rotate_up)
HM_INTRINSIC(simd_shuffle_and_fill_down)
HM_INTRINSIC(simd_shuffle_and_fill_up)
HM_INTRINSIC(simd_broadcast)
HM_INTRINSIC(simd_sum)
HM_INTRINSIC(simd_product)
HM_INTRINSIC(simd_max)
HM_INTRINSIC(simd_min)
HM_INTRINSIC(simd_prefix_inclusive_sum)
HM_INTRINSIC(simd_prefix_exclusive_sum)
HM_INTRINSIC(simd_prefix_inclusive_product)
HM_INTRINSIC(simd_prefix_exclusive_product)
#undef HM_INTRINSIC
// MLX instantiates the bitwise reductions for float, too, where Metal has none: the bits of the value.
#define HM_INTRINSIC(name)                                                                     \
  template <class T> HM_FUNC T __metal_##name(T value) { return metal::name(value); }          \
  HM_FUNC float __metal_##name(float value) {                                                  \
    return metal::as_type<float>(metal::name(metal::as_type<uint>(value)));                    \
  }
HM_INTRINSIC(simd_and)
HM_INTRINSIC(simd_or)
HM_INTRINSIC(simd_xor)
#undef HM_INTRINSIC
