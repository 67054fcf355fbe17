// vec<T, N>: the vector types, their constructors, component access and operators.
//
// A class, because native vector extensions refuse half4(float4) and float4(a, b, c, d) in this front end.
#pragma once
#include "hm_bfloat.h"
#include "hm_swizzle.h"
#pragma clang system_header

namespace metal {

// In the checked build copies are written out, because the compiler checks the alignment of a class object only where a
// reference to it is bound. Otherwise they are trivial: one access of the whole vector, as on a GPU.
#if HM_CHECKED_BUILD
#define HM_VEC_COPY(N)                                                                                           \
  HM_FUNC constexpr vec(const vec& v) : d{} {                                                                    \
    for (int i = 0; i < N; ++i) d[i] = v.d[i];                                                                   \
  }                                                                                                              \
  HM_FUNC constexpr vec& operator=(const vec& v) {                                                               \
    for (int i = 0; i < N; ++i) d[i] = v.d[i];                                                                   \
    return *this;                                                                                                \
  }
#else
#define HM_VEC_COPY(N)
#endif

// Component access in every address space, then what all lengths share. A bare scalar fills every component; another
// element type converts only explicitly (Metal Shading Language specification, section 2.2).
#define HM_VEC_COMMON(N)                                                                                         \
  using value_type = T;                                                                                          \
  vec() = default;                                                                                               \
  HM_VEC_COPY(N)                                                                                                 \
  HM_FUNC constexpr vec(T a) : d{} {                                                                             \
    for (int i = 0; i < N; ++i) d[i] = a;                                                                        \
  }                                                                                                              \
  template <class U, enable_if_t<!__hm::same<U, T>::value, int> = 0>                                             \
  HM_FUNC explicit constexpr vec(const vec<U, N>& v) : d{} {                                                     \
    for (int i = 0; i < N; ++i) d[i] = static_cast<T>(v.d[i]);                                                   \
  }                                                                                                              \
  template <class U, enable_if_t<!__hm::same<U, T>::value, int> = 0>                                             \
  HM_FUNC explicit constexpr vec(const constant vec<U, N>& v) : d{} {                                            \
    for (int i = 0; i < N; ++i) d[i] = static_cast<T>(v.d[i]);                                                   \
  }                                                                                                              \
  template <class U, enable_if_t<__hm::same<U, T>::value, int> = 0>                                              \
  HM_FUNC constexpr vec(const constant vec<U, N>& v) : d{} {                                                     \
    for (int i = 0; i < N; ++i) d[i] = static_cast<T>(v.d[i]);                                                   \
  }                                                                                                              \
  template <class U, enable_if_t<__hm::same<U, T>::value, int> = 0>                                              \
  HM_FUNC vec& operator=(const constant vec<U, N>& v) {                                                          \
    for (int i = 0; i < N; ++i) d[i] = static_cast<T>(v.d[i]);                                                   \
    return *this;                                                                                                \
  }                                                                                                              \
  template <class P, enable_if_t<__hm::same<P, const __hm::arm<vec>*>::value, int> = 0>                          \
  HM_FUNC vec(P p) : vec(*(const vec*)p) {}                                                                      \
  HM_FUNC operator const __hm::arm<vec>*() const { return (const __hm::arm<vec>*)this; }                         \
  HM_FUNC operator const __hm::arm<vec>*() const constant { return (const __hm::arm<vec>*)(ulong)this; }         \
  template <class B, enable_if_t<__hm::same<B, bool>::value, int> = 0> operator B() const = delete;              \
  HM_FUNC constexpr T& operator[](int i) & { return d[i]; }                                                      \
  HM_FUNC constexpr const T& operator[](int i) const& { return d[i]; }                                           \
  HM_FUNC constexpr T operator[](int i) && { return d[i]; }                                                      \
  HM_FUNC thread T& operator[](int i) thread& { return d[i]; }                                                   \
  HM_FUNC const thread T& operator[](int i) const thread& { return d[i]; }                                       \
  HM_FUNC device T& operator[](int i) device& { return d[i]; }                                                   \
  HM_FUNC const device T& operator[](int i) const device& { return d[i]; }                                       \
  HM_FUNC threadgroup T& operator[](int i) threadgroup& { return d[i]; }                                         \
  HM_FUNC const threadgroup T& operator[](int i) const threadgroup& { return d[i]; }                             \
  HM_FUNC const constant T& operator[](int i) const constant& { return d[i]; }

// MLX uses metal::vec<T, 8> for the fragments of its cooperative-tensor kernels.
template <class T, int N>
struct vec {
  T d[N];
  HM_VEC_COMMON(N)
};

template <class T>
struct alignas(2 * sizeof(T)) vec<T, 2> {
  union {
    T d[2];
    struct { T x, y; };
    struct { T r, g; };
  };
  HM_VEC_COMMON(2)
  template <class U, enable_if_t<__hm::same<U, T>::value, int> = 0>
  HM_FUNC constexpr vec(const constant vec<U, 2>& v) constant : d{v.d[0], v.d[1]} {}
  HM_FUNC constexpr vec(T a, T b) : d{a, b} {}
#include "hm_swizzle2.h"
};

template <class T>
struct alignas(4 * sizeof(T)) vec<T, 3> {
  union {
    T d[3];
    struct { T x, y, z; };
    struct { T r, g, b; };
  };
  HM_VEC_COMMON(3)
  template <class U, enable_if_t<__hm::same<U, T>::value, int> = 0>
  HM_FUNC constexpr vec(const constant vec<U, 3>& v) constant : d{v.d[0], v.d[1], v.d[2]} {}
  HM_FUNC constexpr vec(T a, T b, T c) : d{a, b, c} {}
  HM_FUNC constexpr vec(vec<T, 2> a, T b) : d{a.d[0], a.d[1], b} {}
  HM_FUNC constexpr vec(T a, vec<T, 2> b) : d{a, b.d[0], b.d[1]} {}
#include "hm_swizzle3.h"
};

template <class T>
struct alignas(4 * sizeof(T)) vec<T, 4> {
  union {
    T d[4];
    struct { T x, y, z, w; };
    struct { T r, g, b, a; };
  };
  HM_VEC_COMMON(4)
  template <class U, enable_if_t<__hm::same<U, T>::value, int> = 0>
  HM_FUNC constexpr vec(const constant vec<U, 4>& v) constant : d{v.d[0], v.d[1], v.d[2], v.d[3]} {}
  HM_FUNC constexpr vec(T a, T b, T c, T e) : d{a, b, c, e} {}
  HM_FUNC constexpr vec(vec<T, 2> a, T b, T c) : d{a.d[0], a.d[1], b, c} {}
  HM_FUNC constexpr vec(T a, vec<T, 2> b, T c) : d{a, b.d[0], b.d[1], c} {}
  HM_FUNC constexpr vec(T a, T b, vec<T, 2> c) : d{a, b, c.d[0], c.d[1]} {}
  HM_FUNC constexpr vec(vec<T, 2> a, vec<T, 2> b) : d{a.d[0], a.d[1], b.d[0], b.d[1]} {}
  HM_FUNC constexpr vec(vec<T, 3> a, T b) : d{a.d[0], a.d[1], a.d[2], b} {}
  HM_FUNC constexpr vec(T a, vec<T, 3> b) : d{a, b.d[0], b.d[1], b.d[2]} {}
#include "hm_swizzle4.h"
};

#undef HM_VEC_COMMON
#undef HM_VEC_COPY

}  // namespace metal

