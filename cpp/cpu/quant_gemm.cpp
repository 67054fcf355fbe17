#include "quant_gemm.h"

#include "counters.h"
#include "pool.h"
#include "routes.h"

namespace mlx_tensorops::cpu {
namespace {

// Columns of a tile: a multiple of this (multiply_rows), and with several threads so many. Neighbours are one product as far as a thread
// takes them together, because x is packed again for each product: for one row of 4096 that takes as long as five columns.
constexpr int64_t kUnit = 32, kShared = 64;

void compute_tile(const QuantGemm& q, int64_t batch_index, int64_t m0, int64_t rows, int64_t n0, int64_t columns, const Settings& settings) {
  const Gemm& g = q.gemm;
  const Slice s = slice(g, batch_index);
  float* memory = scratch();
  float* finish_scratch = memory + multiply_scratch();
  float* sums = finish_scratch + kFinishScratch;
  int64_t stride = columns;
  int64_t used = multiply_scratch() + kFinishScratch + rows * columns;
  const bool in_place = g.out_type == Type::f32;
  if (in_place) {
    sums = reinterpret_cast<float*>(s.out) + m0 * g.out_row + n0;
    stride = g.out_row;
    used -= rows * columns;
  }
  const Rows x{static_cast<const char*>(s.a.at(m0, 0)), g.a.type, g.a.row, g.a.column, nullptr, rows};
  multiply_rows(x, q.weights.at(batch_index * q.folded), n0, columns, sums, stride, memory, settings);
  if (q.global_scale) {
    const float scale = q.global_scale[q.global_scales.offset(batch_index * q.folded)] / q.divisor;
    for (int64_t r = 0; r < rows; r++)
      for (int64_t c = 0; c < columns; c++) sums[r * stride + c] *= scale;
  }
  if (!in_place || has_epilogue(g)) finish(g, s, *settings.kernels, m0, rows, n0, columns, sums, stride, finish_scratch);
  counters().used_scratch(used * static_cast<int64_t>(sizeof(float)));
}

}  // namespace

void quant_gemm(const QuantGemm& q, const Settings& settings) {
  const Gemm& g = q.gemm;
  const int64_t batches = batch_size(g);
  if (g.m == 0 || g.n == 0 || batches == 0) return;
  const double weights = double(g.n) * std::max<int64_t>(g.k, 1);
  const int64_t tile_m = tile_size(g.m, block_rows(), settings.kernels->tile_rows);
  const double seconds = weights * (2.0 * g.m / kFlopsPerSecond + double(ceil_div(g.m, tile_m)) / kWeightsPerSecond);
  const int threads = useful_threads(seconds * batches, settings);
  const Tiling t{g.m, g.n, tile_m, threads > 1 ? kShared : tile_size(g.n, block_columns(), kUnit)};
  const int64_t tiles = t.count(), together = block_columns() / t.tile_n;
  const int64_t least = std::max<int64_t>(1, 50e-6 * tiles / seconds);
  // Never fewer rows for more tiles: each block of rows decodes the weights again.
  parallel_for_shrinking(batches * tiles, least, std::max(least, together), threads, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t tile = begin % tiles, left = t.across() - tile % t.across();
      const int64_t count = std::min({end - begin, left, together});
      const int64_t columns = std::min(count * t.tile_n, g.n - t.column(tile));
      compute_tile(q, begin / tiles, t.row(tile), t.rows(tile), t.column(tile), columns, settings);
      begin += count;
    }
  });
}

}  // namespace mlx_tensorops::cpu
