// The C struct of run-time constants that one buffer index of a kernel receives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "rules.h"

namespace mlx_tensorops {

// A format is one letter per field, 'i' (int32) or 'q' (int64), laid out with natural alignment as
// MSL and C do.
struct Scalars {
  std::string format;
  std::vector<Rule> rules;

  std::size_t bytes() const;
  // Throws std::overflow_error when a value does not fit its field.
  std::vector<std::byte> pack(const Arrays& inputs) const;
};

std::vector<std::int64_t> unpack(const std::string& format, const std::byte* data);

}  // namespace mlx_tensorops