namespace __hm {
template <class T> struct is_vec : metal::false_type {};
template <class T, int N> struct is_vec<metal::vec<T, N>> : metal::true_type {};

// Applies a function to each component; the result's element type is what it returns.
template <class F, class T, int N>
HM_FUNC constexpr auto map(F f, const metal::vec<T, N>& a) -> metal::vec<decltype(f(a.d[0])), N> {
  metal::vec<decltype(f(a.d[0])), N> r;
  for (int i = 0; i < N; ++i) r.d[i] = f(a.d[i]);
  return r;
}
}  // namespace __hm

namespace metal {

#define HM_VEC_BINARY(op)                                                                                        \
  template <class T, int N>                                                                                      \
  HM_FUNC constexpr vec<T, N> operator op(vec<T, N> a, vec<T, N> b) {                                            \
    vec<T, N> r = a;                                                                                             \
    for (int i = 0; i < N; ++i) r.d[i] = static_cast<T>(a.d[i] op b.d[i]);                                       \
    return r;                                                                                                    \
  }                                                                                                              \
  template <class T, int N, class S, enable_if_t<is_arithmetic_v<S>, int> = 0>                                   \
  HM_FUNC constexpr vec<T, N> operator op(vec<T, N> a, S b) {                                                    \
    return a op vec<T, N>(static_cast<T>(b));                                                                    \
  }                                                                                                              \
  template <class T, int N, class S, enable_if_t<is_arithmetic_v<S>, int> = 0>                                   \
  HM_FUNC constexpr vec<T, N> operator op(S a, vec<T, N> b) {                                                    \
    return vec<T, N>(static_cast<T>(a)) op b;                                                                    \
  }                                                                                                              \
  template <class T, int N>                                                                                      \
  HM_FUNC constexpr vec<T, N>& operator op##=(vec<T, N>& a, vec<T, N> b) {                                       \
    return a = a op b;                                                                                           \
  }                                                                                                              \
  template <class T, int N, class S, enable_if_t<is_arithmetic_v<S>, int> = 0>                                   \
  HM_FUNC constexpr vec<T, N>& operator op##=(vec<T, N>& a, S b) {                                               \
    return a = a op vec<T, N>(static_cast<T>(b));                                                                \
  }
