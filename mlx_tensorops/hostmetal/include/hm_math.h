// Floating-point functions of <metal_math>, in metal::, metal::fast:: and metal::precise::, for float and half and
// their vectors. Half is computed in float and rounded once. bfloat has no overloads: it converts to float, and the
// float result does not convert back (Metal Shading Language specification, section 6.5; MLX adds its own overloads).
//
// fast and precise are the same here: single precision to within the C library's error.
#pragma once
#include "hm_limits.h"
#include "hm_vec.h"
#pragma clang system_header

#define __METAL_MAYBE_FAST_MATH__ 0
#define __METAL_FAST_MATH__ 1
#define __METAL_PRECISE_MATH__ 2

// One line for each function: its name, then its value for float x (and y, z).
#define HM_MATH_1(F)                                                                   \
  F(acos, __builtin_acosf(x))                                                          \
  F(acosh, __builtin_acoshf(x))                                                        \
  F(asin, __builtin_asinf(x))                                                          \
  F(asinh, __builtin_asinhf(x))                                                        \
  F(atan, __builtin_atanf(x))                                                          \
  F(atanh, __builtin_atanhf(x))                                                        \
  F(ceil, __builtin_ceilf(x))                                                          \
  F(cos, __builtin_cosf(x))                                                            \
  F(cosh, __builtin_coshf(x))                                                          \
  F(cospi, __builtin_cosf(M_PI_F * __hm::half_turns(x)))                               \
  F(exp, __builtin_expf(x))                                                            \
  F(exp10, __builtin_exp10f(x))                                                        \
  F(exp2, __builtin_exp2f(x))                                                          \
  F(fabs, __builtin_fabsf(x))                                                          \
  F(floor, __builtin_floorf(x))                                                        \
  F(fract, __builtin_fminf(x - __builtin_floorf(x), 0x1.fffffep-1f))                   \
  F(log, __builtin_logf(x))                                                            \
  F(log10, __builtin_log10f(x))                                                        \
  F(log2, __builtin_log2f(x))                                                          \
  F(rint, __builtin_rintf(x))                                                          \
  F(round, __builtin_roundf(x))                                                        \
  F(rsqrt, 1.0f / __builtin_sqrtf(x))                                                  \
  F(sin, __builtin_sinf(x))                                                            \
  F(sinh, __builtin_sinhf(x))                                                          \
  F(sinpi, __builtin_sinf(M_PI_F * __hm::half_turns(x)))                               \
  F(sqrt, __builtin_sqrtf(x))                                                          \
  F(tan, __builtin_tanf(x))                                                            \
  F(tanh, __builtin_tanhf(x))                                                          \
  F(tanpi, __builtin_tanf(M_PI_F * __hm::half_turns(x)))                               \
  F(trunc, __builtin_truncf(x))                                                        \
  F(sign, x > 0 ? 1.0f : (x < 0 ? -1.0f : (x == x ? x : 0.0f)))                        \
  F(saturate, __builtin_fminf(__builtin_fmaxf(x, 0.0f), 1.0f))
#define HM_MATH_2(F)                                                                   \
  F(atan2, __builtin_atan2f(x, y))                                                     \
  F(copysign, __builtin_copysignf(x, y))                                               \
  F(divide, x / y)                                                                     \
  F(fdim, __builtin_fdimf(x, y))                                                       \
  F(fmax, __builtin_fmaxf(x, y))                                                       \
  F(fmin, __builtin_fminf(x, y))                                                       \
  F(fmod, __builtin_fmodf(x, y))                                                       \
  F(pow, __builtin_powf(x, y))                                                         \
  F(powr, __builtin_powf(x, y))                                                        \
  F(step, y < x ? 0.0f : 1.0f)
#define HM_MATH_3(F)                                                                   \
  F(fma, __builtin_fmaf(x, y, z))                                                      \
  F(fmax3, __builtin_fmaxf(x, __builtin_fmaxf(y, z)))                                  \
  F(fmin3, __builtin_fminf(x, __builtin_fminf(y, z)))                                  \
  F(fmedian3, __hm::median(x, y, z))                                                   \
  F(mix, x + (y - x) * z)                                                              \
  F(smoothstep, __hm::hermite(x, y, z))

namespace __hm {

// The angle in half turns, reduced exactly to [-1, 1].
HM_FUNC float half_turns(float x) { return x - 2.0f * __builtin_rintf(0.5f * x); }
HM_FUNC float median(float x, float y, float z) {
  return __builtin_fmaxf(__builtin_fminf(x, y), __builtin_fminf(__builtin_fmaxf(x, y), z));
}
HM_FUNC float hermite(float low, float high, float x) {
  const float t = __builtin_fminf(__builtin_fmaxf((x - low) / (high - low), 0.0f), 1.0f);
  return t * t * (3.0f - 2.0f * t);
}
template <class T> using real = metal::enable_if_t<same<T, half>::value || same<T, float>::value, int>;

}  // namespace __hm

