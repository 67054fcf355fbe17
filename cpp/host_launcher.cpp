#include "host_launcher.h"

#include <cstring>
#include <stdexcept>

namespace mlx_tensorops {

HostLauncher::HostLauncher(std::uintptr_t dispatch, std::string_view options, Prepare prepare)
    : dispatch_(reinterpret_cast<hm_dispatch_fn>(dispatch)), prepare_(std::move(prepare)) {
  if (dispatch_ == nullptr) {
    throw std::invalid_argument("[HostLauncher] dispatch_address is 0");
  }
  if (options.size() != sizeof options_) {
    throw std::invalid_argument(
        "[HostLauncher] options has " + std::to_string(options.size()) + " bytes, hm_options has " +
        std::to_string(sizeof options_));
  }
  std::memcpy(&options_, options.data(), sizeof options_);
  if (options_.abi_version != HM_ABI_VERSION) {
    throw std::invalid_argument(
        "[HostLauncher] options are of emulator ABI " + std::to_string(options_.abi_version) +
        ", this extension speaks " + std::to_string(HM_ABI_VERSION) + "; rebuild mlx_tensorops");
  }
}

hm_entry HostLauncher::entry(const Row& row) {
  {
    std::lock_guard lock(mutex_);
    if (auto found = entries_.find(row.library); found != entries_.end()) {
      return found->second;
    }
  }
  // Not under the lock: prepare takes the GIL, and a thread that holds the GIL may wait for the lock.
  const auto entry = reinterpret_cast<hm_entry>(prepare_(row.source, row.kernel));
  std::lock_guard lock(mutex_);
  return entries_.emplace(row.library, entry).first->second;
}

}  // namespace mlx_tensorops
