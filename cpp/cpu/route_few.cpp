// Up to kFewRows rows of a: b is read once, in its own type, and never stored as f32.
#include "pack.h"
#include "pool.h"
#include "routes.h"

#include <utility>

namespace mlx_tensorops::cpu {
namespace {

constexpr int64_t kMaxDepth = 4096;    // of x held as f32
// Columns of one task. Rows of b read in long runs need fewer page walks: with 1024 columns an N of 4096
// runs at two thirds of the speed.
constexpr int64_t kMaxColumns = 4096;
constexpr int64_t kMinColumns = 1024;
static_assert(2 * kFewRows * (kMaxDepth + kMaxColumns + 128) + kFinishScratch <= kScratch);

// The sum over K is cut into pieces of this length: one f32 chain of 4096 terms has four times the error of
// OpenBLAS. (dot() needs no cut: its lanes and chains are pieces already.)
constexpr int64_t kPiece = 256;
static_assert(kMaxDepth % kPiece == 0);

// One core reads 15-20 GB/s from memory and 50 GB/s from L3; only the order of magnitude matters.
constexpr double kBytesPerSecond = 20e9;

bool along_k(const Gemm& g) {
  return g.b.row == 1;
}

// y += x * b, for columns n0.. of b stored along N.
void add_products(const Gemm& g, const Slice& s, const Kernels& kernels, const float* x,
                  int64_t x_stride, int64_t k0, int64_t depth, int64_t n0, int64_t columns,
                  float* y, int64_t y_stride, float* piece) {
  for (int64_t k = 0; k < depth; k += kPiece) {
    std::fill_n(piece, g.m * y_stride, 0.0f);
    kernels.axpy(s.b.type, g.m, std::min(kPiece, depth - k), x + k, x_stride,
                 s.b.at(k0 + k, n0), s.b.row, columns, piece, y_stride);
    for (int64_t i = 0; i < g.m * y_stride; i++) y[i] += piece[i];
  }
}

void compute(const Gemm& g, const Slice& s, const Kernels& kernels, int64_t n0, int64_t columns) {
  const int64_t depth = std::min(kMaxDepth, g.k);
  const int64_t x_stride = ceil_div(depth, kernels.step) * kernels.step;
  const int64_t y_stride = ceil_div(columns, kernels.step) * kernels.step;
  float* x = scratch();
  float* ordered_x = x + g.m * x_stride;
  float* y = ordered_x + g.m * x_stride;
  float* second_y = y + g.m * y_stride;
  float* finish_scratch = second_y + g.m * y_stride;
  const bool dot = along_k(g);
  if (!dot) std::fill_n(y, g.m * y_stride, 0.0f);
  for (int64_t k0 = 0; k0 < g.k; k0 += depth) {
    const int64_t count = std::min(depth, g.k - k0);
    pack_rows(kernels, s.a, 0, g.m, k0, count, x, x_stride);
    if (!dot) {
      add_products(g, s, kernels, x, x_stride, k0, count, n0, columns, y, y_stride, second_y);
      continue;
    }
    for (int64_t r = 0; r < g.m; r++)
      kernels.order_for_dot(s.b.type, x + r * x_stride, count, ordered_x + r * x_stride);
    kernels.dot(s.b.type, g.m, count, ordered_x, x_stride, s.b.at(k0, n0), s.b.column, columns, y,
                y_stride, k0 > 0);
  }
  if (!dot) {
    for (int64_t r = 0; r < g.m; r++)
      kernels.order_from_axpy(s.b.type, y + r * y_stride, columns, second_y + r * y_stride);
    std::swap(y, second_y);
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
