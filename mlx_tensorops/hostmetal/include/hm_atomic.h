// <metal_atomic>: atomics in device and threadgroup memory. One OS thread runs all threads, so an atomic operation is a
// plain one, with a chance before it for another thread to run.
#pragma once
#include "hm_sync.h"
#include "hm_vec.h"
#pragma clang system_header

namespace metal {

template <class T> struct atomic {
  static_assert(__hm::same<T, int>::value || __hm::same<T, uint>::value || __hm::same<T, bool>::value ||
                    __hm::same<T, ulong>::value || __hm::same<T, float>::value,
                "atomic<T>: T is int, uint, ulong, bool or float");
  T value;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<ulong> atomic_ulong;
typedef atomic<bool> atomic_bool;
typedef atomic<float> atomic_float;

}  // namespace metal

namespace __hm {

// Runs f on the value in memory as one step.
template <class P, class F> HM_FUNC auto atomically(P* object, F f) {
  __hm_yield();
#if HM_CHECKED_BUILD
  __hm_modes(HM_ACCESS_ATOMIC);
#endif
  auto r = f(object->value);
#if HM_CHECKED_BUILD
  __hm_modes(HM_ACCESS_PLAIN);
#endif
  return r;
}

}  // namespace __hm

namespace metal {

// Fetch operations: the result is the old value. T on the right: what arrives is converted.
#define HM_ATOMIC_FETCH(space, name, expression, allowed)                                                     \
  template <class T, enable_if_t<(allowed), int> = 0>                                                         \
  HM_FUNC T atomic_fetch_##name##_explicit(volatile space atomic<T>* object, type_identity_t<T> x, memory_order) { \
    return __hm::atomically((space atomic<T>*)object, [&](space T& value) {                                   \
      const T old = value;                                                                                    \
      value = expression;                                                                                     \
      return old;                                                                                             \
    });                                                                                                       \
  }
#define HM_ATOMICS(space)                                                                                     \
  template <class T> HM_FUNC void atomic_store_explicit(volatile space atomic<T>* object, type_identity_t<T> x, memory_order) { \
    __hm::atomically((space atomic<T>*)object, [&](space T& value) { return value = x; });                    \
  }                                                                                                           \
  template <class T> HM_FUNC T atomic_load_explicit(const volatile space atomic<T>* object, memory_order) {   \
    return __hm::atomically((space atomic<T>*)object, [&](space T& value) { return value; });                 \
  }                                                                                                           \
  template <class T>                                                                                          \
  HM_FUNC T atomic_exchange_explicit(volatile space atomic<T>* object, type_identity_t<T> x, memory_order) {  \
    return __hm::atomically((space atomic<T>*)object, [&](space T& value) {                                   \
      const T old = value;                                                                                    \
      value = x;                                                                                              \
      return old;                                                                                             \
    });                                                                                                       \
  }                                                                                                           \
  template <class T>                                                                                          \
  HM_FUNC bool atomic_compare_exchange_weak_explicit(volatile space atomic<T>* object, thread T* expected,    \
                                                     type_identity_t<T> desired, memory_order, memory_order) { \
    return __hm::atomically((space atomic<T>*)object, [&](space T& value) {                                   \
      const T old = value;                                                                                    \
      const bool equal = __builtin_memcmp(&old, expected, sizeof(T)) == 0;                                    \
      if (equal) value = desired;                                                                             \
      else *expected = old;                                                                                   \
      return equal;                                                                                           \
    });                                                                                                       \
  }                                                                                                           \
  HM_ATOMIC_FETCH(space, add, old + x, !(__hm::same<T, bool>::value))                                         \
  HM_ATOMIC_FETCH(space, sub, old - x, !(__hm::same<T, bool>::value))                                         \
  HM_ATOMIC_FETCH(space, and, old & x, is_integral_v<T>)                                                      \
  HM_ATOMIC_FETCH(space, or, old | x, is_integral_v<T>)                                                       \
  HM_ATOMIC_FETCH(space, xor, old ^ x, is_integral_v<T>)                                                      \
  HM_ATOMIC_FETCH(space, min, x < old ? x : old, is_integral_v<T>)                                            \
  HM_ATOMIC_FETCH(space, max, x > old ? x : old, is_integral_v<T>)
HM_ATOMICS(device)
HM_ATOMICS(threadgroup)
#undef HM_ATOMICS
#undef HM_ATOMIC_FETCH

// 64-bit minimum and maximum without a result (Apple8 and later).
HM_FUNC void atomic_min_explicit(volatile device atomic_ulong* object, ulong x, memory_order order) {
  atomic_fetch_min_explicit(object, x, order);
}
HM_FUNC void atomic_max_explicit(volatile device atomic_ulong* object, ulong x, memory_order order) {
  atomic_fetch_max_explicit(object, x, order);
}

}  // namespace metal
