// Up to kFewRows rows of a: b is read once, in its own type, and never stored as f32.
#include "pack.h"
#include "pool.h"
#include "routes.h"


namespace mlx_tensorops::cpu {
namespace {

constexpr int64_t kMaxDepth = 4096;    // of x held as f32
// Columns of one task. Rows of b read in long runs need fewer page walks: with 1024 columns an N of 4096
// runs at two thirds of the speed on one thread. Several threads cut it to that, and more threads further.
constexpr int64_t kMaxColumns = 4096;
static_assert(2 * kFewRows * (kMaxDepth + kMaxColumns + 256) + kFinishScratch <= kScratch);

// The sum over K is cut into pieces of this length: one f32 chain of 4096 terms has four times the error of
// OpenBLAS. (dot() needs no cut: its lanes and chains are pieces already.)
constexpr int64_t kPiece = 42 * kAxpyRows;

// One core reads 15-20 GB/s from memory and 50 GB/s from L3; only the order of magnitude matters.
constexpr double kBytesPerSecond = 20e9;

bool along_k(const Gemm& g) {
  return g.b.row == 1;
}

// Elements before the rows of b, from p on, are aligned for the kernels' steps; 0 if they do not agree, or
// for rows of less than a step. MLX's buffers start 24 bytes after a multiple of 64, so that every
// second load would cross a cache line, at 15 % of the speed.
int64_t unaligned_head(const Kernels& kernels, const Matrix& b, const void* p, int64_t stride,
                       int64_t count) {
  const int64_t size = size_of(b.type), step = kernels.step * size;
  const int64_t over = static_cast<int64_t>(reinterpret_cast<uintptr_t>(p) % step);
  if (over == 0 || over % size != 0 || stride * size % step != 0) return 0;
  return count < kernels.step ? 0 : (step - over) / size;
}

struct Task {
  const Gemm& g;
  const Slice s;
  const Kernels& kernels;
  int64_t n0, columns;

  int64_t padded(int64_t count) const { return ceil_div(count, kernels.step) * kernels.step; }

  // Sums for b stored along K.
  float* by_rows(float* x, int64_t depth, float* memory, int64_t& y_stride) const {
    const int64_t x_stride = padded(depth) + kernels.step;
    float* ordered = memory;
    float* y = ordered + g.m * x_stride;
    y_stride = columns;
    for (int64_t k0 = 0; k0 < g.k; k0 += depth) {
      const int64_t count = std::min(depth, g.k - k0);
      const void* w = s.b.at(k0, n0);
      const int64_t head = unaligned_head(kernels, s.b, w, s.b.column, count);
      pack_rows(kernels, s.a, 0, g.m, k0, count, x, depth);
      for (int64_t r = 0; r < g.m; r++)
        kernels.order_for_dot(s.b.type, x + r * depth, count, head, ordered + r * x_stride);
      kernels.dot(s.b.type, g.m, count, head, ordered, x_stride, w, s.b.column, columns, y,
                  y_stride, k0 > 0);
    }
    return y;
  }

  // Sums for b stored along N.
  float* by_columns(float* x, int64_t depth, float* memory, int64_t& y_stride) const {
    const int64_t head = unaligned_head(kernels, s.b, s.b.at(0, n0), s.b.row, columns);
    y_stride = (head ? kernels.step : 0) + padded(columns - head);
    float* y = memory;
    float* piece = y + g.m * y_stride;
    std::fill_n(y, g.m * y_stride, 0.0f);
    for (int64_t k0 = 0; k0 < g.k; k0 += depth) {
      const int64_t count = std::min(depth, g.k - k0);
      pack_rows(kernels, s.a, 0, g.m, k0, count, x, depth);
      for (int64_t k = 0; k < count; k += kPiece) {
        const int64_t length = std::min(kPiece, count - k);
        std::fill_n(piece, g.m * y_stride, 0.0f);
        kernels.axpy(s.b.type, g.m, length, x + k, depth, s.b.at(k0 + k, n0), s.b.row, columns, head,
                     piece, y_stride);
        for (int64_t i = 0; i < g.m * y_stride; i++) y[i] += piece[i];
      }
    }
    for (int64_t r = 0; r < g.m; r++)
      kernels.order_from_axpy(s.b.type, y + r * y_stride, columns, head, piece + r * y_stride);
    return piece;
  }

  void run() const {
    const int64_t depth = std::min(kMaxDepth, g.k);
    float* finish_scratch = scratch();
    float* x = finish_scratch + kFinishScratch;
    float* memory = x + g.m * depth;
    int64_t y_stride;
    float* y = along_k(g) ? by_rows(x, depth, memory, y_stride)
                          : by_columns(x, depth, memory, y_stride);
    finish(g, s, kernels, 0, g.m, n0, columns, y, y_stride, finish_scratch);
  }
};

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
  if (threads > 1 && along_k(g))
    most = std::clamp<int64_t>(ceil_div(g.n * batches, 4 * threads), 128, kMaxColumns);
  else if (threads > 1)
    most = std::clamp<int64_t>(ceil_div(g.n * batches, threads), 256, 1024);
  const Tiling t{1, g.n, 1, tile_size(g.n, most, 2 * kernels.step)};
  const int64_t tiles = t.count();
  const int64_t grain = std::max<int64_t>(1, 50e-6 / seconds * tiles);
  parallel_for(batches * tiles, grain, threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      int64_t tile = i % tiles;
      Task{g, slice(g, i / tiles), kernels, t.column(tile), t.columns(tile)}.run();
    }
  });
}

}  // namespace mlx_tensorops::cpu
