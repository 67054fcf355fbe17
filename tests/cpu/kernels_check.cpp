// Every kernel of one instruction set against plain double arithmetic. C headers only, so that it
// cross-compiles without a C++ library:  -DTABLE=neon_kernels  (or avx2_kernels, ...).
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

using namespace mlx_tensorops::cpu;

#if defined(__aarch64__)
typedef __fp16 Half;
#else
typedef _Float16 Half;
#endif

static const Kernels& kernels = *TABLE();
static int failures = 0;

#define CHECK(condition, ...)                        \
  do {                                               \
    if (!(condition) && failures++ < 20) {           \
      printf("%s:%d: %s: ", __FILE__, __LINE__, #condition); \
      printf(__VA_ARGS__);                           \
      printf("\n");                                  \
    }                                                \
  } while (0)

static uint32_t state = 12345;
static uint32_t random_bits() { return state = state * 1664525u + 1013904223u, state >> 8; }
static float random_float() { return (float)(random_bits() & 0xffff) / 32768.0f - 1.0f; }

static float widen(Type type, const void* data, int64_t i) {
  if (type == Type::f32) return ((const float*)data)[i];
  if (type == Type::f16) return (float)((const Half*)data)[i];
  uint32_t bits = (uint32_t)((const uint16_t*)data)[i] << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

// Moderate values of a type; rounding does not matter here.
static void fill(Type type, void* data, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    float value = random_float();
    if (type == Type::f32) ((float*)data)[i] = value;
    else if (type == Type::f16) ((Half*)data)[i] = (Half)value;
    else {
      uint32_t bits;
      memcpy(&bits, &value, 4);
      ((uint16_t*)data)[i] = (uint16_t)(bits >> 16);
    }
  }
}

static const Type kTypes[] = {Type::f32, Type::f16, Type::bf16};
enum { kMax = 304 * kDepth };  // strips of the most columns below, and one more
static float source[kMax], out[kMax], packed[kMax], wanted[kMax];

static bool same(float a, float b) { return a == b || (a != a && b != b); }
static bool close_to(float a, double b, double scale) { return fabs(a - b) <= 3e-6 * (scale + 1); }

static void check_every_half() {
  static uint16_t all[65536];
  static float as_f32[65536];
  static uint16_t back[65536];
  for (int i = 0; i < 65536; i++) all[i] = (uint16_t)i;
  const Type halves[] = {Type::f16, Type::bf16};
  for (Type type : halves) {
    kernels.load(type, all, 0, 1, 65536, as_f32, 0);
    for (int i = 0; i < 65536; i++)
      CHECK(same(as_f32[i], widen(type, all, i)), "type %d, %04x gives %g", (int)type, i, as_f32[i]);
    kernels.load(type, all + 1, 0, 1, 3, as_f32, 0);  // the scalar tail
    for (int i = 0; i < 3; i++) CHECK(same(as_f32[i], widen(type, all, i + 1)), "tail %d", i);
    kernels.load(type, all, 0, 1, 65536, as_f32, 0);
    kernels.finish({as_f32, nullptr, nullptr, Activation::none, type, back}, 65536);
    for (int i = 0; i < 65536; i++)
      CHECK(as_f32[i] != as_f32[i] ? widen(type, back, i) != widen(type, back, i) : back[i] == all[i],
            "type %d, %04x comes back as %04x", (int)type, i, back[i]);
  }
}

// Nearest even of the two bf16 neighbours of x, found in double.
static uint16_t nearest_bf16(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  uint16_t low = (uint16_t)(bits >> 16), high = (uint16_t)(low + 1);
  double a = widen(Type::bf16, &low, 0), b = widen(Type::bf16, &high, 0);
  if (isinf(b)) b = ldexp(a < 0 ? -1.0 : 1.0, 128);
  double to_a = fabs(x - a), to_b = fabs(x - b);
  return to_a < to_b || (to_a == to_b && low % 2 == 0) ? low : high;
}

static void check_rounding() {
  static float x[4096];
  static uint16_t half[4096];
  for (int round = 0; round < 200; round++) {
    for (float& value : x) {
      uint32_t bits = (random_bits() << 16) ^ random_bits();
      if (round % 2) bits = (bits & 0x8fffe000u) | 0x30000000u | (random_bits() % 3 == 0 ? 0x1000u : 0);
      memcpy(&value, &bits, 4);
      if (value != value || isinf(value)) value = 1.0f;
    }
    kernels.finish({x, nullptr, nullptr, Activation::none, Type::f16, half}, 4096);
    for (int i = 0; i < 4096; i++) {
      Half want = (Half)x[i];
      CHECK(memcmp(&want, &half[i], 2) == 0, "%a to f16 gives %04x", x[i], half[i]);
    }
    kernels.finish({x, nullptr, nullptr, Activation::none, Type::bf16, half}, 4096);
    for (int i = 0; i < 4096; i++)
      CHECK(half[i] == nearest_bf16(x[i]), "%a to bf16 gives %04x", x[i], half[i]);
  }
}

// Payloads that a careless rounding carries into infinity or into the sign.
static void check_nan() {
  const uint32_t patterns[] = {0x7f800001u, 0x7fffffffu, 0xffffffffu, 0xff800001u};
  for (uint32_t bits : patterns) {
    float x;
    uint16_t half;
    memcpy(&x, &bits, 4);
    kernels.finish({&x, nullptr, nullptr, Activation::none, Type::bf16, &half}, 1);
    CHECK((half & 0x7fff) > 0x7f80, "NaN %08x to bf16 gives %04x", bits, half);
    kernels.finish({&x, nullptr, nullptr, Activation::none, Type::f16, &half}, 1);
    CHECK((half & 0x7fff) > 0x7c00, "NaN %08x to f16 gives %04x", bits, half);
  }
}

static void check_packing(Type type, int64_t rows, int64_t columns) {
  int64_t stride = columns + 3;
  fill(type, source, rows * stride);
  kernels.load(type, source, stride, rows, columns, out, columns);
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < columns; c++)
      CHECK(out[r * columns + c] == widen(type, source, r * stride + c), "load %d %d", (int)r, (int)c);
  kernels.load_transposed(type, source, stride, rows, columns, out, rows);
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < columns; c++)
      CHECK(out[c * rows + r] == widen(type, source, r * stride + c), "transposed %d %d", (int)r, (int)c);
  if (columns > 64) return;
  int64_t width = kernels.tile_columns, strips = (columns + width - 1) / width;
  memset(out, 0x7f, sizeof(out));
  kernels.load_strips(type, source, stride, rows, columns, out);
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < strips * width; c++)
      CHECK(out[c / width * kDepth * width + r * width + c % width] ==
                (c < columns ? widen(type, source, r * stride + c) : 0.0f), "strips %d %d", (int)r, (int)c);
}

