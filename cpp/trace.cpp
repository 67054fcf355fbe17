#include "trace.h"

#include <atomic>
#include <deque>
#include <mutex>
#include <stdexcept>

namespace mlx_tensorops {
namespace {

struct State {
  std::atomic<bool> on{false};  // read on every launch, without the lock
  std::mutex mutex;
  std::size_t capacity = 0;
  std::uint64_t added = 0;
  std::deque<TraceRecord> records;
};

// Never destroyed: stream threads may outlive static destructors.
State& state() {
  static State& instance = *new State;
  return instance;
}

}  // namespace

void Trace::start(std::size_t capacity) {
  if (capacity == 0) {
    throw std::invalid_argument("[trace] capacity must be at least 1");
  }
  auto& trace = state();
  std::lock_guard lock(trace.mutex);
  trace.capacity = capacity;
  trace.added = 0;
  trace.records.clear();
  trace.on = true;
}

std::vector<TraceRecord> Trace::stop() {
  auto& trace = state();
  std::lock_guard lock(trace.mutex);
  trace.on = false;
  std::vector<TraceRecord> records(std::make_move_iterator(trace.records.begin()),
                                   std::make_move_iterator(trace.records.end()));
  trace.records.clear();
  return records;
}

bool Trace::on() { return state().on.load(std::memory_order_relaxed); }

void Trace::add(TraceRecord record) {
  auto& trace = state();
  std::lock_guard lock(trace.mutex);
  if (!trace.on) {
    return;
  }
  record.index = trace.added++;
  if (trace.records.size() == trace.capacity) {
    trace.records.pop_front();
  }
  trace.records.push_back(std::move(record));
}

}  // namespace mlx_tensorops
