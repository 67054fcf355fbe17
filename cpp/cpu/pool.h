// The threads of the CPU engine: one pool for the process, shared by every MLX stream.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace mlx_tensorops::cpu {

// Cores this process may run on.
int available_threads();

// Worker threads alive now (the calling threads are not counted).
int worker_threads();

// Runs task(context, begin, end) over [0, count) in chunks of `grain`, on the calling thread and up
// to threads - 1 workers, and returns when all of it is done. Chunks are handed out on demand. May be
// called from several threads at once. The first exception of a task is rethrown here.
void parallel_for(int64_t count, int64_t grain, int threads, void (*task)(void*, int64_t, int64_t),
                  void* context);

template <typename F>
void parallel_for(int64_t count, int64_t grain, int threads, F&& f) {
  parallel_for(
      count, grain, threads,
      [](void* context, int64_t begin, int64_t end) { (*static_cast<F*>(context))(begin, end); },
      &f);
}

// The same in chunks that get smaller: a share of what is left, between `least` and `most`. For work that costs something to begin, so
// that there should be few chunks, of which the last ones must be short: a worker that starts late or runs slower is waited for.
template <typename F>
void parallel_for_shrinking(int64_t count, int64_t least, int64_t most, int threads, F&& f) {
  if (threads <= 1 || count <= least) {
    for (int64_t begin = 0; begin < count; begin += most) f(begin, std::min(begin + most, count));
    return;
  }
  std::atomic<int64_t> next{0};
  parallel_for(threads, 1, threads, [&](int64_t, int64_t) {
    int64_t begin = next.load(std::memory_order_relaxed);
    while (begin < count) {
      const int64_t end = std::min(begin + std::clamp((count - begin) / (2 * threads), least, most), count);
      if (!next.compare_exchange_weak(begin, end, std::memory_order_relaxed)) continue;
      f(begin, end);
      begin = next.load(std::memory_order_relaxed);
    }
  });
}

}  // namespace mlx_tensorops::cpu