HM_VEC_BINARY(+)
HM_VEC_BINARY(-)
HM_VEC_BINARY(*)
HM_VEC_BINARY(/)
HM_VEC_BINARY(%)
HM_VEC_BINARY(&)
HM_VEC_BINARY(|)
HM_VEC_BINARY(^)
HM_VEC_BINARY(<<)
HM_VEC_BINARY(>>)
#undef HM_VEC_BINARY

#define HM_VEC_COMPARE(op)                                                                                       \
  template <class T, int N>                                                                                      \
  HM_FUNC constexpr vec<bool, N> operator op(vec<T, N> a, vec<T, N> b) {                                         \
    vec<bool, N> r(false);                                                                                       \
    for (int i = 0; i < N; ++i) r.d[i] = a.d[i] op b.d[i];                                                       \
    return r;                                                                                                    \
  }                                                                                                              \
  template <class T, int N, class S, enable_if_t<is_arithmetic_v<S>, int> = 0>                                   \
  HM_FUNC constexpr vec<bool, N> operator op(vec<T, N> a, S b) {                                                 \
    return a op vec<T, N>(static_cast<T>(b));                                                                    \
  }                                                                                                              \
  template <class T, int N, class S, enable_if_t<is_arithmetic_v<S>, int> = 0>                                   \
  HM_FUNC constexpr vec<bool, N> operator op(S a, vec<T, N> b) {                                                 \
    return vec<T, N>(static_cast<T>(a)) op b;                                                                    \
  }
HM_VEC_COMPARE(<)
HM_VEC_COMPARE(>)
HM_VEC_COMPARE(<=)
HM_VEC_COMPARE(>=)
HM_VEC_COMPARE(==)
HM_VEC_COMPARE(!=)
HM_VEC_COMPARE(&&)
HM_VEC_COMPARE(||)
#undef HM_VEC_COMPARE

#define HM_VEC_UNARY(op)                                                                                         \
  template <class T, int N>                                                                                      \
  HM_FUNC constexpr vec<T, N> operator op(vec<T, N> a) {                                                         \
    for (int i = 0; i < N; ++i) a.d[i] = static_cast<T>(op a.d[i]);                                              \
    return a;                                                                                                    \
  }
