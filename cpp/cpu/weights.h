// Weights of any format, and the product of rows with a block of them: what quantised, gathered and expert products stand on.
#pragma once

#include <cstdint>

#include "gather_index.h"
#include "gemm.h"

namespace mlx_tensorops::cpu {

// The format with `values` filled in (for Codes::table they must be given). Throws std::invalid_argument on numbers that no format has.
WeightFormat finished(WeightFormat);

// k x n weights, stored as n rows along k (transpose) or k rows along n. Strides in bytes, any sign, zero included. Codes, scales and
// biases of a stored row are contiguous.
struct Weights {
  const WeightFormat* format = nullptr;  // null: dense elements of `type`
  Type type = Type::f32;                 // of dense elements, of biases and of ScaleType::floating scales
  bool transpose = true;
  int64_t k = 0, n = 0;
  const char* w = nullptr;
  const char* scales = nullptr;
  const char* biases = nullptr;  // null: none
  int64_t w_row = 0, scales_row = 0, biases_row = 0;
  int64_t w_step = 0;  // from one dense element of a stored row to the next
};

// The weights of one batch element, and the bytes to each of the others.
struct WeightBatch {
  Weights first;
  Axes w, scales, biases;

  Weights at(int64_t index) const;
};

// Rows of x; strides in elements. index, if given, names the row of x for each of the `count` rows.
struct Rows {
  const char* x = nullptr;
  Type type = Type::f32;
  int64_t row_stride = 0, k_stride = 1;
  const int32_t* index = nullptr;
  int64_t count = 0;
};

// The most rows and columns of one call. A weight is decoded once for each call, so callers take all the rows they have, up to that.
constexpr int64_t block_rows() { return 288; }
constexpr int64_t block_columns() { return 512; }

// Floats of scratch that multiply_rows() uses. With sums for a whole block and finish()'s scratch it fits into scratch():
// sums may take scratch_for_sums() floats.
constexpr int64_t multiply_scratch() { return 92 * 1024; }
constexpr int64_t scratch_for_sums() { return block_rows() * block_columns(); }

// sums[r * stride + c] = sum over k of x[row r][k] * W[k][n0 + c], in f32: no global scale, no bias. rows.count <= block_rows(),
// columns <= block_columns(), n0 a multiple of 32. Runs on the calling thread and allocates nothing.
void multiply_rows(const Rows&, const Weights&, int64_t n0, int64_t columns, float* sums, int64_t stride, float* scratch,
                   const Settings&);

// The same rows with several weights of one format and one k: each block of x is packed once for all of them.
struct Product {
  Weights weights;
  float* sums;
};
void multiply_rows(const Rows&, const Product* products, int count, int64_t n0, int64_t columns, int64_t stride, float* scratch,
                   const Settings&);

}  // namespace mlx_tensorops::cpu
