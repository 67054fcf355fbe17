// Functions that integers and floating-point types share (min, max, clamp, abs, select), the relational functions and
// the geometric ones.
//
// Scalars are overload sets, not templates: max(1, 2u) is ambiguous here as it is in Metal.
#pragma once
#include "hm_math.h"
#pragma clang system_header

namespace metal {

#define HM_FOR_NUMBERS(F) \
  F(char) F(uchar) F(short) F(ushort) F(int) F(uint) F(long) F(ulong) F(half) F(float)

// Floating-point min and max return the other operand when one is NaN.
#define HM_ORDERED(T)                                                                     \
  HM_FUNC constexpr T max(T a, T b) { return a != a ? b : (a < b ? b : a); }              \
  HM_FUNC constexpr T min(T a, T b) { return a != a ? b : (b < a ? b : a); }              \
  HM_FUNC constexpr T max3(T a, T b, T c) { return max(max(a, b), c); }                   \
  HM_FUNC constexpr T min3(T a, T b, T c) { return min(min(a, b), c); }                   \
  HM_FUNC constexpr T median3(T a, T b, T c) { return max(min(a, b), min(max(a, b), c)); } \
  HM_FUNC constexpr T clamp(T x, T low, T high) { return min(max(x, low), high); }        \
  HM_FUNC constexpr T select(T a, T b, bool c) { return c ? b : a; }
HM_FOR_NUMBERS(HM_ORDERED)
#undef HM_ORDERED
HM_FUNC constexpr bool select(bool a, bool b, bool c) { return c ? b : a; }
template <class T, enable_if_t<__hm::same<T, bfloat>::value, int> = 0>
HM_FUNC constexpr T select(T a, T b, bool c) {
  return c ? b : a;
}
// bfloat becomes float; without these, integers would be candidates, too.
template <class B, enable_if_t<__hm::same<B, bfloat>::value, int> = 0> HM_FUNC float abs(B x) {
  return __builtin_fabsf(static_cast<float>(x));
}
template <class B, enable_if_t<__hm::same<B, bfloat>::value, int> = 0> HM_FUNC float max(B a, B b) {
  return max(static_cast<float>(a), static_cast<float>(b));
}
template <class B, enable_if_t<__hm::same<B, bfloat>::value, int> = 0> HM_FUNC float min(B a, B b) {
  return min(static_cast<float>(a), static_cast<float>(b));
}
template <class B, enable_if_t<__hm::same<B, bfloat>::value, int> = 0> HM_FUNC float clamp(B x, B low, B high) {
  return clamp(static_cast<float>(x), static_cast<float>(low), static_cast<float>(high));
}
HM_FUNC constexpr char abs(char x) { return x < 0 ? -x : x; }
HM_FUNC constexpr short abs(short x) { return x < 0 ? -x : x; }
HM_FUNC constexpr int abs(int x) { return x < 0 ? -x : x; }
HM_FUNC constexpr long abs(long x) { return x < 0 ? -x : x; }
HM_FUNC constexpr uchar abs(uchar x) { return x; }
HM_FUNC constexpr ushort abs(ushort x) { return x; }
HM_FUNC constexpr uint abs(uint x) { return x; }
HM_FUNC constexpr ulong abs(ulong x) { return x; }
HM_FUNC float abs(float x) { return __builtin_fabsf(x); }
HM_FUNC half abs(half x) { return static_cast<half>(__builtin_fabsf(x)); }

#define HM_VECTOR_2(name)                                                                 \
  template <class T, int N>                                                               \
  HM_FUNC constexpr vec<T, N> name(vec<T, N> a, type_identity_t<vec<T, N>> b) {           \
    for (int i = 0; i < N; ++i) a.d[i] = name(a.d[i], b.d[i]);                            \
    return a;                                                                             \
  }                                                                                       \
  template <class T, int N, class S, enable_if_t<is_arithmetic_v<S>, int> = 0>            \
  HM_FUNC constexpr vec<T, N> name(S a, vec<T, N> b) { return name(vec<T, N>(static_cast<T>(a)), b); }
HM_VECTOR_2(max)
HM_VECTOR_2(min)
#undef HM_VECTOR_2
#define HM_VECTOR_3(name)                                                                 \
  template <class T, int N>                                                               \
  HM_FUNC constexpr vec<T, N> name(vec<T, N> a, type_identity_t<vec<T, N>> b, type_identity_t<vec<T, N>> c) { \
    for (int i = 0; i < N; ++i) a.d[i] = name(a.d[i], b.d[i], c.d[i]);                    \
    return a;                                                                             \
  }
HM_VECTOR_3(max3)
HM_VECTOR_3(min3)
HM_VECTOR_3(median3)
HM_VECTOR_3(clamp)
HM_VECTOR_3(select)
#undef HM_VECTOR_3
template <class T, int N>
HM_FUNC constexpr vec<T, N> select(vec<T, N> a, vec<T, N> b, vec<bool, N> c) {
  for (int i = 0; i < N; ++i) a.d[i] = c.d[i] ? b.d[i] : a.d[i];
  return a;
}
template <class T, int N>
HM_FUNC constexpr vec<T, N> abs(vec<T, N> a) {
  for (int i = 0; i < N; ++i) a.d[i] = abs(a.d[i]);
  return a;
}

template <int N> HM_FUNC constexpr bool all(vec<bool, N> v) {
  bool r = true;
  for (int i = 0; i < N; ++i) r = r && v.d[i];
  return r;
}
template <int N> HM_FUNC constexpr bool any(vec<bool, N> v) {
  bool r = false;
  for (int i = 0; i < N; ++i) r = r || v.d[i];
  return r;
}
HM_FUNC constexpr bool all(bool b) { return b; }
HM_FUNC constexpr bool any(bool b) { return b; }

#define HM_RELATIONAL(name, value)                                                        \
  HM_FUNC bool name(float x) { return value; }                                            \
  HM_FUNC bool name(half h) { const float x = h; return value; }                          \
  template <class T, int N, __hm::real<T> = 0>                                            \
  HM_FUNC vec<bool, N> name(vec<T, N> v) {                                                \
    vec<bool, N> r(false);                                                                \
    for (int i = 0; i < N; ++i) r.d[i] = name(v.d[i]);                                    \
    return r;                                                                             \
  }
HM_RELATIONAL(isnan, x != x)
HM_RELATIONAL(isinf, __builtin_fabsf(x) == INFINITY)
HM_RELATIONAL(isfinite, __builtin_fabsf(x) < INFINITY)
HM_RELATIONAL(isnormal, __builtin_fabsf(x) < INFINITY && __builtin_fabsf(x) >= FLT_MIN)
HM_RELATIONAL(signbit, (__builtin_bit_cast(uint, x) >> 31) != 0)
#undef HM_RELATIONAL
HM_FUNC bool isordered(float a, float b) { return a == a && b == b; }
HM_FUNC bool isunordered(float a, float b) { return a != a || b != b; }

template <class T, int N>
HM_FUNC T dot(vec<T, N> a, vec<T, N> b) {
  T r = a.d[0] * b.d[0];
  for (int i = 1; i < N; ++i) r += a.d[i] * b.d[i];
  return r;
}
template <class T, int N> HM_FUNC T length_squared(vec<T, N> a) { return dot(a, a); }
template <class T, int N> HM_FUNC T length(vec<T, N> a) { return sqrt(dot(a, a)); }
template <class T, int N> HM_FUNC T distance(vec<T, N> a, vec<T, N> b) { return length(a - b); }
template <class T, int N> HM_FUNC T distance_squared(vec<T, N> a, vec<T, N> b) { return length_squared(a - b); }
template <class T, int N> HM_FUNC vec<T, N> normalize(vec<T, N> a) { return a * rsqrt(dot(a, a)); }
template <class T>
HM_FUNC vec<T, 3> cross(vec<T, 3> a, vec<T, 3> b) {
  return vec<T, 3>(a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x);
}

#define HM_USING(name) using metal::name;
#define HM_USING_ALL \
  HM_USING(abs) HM_USING(max) HM_USING(min) HM_USING(max3) HM_USING(min3) HM_USING(median3) HM_USING(clamp) \
  HM_USING(distance) HM_USING(length) HM_USING(normalize)
namespace fast { HM_USING_ALL }
namespace precise { HM_USING_ALL }
#undef HM_USING
#undef HM_USING_ALL
#undef HM_FOR_NUMBERS

}  // namespace metal
