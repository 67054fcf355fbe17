// Our own blocked GEMM: packed f32 blocks of any operand, register tiles, one task per output tile.
#include "pack.h"
#include "pool.h"
#include "routes.h"

namespace mlx_tensorops::cpu {
namespace {

// Register tiles read a packed block of A (kTileM x kDepth f32, 288 KiB) again for every strip of B:
// it has to stay in L2 (512 KiB and more on x86 servers since 2017) beside a group of strips (64 KiB).
constexpr int64_t kTileM = 288;
constexpr int64_t kStripGroup = 64;
// A is packed again for each tile across. Halves keep their f32 sums (kTileM x kTileN) in scratch.
constexpr int64_t kTileN = 512;

constexpr int64_t kPackedA = kTileM * kDepth;
constexpr int64_t kPackedB = kStripGroup * kDepth;
constexpr int64_t kSums = kTileM * kTileN;
static_assert(kPackedA + kPackedB + kSums + kFinishScratch <= kScratch);

void compute_tile(const Gemm& g, const Slice& s, const Kernels& kernels, int64_t m0, int64_t rows,
                  int64_t n0, int64_t columns) {
  float* packed_a = scratch();
  float* packed_b = packed_a + kPackedA;
  float* sums = packed_b + kPackedB;
  float* finish_scratch = sums + kSums;
  int64_t sums_stride = columns;
  const bool in_place = g.out_type == Type::f32;
  if (in_place) {
    sums = reinterpret_cast<float*>(s.out) + m0 * g.out_row + n0;
    sums_stride = g.out_row;
  }
  for (int64_t k0 = 0; k0 < g.k; k0 += kDepth) {
    const int64_t depth = std::min(kDepth, g.k - k0);
    pack_rows(kernels, s.a, m0, rows, k0, depth, packed_a, kDepth);
    for (int64_t g0 = 0; g0 < columns; g0 += kStripGroup) {
      const int64_t group = std::min(kStripGroup, columns - g0);
      pack_strips(kernels, s.b, k0, depth, n0 + g0, group, packed_b);
      for (int64_t c = 0; c < group; c += kernels.tile_columns)
        for (int64_t r = 0; r < rows; r += kernels.tile_rows)
          kernels.tile(depth, packed_a + r * kDepth, packed_b + c * kDepth,
                       sums + r * sums_stride + g0 + c, sums_stride,
                       std::min(kernels.tile_rows, rows - r),
                       std::min(kernels.tile_columns, group - c), k0 > 0);
    }
  }
  if (g.k == 0)
    for (int64_t r = 0; r < rows; r++) std::fill_n(sums + r * sums_stride, columns, 0.0f);
  if (!in_place || has_epilogue(g))
    finish(g, s, kernels, m0, rows, n0, columns, sums, sums_stride, finish_scratch);
}

}  // namespace

void by_tiles(const Gemm& g, const Settings& settings) {
  const Kernels& kernels = *settings.kernels;
  const int64_t batches = batch_size(g);
  const double flops = 2.0 * g.m * g.n * std::max<int64_t>(g.k, 1);
  const int threads = useful_threads(flops * batches / kFlopsPerSecond, settings);
  int64_t max_m = kTileM, max_n = kTileN;
  auto tiling = [&] {
    return Tiling{g.m, g.n, tile_size(g.m, max_m, kernels.tile_rows),
                  tile_size(g.n, max_n, kernels.tile_columns)};
  };
  // Enough tiles that the last ones to finish leave little idle time.
  while (threads > 1 && tiling().count() * batches < 4 * threads && max_m > 48) {
    if (max_n > 128) max_n /= 2;
    else max_m /= 2;
  }
  const Tiling t = tiling();
  const int64_t tiles = t.count();
  const int64_t grain = std::max<int64_t>(1, 4e6 * tiles / flops);
  parallel_for(batches * tiles, grain, threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      int64_t tile = i % tiles;
      compute_tile(g, slice(g, i / tiles), kernels, t.row(tile), t.rows(tile), t.column(tile),
                   t.columns(tile));
    }
  });
}

}  // namespace mlx_tensorops::cpu