HM_VEC_UNARY(-)
HM_VEC_UNARY(+)
HM_VEC_UNARY(~)
#undef HM_VEC_UNARY
template <class T, int N>
HM_FUNC constexpr vec<bool, N> operator!(vec<T, N> a) {
  return a == vec<T, N>(static_cast<T>(0));
}
template <class T, int N> HM_FUNC vec<T, N>& operator++(vec<T, N>& a) { return a += static_cast<T>(1); }
template <class T, int N> HM_FUNC vec<T, N>& operator--(vec<T, N>& a) { return a -= static_cast<T>(1); }
template <class T, int N>
HM_FUNC vec<T, N> operator++(vec<T, N>& a, int) {
  vec<T, N> old = a;
  a += static_cast<T>(1);
  return old;
}
template <class T, int N>
HM_FUNC vec<T, N> operator--(vec<T, N>& a, int) {
  vec<T, N> old = a;
  a -= static_cast<T>(1);
  return old;
}

#define HM_VEC_NAMES(T) \
  typedef vec<T, 2> T##2; \
  typedef vec<T, 3> T##3; \
  typedef vec<T, 4> T##4;
HM_VEC_NAMES(bool)
HM_VEC_NAMES(char)
HM_VEC_NAMES(uchar)
HM_VEC_NAMES(short)
HM_VEC_NAMES(ushort)
HM_VEC_NAMES(int)
HM_VEC_NAMES(uint)
HM_VEC_NAMES(long)
HM_VEC_NAMES(ulong)
HM_VEC_NAMES(half)
HM_VEC_NAMES(bfloat)
HM_VEC_NAMES(float)
#undef HM_VEC_NAMES

// Reinterprets the bits; the sizes must match (a 3-vector has the size of a 4-vector).
template <class To, class From>
HM_FUNC constexpr To as_type(From v) {
  static_assert(sizeof(To) == sizeof(From), "as_type needs two types of the same size");
  if constexpr (__is_trivially_copyable(To) && __is_trivially_copyable(From)) {
    return __builtin_bit_cast(To, v);
  } else {  // vectors in the checked build
    To r;
    __builtin_memcpy(&r, &v, sizeof(To));
    return r;
  }
}

template <class T, size_t N>
struct array {
  T elements[N];
  using value_type = T;
  HM_FUNC constexpr T& operator[](size_t i) { return elements[i]; }
  HM_FUNC constexpr const T& operator[](size_t i) const { return elements[i]; }
  HM_FUNC thread T& operator[](size_t i) thread { return elements[i]; }
  HM_FUNC const thread T& operator[](size_t i) const thread { return elements[i]; }
  HM_FUNC device T& operator[](size_t i) device { return elements[i]; }
  HM_FUNC const device T& operator[](size_t i) const device { return elements[i]; }
  HM_FUNC threadgroup T& operator[](size_t i) threadgroup { return elements[i]; }
  HM_FUNC const threadgroup T& operator[](size_t i) const threadgroup { return elements[i]; }
  HM_FUNC const constant T& operator[](size_t i) const constant { return elements[i]; }
  static HM_FUNC constexpr size_t size() { return N; }
};

}  // namespace metal

// What Metal's headers make visible without `using namespace metal`: the vector types and as_type.
#define HM_GLOBAL(T)  \
  using metal::T##2;  \
  using metal::T##3;  \
  using metal::T##4;
HM_GLOBAL(bool)
HM_GLOBAL(char)
HM_GLOBAL(uchar)
HM_GLOBAL(short)
HM_GLOBAL(ushort)
HM_GLOBAL(int)
HM_GLOBAL(uint)
HM_GLOBAL(long)
HM_GLOBAL(ulong)
HM_GLOBAL(half)
HM_GLOBAL(bfloat)
HM_GLOBAL(float)
using metal::as_type;
