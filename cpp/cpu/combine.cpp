// The down projection with the weighted sum over each token's experts inside.
#include <algorithm>

#include "counters.h"
#include "gather.h"
#include "pack.h"
#include "pool.h"
#include "routes.h"

namespace mlx_tensorops::cpu {
namespace {

constexpr int64_t kUnit = 32;  // multiply_rows() starts at multiples of this
constexpr int64_t kMostColumns = 256;
constexpr int64_t kEnoughTasks = 16;

// One task owns a stripe of columns of a block of tokens: the results of all (token, expert) pairs of the block stay in its scratch until
// they are summed in the order of j. A weight is decoded once for each block_rows() rows of its expert within a block, so blocks are
// high and stripes narrow: 4096 pairs of 32 columns, which is 32 rows for each of 128 experts. Nothing depends on the number of threads.
constexpr int64_t kMostPairs = 4096;
constexpr int64_t kRoom = scratch_for_sums() - kMostPairs - kMostColumns;
static_assert(kMostPairs * kUnit <= kRoom);

class Driver {
 public:
  Driver(const Combine& c, const Settings& settings) : c_(c), settings_(settings), n_(c.projection.weights.first.n) {
    slice_ = std::min(c.k, kMostPairs);  // of one token's experts; longer lists are summed slice by slice
    tokens_ = std::clamp<int64_t>(kMostPairs / slice_, 1, c.tokens);
    if (slice_ < c.k) tokens_ = 1;
    tokens_ = ceil_div(c.tokens, ceil_div(c.tokens, tokens_));
    int64_t most = std::min(kMostColumns, kRoom / (tokens_ * slice_) / kUnit * kUnit);
    const int64_t blocks = ceil_div(c.tokens, tokens_);
    while (most > kUnit && blocks * ceil_div(n_, most) < kEnoughTasks) most -= kUnit;
    columns_ = tile_size(n_, most, kUnit);
    for (int64_t t = 0; t < c.tokens; t += tokens_)
      for (int64_t j = 0; j < c.k; j += slice_)
        walks_.push_back(walk(t, std::min(tokens_, c.tokens - t), j, std::min(slice_, c.k - j)));
  }

  void run() {
    const int64_t across = ceil_div(n_, columns_), blocks = ceil_div(c_.tokens, tokens_), tasks = across * blocks;
    double products = c_.tokens * c_.k * 2.0 / kFlopsPerSecond;
    for (const Walk& walk : walks_) products += walk.runs.size() / kWeightsPerSecond;
    const double seconds = products * n_ * c_.projection.weights.first.k;
    const int64_t grain = std::max<int64_t>(1, 50e-6 * tasks / std::max(seconds, 1e-9));
    parallel_for(tasks, std::min(grain, tasks), useful_threads(seconds, settings_), [&](int64_t begin, int64_t end) {
      // Stripes of one block follow each other: its rows of x stay in the cache.
      for (int64_t i = begin; i < end; i++) {
        const int64_t n0 = i % across * columns_;
        task(i / across, n0, std::min(columns_, n_ - n0));
      }
    });
  }

 private:
  // Pairs of tokens t .. t + tokens - 1 and experts j .. j + count - 1.
  Walk walk(int64_t t, int64_t tokens, int64_t j, int64_t count) const {
    return walk_by_expert(c_.ids, c_.source, t * c_.k + j, tokens == 1 ? count : tokens * count, c_.projection.experts);
  }

  void task(int64_t block, int64_t n0, int64_t columns) const {
    const Kernels& kernels = *settings_.kernels;
    float* memory = scratch();
    auto* place = reinterpret_cast<int32_t*>(memory + multiply_scratch());  // of each pair's results among the sums; -1: it has none
    float* total = reinterpret_cast<float*>(place) + kMostPairs;
    float* sums = total + kMostColumns;
    float* row_scratch = memory + multiply_scratch() + scratch_for_sums();
    const int64_t slices = ceil_div(c_.k, slice_), t0 = block * tokens_, tokens = std::min(tokens_, c_.tokens - t0);
    for (int64_t s = 0; s < slices; s++) {
      const Walk& walk = walks_[block * slices + s];
      const int64_t first = t0 * c_.k + s * slice_, count = std::min(slice_, c_.k - s * slice_);
      std::fill_n(place, walk.order.size(), -1);
      RowBlock rows;
      for (const Run& run : walk.runs) {
        if (run.expert < 0) continue;
        for (int64_t row = run.begin; row < run.end;) {
          float* own = sums + row * columns;
          const int64_t next = rows.take(c_.source, walk.order, row, run.end);
          multiply_rows(rows.rows(), c_.projection.weights.at(run.expert), n0, columns, own, columns, memory, settings_);
          c_.projection.scale_and_bias(kernels, run.expert, n0, columns, own, columns, next - row, row_scratch);
          for (; row < next; row++) place[walk.order[row] - first] = static_cast<int32_t>(row);
        }
      }
      for (int64_t t = 0; t < tokens; t++) {
        if (s == 0) std::fill_n(total, columns, 0.0f);
        for (int64_t j = 0; j < count; j++) {
          const int32_t at = place[t * count + j];
          if (at < 0) continue;
          const float score = score_of(kernels, first + t * count + j);
          const float* y = sums + at * columns;
          for (int64_t c = 0; c < columns; c++) total[c] += score * y[c];
        }
        if (s + 1 < slices) continue;
        char* out = c_.out + ((t0 + t) * n_ + n0) * size_of(c_.out_type);
        kernels.finish({total, nullptr, nullptr, Activation::none, c_.out_type, out}, columns);
      }
    }
    counters().used_scratch((multiply_scratch() + scratch_for_sums() + kFinishScratch) * 4);
  }

  float score_of(const Kernels& kernels, int64_t pair) const {
    float value;
    kernels.load(c_.scores_type, c_.scores + c_.score.offset(pair) * size_of(c_.scores_type), 0, 1, 1, &value, 0);
    return value;
  }

  const Combine& c_;
  const Settings& settings_;
  const int64_t n_;
  int64_t slice_, tokens_, columns_;
  std::vector<Walk> walks_;  // of each block of tokens, and of each slice within
};

}  // namespace

void combine(const Combine& c, const Settings& settings) {
  if (c.tokens == 0 || c.projection.weights.first.n == 0) return;
  if (c.k == 0) {
    std::fill_n(c.out, c.tokens * c.projection.weights.first.n * size_of(c.out_type), 0);
    return;
  }
  Driver(c, settings).run();
}

}  // namespace mlx_tensorops::cpu
