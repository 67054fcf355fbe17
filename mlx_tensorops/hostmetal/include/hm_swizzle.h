// How one row of the swizzle tables becomes members: a property, so that reading gives a real vector (templates
// deduce it), writing to repeated components is an error, and taking the address is an error, as in Metal.
#pragma once
#pragma clang system_header

#define HM_SWIZZLE_R(name, colour, n, reads)                          \
  HM_FUNC constexpr vec<T, n> get_##name() const { return vec<T, n> reads; }  \
  HM_FUNC constexpr vec<T, n> get_##name() const constant { return vec<T, n> reads; } \
  __declspec(property(get = get_##name)) vec<T, n> name, colour;

#define HM_SWIZZLE_RW(name, colour, n, reads, writes)                 \
  HM_FUNC constexpr vec<T, n> get_##name() const { return vec<T, n> reads; }  \
  HM_FUNC constexpr vec<T, n> get_##name() const constant { return vec<T, n> reads; } \
  HM_FUNC constexpr void put_##name(vec<T, n> v) writes                       \
  __declspec(property(get = get_##name, put = put_##name)) vec<T, n> name, colour;
