// What the routes of gemm() share: one batch element, scratch memory, threads, the epilogue.
#pragma once

#include <algorithm>
#include <cstdint>

#include "gemm.h"

namespace mlx_tensorops::cpu {

inline int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

struct Slice {
  Matrix a, b, bias, residual;
  char* out;
};

Slice slice(const Gemm&, int64_t batch_index);
int64_t batch_size(const Gemm&);

// This thread's block of kScratch floats, aligned to a cache line. It lives as long as the thread.
constexpr int64_t kScratch = 240 * 1024;
float* scratch();

// What one core does with 8-lane FMA: 60-100 GFLOP/s; and decoding packed weights. Only orders of magnitude matter: they decide how many
// threads are woken.
constexpr double kFlopsPerSecond = 80e9;
constexpr double kWeightsPerSecond = 5e9;

// Threads worth using for work that takes one thread `seconds`.
int useful_threads(double seconds, const Settings&);

// Rows r0.., columns c0.. of the result from f32 sums.
constexpr int64_t kFinishScratch = 3 * 1024;
void finish(const Gemm&, const Slice&, const Kernels&, int64_t r0, int64_t rows, int64_t c0,
            int64_t columns, const float* sums, int64_t sums_stride, float* finish_scratch);

inline bool has_epilogue(const Gemm& g) {
  return g.bias.data || g.residual.data || g.activation != Activation::none;
}

// Size of equal tiles no larger than `max`, in multiples of `unit` where that is possible.
inline int64_t tile_size(int64_t size, int64_t max, int64_t unit) {
  int64_t tile = ceil_div(size, ceil_div(size, max));
  return std::min(ceil_div(tile, unit) * unit, max);
}

// The tiles of one result matrix, numbered along its rows.
struct Tiling {
  int64_t m, n, tile_m, tile_n;

  int64_t across() const { return ceil_div(n, tile_n); }
  int64_t count() const { return ceil_div(m, tile_m) * across(); }
  int64_t row(int64_t i) const { return i / across() * tile_m; }
  int64_t column(int64_t i) const { return i % across() * tile_n; }
  int64_t rows(int64_t i) const { return std::min(tile_m, m - row(i)); }
  int64_t columns(int64_t i) const { return std::min(tile_n, n - column(i)); }
};

// The routes. Each handles the whole batch.
bool few_rows_fits(const Gemm&);  // m <= kFewRows and b contiguous along K or N
void few_rows(const Gemm&, const Settings&);
void by_tiles(const Gemm&, const Settings&);
bool blas_fits(const Gemm&);  // f32 operands that BLAS can read where they are
void by_blas(const Gemm&, const Settings&);
void by_blas_blocks(const Gemm&, const Settings&);

}  // namespace mlx_tensorops::cpu
