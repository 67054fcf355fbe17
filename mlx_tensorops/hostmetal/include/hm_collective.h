// The engine of simd_* and quad_* functions: each is one rendezvous in which the last thread to arrive computes every
// thread's result. Threads that have returned take no part.
#pragma once
#include "hm_common.h"
#include "hm_matmul.h"
#pragma clang system_header

namespace __hm {

// Element types of the group functions: no bool, no 64-bit integers, no bfloat, which converts to float.
template <class T>
struct is_group_type : metal::bool_constant<(is_int<T>::value && sizeof(T) <= 4 && !same<T, bool>::value) ||
                                            same<T, half>::value || same<T, float>::value> {};
template <class T, int N> struct is_group_type<metal::vec<T, N>> : is_group_type<T> {};
template <class T> using group_type = metal::enable_if_t<is_group_type<T>::value, int>;
template <class T> struct is_group_bits : metal::bool_constant<is_group_type<T>::value && is_int<T>::value> {};
template <class T, int N> struct is_group_bits<metal::vec<T, N>> : is_group_bits<T> {};
template <class T> using group_bits = metal::enable_if_t<is_group_bits<T>::value, int>;
template <class T> using only_bfloat = metal::enable_if_t<same<T, bfloat>::value, int>;

constexpr int width(uint scope) { return scope == HM_QUADGROUP ? 4 : 32; }

template <class T> struct share {
  T value, fill;
  uint k, modulo;
  T result;
};
template <class T> HM_FUNC thread share<T>* of(void** slots, int i) { return (thread share<T>*)slots[i]; }

// A value that no thread supplied.
template <class T> HM_FUNC void poison(thread T& x) { __builtin_memset(&x, 0xff, sizeof(T)); }

enum class pick { lane, broadcast, bitwise_xor, down, up, rotate_down, rotate_up, fill_down, fill_up };

template <pick How, int Width, class T>
HM_DENSE void exchange(void** slots, HM_TEXT name, uint line) {
  int first = -1;
  for (int i = 0; i < Width; ++i) {
    if (!slots[i]) continue;
    thread share<T>& me = *of<T>(slots, i);
    if (first < 0) first = i;
    if (How != pick::lane && me.k != of<T>(slots, first)->k)
      __hm_finding(HM_FIND_ARGUMENT, line, "simd_ and quad_ functions: the lane or delta must be the same in all threads (%ld and %ld)",
                   of<T>(slots, first)->k, me.k);
    const int k = static_cast<int>(me.k), m = static_cast<int>(me.modulo), base = i / m * m;
    int from = i;
    bool filled = false;
    if (How == pick::lane || How == pick::broadcast) from = k;
    if (How == pick::bitwise_xor) from = i ^ k;
    if (How == pick::down) from = i + k < Width ? i + k : i;  // past the end: unchanged
    if (How == pick::up) from = i - k >= 0 ? i - k : i;
    if (How == pick::rotate_down) from = (i + k) & (Width - 1);
    if (How == pick::rotate_up) from = (i - k) & (Width - 1);
    if (How == pick::fill_down) {
      filled = i - base + k >= m;
      from = i + k - (filled ? m : 0);
    }
    if (How == pick::fill_up) {
      filled = i - base - k < 0;
      from = i - k + (filled ? m : 0);
    }
    if (from < 0 || from >= Width || !slots[from]) poison(me.result);
    else me.result = filled ? of<T>(slots, from)->fill : of<T>(slots, from)->value;
  }
}

struct add { template <class T> static HM_FUNC T of(T a, T b) { return static_cast<T>(a + b); } };
struct multiply_by { template <class T> static HM_FUNC T of(T a, T b) { return static_cast<T>(a * b); } };
struct maximum { template <class T> static HM_FUNC T of(T a, T b) { return metal::max(a, b); } };
struct minimum { template <class T> static HM_FUNC T of(T a, T b) { return metal::min(a, b); } };
struct bit_and { template <class T> static HM_FUNC T of(T a, T b) { return static_cast<T>(a & b); } };
struct bit_or { template <class T> static HM_FUNC T of(T a, T b) { return static_cast<T>(a | b); } };
struct bit_xor { template <class T> static HM_FUNC T of(T a, T b) { return static_cast<T>(a ^ b); } };

// A balanced tree over the threads present.
template <class F, int Width, class T>
HM_DENSE void reduce(void** slots) {
  T values[Width];
  int n = 0;
  for (int i = 0; i < Width; ++i)
    if (slots[i]) values[n++] = of<T>(slots, i)->value;
  for (int step = 1; step < n; step *= 2)
    for (int i = 0; i + step < n; i += 2 * step) values[i] = F::of(values[i], values[i + step]);
  for (int i = 0; i < Width; ++i)
    if (slots[i]) of<T>(slots, i)->result = values[0];
}

template <class F, bool Inclusive, int Width, class T>
HM_DENSE void scan(void** slots, T identity) {
  T sum = identity;
  for (int i = 0; i < Width; ++i) {
    if (!slots[i]) continue;
    thread share<T>& me = *of<T>(slots, i);
    const T before = sum;
    sum = F::of(sum, me.value);
    me.result = Inclusive ? sum : before;
  }
}

template <class T> HM_FUNC T taken(const thread share<T>& mine) {
  own_access();
  const T r = mine.result;
  plain_access();
  return r;
}
template <uint Scope> HM_FUNC void end_collective() {
  __hm_count(HM_COUNT_SIMD_OPS, 1);
  __hm_release(Scope);
}
template <uint Scope, pick How, class T>
HM_FUNC T exchanged(HM_TEXT name, T value, T fill, uint k, uint modulo, uint line) {
  own_access();
  share<T> mine{value, fill, k, modulo, value};
  if (__hm_arrive(Scope, name, line, &mine)) {
    exchange<How, width(Scope), T>(__hm_slots, name, line);
    end_collective<Scope>();
  }
  return taken(mine);
}
template <uint Scope, class F, class T>
HM_FUNC T reduced(HM_TEXT name, T value, uint line) {
  own_access();
  share<T> mine{value, value, 0, 1, value};
  if (__hm_arrive(Scope, name, line, &mine)) {
    reduce<F, width(Scope), T>(__hm_slots);
    end_collective<Scope>();
  }
  return taken(mine);
}
template <uint Scope, class F, bool Inclusive, class T>
HM_FUNC T scanned(HM_TEXT name, T value, T identity, uint line) {
  own_access();
  share<T> mine{value, value, 0, 1, value};
  if (__hm_arrive(Scope, name, line, &mine)) {
    scan<F, Inclusive, width(Scope), T>(__hm_slots, identity);
    end_collective<Scope>();
  }
  return taken(mine);
}

}  // namespace __hm
