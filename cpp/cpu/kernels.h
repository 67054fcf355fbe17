// What one instruction set offers to the GEMM driver. Every kernels_<isa>.cpp fills in one table.
//
// The files that implement it are compiled with -mavx2 and the like. They include only this header,
// C headers and kernels_*.h, whose functions all have internal linkage: an inline function with
// external linkage (anything of the STL) could be emitted there with AVX2 code, and the linker might
// keep that copy for the whole program.
#pragma once

#include <stdint.h>

#include "kernels_quant.h"

namespace mlx_tensorops::cpu {

enum class Type : int32_t { f32, f16, bf16 };
enum class Activation : int32_t { none, relu, gelu_tanh, gelu_erf, silu };

constexpr int64_t size_of(Type type) {
  return type == Type::f32 ? 4 : 2;
}

// Depth (along K) of a packed block. A 256 x 16 strip of f32 is half of a 32 KiB L1.
constexpr int64_t kDepth = 256;

// At most this many rows of x go through the kernels that stream the weights once.
constexpr int64_t kFewRows = 8;

// Rows of w that axpy() takes in one pass over y. Rows one page apart share an L1 set: six of them and y fit its
// 8 ways (8 rows: 10 % slower at N = 2048).
constexpr int64_t kAxpyRows = 6;

// One row of the result: out = cast(act(acc + bias) + residual). bias and residual may be null.
struct FinishRow {
  const float* acc;
  const float* bias;
  const float* residual;
  Activation activation;
  Type type;
  void* out;
};

struct Kernels {
  const char* name;
  int64_t tile_rows;     // of the register tile
  int64_t tile_columns;  // also the width of a packed strip of B
  int64_t step;          // the few-row kernels pad x to a multiple of this many elements

  // dst[r][c] = src[r][c], rows of contiguous elements.
  void (*load)(Type, const void* src, int64_t src_stride, int64_t rows, int64_t columns, float* dst,
               int64_t dst_stride);
  // dst[c][r] = src[r][c].
  void (*load_transposed)(Type, const void* src, int64_t src_stride, int64_t rows, int64_t columns,
                          float* dst, int64_t dst_stride);
  // Rows of B (contiguous in N) into strips dst[strip][k][tile_columns] of kDepth rows, zero padded.
  void (*load_strips)(Type, const void* src, int64_t src_stride, int64_t depth, int64_t columns,
                      float* dst);
  // c (+)= a * strip; a has the row stride kDepth.
  void (*tile)(int64_t depth, const float* a, const float* strip, float* c, int64_t c_stride,
               int64_t rows, int64_t columns, bool accumulate);

  // Few rows of x, weights streamed once. A row of w is cut into steps: its first `head` elements, so that the
  // others are read aligned, whole steps, and what is left. head < step; it is 0 where the row is shorter than a step.

  // One row of x, f32, into the order in which dot() reads weights of this type; `head` and rest are padded to steps.
  // Writes up to k + 2 * step elements.
  void (*order_for_dot)(Type, const float* src, int64_t k, int64_t head, float* dst);
  // y[m][n] (+)= sum_k x[m][k] * w[n][k]; w rows are contiguous in K; rows <= kFewRows.
  void (*dot)(Type, int64_t rows, int64_t k, int64_t head, const float* x, int64_t x_stride,
              const void* w, int64_t w_stride, int64_t columns, float* y, int64_t y_stride,
              bool accumulate);
  // y[m][n] += sum_k x[m][k] * w[k][n]; w rows are contiguous in N. y is in the order that
  // order_from_axpy() undoes: one step for each step of w.
  void (*axpy)(Type, int64_t rows, int64_t k, const float* x, int64_t x_stride, const void* w,
               int64_t w_stride, int64_t columns, int64_t head, float* y, int64_t y_stride);
  void (*order_from_axpy)(Type, const float* src, int64_t columns, int64_t head, float* dst);

  void (*finish)(const FinishRow&, int64_t columns);

  // Exclusive or of all the bytes, in words: what a benchmark compares a memory-bound kernel with.
  uint64_t (*read)(const void*, int64_t bytes);

  const QuantKernels* quant;
};

const Kernels* baseline_kernels();
#if defined(__x86_64__)
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();
#elif defined(__aarch64__)
const Kernels* neon_kernels();
#endif

}  // namespace mlx_tensorops::cpu
