// NEON of every arm64 processor.
#include "kernels.h"

#include <arm_neon.h>

namespace mlx_tensorops::cpu {
namespace {

using V = float32x4_t;
constexpr int kLanes = 4;
constexpr int kTileRows = 6;
constexpr int kTileVectors = 4;
constexpr const char* kName = "neon";

static inline V zero() { return vdupq_n_f32(0.0f); }
static inline V broadcast(float x) { return vdupq_n_f32(x); }
static inline V load(const float* p) { return vld1q_f32(p); }
static inline void store(float* p, V v) { vst1q_f32(p, v); }
static inline V fma(V a, V b, V c) { return vfmaq_f32(c, a, b); }
static inline V add(V a, V b) { return vaddq_f32(a, b); }
static inline V sub(V a, V b) { return vsubq_f32(a, b); }
static inline V mul(V a, V b) { return vmulq_f32(a, b); }
static inline V div(V a, V b) { return vdivq_f32(a, b); }
// These return NaN when either operand is one.
static inline V max(V bound, V x) { return vmaxq_f32(bound, x); }
static inline V min(V bound, V x) { return vminq_f32(bound, x); }
static inline V bits_of_both(V a, V b) {
  return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(a), vreinterpretq_u32_f32(b)));
}
static inline V exclusive_or(V a, V b) {
  return vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(a), vreinterpretq_u32_f32(b)));
}
static inline V abs(V x) { return vabsq_f32(x); }
static inline V round(V x) { return vrndnq_f32(x); }
static inline V select_negative(V x, V negative, V other) {
  return vbslq_f32(vcltzq_s32(vreinterpretq_s32_f32(x)), negative, other);
}
// 2^n for integral n in [-126, 127].
static inline V exp2_integral(V n) {
  return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23));
}
static inline float sum(V v) { return vaddvq_f32(v); }

static inline V load_f16(const uint16_t* p) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
static inline float widen_f16(uint16_t x) {
  return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(x))), 0);
}
static inline V load_bf16(const uint16_t* p) {
  return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}
static inline void load_bf16_even_odd(const uint16_t* p, V& even, V& odd) {
  uint32x4_t bits = vreinterpretq_u32_u16(vld1q_u16(p));
  even = vreinterpretq_f32_u32(vshlq_n_u32(bits, 16));
  odd = vreinterpretq_f32_u32(vandq_u32(bits, vdupq_n_u32(0xffff0000u)));
}
static inline void store_f16(uint16_t* p, V v) {
  vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(v)));
}
static inline void store_bf16(uint16_t* p, V v) {
  uint32x4_t bits = vreinterpretq_u32_f32(v);
  uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
  // A NaN must stay one: rounding could carry its payload into infinity or beyond.
  uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
  vst1_u16(p, vshrn_n_u32(vbslq_u32(vceqq_f32(v, v), rounded, quiet), 16));
}
static inline void prefetch(const void* p) { __builtin_prefetch(p); }

static inline void transpose(V (&r)[kLanes]) {
  float32x4x2_t a = vtrnq_f32(r[0], r[1]), b = vtrnq_f32(r[2], r[3]);
  r[0] = vcombine_f32(vget_low_f32(a.val[0]), vget_low_f32(b.val[0]));
  r[1] = vcombine_f32(vget_low_f32(a.val[1]), vget_low_f32(b.val[1]));
  r[2] = vcombine_f32(vget_high_f32(a.val[0]), vget_high_f32(b.val[0]));
  r[3] = vcombine_f32(vget_high_f32(a.val[1]), vget_high_f32(b.val[1]));
}

#include "kernels_decode_neon.h"
#include "kernels_body.h"

}  // namespace

const Kernels* neon_kernels() {
  return &kTable;
}

}  // namespace mlx_tensorops::cpu