// The compiler's own names, which MLX's bfloat overloads call.
#define HM_INTRINSIC_1(name, value) HM_FUNC float __metal_##name(float x, int = 0) { return value; }
#define HM_INTRINSIC_2(name, value) HM_FUNC float __metal_##name(float x, float y, int = 0) { return value; }
#define HM_INTRINSIC_3(name, value) HM_FUNC float __metal_##name(float x, float y, float z, int = 0) { return value; }
HM_MATH_1(HM_INTRINSIC_1)
HM_MATH_2(HM_INTRINSIC_2)
HM_MATH_3(HM_INTRINSIC_3)
#undef HM_INTRINSIC_1
#undef HM_INTRINSIC_2
#undef HM_INTRINSIC_3
HM_FUNC float __metal_ldexp(float x, int k, int = 0) { return __builtin_ldexpf(x, k); }
HM_FUNC float __metal_nextafter(float x, float y) { return __builtin_nextafterf(x, y); }
HM_FUNC float __metal_frexp(float x, thread int* exponent) {
  int e = 0;
  const float m = __builtin_frexpf(x, &e);
  *exponent = e;
  return m;
}

namespace metal {

#define HM_OVERLOADS_1(name, value)                                                              \
  HM_FUNC float name(float x) { return value; }                                                  \
  HM_FUNC half name(half h) { const float x = h; return static_cast<half>(value); }              \
  template <class T, int N, __hm::real<T> = 0>                                                   \
  HM_FUNC vec<T, N> name(vec<T, N> v) {                                                          \
    for (int i = 0; i < N; ++i) { const float x = v.d[i]; v.d[i] = static_cast<T>(value); }      \
    return v;                                                                                    \
  }
HM_MATH_1(HM_OVERLOADS_1)
#undef HM_OVERLOADS_1

// A scalar among vector arguments stands for all components.
#define HM_OVERLOADS_2(name, value)                                                              \
  HM_FUNC float name(float x, float y) { return value; }                                         \
  HM_FUNC half name(half h, half k) { const float x = h, y = k; return static_cast<half>(value); } \
  template <class T, int N, __hm::real<T> = 0>                                                   \
  HM_FUNC vec<T, N> name(vec<T, N> a, type_identity_t<vec<T, N>> b) {                            \
    for (int i = 0; i < N; ++i) {                                                                \
      const float x = a.d[i], y = b.d[i];                                                        \
      a.d[i] = static_cast<T>(value);                                                            \
    }                                                                                            \
    return a;                                                                                    \
  }                                                                                              \
  template <class T, int N, class S, __hm::real<T> = 0, enable_if_t<is_arithmetic_v<S>, int> = 0> \
  HM_FUNC vec<T, N> name(S a, vec<T, N> b) { return name(vec<T, N>(static_cast<T>(a)), b); }
HM_MATH_2(HM_OVERLOADS_2)
#undef HM_OVERLOADS_2

#define HM_OVERLOADS_3(name, value)                                                              \
  HM_FUNC float name(float x, float y, float z) { return value; }                                \
  HM_FUNC half name(half h, half k, half l) {                                                    \
    const float x = h, y = k, z = l;                                                             \
    return static_cast<half>(value);                                                             \
  }                                                                                              \
  template <class T, int N, __hm::real<T> = 0>                                                   \
  HM_FUNC vec<T, N> name(vec<T, N> a, vec<T, N> b, type_identity_t<vec<T, N>> c) {               \
    for (int i = 0; i < N; ++i) {                                                                \
      const float x = a.d[i], y = b.d[i], z = c.d[i];                                            \
      a.d[i] = static_cast<T>(value);                                                            \
    }                                                                                            \
    return a;                                                                                    \
  }
HM_MATH_3(HM_OVERLOADS_3)
#undef HM_OVERLOADS_3
template <class T, int N>
HM_FUNC vec<T, N> smoothstep(T low, T high, vec<T, N> x) { return smoothstep(vec<T, N>(low), vec<T, N>(high), x); }

HM_FUNC float ldexp(float x, int k) { return __builtin_ldexpf(x, k); }
HM_FUNC half ldexp(half x, int k) { return static_cast<half>(__builtin_ldexpf(x, k)); }
HM_FUNC float nextafter(float x, float y) { return __builtin_nextafterf(x, y); }
HM_FUNC int ilogb(float x) { return __builtin_ilogbf(x); }
HM_FUNC float frexp(float x, thread int& e) { return __metal_frexp(x, &e); }
HM_FUNC half frexp(half x, thread int& e) { return static_cast<half>(__metal_frexp(x, &e)); }
HM_FUNC float modf(float x, thread float& whole) {
  whole = __builtin_truncf(x);
  return __builtin_isinf(x) ? __builtin_copysignf(0.0f, x) : x - whole;
}
HM_FUNC float sincos(float x, thread float& cosine) {
  cosine = __builtin_cosf(x);
  return __builtin_sinf(x);
}

// The same functions; overloads that a kernel adds to metal:: later are not among them.
#define HM_USING(name, ...) using metal::name;
namespace fast {
HM_MATH_1(HM_USING)
HM_MATH_2(HM_USING)
HM_MATH_3(HM_USING)
using metal::frexp;
using metal::ldexp;
using metal::modf;
using metal::sincos;
}  // namespace fast
namespace precise {
HM_MATH_1(HM_USING)
HM_MATH_2(HM_USING)
HM_MATH_3(HM_USING)
using metal::frexp;
using metal::ldexp;
using metal::modf;
using metal::nextafter;
using metal::sincos;
}  // namespace precise
#undef HM_USING

}  // namespace metal

#undef HM_MATH_1
#undef HM_MATH_2
#undef HM_MATH_3
