// A bounded record of the launches that ran, for trace().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mlx_tensorops/hostmetal/runtime/hm_abi.h"

namespace mlx_tensorops {

struct TraceRecord {
  std::string op;
  std::string row;
  std::string kernel;
  std::string backend;  // "hostmetal" or "metal"
  std::array<std::uint32_t, 3> grid;
  std::array<std::uint32_t, 3> threads;
  std::optional<hm_counters> counters;  // only where the launch was emulated
  std::uint64_t index = 0;  // position since start; the first one kept tells how many were dropped
};

// One per process. Launches come from any stream's thread.
class Trace {
 public:
  // Forgets earlier records and keeps the last `capacity` from now on.
  static void start(std::size_t capacity);
  static std::vector<TraceRecord> stop();
  static bool on();
  static void add(TraceRecord record);
};

}  // namespace mlx_tensorops
