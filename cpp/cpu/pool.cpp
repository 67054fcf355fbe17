#include "pool.h"

#include <pthread.h>
#if defined(__linux__)
#include <sched.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace mlx_tensorops::cpu {
namespace {

// A parked worker needs 20-60 us to wake on the machines at hand. Spinning that long keeps a chain of
// matmuls on warm threads and costs an idle process nothing.
constexpr auto kSpin = std::chrono::microseconds(50);

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

template <typename Predicate>
bool spin_until(Predicate ready) {
  auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; i++) {
      if (ready()) return true;
      relax();
    }
  } while (std::chrono::steady_clock::now() < end);
  return ready();
}

// Lives on the stack of the thread that calls parallel_for.
struct Job {
  void (*task)(void*, int64_t, int64_t);
  void* context;
  int64_t count;
  int64_t grain;
  int seats;  // workers that may still join; guarded by Pool::mutex
  std::atomic<int64_t> next{0};
  std::atomic<int> working{0};  // workers inside; raised only under Pool::mutex
  std::atomic<bool> failed{false};
  std::exception_ptr error{};

  void work() {
    try {
      for (;;) {
        int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
        if (begin >= count) return;
        task(context, begin, std::min(begin + grain, count));
      }
    } catch (...) {
      next.store(count, std::memory_order_relaxed);
      if (!failed.exchange(true)) error = std::current_exception();
    }
  }
};

class Pool {
 public:
  void run(Job& job) {
    {
      std::lock_guard lock(mutex_);
      grow(job.seats);
      jobs_.push_back(&job);
      epoch_.fetch_add(1, std::memory_order_release);
    }
    if (sleepers_.load(std::memory_order_relaxed) > 0) {
      if (job.seats == 1) wake_.notify_one();
      else wake_.notify_all();
    }
    job.work();
    {
      // After this no worker can join; those inside were counted under the lock.
      std::lock_guard lock(mutex_);
      jobs_.erase(std::find(jobs_.begin(), jobs_.end(), &job));
    }
    auto finished = [&] { return job.working.load(std::memory_order_acquire) == 0; };
    if (!spin_until(finished)) {
      std::unique_lock lock(mutex_);
      done_.wait(lock, finished);
    }
  }

  int workers() {
    std::lock_guard lock(mutex_);
    return workers_;
  }

 private:
  // Workers are never joined: they sleep until the process ends, and a forked child forgets them. Where the
  // system gives no more threads those that there are do the work, at worst the caller alone.
  void grow(int wanted) {
    try {
      for (; workers_ < wanted; workers_++) std::thread([this] { serve(); }).detach();
    } catch (const std::exception&) {
    }
  }

  Job* join_job() {
    for (Job* job : jobs_)
      if (job->seats > 0 && job->next.load(std::memory_order_relaxed) < job->count) {
        job->seats--;
        job->working.fetch_add(1, std::memory_order_relaxed);
        return job;
      }
    return nullptr;
  }

  void serve() {
    uint64_t seen = 0;
    for (;;) {
      Job* job = nullptr;
      {
        std::lock_guard lock(mutex_);
        seen = epoch_.load(std::memory_order_relaxed);
        job = join_job();
      }
      if (job) {
        job->work();
        // The job may be gone as soon as `working` reaches zero outside the lock, so the last
        // touch and the notification both happen under it.
        std::lock_guard lock(mutex_);
        job->working.fetch_sub(1, std::memory_order_release);
        done_.notify_all();
        continue;
      }
      auto news = [&] { return epoch_.load(std::memory_order_acquire) != seen; };
      if (spin_until(news)) continue;
      std::unique_lock lock(mutex_);
      sleepers_++;
      wake_.wait(lock, news);
      sleepers_--;
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  std::vector<Job*> jobs_;
  std::atomic<uint64_t> epoch_{0};
  std::atomic<int> sleepers_{0};
  int workers_ = 0;
};

std::atomic<Pool*> current{nullptr};

// The threads of the parent do not exist in the child, and its mutexes may be held by them. The child
// leaves the old pool alone and makes a new one when it needs it.
Pool& pool() {
  Pool* found = current.load(std::memory_order_acquire);
  if (found) return *found;
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { current.store(nullptr, std::memory_order_release); });
  (void)registered;
  Pool* made = new Pool;
  if (current.compare_exchange_strong(found, made)) return *made;
  delete made;
  return *found;
}

}  // namespace

int available_threads() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
  return std::max(1u, std::thread::hardware_concurrency());
}

int worker_threads() {
  Pool* found = current.load(std::memory_order_acquire);
  return found ? found->workers() : 0;
}

void parallel_for(int64_t count, int64_t grain, int threads, void (*task)(void*, int64_t, int64_t),
                  void* context) {
  if (count <= 0) return;
  int64_t chunks = (count + grain - 1) / grain;
  int seats = static_cast<int>(std::min<int64_t>(threads, chunks)) - 1;
  if (seats <= 0) return task(context, 0, count);
  Job job{task, context, count, grain, seats};
  pool().run(job);
  if (job.failed.load()) std::rethrow_exception(job.error);
}

}  // namespace mlx_tensorops::cpu