static void check_tile(int64_t depth, int64_t rows, int64_t columns, bool accumulate) {
  int64_t width = kernels.tile_columns, stride = columns + 5;
  fill(Type::f32, source, rows * kDepth);
  fill(Type::f32, packed, depth * width);
  fill(Type::f32, out, rows * stride);
  memcpy(wanted, out, sizeof(float) * rows * stride);
  kernels.tile(depth, source, packed, out, stride, rows, columns, accumulate);
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < stride && r * stride + c < rows * stride; c++) {
      double sum = c < columns && !accumulate ? 0 : wanted[r * stride + c];
      for (int64_t k = 0; c < columns && k < depth; k++) sum += (double)source[r * kDepth + k] * packed[k * width + c];
      CHECK(close_to(out[r * stride + c], sum, (double)depth), "tile %d %d: %g, not %g", (int)r, (int)c,
            out[r * stride + c], sum);
    }
}

static void check_few(Type type, int64_t rows, int64_t k, int64_t columns) {
  int64_t step = kernels.step, x_stride = (k + 2 * step - 1) / step * step, y_stride = (columns + 2 * step - 1) / step * step;
  static float x[8 * 256], ordered[8 * 256], y[8 * 256], plain[8 * 256];
  fill(Type::f32, x, rows * x_stride);
  fill(type, source, k * columns);
  const int64_t heads[] = {0, 1, 5, step - 1};
  for (int along_k = 0; along_k < 2; along_k++)
    for (int64_t head : heads) {
      const int64_t row = along_k ? k : columns;
      if (head && row < step) continue;
      auto multiply = [&] {
        memset(y, 0, sizeof(y));
        for (int64_t r = 0; r < rows && along_k; r++)
          kernels.order_for_dot(type, x + r * x_stride, k, head, ordered + r * x_stride);
        for (int pass = 0; pass < 2; pass++)
          if (along_k) kernels.dot(type, rows, k, head, ordered, x_stride, source, k, columns, plain, y_stride, pass == 1);
          else kernels.axpy(type, rows, k, x, x_stride, source, columns, columns, head, y, y_stride);
        for (int64_t r = 0; r < rows && !along_k; r++)
          kernels.order_from_axpy(type, y + r * y_stride, columns, head, plain + r * y_stride);
      };
      multiply();
      for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++) {
          double sum = 0;
          for (int64_t i = 0; i < k; i++)
            sum += 2.0 * x[r * x_stride + i] * widen(type, source, along_k ? c * k + i : i * columns + c);
          CHECK(close_to(plain[r * y_stride + c], sum, 2.0 * k), "few type %d %s rows %d k %d head %d [%d, %d]: %g, not %g", (int)type,
                along_k ? "dot" : "axpy", (int)rows, (int)k, (int)head, (int)r, (int)c, plain[r * y_stride + c], sum);
        }
      // An infinite weight in any place: steps that overlap must not make NaN of it, nor let it into other columns.
      if (rows > 1) continue;
      for (int64_t i = 0; i < row; i++) {
        static char kept[4];
        const int64_t size = size_of(type);
        char* at = (char*)source + i * size;
        memcpy(kept, at, size);
        const uint32_t infinity = type == Type::f32 ? 0x7f800000u : type == Type::f16 ? 0x7c00u : 0x7f80u;
        memcpy(at, &infinity, size);
        multiply();
        memcpy(at, kept, size);
        for (int64_t c = 0; c < columns; c++) {
          const bool hit = c == (along_k ? 0 : i);
          CHECK(hit ? isinf(plain[c]) : isfinite(plain[c]), "few type %d %s k %d head %d: %g in column %d of %d, infinite weight at %d",
                (int)type, along_k ? "dot" : "axpy", (int)k, (int)head, plain[c], (int)c, (int)columns, (int)i);
        }
      }
    }
}

