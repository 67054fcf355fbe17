#include "gather.h"

#include <algorithm>
#include <cstring>

#include "counters.h"
#include "pack.h"
#include "pool.h"
#include "routes.h"

namespace mlx_tensorops::cpu {
namespace {

// Columns of a task are a multiple of this (multiply_rows), and not fewer: x is packed again for each task.
constexpr int64_t kUnit = 32, kLeastColumns = 64;
// With fewer tasks the last ones to finish leave threads idle. Never derived from the number of threads: the partition is the same on
// every machine.
constexpr int64_t kEnoughTasks = 16;

struct Block {
  int64_t expert, begin, end;  // rows: position * m + row of the matrix
};

class Driver {
 public:
  Driver(const Gather& g, const Settings& settings) : g_(g), settings_(settings), n_(g.projections[0].weights.first.n) {
    const int64_t experts = g.projections[0].experts;
    walk_ = g.plan ? walk_by_plan(g.op, *g.plan, g.ids, g.source, g.pairs, experts)
                   : walk_by_expert(g.ids, g.source, 0, g.pairs, experts);
    int64_t tallest = 1;
    for (const Run& run : walk_.runs) {
      const int64_t end = run.end * g.source.m;
      const int64_t height = tile_size(end - run.begin * g.source.m, block_rows(), settings.kernels->tile_rows);
      for (int64_t row = run.begin * g.source.m; row < end; row += height) {
        blocks_.push_back({run.expert, row, std::min(row + height, end)});
        tallest = std::max(tallest, blocks_.back().end - row);
      }
    }
    const int64_t products = static_cast<int64_t>(g.projections.size());
    int64_t most = std::min(block_columns(), scratch_for_sums() / (products * tallest) / kUnit * kUnit);
    auto tiles = [&] { return ceil_div(n_, tile_size(n_, most, kUnit)); };
    while (most > kLeastColumns && tiles() * static_cast<int64_t>(blocks_.size()) < kEnoughTasks) most -= kUnit;
    columns_ = tile_size(n_, most, kUnit);
  }

  void run() {
    const int64_t across = ceil_div(n_, columns_), tasks = across * static_cast<int64_t>(blocks_.size());
    double seconds = 0;
    for (const Block& b : blocks_)
      if (b.expert >= 0) seconds += (b.end - b.begin) * 2.0 / kFlopsPerSecond + 1.0 / kWeightsPerSecond;
    seconds *= double(n_) * g_.projections[0].weights.first.k * g_.projections.size();
    const int64_t grain = std::max<int64_t>(1, 50e-6 * tasks / std::max(seconds, 1e-9));
    parallel_for(tasks, std::min(grain, tasks), useful_threads(seconds, settings_), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i++) {
        const int64_t n0 = i % across * columns_;
        task(blocks_[i / across], n0, std::min(columns_, n_ - n0));
      }
    });
  }

 private:
  char* row_of(int64_t result, int64_t target, int64_t n0) const {
    return g_.out[result] + (target * n_ + n0) * size_of(g_.out_type);
  }

  void task(const Block& block, int64_t n0, int64_t columns) const {
    RowBlock rows;
    for (int64_t row = block.begin; row < block.end;) {
      if (block.expert < 0) {
        const int64_t target = walk_.order[row / g_.source.m] * g_.source.m + row % g_.source.m;
        for (std::size_t i = 0; i < g_.out.size(); i++)
          std::memset(row_of(i, target, n0), 0, columns * size_of(g_.out_type));
        row++;
        continue;
      }
      row = rows.take(g_.source, walk_.order, row, block.end);
      multiply(block.expert, rows, n0, columns);
    }
  }

  void multiply(int64_t expert, const RowBlock& rows, int64_t n0, int64_t columns) const {
    const Kernels& kernels = *settings_.kernels;
    float* memory = scratch();
    float* sums = memory + multiply_scratch();
    float* row_scratch = sums + scratch_for_sums();
    const int64_t count = rows.rows().count;
    const int results = static_cast<int>(g_.projections.size());
    Product products[kMostProjections];
    for (int i = 0; i < results; i++) products[i] = {g_.projections[i].weights.at(expert), sums + i * count * columns};
    multiply_rows(rows.rows(), products, results, n0, columns, columns, memory, settings_);
    for (int i = 0; i < results; i++)
      g_.projections[i].scale_and_bias(kernels, expert, n0, columns, products[i].sums, columns, count, row_scratch);
    if (g_.gate.gate != Gate::none) apply_gate(kernels, g_.gate, sums, sums + count * columns, count * columns);
    for (std::size_t i = 0; i < g_.out.size(); i++)
      for (int64_t r = 0; r < count; r++)
        kernels.finish({sums + (i * count + r) * columns, nullptr, nullptr, g_.activation, g_.out_type,
                        row_of(i, rows.target(r), n0)},
                       columns);
    counters().used_scratch((multiply_scratch() + static_cast<int64_t>(g_.projections.size()) * count * columns + columns) * 4);
  }

  const Gather& g_;
  const Settings& settings_;
  const int64_t n_;
  Walk walk_;
  std::vector<Block> blocks_;
  int64_t columns_;
};

}  // namespace

void Projection::scale_and_bias(const Kernels& kernels, int64_t expert, int64_t n0, int64_t columns, float* sums,
                                int64_t stride, int64_t rows, float* scratch) const {
  if (global_scale) {
    const float scale = global_scale[global_scales.offset(expert)] / divisor;
    for (int64_t r = 0; r < rows; r++)
      for (int64_t c = 0; c < columns; c++) sums[r * stride + c] *= scale;
  }
  if (bias.data) {
    Matrix row = bias;
    row.data = static_cast<const char*>(bias.data) + bias_rows.offset(expert) * size_of(bias.type);
    pack_rows(kernels, row, 0, 1, n0, columns, scratch, 0);
    for (int64_t r = 0; r < rows; r++)
      for (int64_t c = 0; c < columns; c++) sums[r * stride + c] += scratch[c];
  }
}

void gather(const Gather& g, const Settings& settings) {
  if (g.pairs == 0 || g.source.m == 0 || g.projections[0].weights.first.n == 0) return;
  Driver(g, settings).run();
}

}  // namespace mlx_tensorops::cpu
