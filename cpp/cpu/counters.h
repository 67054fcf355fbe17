// What the engine for block-quantised and gathered weights has done since the last reset, over all threads: what tests and benchmarks
// assert. Each is raised once a panel or a call, never in an inner loop.
#pragma once

#include <atomic>
#include <cstdint>

namespace mlx_tensorops::cpu {

struct Counters {
  std::atomic<int64_t> weights_decoded{0};  // of quantised weights, counted again each time they are decoded
  std::atomic<int64_t> panels{0};           // blocks of weights (at most block_columns() wide) that were decoded or packed
  std::atomic<int64_t> scratch_bytes{0};    // most that one thread has used at a time
  std::atomic<int64_t> x_packed{0};         // elements of x that were converted for products with them

  void reset();
  void used_scratch(int64_t bytes);  // raises scratch_bytes to this
};

Counters& counters();

}  // namespace mlx_tensorops::cpu