static double activate(Activation activation, double x) {
  switch (activation) {
    case Activation::none: return x;
    case Activation::relu: return x > 0 ? x : 0;
    case Activation::silu: return x / (1 + exp(-x));
    case Activation::gelu_tanh: return x / (1 + exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)));
    case Activation::gelu_erf: return 0.5 * x * erfc(-x * 0.70710678118654752);
  }
  return 0;
}

// Relative accuracy over the whole range, tails included.
static void check_activations() {
  enum { kCount = 1999 };
  static float x[kCount], bias[kCount], residual[kCount], y[kCount];
  for (int act = 0; act <= (int)Activation::silu; act++)
    for (int extra = 0; extra < 2; extra++) {
      for (int i = 0; i < kCount; i++) {
        x[i] = (float)(i - 1000) / 125.0f;
        bias[i] = extra ? random_float() : 0;
        residual[i] = extra ? random_float() : 0;
      }
      kernels.finish({x, extra ? bias : nullptr, extra ? residual : nullptr, (Activation)act, Type::f32, y}, kCount);
      for (int i = 0; i < kCount; i++) {
        double want = activate((Activation)act, (double)(x[i] + bias[i])) + residual[i];
        // exp turns the rounding of its argument (up to 50 here) into a relative error.
        double bound = (extra ? 1e-6 : 0) + 1e-5 * fabs(want);
        CHECK(fabs(y[i] - want) <= bound, "activation %d of %g: %.9g, not %.9g", act, x[i], y[i], want);
      }
      x[0] = NAN;
      kernels.finish({x, nullptr, nullptr, (Activation)act, Type::f32, y}, 1);
      CHECK(y[0] != y[0], "activation %d loses NaN", act);
    }
}

// ---- block-quantised weights -------------------------------------------------------------------

struct Case {
  Decoding decoding;
  int bits, group;
  bool biased;
};

static WeightFormat format_of(const Case& c) {
  WeightFormat f;
  f.bits = c.bits;
  f.group = c.group;
  f.decoding = c.decoding;
  for (int code = 0; code < 1 << c.bits; code++) {
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const double e4m3 = (code & 0x7f) == 0x7f ? NAN : (code & 128 ? -1 : 1) * (exponent ? ldexp(8.0 + mantissa, exponent - 10) : ldexp(mantissa, -9));
    f.values[code] = c.decoding == Decoding::e4m3 ? (float)e4m3 : c.decoding == Decoding::lookup ? (float)(code - 3) / 7 : (float)code;
    if (c.decoding != Decoding::nibbles) continue;
    f.values[code] = code & 8 ? -0.375f * code : 1.5f * code;
    uint32_t bits;
    memcpy(&bits, &f.values[code], 4);
    f.low[code] = (uint8_t)(bits >> 16), f.high[code] = (uint8_t)(bits >> 24);
  }
  return f;
}

