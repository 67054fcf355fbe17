// <metal_quadgroup>: data exchange, reductions, scans and votes over the 4 threads of a quadgroup.
#pragma once
#include "hm_collective.h"
#pragma clang system_header

namespace metal {

// As in Metal's declarations, bfloat arguments become float.
#define HM_GROUP_EXCHANGE(name, how)                                                            \
  template <class T, __hm::group_type<T> = 0>                                                   \
  HM_FUNC T name(T value, ushort k, unsigned line = __builtin_LINE()) {                         \
    return __hm::exchanged<HM_QUADGROUP, __hm::pick::how>(#name, value, value, k, 4, line);     \
  }                                                                                             \
  template <class T, __hm::only_bfloat<T> = 0>                                                  \
  HM_FUNC float name(T value, ushort k, unsigned line = __builtin_LINE()) {                     \
    return name(static_cast<float>(value), k, line);                                            \
  }
HM_GROUP_EXCHANGE(quad_shuffle, lane)
HM_GROUP_EXCHANGE(quad_shuffle_xor, bitwise_xor)
HM_GROUP_EXCHANGE(quad_shuffle_down, down)
HM_GROUP_EXCHANGE(quad_shuffle_up, up)
HM_GROUP_EXCHANGE(quad_shuffle_rotate_down, rotate_down)
HM_GROUP_EXCHANGE(quad_shuffle_rotate_up, rotate_up)
HM_GROUP_EXCHANGE(quad_broadcast, broadcast)
#undef HM_GROUP_EXCHANGE

// Where the shift runs past a group of `modulo` threads, the value comes from `filling`.
#define HM_GROUP_FILL(name, how)                                                                \
  template <class T, __hm::group_type<T> = 0>                                                   \
  HM_FUNC T name(T value, type_identity_t<T> filling, ushort delta, ushort modulo = 4,       \
                 unsigned line = __builtin_LINE()) {                                            \
    return __hm::exchanged<HM_QUADGROUP, __hm::pick::how>(#name, value, filling, delta, modulo, line); \
  }
HM_GROUP_FILL(quad_shuffle_and_fill_down, fill_down)
HM_GROUP_FILL(quad_shuffle_and_fill_up, fill_up)
#undef HM_GROUP_FILL

#define HM_GROUP_REDUCE(name, f)                                                                \
  template <class T, __hm::group_type<T> = 0>                                                   \
  HM_FUNC T name(T value, unsigned line = __builtin_LINE()) {                                   \
    return __hm::reduced<HM_QUADGROUP, __hm::f>(#name, value, line);                                  \
  }                                                                                             \
  template <class T, __hm::only_bfloat<T> = 0>                                                  \
  HM_FUNC float name(T value, unsigned line = __builtin_LINE()) {                               \
    return name(static_cast<float>(value), line);                                               \
  }
HM_GROUP_REDUCE(quad_sum, add)
HM_GROUP_REDUCE(quad_product, multiply_by)
HM_GROUP_REDUCE(quad_max, maximum)
HM_GROUP_REDUCE(quad_min, minimum)
#undef HM_GROUP_REDUCE
#define HM_GROUP_BITS(name, f)                                                                  \
  template <class T, __hm::group_bits<T> = 0>                                                   \
  HM_FUNC T name(T value, unsigned line = __builtin_LINE()) {                                   \
    return __hm::reduced<HM_QUADGROUP, __hm::f>(#name, value, line);                                  \
  }
HM_GROUP_BITS(quad_and, bit_and)
HM_GROUP_BITS(quad_or, bit_or)
HM_GROUP_BITS(quad_xor, bit_xor)
#undef HM_GROUP_BITS

#define HM_GROUP_SCAN(name, f, inclusive, identity)                                             \
  template <class T, __hm::group_type<T> = 0>                                                   \
  HM_FUNC T name(T value, unsigned line = __builtin_LINE()) {                                   \
    return __hm::scanned<HM_QUADGROUP, __hm::f, inclusive>(#name, value, T(identity), line);          \
  }                                                                                             \
  template <class T, __hm::only_bfloat<T> = 0>                                                  \
  HM_FUNC float name(T value, unsigned line = __builtin_LINE()) {                               \
    return name(static_cast<float>(value), line);                                               \
  }
HM_GROUP_SCAN(quad_prefix_inclusive_sum, add, true, 0)
HM_GROUP_SCAN(quad_prefix_exclusive_sum, add, false, 0)
HM_GROUP_SCAN(quad_prefix_inclusive_product, multiply_by, true, 1)
HM_GROUP_SCAN(quad_prefix_exclusive_product, multiply_by, false, 1)
#undef HM_GROUP_SCAN

struct quad_vote {
  using vote_t = uint;
  vote_t bits;
  HM_FUNC explicit quad_vote(vote_t b = 0) : bits(b) {}
  HM_FUNC explicit operator vote_t() const { return bits; }
  HM_FUNC bool all() const { return bits == 0xf; }
  HM_FUNC bool any() const { return bits != 0; }
};
HM_FUNC quad_vote quad_ballot(bool yes, unsigned line = __builtin_LINE()) {
  const uint mine = static_cast<uint>(yes) << (__hm_cur->thread_index & 3);
  return quad_vote(__hm::reduced<HM_QUADGROUP, __hm::bit_or>("quad_ballot", mine, line));
}
HM_FUNC quad_vote quad_active_threads_mask(unsigned line = __builtin_LINE()) {
  return quad_ballot(true, line);
}
HM_FUNC bool quad_all(bool yes, unsigned line = __builtin_LINE()) {
  return __hm::reduced<HM_QUADGROUP, __hm::bit_and>("quad_all", static_cast<uint>(yes), line) != 0;
}
HM_FUNC bool quad_any(bool yes, unsigned line = __builtin_LINE()) {
  return __hm::reduced<HM_QUADGROUP, __hm::bit_or>("quad_any", static_cast<uint>(yes), line) != 0;
}
HM_FUNC bool quad_is_first(unsigned line = __builtin_LINE()) {
  const uint me = __hm_cur->thread_index;
  return __hm::reduced<HM_QUADGROUP, __hm::minimum>("quad_is_first", me, line) == me;
}
template <class T, __hm::group_type<T> = 0>
HM_FUNC T quad_broadcast_first(T value, unsigned line = __builtin_LINE()) {
  const uint first = __hm::reduced<HM_QUADGROUP, __hm::minimum>("quad_broadcast_first", __hm_cur->thread_index, line);
  return quad_broadcast(value, static_cast<ushort>(first & 3), line);
}

}  // namespace metal
