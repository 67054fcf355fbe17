// <metal_integer>: integer functions on scalars and vectors.
#pragma once
#include "hm_common.h"
#pragma clang system_header

namespace __hm {

template <class T> constexpr constant int bits_of = static_cast<int>(sizeof(T) * 8);
template <class T> using integer = metal::enable_if_t<is_int<T>::value && !same<T, bool>::value, int>;
template <class T> struct widened { using type = long; };
template <> struct widened<uint> { using type = ulong; };
template <> struct widened<long> { using type = __int128; };
template <> struct widened<ulong> { using type = unsigned __int128; };
template <class T> using wide = typename widened<T>::type;

template <class T> HM_FUNC constexpr T saturated(wide<T> x) {
  constexpr wide<T> low = metal::numeric_limits<T>::min(), high = metal::numeric_limits<T>::max();
  return static_cast<T>(x < low ? low : (x > high ? high : x));
}
template <class T> HM_FUNC constexpr T bit_mask(uint n) {
  return n >= static_cast<uint>(bits_of<T>) ? static_cast<T>(-1) : static_cast<T>((static_cast<ulong>(1) << n) - 1);
}

}  // namespace __hm

namespace metal {

template <class T, __hm::integer<T> = 0> HM_FUNC constexpr T popcount(T x) {
  return static_cast<T>(__builtin_popcountl(static_cast<ulong>(static_cast<make_unsigned_t<T>>(x))));
}
template <class T, __hm::integer<T> = 0> HM_FUNC constexpr T clz(T x) {
  const ulong u = static_cast<make_unsigned_t<T>>(x);
  return static_cast<T>(u == 0 ? __hm::bits_of<T> : __builtin_clzl(u) - (64 - __hm::bits_of<T>));
}
template <class T, __hm::integer<T> = 0> HM_FUNC constexpr T ctz(T x) {
  const ulong u = static_cast<make_unsigned_t<T>>(x);
  return static_cast<T>(u == 0 ? __hm::bits_of<T> : __builtin_ctzl(u));
}
template <class T, __hm::integer<T> = 0> HM_FUNC constexpr T reverse_bits(T x) {
  return static_cast<T>(__builtin_bitreverse64(static_cast<make_unsigned_t<T>>(x)) >> (64 - __hm::bits_of<T>));
}
template <class T, __hm::integer<T> = 0> HM_FUNC constexpr T rotate(T x, type_identity_t<T> n) {
  const make_unsigned_t<T> u = x;
  const uint k = static_cast<uint>(n) & (__hm::bits_of<T> - 1);
  return static_cast<T>(k == 0 ? u : (u << k) | (u >> (__hm::bits_of<T> - k)));
}
template <class T, __hm::integer<T> = 0> HM_FUNC constexpr T extract_bits(T x, uint offset, uint n) {
  if (n == 0) return 0;
  const uint up = __hm::bits_of<T> - n;
  // A signed field is extended by its top bit.
  return static_cast<T>(static_cast<T>(static_cast<make_unsigned_t<T>>(x) >> offset << up) >> up);
}
template <class T, __hm::integer<T> = 0>
HM_FUNC constexpr T insert_bits(T base, type_identity_t<T> insert, uint offset, uint n) {
  const T mask = static_cast<T>(__hm::bit_mask<T>(n) << offset);
  return static_cast<T>((base & ~mask) | (static_cast<T>(static_cast<make_unsigned_t<T>>(insert) << offset) & mask));
}
template <class T, __hm::integer<T> = 0> HM_FUNC constexpr T addsat(T a, type_identity_t<T> b) {
  return __hm::saturated<T>(static_cast<__hm::wide<T>>(a) + b);
}
template <class T, __hm::integer<T> = 0> HM_FUNC constexpr T subsat(T a, type_identity_t<T> b) {
  if (is_unsigned_v<T> && a < b) return 0;
  return __hm::saturated<T>(static_cast<__hm::wide<T>>(a) - b);
}
template <class T, __hm::integer<T> = 0> HM_FUNC constexpr make_unsigned_t<T> absdiff(T a, type_identity_t<T> b) {
  using U = make_unsigned_t<T>;
  return static_cast<U>(a > b ? static_cast<U>(a) - static_cast<U>(b) : static_cast<U>(b) - static_cast<U>(a));
}
template <class T, __hm::integer<T> = 0> HM_FUNC constexpr T hadd(T a, type_identity_t<T> b) {
  return static_cast<T>((static_cast<__hm::wide<T>>(a) + b) >> 1);
}
template <class T, __hm::integer<T> = 0> HM_FUNC constexpr T rhadd(T a, type_identity_t<T> b) {
  return static_cast<T>((static_cast<__hm::wide<T>>(a) + b + 1) >> 1);
}
template <class T, __hm::integer<T> = 0> HM_FUNC constexpr T mulhi(T a, type_identity_t<T> b) {
  return static_cast<T>((static_cast<__hm::wide<T>>(a) * b) >> __hm::bits_of<T>);
}
template <class T, __hm::integer<T> = 0>
HM_FUNC constexpr T madhi(T a, type_identity_t<T> b, type_identity_t<T> c) { return static_cast<T>(mulhi(a, b) + c); }
template <class T, __hm::integer<T> = 0>
HM_FUNC constexpr T madsat(T a, type_identity_t<T> b, type_identity_t<T> c) {
  return __hm::saturated<T>(static_cast<__hm::wide<T>>(a) * b + c);
}
HM_FUNC constexpr int mul24(int a, int b) { return ((a << 8) >> 8) * ((b << 8) >> 8); }
HM_FUNC constexpr uint mul24(uint a, uint b) { return (a & 0xffffff) * (b & 0xffffff); }
HM_FUNC constexpr int mad24(int a, int b, int c) { return mul24(a, b) + c; }
HM_FUNC constexpr uint mad24(uint a, uint b, uint c) { return mul24(a, b) + c; }

#define HM_INTEGER_1(name)                                                        \
  template <class T, int N> HM_FUNC constexpr vec<T, N> name(vec<T, N> a) {       \
    for (int i = 0; i < N; ++i) a.d[i] = name(a.d[i]);                            \
    return a;                                                                     \
  }
HM_INTEGER_1(popcount)
HM_INTEGER_1(clz)
HM_INTEGER_1(ctz)
HM_INTEGER_1(reverse_bits)
#undef HM_INTEGER_1
#define HM_INTEGER_2(name)                                                        \
  template <class T, int N>                                                       \
  HM_FUNC constexpr auto name(vec<T, N> a, type_identity_t<vec<T, N>> b) {        \
    vec<decltype(name(a.d[0], b.d[0])), N> r(0);                                  \
    for (int i = 0; i < N; ++i) r.d[i] = name(a.d[i], b.d[i]);                    \
    return r;                                                                     \
  }
HM_INTEGER_2(rotate)
HM_INTEGER_2(addsat)
HM_INTEGER_2(subsat)
HM_INTEGER_2(absdiff)
HM_INTEGER_2(hadd)
HM_INTEGER_2(rhadd)
HM_INTEGER_2(mulhi)
#undef HM_INTEGER_2
template <class T, int N> HM_FUNC constexpr vec<T, N> extract_bits(vec<T, N> a, uint offset, uint n) {
  for (int i = 0; i < N; ++i) a.d[i] = extract_bits(a.d[i], offset, n);
  return a;
}
template <class T, int N>
HM_FUNC constexpr vec<T, N> insert_bits(vec<T, N> a, vec<T, N> b, uint offset, uint n) {
  for (int i = 0; i < N; ++i) a.d[i] = insert_bits(a.d[i], b.d[i], offset, n);
  return a;
}

}  // namespace metal
