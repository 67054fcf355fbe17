// Products through a BLAS that runs on the calling thread; the parallelism is ours.
#include "blas.h"
#include "pack.h"
#include "pool.h"
#include "routes.h"

#include <limits>

namespace mlx_tensorops::cpu {
namespace {

constexpr int kRowMajor = 101, kNoTranspose = 111, kTranspose = 112;

// Operands that BLAS cannot read in place become f32 blocks of this size.
constexpr int64_t kBlock = 256;
static_assert(3 * kBlock * kBlock + kFinishScratch <= kScratch);

struct Layout {
  int transpose;
  int64_t stride;
  bool legal;
};

Layout layout(const Matrix& m, int64_t rows, int64_t columns) {
  constexpr int64_t limit = std::numeric_limits<int>::max();
  if (m.type != Type::f32) return {kNoTranspose, 0, false};
  if (m.column == 1 && m.row >= columns && m.row <= limit) return {kNoTranspose, m.row, true};
  if (m.row == 1 && m.column >= rows && m.column <= limit) return {kTranspose, m.column, true};
  return {kNoTranspose, 0, false};
}

}  // namespace

bool blas_fits(const Gemm& g) {
  return g.out_type == Type::f32 && g.out_column == 1 && g.k <= std::numeric_limits<int>::max() &&
         g.out_row <= std::numeric_limits<int>::max() && layout(g.a, g.m, g.k).legal &&
         layout(g.b, g.k, g.n).legal;
}

void by_blas(const Gemm& g, const Settings& settings) {
  const int64_t batches = batch_size(g);
  const double flops = 2.0 * g.m * g.n * g.k;
  const int threads = useful_threads(flops * batches / kFlopsPerSecond, settings);
  // BLAS packs its operands for every call, so the tiles are large; one thread takes all at once.
  constexpr int64_t smallest = 192, largest = 16384, unit = 48;
  int64_t max_m = largest, max_n = largest;
  auto tiling = [&] { return Tiling{g.m, g.n, tile_size(g.m, max_m, unit), tile_size(g.n, max_n, unit)}; };
  while (threads > 1 && tiling().count() * batches < 4 * threads) {
    const Tiling t = tiling();
    if (std::max(t.tile_m, t.tile_n) <= smallest) break;
    (t.tile_m >= t.tile_n ? max_m : max_n) = std::max(smallest, std::max(t.tile_m, t.tile_n) / 2);
  }
  const Tiling t = tiling();
  const int64_t tiles = t.count();
  const int64_t grain = std::max<int64_t>(1, 4e6 * tiles / flops);
  const Layout a = layout(g.a, g.m, g.k), b = layout(g.b, g.k, g.n);
  const Sgemm sgemm = blas().sgemm;
  parallel_for(batches * tiles, grain, threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      Slice s = slice(g, i / tiles);
      const int64_t tile = i % tiles;
      const int64_t m0 = t.row(tile), n0 = t.column(tile), rows = t.rows(tile), columns = t.columns(tile);
      float* out = reinterpret_cast<float*>(s.out) + m0 * g.out_row + n0;
      sgemm(kRowMajor, a.transpose, b.transpose, rows, columns, g.k, 1.0f,
            static_cast<const float*>(s.a.at(m0, 0)), a.stride,
            static_cast<const float*>(s.b.at(0, n0)), b.stride, 0.0f, out, g.out_row);
      if (has_epilogue(g))
        finish(g, s, *settings.kernels, m0, rows, n0, columns, out, g.out_row, scratch());
    }
  });
}

void by_blas_blocks(const Gemm& g, const Settings& settings) {
  const Kernels& kernels = *settings.kernels;
  const int64_t batches = batch_size(g);
  const double flops = 2.0 * g.m * g.n * g.k;
  const int threads = useful_threads(flops * batches / kFlopsPerSecond, settings);
  const Tiling t{g.m, g.n, tile_size(g.m, kBlock, 1), tile_size(g.n, kBlock, 1)};
  const int64_t tiles = t.count();
  const int64_t grain = std::max<int64_t>(1, 4e6 * tiles / flops);
  const Sgemm sgemm = blas().sgemm;
  parallel_for(batches * tiles, grain, threads, [&](int64_t begin, int64_t end) {
    float* a = scratch();
    float* b = a + kBlock * kBlock;
    float* sums = b + kBlock * kBlock;
    float* finish_scratch = sums + kBlock * kBlock;
    for (int64_t i = begin; i < end; i++) {
      Slice s = slice(g, i / tiles);
      const int64_t tile = i % tiles;
      const int64_t m0 = t.row(tile), n0 = t.column(tile), rows = t.rows(tile), columns = t.columns(tile);
      for (int64_t k0 = 0; k0 < g.k; k0 += kBlock) {
        const int64_t depth = std::min(kBlock, g.k - k0);
        pack_rows(kernels, s.a, m0, rows, k0, depth, a, kBlock);
        pack_rows(kernels, s.b, k0, depth, n0, columns, b, kBlock);
        sgemm(kRowMajor, kNoTranspose, kNoTranspose, rows, columns, depth, 1.0f, a, kBlock, b,
              kBlock, k0 > 0, sums, kBlock);
      }
      finish(g, s, kernels, m0, rows, n0, columns, sums, kBlock, finish_scratch);
    }
  });
}

}  // namespace mlx_tensorops::cpu
