// AVX-512 F, BW, VL, DQ.
#include "kernels.h"

// GCC 12 warns inside its own AVX-512 header (_mm512_undefined_ps), once per use.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

namespace mlx_tensorops::cpu {
namespace {

using V = __m512;
constexpr int kLanes = 16;
constexpr int kTileRows = 12;
constexpr int kTileVectors = 2;
constexpr const char* kName = "avx512";

static inline V zero() { return _mm512_setzero_ps(); }
static inline V broadcast(float x) { return _mm512_set1_ps(x); }
static inline V load(const float* p) { return _mm512_loadu_ps(p); }
static inline void store(float* p, V v) { _mm512_storeu_ps(p, v); }
static inline V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
static inline V add(V a, V b) { return _mm512_add_ps(a, b); }
static inline V sub(V a, V b) { return _mm512_sub_ps(a, b); }
static inline V mul(V a, V b) { return _mm512_mul_ps(a, b); }
static inline V div(V a, V b) { return _mm512_div_ps(a, b); }
// The second operand wins when either is NaN: pass the data second and NaN survives.
static inline V max(V bound, V x) { return _mm512_max_ps(bound, x); }
static inline V min(V bound, V x) { return _mm512_min_ps(bound, x); }
static inline V bits_of_both(V a, V b) { return _mm512_and_ps(a, b); }
static inline V exclusive_or(V a, V b) { return _mm512_xor_ps(a, b); }
static inline V abs(V x) { return _mm512_abs_ps(x); }
static inline V round(V x) {
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline V select_negative(V x, V negative, V other) {
  return _mm512_mask_blend_ps(_mm512_movepi32_mask(_mm512_castps_si512(x)), other, negative);
}
// 2^n for integral n in [-126, 127].
static inline V exp2_integral(V n) {
  __m512i e = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
  return _mm512_castsi512_ps(_mm512_slli_epi32(e, 23));
}
static inline float sum(V v) { return _mm512_reduce_add_ps(v); }

static inline V load_f16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
}
static inline float widen_f16(uint16_t x) { return _cvtsh_ss(x); }
static inline V load_bf16(const uint16_t* p) {
  __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
// Even elements, then odd ones: a shift and a mask for 32 values, where widening takes two shuffles.
static inline void load_bf16_even_odd(const uint16_t* p, V& even, V& odd) {
  __m512i bits = _mm512_loadu_si512(p);
  even = _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
  odd = _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32((int)0xffff0000u)));
}
static inline void store_f16(uint16_t* p, V v) {
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
static inline void store_bf16(uint16_t* p, V v) {
  __m512i bits = _mm512_castps_si512(v);
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  // A NaN must stay one: rounding could carry its payload into infinity or beyond.
  __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  __m512i top = _mm512_srli_epi32(_mm512_mask_blend_epi32(nan, rounded, quiet), 16);
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(top));
}
static inline void prefetch(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T0); }

// 4 x 4 blocks within 128-bit lanes, then the lanes themselves.
static inline void transpose(V (&r)[kLanes]) {
  V t[16], u[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    u[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
    u[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
    u[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    u[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  for (int i = 0; i < 4; i++) {
    V even_low = _mm512_shuffle_f32x4(u[i], u[i + 4], 0x88);
    V odd_low = _mm512_shuffle_f32x4(u[i], u[i + 4], 0xdd);
    V even_high = _mm512_shuffle_f32x4(u[i + 8], u[i + 12], 0x88);
    V odd_high = _mm512_shuffle_f32x4(u[i + 8], u[i + 12], 0xdd);
    r[i] = _mm512_shuffle_f32x4(even_low, even_high, 0x88);
    r[i + 4] = _mm512_shuffle_f32x4(odd_low, odd_high, 0x88);
    r[i + 8] = _mm512_shuffle_f32x4(even_low, even_high, 0xdd);
    r[i + 12] = _mm512_shuffle_f32x4(odd_low, odd_high, 0xdd);
  }
}

#include "kernels_decode_avx512.h"
#include "kernels_body.h"

}  // namespace

const Kernels* avx512_kernels() {
  return &kTable;
}

}  // namespace mlx_tensorops::cpu
