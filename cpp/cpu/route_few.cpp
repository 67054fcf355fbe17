// Up to kFewRows rows of a: b is read once, in its own type, and never stored as f32.
#include "pack.h"
#include "pool.h"
#include "routes.h"

namespace mlx_tensorops::cpu {
namespace {

constexpr int64_t kMaxDepth = 4096;    // of x held as f32
// Columns of one task. Rows of b read in long runs need fewer page walks: with 1024 columns an N of 4096
// runs at two thirds of the speed.
constexpr int64_t kMaxColumns = 4096;
constexpr int64_t kMinColumns = 1024;
static_assert(2 * kFewRows * (kMaxDepth + kMaxColumns + 128) + kFinishScratch <= kScratch);

// One core reads 15-20 GB/s from memory and 50 GB/s from L3; only the order of magnitude matters.
constexpr double kBytesPerSecond = 20e9;

bool along_k(const Gemm& g) {
  return g.b.row == 1;
}

void compute(const Gemm& g, const Slice& s, const Kernels& kernels, int64_t n0, int64_t columns) {
  const int64_t depth = std::min(kMaxDepth, g.k);
  const int64_t x_stride = ceil_div(depth, kernels.step) * kernels.step;
  const int64_t y_stride = ceil_div(columns, kernels.step) * kernels.step;
  float* x = scratch();
  float* raw = x + g.m * x_stride;
  float* y = raw + g.m * x_stride;
  float* ordered = y + g.m * y_stride;
  float* finish_scratch = ordered + g.m * y_stride;
  const bool dot = along_k(g);
  if (!dot) std::fill_n(y, g.m * y_stride, 0.0f);
  for (int64_t k0 = 0; k0 < g.k; k0 += depth) {
    const int64_t count = std::min(depth, g.k - k0);
    pack_rows(kernels, s.a, 0, g.m, k0, count, raw, x_stride);
    if (dot) {
      for (int64_t r = 0; r < g.m; r++)
        kernels.order_for_dot(s.b.type, raw + r * x_stride, count, x + r * x_stride);
      kernels.dot(s.b.type, g.m, count, x, x_stride, s.b.at(k0, n0), s.b.column, columns, y,
                  y_stride, k0 > 0);
    } else {
      kernels.axpy(s.b.type, g.m, count, raw, x_stride, s.b.at(k0, n0), s.b.row, columns, y,
                   y_stride);
    }
  }
  if (!dot) {
    for (int64_t r = 0; r < g.m; r++)
      kernels.order_from_axpy(s.b.type, y + r * y_stride, columns, ordered + r * y_stride);
    y = ordered;
  }
  finish(g, s, kernels, 0, g.m, n0, columns, y, y_stride, finish_scratch);
}

}  // namespace

bool few_rows_fits(const Gemm& g) {
  return g.m <= kFewRows && (g.b.row == 1 || g.b.column == 1);
}

void few_rows(const Gemm& g, const Settings& settings) {
  const Kernels& kernels = *settings.kernels;
  const int64_t batches = batch_size(g);
  const double seconds = double(g.n) * g.k * size_of(g.b.type) / kBytesPerSecond;
  const int threads = useful_threads(seconds * batches, settings);
  int64_t most = kMaxColumns;
  if (threads > 1) {
    const int64_t least = along_k(g) ? 128 : kMinColumns;
    most = std::clamp(ceil_div(g.n * batches, 4 * threads), least, kMaxColumns);
  }
  const Tiling t{1, g.n, 1, tile_size(g.n, most, 2 * kernels.step)};
  const int64_t tiles = t.count();
  const int64_t grain = std::max<int64_t>(1, 50e-6 / seconds * tiles);
  parallel_for(batches * tiles, grain, threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      int64_t tile = i % tiles;
      compute(g, slice(g, i / tiles), kernels, t.column(tile), t.columns(tile));
    }
  });
}

}  // namespace mlx_tensorops::cpu
