// numeric_limits and the numeric macros.
#pragma once
#include "hm_bfloat.h"
#pragma clang system_header

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define HUGE_VALF __builtin_inff()
#define MAXFLOAT 3.40282346638528859812e+38f
#define FLT_MAX 3.40282346638528859812e+38f
#define FLT_MIN 1.17549435082228750797e-38f
#define FLT_EPSILON 1.1920928955078125e-7f
#define HALF_MAX 65504.0h
#define HALF_MIN 6.103515625e-5h
#define HALF_EPSILON 9.765625e-4h
#define CHAR_BIT 8
#define SCHAR_MAX 127
#define SCHAR_MIN (-128)
#define UCHAR_MAX 255
#define SHRT_MAX 32767
#define SHRT_MIN (-32768)
#define USHRT_MAX 65535
#define INT_MAX 2147483647
#define INT_MIN (-2147483647 - 1)
#define UINT_MAX 4294967295u
#define LONG_MAX 9223372036854775807L
#define LONG_MIN (-9223372036854775807L - 1)
#define ULONG_MAX 18446744073709551615UL
#define M_E_F 2.71828182845904523536f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LOG10E_F 0.43429448190325182765f
#define M_LN2_F 0.69314718055994530942f
#define M_LN10_F 2.30258509299404568402f
#define M_PI_F 3.14159265358979323846f
#define M_PI_2_F 1.57079632679489661923f
#define M_PI_4_F 0.78539816339744830962f
#define M_1_PI_F 0.31830988618379067154f
#define M_2_PI_F 0.63661977236758134308f
#define M_2_SQRTPI_F 1.12837916709551257390f
#define M_SQRT2_F 1.41421356237309504880f
#define M_SQRT1_2_F 0.70710678118654752440f
#define M_PI_H 3.14159265358979323846h

namespace metal {

template <class T>
struct numeric_limits {
  static constexpr constant bool is_specialized = false;
};

#define HM_INT_LIMITS(T, least, most, bits)                    \
  template <> struct numeric_limits<T> {                       \
    static constexpr constant bool is_specialized = true;      \
    static constexpr constant bool is_integer = true;          \
    static constexpr constant bool is_exact = true;            \
    static constexpr constant bool is_signed = T(least) < T(1) && T(least) != T(0); \
    static constexpr constant bool has_infinity = false;       \
    static constexpr constant bool has_quiet_NaN = false;      \
    static constexpr constant int radix = 2;                   \
    static constexpr constant int digits = bits;               \
    static HM_FUNC constexpr T min() { return T(least); }      \
    static HM_FUNC constexpr T lowest() { return T(least); }   \
    static HM_FUNC constexpr T max() { return T(most); }       \
    static HM_FUNC constexpr T epsilon() { return T(0); }      \
    static HM_FUNC constexpr T infinity() { return T(0); }     \
    static HM_FUNC constexpr T quiet_NaN() { return T(0); }    \
  };
HM_INT_LIMITS(bool, false, true, 1)
HM_INT_LIMITS(char, -128, 127, 7)
HM_INT_LIMITS(int8_t, -128, 127, 7)
HM_INT_LIMITS(uchar, 0, 255, 8)
HM_INT_LIMITS(short, -32768, 32767, 15)
HM_INT_LIMITS(ushort, 0, 65535, 16)
HM_INT_LIMITS(int, INT_MIN, INT_MAX, 31)
HM_INT_LIMITS(uint, 0, UINT_MAX, 32)
HM_INT_LIMITS(long, LONG_MIN, LONG_MAX, 63)
HM_INT_LIMITS(ulong, 0, ULONG_MAX, 64)
#undef HM_INT_LIMITS

#define HM_FLOAT_LIMITS(T, mantissa, most, least, tiny, eps)                        \
  template <> struct numeric_limits<T> {                                            \
    static constexpr constant bool is_specialized = true;                           \
    static constexpr constant bool is_integer = false;                              \
    static constexpr constant bool is_exact = false;                                \
    static constexpr constant bool is_signed = true;                                \
    static constexpr constant bool has_infinity = true;                             \
    static constexpr constant bool has_quiet_NaN = true;                            \
    static constexpr constant int radix = 2;                                        \
    static constexpr constant int digits = mantissa;                                \
    static HM_FUNC constexpr T min() { return static_cast<T>(least); }              \
    static HM_FUNC constexpr T max() { return static_cast<T>(most); }               \
    static HM_FUNC constexpr T lowest() { return static_cast<T>(-(most)); }         \
    static HM_FUNC constexpr T denorm_min() { return static_cast<T>(tiny); }        \
    static HM_FUNC constexpr T epsilon() { return static_cast<T>(eps); }            \
    static HM_FUNC constexpr T infinity() { return static_cast<T>(INFINITY); }      \
    static HM_FUNC constexpr T quiet_NaN() { return static_cast<T>(NAN); }          \
    static HM_FUNC constexpr T signaling_NaN() { return static_cast<T>(NAN); }      \
  };
HM_FLOAT_LIMITS(float, 24, FLT_MAX, FLT_MIN, 1.40129846e-45f, FLT_EPSILON)
HM_FLOAT_LIMITS(half, 11, 65504.0f, 6.103515625e-5f, 5.9604644775390625e-8f, 9.765625e-4f)
HM_FLOAT_LIMITS(bfloat, 8, 3.38953138925153547590e+38f, FLT_MIN, 9.18354962e-41f, 7.8125e-3f)
#undef HM_FLOAT_LIMITS

}  // namespace metal
