#include "counters.h"

#include <initializer_list>

namespace mlx_tensorops::cpu {

void Counters::reset() {
  for (auto* counter : {&weights_decoded, &panels, &x_packed, &scratch_bytes}) counter->store(0, std::memory_order_relaxed);
}

void Counters::used_scratch(int64_t bytes) {
  int64_t most = scratch_bytes.load(std::memory_order_relaxed);
  while (bytes > most && !scratch_bytes.compare_exchange_weak(most, bytes, std::memory_order_relaxed)) {
  }
}

Counters& counters() {
  static Counters all;
  return all;
}

}  // namespace mlx_tensorops::cpu
