#include "config.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>

#include "pool.h"

namespace mlx_tensorops::cpu {
namespace {

constexpr int kMaxThreads = 256;
constexpr const char* kBlasModes[] = {"auto", "never", "always"};

std::atomic<int> threads{0};
std::atomic<const Kernels*> kernels{nullptr};
std::atomic<UseBlas> use_blas{UseBlas::automatic};

}  // namespace

std::vector<const Kernels*> usable_kernels() {
  std::vector<const Kernels*> list;
#if defined(__x86_64__)
  __builtin_cpu_init();
  bool halves = __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (halves && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
    list.push_back(avx512_kernels());
  if (halves && __builtin_cpu_supports("avx2")) list.push_back(avx2_kernels());
#elif defined(__aarch64__)
  list.push_back(neon_kernels());
#endif
  list.push_back(baseline_kernels());
  return list;
}

Settings settings() {
  static const int cores = std::min(available_threads(), kMaxThreads);
  static const Kernels* const best = usable_kernels().front();
  const int chosen = threads.load(std::memory_order_relaxed);
  const Kernels* forced = kernels.load(std::memory_order_relaxed);
  return {forced ? forced : best, chosen > 0 ? chosen : cores,
          use_blas.load(std::memory_order_relaxed)};
}

void set_threads(int count) {
  if (count < 0 || count > kMaxThreads)
    throw std::invalid_argument("[cpu_configure] threads = " + std::to_string(count) +
                                ", but it must be in 0.." + std::to_string(kMaxThreads) +
                                "; 0 takes one for each core");
  threads.store(count, std::memory_order_relaxed);
}

void set_instruction_set(const std::string& name) {
  if (name.empty()) return kernels.store(nullptr, std::memory_order_relaxed);
  std::string names;
  for (const Kernels* k : usable_kernels()) {
    if (name == k->name) return kernels.store(k, std::memory_order_relaxed);
    names += (names.empty() ? "" : ", ") + std::string(k->name);
  }
  throw std::invalid_argument("[cpu_configure] instruction_set = '" + name +
                              "' does not run on this processor; usable here: " + names);
}

void set_use_blas(const std::string& mode) {
  auto found = std::find(std::begin(kBlasModes), std::end(kBlasModes), mode);
  if (found == std::end(kBlasModes))
    throw std::invalid_argument("[cpu_configure] blas = '" + mode +
                                "', but it must be auto, never or always");
  use_blas.store(static_cast<UseBlas>(found - std::begin(kBlasModes)), std::memory_order_relaxed);
}

std::string use_blas_name() {
  return kBlasModes[static_cast<int>(use_blas.load(std::memory_order_relaxed))];
}

}  // namespace mlx_tensorops::cpu
