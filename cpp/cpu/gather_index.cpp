#include "gather_index.h"

namespace mlx_tensorops::cpu {
namespace {

template <typename T>
int64_t element(const void* data, int64_t offset) {
  const T value = static_cast<const T*>(data)[offset];
  if constexpr (sizeof(T) == 8) return static_cast<int64_t>(value) < 0 ? -1 : static_cast<int64_t>(value);
  return static_cast<int64_t>(value);
}

}  // namespace

Axes::Axes(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides) {
  for (std::size_t i = 0; i < sizes.size(); i++) {
    if (sizes[i] == 1) continue;
    if (!sizes_.empty() && strides_.back() == strides[i] * sizes[i]) {
      sizes_.back() *= sizes[i];
      strides_.back() = strides[i];
    } else {
      sizes_.push_back(sizes[i]);
      strides_.push_back(strides[i]);
    }
  }
}

int64_t Indices::at(int64_t position) const {
  const int64_t i = axes.offset(position);
  switch (type) {
    case Integer::u8: return element<uint8_t>(data, i);
    case Integer::u16: return element<uint16_t>(data, i);
    case Integer::u32: return element<uint32_t>(data, i);
    case Integer::u64: return element<uint64_t>(data, i);
    case Integer::i8: return element<int8_t>(data, i);
    case Integer::i16: return element<int16_t>(data, i);
    case Integer::i32: return element<int32_t>(data, i);
    case Integer::i64: return element<int64_t>(data, i);
  }
  return -1;
}

}  // namespace mlx_tensorops::cpu
