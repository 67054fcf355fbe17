// Element formats without arithmetic of their own, which only tensors hold: 4-bit integers (SDK 26.4, dialect 4.0) and,
// with SDK 27 at dialect 4.1, 2-bit integers and the small floating-point formats. The low bits of a byte come first.
#pragma once
#include "hm_traits.h"
#pragma clang system_header

#if defined(__HAVE_INT4B_FORMAT_TYPE__) && __HM_SDK >= 270 && __METAL_VERSION__ >= 410
#define __HAVE_INT2B_FORMAT_TYPE__ 1
#define __HAVE_METAL_FP4_E2M1_FORMAT_TYPE__ 1
#define __HAVE_METAL_FP8_E4M3_FORMAT_TYPE__ 1
#define __HAVE_METAL_FP8_E5M2_FORMAT_TYPE__ 1
#endif

namespace __hm {

template <class T> struct format {
  static constexpr constant int bits = 8 * sizeof(T);
  static constexpr constant bool special = false;
};

// Bits of a small float with the given exponent and mantissa widths, no infinities unless they are all-ones exponents.
HM_FUNC float small_float(uint code, int exponent_bits, int mantissa_bits) {
  const uint mantissa = code & ((1u << mantissa_bits) - 1);
  const int exponent = static_cast<int>(code >> mantissa_bits & ((1u << exponent_bits) - 1));
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const float fraction = static_cast<float>(mantissa) / static_cast<float>(1 << mantissa_bits);
  const float magnitude = exponent == 0 ? __builtin_ldexpf(fraction, 1 - bias) : __builtin_ldexpf(1.0f + fraction, exponent - bias);
  return code >> (exponent_bits + mantissa_bits) & 1 ? -magnitude : magnitude;
}

}  // namespace __hm

#define HM_FORMAT(name, width, type, value)                             \
  namespace metal {                                                     \
  struct name {                                                         \
    uchar byte;                                                         \
  };                                                                    \
  }                                                                     \
  namespace __hm {                                                      \
  template <> struct format<metal::name> {                              \
    static constexpr constant int bits = width;                         \
    static constexpr constant bool special = true;                      \
    static HM_FUNC type decode(uint code) { return value; }             \
  };                                                                    \
  }
#ifdef __HAVE_INT4B_FORMAT_TYPE__
HM_FORMAT(int4b_format, 4, int, static_cast<int>(code << 28) >> 28)
HM_FORMAT(uint4b_format, 4, int, static_cast<int>(code))
#endif
#ifdef __HAVE_INT2B_FORMAT_TYPE__
HM_FORMAT(int2b_format, 2, int, static_cast<int>(code << 30) >> 30)
HM_FORMAT(uint2b_format, 2, int, static_cast<int>(code))
HM_FORMAT(metal_fp4_e2m1_format, 4, float, small_float(code, 2, 1))
HM_FORMAT(metal_fp8_e4m3_format, 8, float, (code & 0x7f) == 0x7f ? __builtin_nanf("") : small_float(code, 4, 3))
HM_FORMAT(metal_fp8_e5m2_format, 8, float,
          (code & 0x7c) == 0x7c ? ((code & 3) ? __builtin_nanf("") : (code & 0x80 ? -__builtin_inff() : __builtin_inff()))
                                : small_float(code, 5, 2))
#endif
#undef HM_FORMAT

namespace __hm {

// Element number n behind p, and the address of the first of n elements further on.
template <class T> HM_FUNC auto element_value(T* p, long n) {
  using F = format<metal::remove_cv_t<metal::remove_addrspace_t<T>>>;
  if constexpr (F::special) {
    const uint byte = p[n * F::bits / 8].byte;
    return F::decode(byte >> n * F::bits % 8 & ((1u << F::bits) - 1));
  } else {
    return p[n];
  }
}
template <class T> HM_FUNC T* advanced(T* p, long n) {
  using F = format<metal::remove_cv_t<metal::remove_addrspace_t<T>>>;
  if constexpr (F::bits < 8) {
    if (n * F::bits % 8 != 0)
      __hm_finding(HM_FIND_ARGUMENT, 0, "slice: offset %ld does not start at a byte of the packed format", n, 0);
    return p + n * F::bits / 8;
  } else {
    return p + n;
  }
}

}  // namespace __hm