// Codes end where memory ends: what reads behind them is seen under a memory checker, and never changes a result here.
static void check_quantised(const Case& c, int64_t rows, int64_t steps, int64_t phase) {
  const WeightFormat f = format_of(c);
  const int64_t depth = steps * kStepCodes, bytes = depth / 8 * c.bits, scales = (phase + steps - 1) / (c.group / kStepCodes) + 1;
  uint8_t* codes = (uint8_t*)malloc(rows * bytes);
  float *scale = (float*)malloc(4 * rows * scales), *bias = (float*)malloc(4 * rows * scales);
  double* weights = (double*)malloc(8 * rows * depth);
  for (int64_t i = 0; i < rows * bytes; i++) codes[i] = (uint8_t)random_bits();
  if (c.decoding == Decoding::e4m3)
    for (int64_t i = 0; i < rows * bytes; i++) codes[i] ^= (codes[i] & 0x7f) == 0x7f;
  for (int64_t i = 0; i < rows * scales; i++) scale[i] = (float)(random_bits() % 255 + 1) / 64, bias[i] = c.biased ? random_float() : 0;
  int shift = 0;
  while (c.group >> shift > kStepCodes) shift++;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t i = 0; i < depth; i++) {
      uint64_t pack = 0;
      memcpy(&pack, codes + r * bytes + i / 8 * c.bits, c.bits);
      const int64_t at = r * scales + ((phase + i / kStepCodes) >> shift);
      weights[r * depth + i] = (double)f.values[pack >> i % 8 * c.bits & ((1u << c.bits) - 1)] * scale[at] + bias[at];
    }
  const bool given = c.biased || (c.decoding != Decoding::nibbles && c.decoding != Decoding::e4m3);
  const QuantRows q{&f, codes, bytes, scale, given ? bias : nullptr, scales, phase, shift};
  const int64_t width = kernels.tile_columns;
  auto near = [&](float got, double want) { return fabs(got - want) <= 1e-6 * fabs(want) + 4e-6; };
  auto strips_at = [&](int64_t k, int64_t n) { return out[n / width * width * kDepth + k * width + n % width]; };
  memset(out, 0x7f, sizeof(out));
  kernels.quant->strips_of_rows(q, rows, depth, out);
  for (int64_t n = 0; n < (rows + width - 1) / width * width; n++)
    for (int64_t k = 0; k < depth; k++)
      CHECK(near(strips_at(k, n), n < rows ? weights[n * depth + k] : 0), "strips of rows, decoding %d, %d bits [%d, %d]: %g", (int)c.decoding,
            c.bits, (int)k, (int)n, strips_at(k, n));
  memset(out, 0x7f, sizeof(out));
  kernels.quant->strips_of_columns(q, rows, depth, out);
  for (int64_t n = 0; n < (depth + width - 1) / width * width; n++)
    for (int64_t k = 0; k < rows; k++)
      CHECK(near(strips_at(k, n), n < depth ? weights[k * depth + n] : 0), "strips of columns, decoding %d, %d bits [%d, %d]: %g", (int)c.decoding,
            c.bits, (int)k, (int)n, strips_at(k, n));
  static float x[8 * 512], ordered[8 * 512], y[8 * 64];
  for (int64_t m = 1; m <= kFewRows && rows <= 64; m++)
    for (int tame = 0; tame < 2; tame++) {
      fill(Type::f32, x, m * depth);
      const int64_t padded = padded_rows(m);
      for (int64_t r = 0; r < padded; r++)
        kernels.quant->order_for_dot(f, x + (r < m ? r : 0) * depth, depth, ordered + r * kStepCodes, padded * kStepCodes);
      for (int pass = 0; pass < 2; pass++) kernels.quant->dot(q, m, depth, ordered, rows, y, rows, pass == 1, tame == 1);
      for (int64_t r = 0; r < m; r++)
        for (int64_t n = 0; n < rows; n++) {
          double sum = 0, size = 0;
          for (int64_t k = 0; k < depth; k++) {
            const double product = 2.0 * x[r * depth + k] * weights[n * depth + k];
            sum += product, size += fabs(product);
          }
          CHECK(fabs(y[r * rows + n] - sum) <= 2e-6 * (size + 1), "dot, decoding %d, %d bits, %d rows [%d, %d]: %g, not %g", (int)c.decoding, c.bits,
                (int)m, (int)r, (int)n, y[r * rows + n], sum);
        }
    }
  free(codes), free(scale), free(bias), free(weights);
}

