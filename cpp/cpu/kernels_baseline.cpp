// Any machine: four lanes of the compiler's vector extension (SSE2 on x86-64).
#include "kernels.h"

namespace mlx_tensorops::cpu {
namespace {

typedef float V __attribute__((vector_size(16)));
typedef int32_t I __attribute__((vector_size(16)));
typedef uint32_t U __attribute__((vector_size(16)));
constexpr int kLanes = 4;
constexpr int kTileRows = 4;
constexpr int kTileVectors = 2;
constexpr const char* kName = "baseline";

static inline V broadcast(float x) { return V{x, x, x, x}; }
static inline V zero() { return broadcast(0.0f); }
static inline V load(const float* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}
static inline void store(float* p, V v) { __builtin_memcpy(p, &v, sizeof(v)); }
static inline V fma(V a, V b, V c) { return a * b + c; }
static inline V add(V a, V b) { return a + b; }
static inline V sub(V a, V b) { return a - b; }
static inline V mul(V a, V b) { return a * b; }
static inline V div(V a, V b) { return a / b; }
static inline V pick(I mask, V yes, V no) { return (V)(((I)yes & mask) | ((I)no & ~mask)); }
// A NaN in x fails the comparison and survives.
static inline V max(V bound, V x) { return pick(x < bound, bound, x); }
static inline V min(V bound, V x) { return pick(x > bound, bound, x); }
static inline V bits_of_both(V a, V b) { return (V)((I)a & (I)b); }
static inline V exclusive_or(V a, V b) { return (V)((I)a ^ (I)b); }
static inline V abs(V x) { return (V)((I)x & 0x7fffffff); }
static inline V select_negative(V x, V negative, V other) {
  return pick((I)x >> 31, negative, other);
}
// Adding 1.5 * 2^23 leaves no bits below one; right for |x| < 2^22, which is all that exp() needs.
static inline V round(V x) { return (x + 12582912.0f) - 12582912.0f; }
static inline V exp2_integral(V n) { return (V)((__builtin_convertvector(n, I) + 127) << 23); }
static inline float sum(V v) { return (v[0] + v[2]) + (v[1] + v[3]); }

static inline U widen(const uint16_t* p) { return U{p[0], p[1], p[2], p[3]}; }

// Half to float by moving the exponent: times 2^112, except for infinity and NaN.
static inline V from_f16(U h) {
  U magnitude = (h & 0x7fffu) << 13;
  V value = (V)magnitude * 0x1p112f;
  V special = (V)(magnitude | 0x7f800000u);
  I is_special = (I)(h & 0x7c00u) == 0x7c00;
  U sign = (h & 0x8000u) << 16;
  return (V)((U)pick(is_special, special, value) | sign);
}
static inline float widen_f16(uint16_t x) { return from_f16(U{x, x, x, x})[0]; }
static inline V load_f16(const uint16_t* p) { return from_f16(widen(p)); }
static inline V load_bf16(const uint16_t* p) { return (V)(widen(p) << 16); }
static inline void load_bf16_even_odd(const uint16_t* p, V& even, V& odd) {
  U bits;
  __builtin_memcpy(&bits, p, sizeof(bits));
  even = (V)(bits << 16);
  odd = (V)(bits & 0xffff0000u);
}

static inline void store_low(uint16_t* p, U v) {
  for (int i = 0; i < kLanes; i++) p[i] = (uint16_t)v[i];
}
static inline void store_bf16(uint16_t* p, V v) {
  U bits = (U)v;
  U rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  store_low(p, (U)pick(v != v, (V)(bits | 0x400000u), (V)rounded) >> 16);
}
// Round to nearest even. Normal results round on the integer; subnormal ones by adding 0.5, which
// leaves the rounded mantissa in the low bits.
static inline void store_f16(uint16_t* p, V v) {
  U bits = (U)v & 0x7fffffffu;
  U sign = ((U)v >> 16) & 0x8000u;
  U normal = (bits + 0xfffu + ((bits >> 13) & 1u) - 0x38000000u) >> 13;
  U subnormal = (U)((V)bits + 0.5f) - 0x3f000000u;
  U half = (U)pick((I)bits < 0x38800000, (V)subnormal, (V)normal);
  half = (U)pick((I)bits >= 0x47800000, (V)(U{} + 0x7c00u), (V)half);
  half = (U)pick((I)bits > 0x7f800000, (V)(U{} + 0x7e00u), (V)half);
  store_low(p, half | sign);
}
static inline void prefetch(const void* p) { __builtin_prefetch(p); }

static inline void transpose(V (&r)[kLanes]) {
  V t[kLanes];
  for (int i = 0; i < kLanes; i++) t[i] = V{r[0][i], r[1][i], r[2][i], r[3][i]};
  for (int i = 0; i < kLanes; i++) r[i] = t[i];
}

#include "kernels_decode_baseline.h"
#include "kernels_body.h"

}  // namespace

const Kernels* baseline_kernels() {
  return &kTable;
}

}  // namespace mlx_tensorops::cpu
