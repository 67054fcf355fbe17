// <metal_pack>: conversion between vectors of floats and normalised integers in one word.
#pragma once
#include "hm_common.h"
#pragma clang system_header

namespace __hm {
// A value in [-1, 1] or [0, 1] as an integer of the given width, rounded to nearest even; NaN gives 0.
HM_FUNC uint to_normalised(float x, int bits, bool is_signed) {
  const float low = is_signed ? -1.0f : 0.0f, scale = static_cast<float>((1 << (bits - is_signed)) - 1);
  const float y = x != x ? 0.0f : __builtin_fminf(__builtin_fmaxf(x, low), 1.0f);
  return static_cast<uint>(static_cast<int>(__builtin_rintf(y * scale))) & ((1u << bits) - 1);
}
HM_FUNC float from_normalised(uint word, int shift, int bits, bool is_signed) {
  const uint code = word >> shift & ((1u << bits) - 1);
  if (!is_signed) return static_cast<float>(code) / static_cast<float>((1 << bits) - 1);
  const int value = static_cast<int>(code << (32 - bits)) >> (32 - bits);
  return __builtin_fmaxf(static_cast<float>(value) / static_cast<float>((1 << (bits - 1)) - 1), -1.0f);
}
template <int N> HM_FUNC metal::vec<float, N> unpacked(uint word, bool is_signed) {
  metal::vec<float, N> v(0.0f);
  for (int i = 0; i < N; ++i) v.d[i] = from_normalised(word, i * 32 / N, 32 / N, is_signed);
  return v;
}
template <int N> HM_FUNC uint packed(metal::vec<float, N> v, bool is_signed) {
  uint word = 0;
  for (int i = 0; i < N; ++i) word |= to_normalised(v.d[i], 32 / N, is_signed) << (i * 32 / N);
  return word;
}
}  // namespace __hm

namespace metal {
HM_FUNC float4 unpack_unorm4x8_to_float(uint x) { return __hm::unpacked<4>(x, false); }
HM_FUNC float4 unpack_snorm4x8_to_float(uint x) { return __hm::unpacked<4>(x, true); }
HM_FUNC float2 unpack_unorm2x16_to_float(uint x) { return __hm::unpacked<2>(x, false); }
HM_FUNC float2 unpack_snorm2x16_to_float(uint x) { return __hm::unpacked<2>(x, true); }
HM_FUNC half4 unpack_unorm4x8_to_half(uint x) { return half4(__hm::unpacked<4>(x, false)); }
HM_FUNC half4 unpack_snorm4x8_to_half(uint x) { return half4(__hm::unpacked<4>(x, true)); }
HM_FUNC half2 unpack_unorm2x16_to_half(uint x) { return half2(__hm::unpacked<2>(x, false)); }
HM_FUNC half2 unpack_snorm2x16_to_half(uint x) { return half2(__hm::unpacked<2>(x, true)); }
HM_FUNC uint pack_float_to_unorm4x8(float4 v) { return __hm::packed<4>(v, false); }
HM_FUNC uint pack_float_to_snorm4x8(float4 v) { return __hm::packed<4>(v, true); }
HM_FUNC uint pack_float_to_unorm2x16(float2 v) { return __hm::packed<2>(v, false); }
HM_FUNC uint pack_float_to_snorm2x16(float2 v) { return __hm::packed<2>(v, true); }
HM_FUNC uint pack_half_to_unorm4x8(half4 v) { return __hm::packed<4>(float4(v), false); }
HM_FUNC uint pack_half_to_snorm4x8(half4 v) { return __hm::packed<4>(float4(v), true); }
HM_FUNC uint pack_half_to_unorm2x16(half2 v) { return __hm::packed<2>(float2(v), false); }
HM_FUNC uint pack_half_to_snorm2x16(half2 v) { return __hm::packed<2>(float2(v), true); }
}  // namespace metal
