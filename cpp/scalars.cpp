#include "scalars.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace mlx_tensorops {
namespace {

std::size_t width(char field) {
  switch (field) {
    case 'i': return 4;
    case 'q': return 8;
    default:
      throw std::invalid_argument(
          std::string("scalars: field '") + field + "' is neither 'i' (int32) nor 'q' (int64)");
  }
}

std::size_t align(std::size_t offset, std::size_t to) {
  return (offset + to - 1) / to * to;
}

// Calls visit(field index, letter, offset); returns the size of the struct.
template <typename Visit>
std::size_t layout(const std::string& format, Visit visit) {
  std::size_t offset = 0;
  std::size_t alignment = 1;
  for (std::size_t i = 0; i < format.size(); ++i) {
    const auto size = width(format[i]);
    offset = align(offset, size);
    visit(i, format[i], offset);
    offset += size;
    alignment = std::max(alignment, size);
  }
  return align(offset, alignment);
}

}  // namespace

std::size_t Scalars::bytes() const {
  return layout(format, [](std::size_t, char, std::size_t) {});
}

std::vector<std::byte> Scalars::pack(const Arrays& inputs) const {
  std::vector<std::byte> data(bytes());
  layout(format, [&](std::size_t i, char field, std::size_t offset) {
    const std::int64_t value = rules[i](inputs);
    if (field == 'q') {
      std::memcpy(&data[offset], &value, sizeof value);
      return;
    }
    const auto narrow = static_cast<std::int32_t>(value);
    if (narrow != value) {
      throw std::overflow_error(
          "rule '" + rules[i].text() + "' = " + std::to_string(value) +
          " does not fit the int32 that the kernel takes");
    }
    std::memcpy(&data[offset], &narrow, sizeof narrow);
  });
  return data;
}

std::vector<std::int64_t> unpack(const std::string& format, const std::byte* data) {
  std::vector<std::int64_t> values;
  layout(format, [&](std::size_t, char field, std::size_t offset) {
    if (field == 'q') {
      std::int64_t value;
      std::memcpy(&value, data + offset, sizeof value);
      values.push_back(value);
    } else {
      std::int32_t value;
      std::memcpy(&value, data + offset, sizeof value);
      values.push_back(value);
    }
  });
  return values;
}

}  // namespace mlx_tensorops
