// bfloat: 8 exponent bits, 7 stored mantissa bits, round to nearest even.
//
// A class, not __bf16: this front end refuses casts between half and __bf16, and Metal's rules are stricter anyway:
// bfloat converts to float by itself; float and half become bfloat, and bfloat becomes half, only by an explicit
// cast; half with bfloat has no common type (Metal Shading Language specification, section 2.1).
#pragma once
#include "hm_traits.h"
#pragma clang system_header

namespace __hm {
// What a conditional expression gives when one arm is a variable and the other a temporary: this front end finds no
// common class type for them (their address spaces differ), but a common pointer type it does find. The pointer is the
// arm's own address.
template <class T> struct arm;
}  // namespace __hm

struct bfloat {
  ushort bits;

  static HM_FUNC constexpr ushort round(float f) {
    const uint u = __builtin_bit_cast(uint, f);
    const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    return static_cast<ushort>(nan ? (u >> 16) | 0x40 : (u + 0x7fffu + ((u >> 16) & 1)) >> 16);
  }

  bfloat() = default;
  template <class I, metal::enable_if_t<__hm::is_int<I>::value, int> = 0>
  HM_FUNC constexpr bfloat(I i) : bits(round(static_cast<float>(i))) {}
  HM_FUNC explicit constexpr bfloat(float f) : bits(round(f)) {}
  template <class P, metal::enable_if_t<__hm::same<P, const __hm::arm<bfloat>*>::value, int> = 0>
  HM_FUNC bfloat(P p) : bits(((const bfloat*)p)->bits) {}
  HM_FUNC operator const __hm::arm<bfloat>*() const { return (const __hm::arm<bfloat>*)this; }
  HM_FUNC operator const __hm::arm<bfloat>*() const constant { return (const __hm::arm<bfloat>*)(ulong)this; }
  // Copies out of and into constant memory; templates are no copy functions, so the class stays trivially copyable.
  template <class B, metal::enable_if_t<__hm::same<B, bfloat>::value, int> = 0>
  HM_FUNC constexpr bfloat(const constant B& b) : bits(b.bits) {}
  template <class B, metal::enable_if_t<__hm::same<B, bfloat>::value, int> = 0>
  HM_FUNC constexpr bfloat(const constant B& b) constant : bits(b.bits) {}
  template <class B, metal::enable_if_t<__hm::same<B, bfloat>::value, int> = 0>
  HM_FUNC bfloat& operator=(const constant B& b) {
    bits = b.bits;
    return *this;
  }

  // Implicitly to float and integers, to half only by a cast. Templates, so that no second step can follow.
  template <class T, metal::enable_if_t<__hm::same<T, float>::value || __hm::is_int<T>::value, int> = 0>
  HM_FUNC constexpr operator T() const { return static_cast<T>(value(bits)); }
  template <class T, metal::enable_if_t<__hm::same<T, float>::value || __hm::is_int<T>::value, int> = 0>
  HM_FUNC constexpr operator T() const constant { return static_cast<T>(value(bits)); }
  template <class T, metal::enable_if_t<__hm::same<T, half>::value, int> = 0>
  HM_FUNC explicit constexpr operator T() const { return static_cast<T>(value(bits)); }

  static HM_FUNC constexpr float value(ushort b) { return __builtin_bit_cast(float, static_cast<uint>(b) << 16); }
};

// bfloat with bfloat or an integer stays bfloat; with float it is float; with half it has no meaning.
#define HM_BFLOAT_ARITHMETIC(op)                                                                                   \
  HM_FUNC constexpr bfloat operator op(bfloat a, bfloat b) {                                                       \
    return bfloat(static_cast<float>(a) op static_cast<float>(b));                                                 \
  }                                                                                                                \
  HM_FUNC constexpr float operator op(bfloat a, float b) { return static_cast<float>(a) op b; }                    \
  HM_FUNC constexpr float operator op(float a, bfloat b) { return a op static_cast<float>(b); }                    \
  template <class I, metal::enable_if_t<__hm::is_int<I>::value, int> = 0>                                          \
  HM_FUNC constexpr bfloat operator op(bfloat a, I b) {                                                          \
    return bfloat(static_cast<float>(a) op static_cast<float>(b));                                                 \
  }                                                                                                                \
  template <class I, metal::enable_if_t<__hm::is_int<I>::value, int> = 0>                                          \
  HM_FUNC constexpr bfloat operator op(I a, bfloat b) {                                                          \
    return bfloat(static_cast<float>(a) op static_cast<float>(b));                                                 \
  }                                                                                                                \
  void operator op(bfloat, half) = delete;                                                                         \
  void operator op(half, bfloat) = delete;                                                                         \
  template <class S, class = decltype(static_cast<float>(metal::declval<S>()))>                                    \
  HM_FUNC constexpr bfloat& operator op##=(bfloat& a, S b) {                                                     \
    return a = bfloat(static_cast<float>(a) op static_cast<float>(b));                                             \
  }
HM_BFLOAT_ARITHMETIC(+)
HM_BFLOAT_ARITHMETIC(-)
HM_BFLOAT_ARITHMETIC(*)
HM_BFLOAT_ARITHMETIC(/)
#undef HM_BFLOAT_ARITHMETIC

#define HM_BFLOAT_COMPARISON(op)                                                                                   \
  HM_FUNC constexpr bool operator op(bfloat a, bfloat b) { return static_cast<float>(a) op static_cast<float>(b); }\
  template <class S, metal::enable_if_t<metal::is_arithmetic_v<S> && !__hm::same<S, bfloat>::value, int> = 0>      \
  HM_FUNC constexpr bool operator op(bfloat a, S b) { return static_cast<float>(a) op static_cast<float>(b); }   \
  template <class S, metal::enable_if_t<metal::is_arithmetic_v<S> && !__hm::same<S, bfloat>::value, int> = 0>      \
  HM_FUNC constexpr bool operator op(S a, bfloat b) { return static_cast<float>(a) op static_cast<float>(b); }
HM_BFLOAT_COMPARISON(<)
HM_BFLOAT_COMPARISON(>)
HM_BFLOAT_COMPARISON(<=)
HM_BFLOAT_COMPARISON(>=)
HM_BFLOAT_COMPARISON(==)
HM_BFLOAT_COMPARISON(!=)
#undef HM_BFLOAT_COMPARISON

HM_FUNC constexpr bfloat operator-(bfloat a) { a.bits ^= 0x8000; return a; }
HM_FUNC constexpr bfloat operator+(bfloat a) { return a; }

// Target of the source rewrite of literals: 1.5bf becomes __hm::bf(1.5f).
namespace __hm {
HM_FUNC constexpr bfloat bf(float f) { return bfloat(f); }
}
