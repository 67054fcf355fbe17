// The emulator as seen from a graph node: its dispatch function, its options, and the kernels it has
// compiled.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "mlx_tensorops/hostmetal/runtime/hm_abi.h"
#include "variant_set.h"

namespace mlx_tensorops {

class HostLauncher {
 public:
  // Compiles a kernel and returns the address of its hm_entry, never 0.
  using Prepare = std::function<std::uintptr_t(const std::string& source, const std::string& kernel)>;

  // options: the bytes of an hm_options. Throws std::invalid_argument on another ABI version.
  HostLauncher(std::uintptr_t dispatch, std::string_view options, Prepare prepare);

  HostLauncher(const HostLauncher&) = delete;
  HostLauncher& operator=(const HostLauncher&) = delete;

  // The compiled kernel of a row; prepared once.
  hm_entry entry(const Row& row);

  hm_dispatch_fn dispatch() const { return dispatch_; }
  const hm_options& options() const { return options_; }

 private:
  hm_dispatch_fn dispatch_;
  hm_options options_;
  Prepare prepare_;
  std::mutex mutex_;
  std::unordered_map<std::string, hm_entry> entries_;  // by Row::library
};

}  // namespace mlx_tensorops
