// The threads of the CPU engine: one pool for the process, shared by every MLX stream.
#pragma once

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

}  // namespace mlx_tensorops::cpu