static void check_scales() {
  uint8_t bytes[256];
  float got[256];
  for (int i = 0; i < 256; i++) bytes[i] = (uint8_t)i;
  const WeightFormat e4m3 = format_of({Decoding::e4m3, 8, 16, false});
  for (int count = 1; count <= 256; count++) {
    kernels.quant->scales(ScaleType::e4m3, bytes, count, got);
    for (int i = 0; i < count; i++) CHECK(same(got[i], e4m3.values[i]), "E4M3 %02x gives %g", i, got[i]);
    kernels.quant->scales(ScaleType::e8m0, bytes, count, got);
    for (int i = 0; i < count; i++) CHECK(got[i] == (i == 255 ? INFINITY : (float)ldexp(1.0, i - 127)), "E8M0 %02x gives %g", i, got[i]);
  }
}

static void check_tame() {
  float x[37];
  for (int count = 0; count <= 37; count++) {
    for (float& v : x) v = random_float();
    CHECK(kernels.quant->tame(x, count), "%d small values", count);
    const float wild[] = {INFINITY, -INFINITY, NAN, 0x1p96f, -0x1p127f};
    for (float v : wild)
      for (int i = 0; i < count; i++) {
        x[i] = v;
        CHECK(!kernels.quant->tame(x, count), "%g at %d of %d", v, i, count);
        x[i] = -0x1.fp95f;
        CHECK(kernels.quant->tame(x, count), "below 2^96 at %d of %d", i, count);
      }
  }
}

static void check_all_quantised() {
  const Case cases[] = {
      {Decoding::nibbles, 4, 16, false}, {Decoding::nibbles, 4, 64, true},  {Decoding::levels, 1, 32, true},   {Decoding::levels, 2, 64, true},
      {Decoding::integers, 3, 32, true}, {Decoding::integers, 5, 32, true}, {Decoding::integers, 6, 64, true}, {Decoding::integers, 7, 128, true},
      {Decoding::bytes, 8, 32, true},    {Decoding::e4m3, 8, 32, false},    {Decoding::lookup, 3, 32, true},   {Decoding::lookup, 4, 16, true},
      {Decoding::lookup, 8, 64, true},
  };
  const int64_t row_counts[] = {1, 2, 3, 7, 8, 17, 33}, step_counts[] = {1, 2, 3, 8, 15};
  for (const Case& c : cases)
    for (int64_t rows : row_counts)
      for (int64_t steps : step_counts)
        for (int64_t phase = 0; phase < c.group / kStepCodes; phase += 3) check_quantised(c, rows, steps, phase);
}

int main() {
  check_scales();
  check_tame();
  check_all_quantised();
  check_every_half();
  check_rounding();
  check_nan();
  check_activations();
  const int64_t sizes[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 50, 64};
  for (Type type : kTypes)
    for (int64_t rows : sizes)
      for (int64_t columns : sizes) {
        check_packing(type, rows, columns);
        for (int64_t x = 1; x <= kFewRows; x++) check_few(type, x, rows, columns);
      }
  const int64_t depths[] = {1, 2, 5, 64, 256};
  for (int64_t depth : depths)
    for (int64_t rows = 1; rows <= kernels.tile_rows; rows++)
      for (int64_t columns = 1; columns <= kernels.tile_columns; columns++)
        for (int accumulate = 0; accumulate < 2; accumulate++) check_tile(depth, rows, columns, accumulate);
  uint8_t bytes[1000];
  const int byte_counts[] = {1, 7, 8, 64, 65, 255, 999};
  for (int size : byte_counts) {
    uint64_t want = 0;
    for (int i = 0; i < size; i++) bytes[i] = (uint8_t)random_bits(), want ^= (uint64_t)bytes[i] << i % 8 * 8;
    CHECK(kernels.read(bytes, size) == want, "read %d bytes", size);
  }
  printf("%s: %d failures\n", kernels.name, failures);
  return failures != 0;
}
