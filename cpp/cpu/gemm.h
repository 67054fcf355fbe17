// out = cast(act(a @ b + bias) + residual) on the CPU, over raw pointers: no MLX in here.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels.h"

namespace mlx_tensorops::cpu {

// Strides in elements; any sign, zero included.
struct Matrix {
  const void* data = nullptr;
  Type type = Type::f32;
  int64_t row = 0;
  int64_t column = 0;

  const void* at(int64_t r, int64_t c) const {
    return static_cast<const char*>(data) + (r * row + c * column) * size_of(type);
  }
};

struct Gemm {
  int64_t m = 0, n = 0, k = 0;
  Matrix a;  // m x k
  Matrix b;  // k x n
  void* out = nullptr;  // strides out_row, out_column
  Type out_type = Type::f32;
  int64_t out_row = 0, out_column = 1;
  Matrix bias;      // m x n, most often with row stride 0; data may be null
  Matrix residual;  // m x n; data may be null
  Activation activation = Activation::none;

  // Batch dimensions and each operand's strides over them. out is contiguous.
  std::vector<int64_t> batch, a_batch, b_batch, bias_batch, residual_batch;
};

enum class UseBlas { automatic, never, always };

struct Settings {
  const Kernels* kernels;
  int threads;
  UseBlas use_blas;
};

void gemm(const Gemm&, const Settings&);

// Upper bound of the scratch memory of one thread, in bytes.
int64_t scratch_limit();

}  // namespace mlx_tensorops::cpu
