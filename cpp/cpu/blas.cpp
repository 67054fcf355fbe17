#include "blas.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <mutex>

namespace mlx_tensorops::cpu {
namespace {

std::mutex mutex;
std::string path;
std::atomic<const Blas*> opened{nullptr};
std::atomic<void (*)(int)> set_threads{nullptr};
std::atomic<bool> forked{false};

// A child of fork() may inherit OpenBLAS's buffer lock from a thread that no longer exists, and would
// wait for it for ever. Our own kernels have no locks, so the child uses those.
const Blas kForkedChild{nullptr, "not used in a forked child: its locks may be held by lost threads"};

#if defined(__APPLE__)
// Opened by name like OpenBLAS, so that the extension links without the framework.
const Blas* open() {
  void* library =
      dlopen("/System/Library/Frameworks/Accelerate.framework/Accelerate", RTLD_NOW | RTLD_LOCAL);
  auto sgemm = library ? reinterpret_cast<Sgemm>(dlsym(library, "cblas_sgemm")) : nullptr;
  return new Blas{sgemm, sgemm ? "Accelerate" : "Accelerate has no cblas_sgemm"};
}
#else
const Blas* open() {
  if (path.empty()) return new Blas{nullptr, "scipy-openblas32 is not installed"};
  // RTLD_LOCAL: the symbols of another BLAS in the process (NumPy's, MLX's) must stay untouched.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) return new Blas{nullptr, std::string("cannot open it: ") + dlerror()};
  auto sgemm = reinterpret_cast<Sgemm>(dlsym(library, "scipy_cblas_sgemm"));
  auto threads =
      reinterpret_cast<void (*)(int)>(dlsym(library, "scipy_openblas_set_num_threads"));
  auto config = reinterpret_cast<char* (*)()>(dlsym(library, "scipy_openblas_get_config"));
  auto core = reinterpret_cast<char* (*)()>(dlsym(library, "scipy_openblas_get_corename"));
  if (!sgemm || !threads || !config || !core)
    return new Blas{nullptr, path + " lacks the scipy_openblas32 symbols"};
  set_threads.store(threads);
  return new Blas{sgemm, std::string(config()) + ", kernels " + core()};
}
#endif

}  // namespace

void set_openblas_path(const std::string& value) {
  std::lock_guard lock(mutex);
  path = value;
  opened.store(nullptr);  // the old record, if any, may be in use: it stays
}

const Blas& blas() {
  if (forked.load(std::memory_order_relaxed)) return kForkedChild;
  if (const Blas* found = opened.load(std::memory_order_acquire)) return *found;
  std::lock_guard lock(mutex);
  if (!opened.load()) {
    static const int registered = pthread_atfork(nullptr, nullptr, [] { forked.store(true); });
    (void)registered;
    opened.store(open(), std::memory_order_release);
  }
  return *opened.load();
}

void use_one_blas_thread() {
  if (auto set = set_threads.load(std::memory_order_relaxed)) set(1);
}

}  // namespace mlx_tensorops::cpu
