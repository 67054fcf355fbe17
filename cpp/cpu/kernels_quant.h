// Block-quantised weights as the kernels see them. Included by kernels.h: C headers only.
#pragma once

#include <stdint.h>

namespace mlx_tensorops::cpu {

enum class Codes : int32_t { integer, e2m1, e4m3, table };
enum class ScaleType : int32_t { floating, e4m3, e8m0 };

// Which decoder reads a format.
//   nibbles   4 bits, every value a bf16 number: looked up as two bytes of it
//   levels    up to 2 bits: looked up in a register of four
//   integers  the code is the value
//   bytes     the same, 8 bits
//   e4m3
//   lookup    anything else, from a table in memory
enum class Decoding : int32_t { nibbles, levels, integers, bytes, e4m3, lookup };

// Codes decoded together. The kernels take formats whose groups are a multiple of it.
constexpr int64_t kStepCodes = 16;

// A block-quantised format: weight = value(code) * scale (+ bias), `group` weights to a scale. Codes are one little-endian stream
// of bits per stored row, so that 8 of them fill `bits` bytes; a group is a multiple of 8.
struct WeightFormat {
  Codes codes = Codes::integer;
  int bits = 4;
  int64_t group = 64;
  ScaleType scale = ScaleType::floating;
  float values[256] = {};  // of each code

  // The rest is filled in by finished().
  Decoding decoding = Decoding::integers;
  uint8_t low[16] = {}, high[16] = {};  // for Decoding::nibbles: bytes of the value in bf16
};

// Stored rows of codes from some step on, with their scales (and biases) in f32. The scale of step i of row r is
// scales[r * scale_stride + ((phase + i) >> shift)].
struct QuantRows {
  const WeightFormat* format;
  const uint8_t* codes;
  int64_t stride;  // bytes
  const float* scales;
  const float* biases;  // null: none
  int64_t scale_stride;
  int64_t phase;
  int shift;
};

// Rows of x that dot() reads for so many rows: it has kernels for 1, 2, 4 and 8.
constexpr int64_t padded_rows(int64_t rows) {
  return rows <= 2 ? rows : rows <= 4 ? 4 : 8;
}

struct QuantKernels {
  // Scales of one byte (ScaleType::e4m3, e8m0) to f32.
  void (*scales)(ScaleType, const uint8_t* src, int64_t count, float* dst);
  // Stored along K: `rows` rows of `depth` weights become columns of strips (Kernels::load_strips). depth is a multiple of kStepCodes.
  void (*strips_of_rows)(const QuantRows&, int64_t rows, int64_t depth, float* dst);
  // Stored along N: `depth` rows of `columns` weights. columns is a multiple of kStepCodes.
  void (*strips_of_columns)(const QuantRows&, int64_t depth, int64_t columns, float* dst);
  // Few rows of x against weights stored along K, which are decoded once and never written.
  // One row of x, k values, into the order of the decoder: each kStepCodes of them at dst + step * dst_stride.
  void (*order_for_dot)(const WeightFormat&, const float* src, int64_t k, float* dst, int64_t dst_stride);
  // y[m][n] (+)= sum_k x[m][k] * w[n][k]; k is a multiple of kStepCodes. x is [step][padded_rows(rows)][kStepCodes]. tame: neither x nor
  // scales are large, so that a scale may multiply a sum instead of every weight, and no sum overflows before.
  void (*dot)(const QuantRows&, int64_t rows, int64_t k, const float* x, int64_t columns, float* y, int64_t y_stride, bool accumulate,
              bool tame);
  // Whether all values are below 2^96 in magnitude; false for infinity and NaN.
  bool (*tame)(const float*, int64_t count);
};

}  // namespace mlx_tensorops::cpu
