// packed_float3 and relatives: vectors with the alignment of one element, for tightly packed buffers.
#pragma once
#include "hm_vec.h"
#pragma clang system_header

namespace metal {

template <class T, int N> struct packed_vec;

#define HM_PACKED_COMMON(N)                                                                       \
  packed_vec() = default;                                                                         \
  HM_FUNC constexpr packed_vec(T a) : d{} {                                                       \
    for (int i = 0; i < N; ++i) d[i] = a;                                                         \
  }                                                                                               \
  HM_FUNC constexpr packed_vec(vec<T, N> v) : d{} {                                               \
    for (int i = 0; i < N; ++i) d[i] = v.d[i];                                                    \
  }                                                                                               \
  template <class U, enable_if_t<!__hm::same<U, T>::value, int> = 0>                              \
  HM_FUNC explicit constexpr packed_vec(vec<U, N> v) : packed_vec(vec<T, N>(v)) {}                \
  template <class P, enable_if_t<__hm::same<P, packed_vec>::value, int> = 0>                      \
  HM_FUNC constexpr packed_vec(const constant P& v) : d{} {                                       \
    for (int i = 0; i < N; ++i) d[i] = v.d[i];                                                    \
  }                                                                                               \
  HM_FUNC constexpr operator vec<T, N>() const { return unpacked(); }                             \
  HM_FUNC constexpr operator vec<T, N>() const constant {                                         \
    vec<T, N> v(static_cast<T>(0));                                                               \
    for (int i = 0; i < N; ++i) v.d[i] = static_cast<T>(d[i]);                                    \
    return v;                                                                                     \
  }                                                                                               \
  HM_FUNC constexpr vec<T, N> unpacked() const {                                                  \
    vec<T, N> v(static_cast<T>(0));                                                               \
    for (int i = 0; i < N; ++i) v.d[i] = d[i];                                                    \
    return v;                                                                                     \
  }                                                                                               \
  HM_FUNC constexpr T& operator[](int i) { return d[i]; }                                         \
  HM_FUNC constexpr const T& operator[](int i) const { return d[i]; }                             \
  HM_FUNC thread T& operator[](int i) thread { return d[i]; }                                     \
  HM_FUNC device T& operator[](int i) device { return d[i]; }                                     \
  HM_FUNC const device T& operator[](int i) const device { return d[i]; }                         \
  HM_FUNC threadgroup T& operator[](int i) threadgroup { return d[i]; }                           \
  HM_FUNC const threadgroup T& operator[](int i) const threadgroup { return d[i]; }               \
  HM_FUNC const constant T& operator[](int i) const constant { return d[i]; }

template <class T> struct packed_vec<T, 2> {
  union {
    T d[2];
    struct { T x, y; };
    struct { T r, g; };
  };
  HM_PACKED_COMMON(2)
  HM_FUNC constexpr packed_vec(T a, T b) : d{a, b} {}
#include "hm_swizzle2.h"
};
template <class T> struct packed_vec<T, 3> {
  union {
    T d[3];
    struct { T x, y, z; };
    struct { T r, g, b; };
  };
  HM_PACKED_COMMON(3)
  HM_FUNC constexpr packed_vec(T a, T b, T c) : d{a, b, c} {}
#include "hm_swizzle3.h"
};
template <class T> struct packed_vec<T, 4> {
  union {
    T d[4];
    struct { T x, y, z, w; };
    struct { T r, g, b, a; };
  };
  HM_PACKED_COMMON(4)
  HM_FUNC constexpr packed_vec(T a, T b, T c, T e) : d{a, b, c, e} {}
#include "hm_swizzle4.h"
};
#undef HM_PACKED_COMMON

// Arithmetic gives the unpacked vector.
#define HM_PACKED_BINARY(op)                                                                      \
  template <class T, int N> HM_FUNC auto operator op(packed_vec<T, N> a, packed_vec<T, N> b) {    \
    return a.unpacked() op b.unpacked();                                                          \
  }                                                                                               \
  template <class T, int N> HM_FUNC auto operator op(packed_vec<T, N> a, vec<T, N> b) {           \
    return a.unpacked() op b;                                                                     \
  }                                                                                               \
  template <class T, int N> HM_FUNC auto operator op(vec<T, N> a, packed_vec<T, N> b) {           \
    return a op b.unpacked();                                                                     \
  }                                                                                               \
  template <class T, int N, class S, enable_if_t<is_arithmetic_v<S>, int> = 0>                    \
  HM_FUNC auto operator op(packed_vec<T, N> a, S b) { return a.unpacked() op b; }                 \
  template <class T, int N, class S, enable_if_t<is_arithmetic_v<S>, int> = 0>                    \
  HM_FUNC auto operator op(S a, packed_vec<T, N> b) { return a op b.unpacked(); }
#define HM_PACKED_ASSIGN(op)                                                                      \
  template <class T, int N, class X>                                                              \
  HM_FUNC packed_vec<T, N>& operator op##=(packed_vec<T, N>& a, X b) { return a = a.unpacked() op b; }
HM_PACKED_BINARY(+) HM_PACKED_BINARY(-) HM_PACKED_BINARY(*) HM_PACKED_BINARY(/)
HM_PACKED_BINARY(==) HM_PACKED_BINARY(!=) HM_PACKED_BINARY(<) HM_PACKED_BINARY(>)
HM_PACKED_BINARY(<=) HM_PACKED_BINARY(>=) HM_PACKED_BINARY(&) HM_PACKED_BINARY(|)
HM_PACKED_ASSIGN(+) HM_PACKED_ASSIGN(-) HM_PACKED_ASSIGN(*) HM_PACKED_ASSIGN(/)
#undef HM_PACKED_BINARY
#undef HM_PACKED_ASSIGN
template <class T, int N> HM_FUNC auto operator-(packed_vec<T, N> a) { return -a.unpacked(); }

#define HM_PACKED_NAMES(T)                 \
  typedef packed_vec<T, 2> packed_##T##2;  \
  typedef packed_vec<T, 3> packed_##T##3;  \
  typedef packed_vec<T, 4> packed_##T##4;
HM_PACKED_NAMES(char)
HM_PACKED_NAMES(uchar)
HM_PACKED_NAMES(short)
HM_PACKED_NAMES(ushort)
HM_PACKED_NAMES(int)
HM_PACKED_NAMES(uint)
HM_PACKED_NAMES(long)
HM_PACKED_NAMES(ulong)
HM_PACKED_NAMES(half)
HM_PACKED_NAMES(bfloat)
HM_PACKED_NAMES(float)
#undef HM_PACKED_NAMES

}  // namespace metal

HM_GLOBAL(packed_char)
HM_GLOBAL(packed_uchar)
HM_GLOBAL(packed_short)
HM_GLOBAL(packed_ushort)
HM_GLOBAL(packed_int)
HM_GLOBAL(packed_uint)
HM_GLOBAL(packed_long)
HM_GLOBAL(packed_ulong)
HM_GLOBAL(packed_half)
HM_GLOBAL(packed_bfloat)
HM_GLOBAL(packed_float)
#undef HM_GLOBAL
