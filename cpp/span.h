// Which bytes a strided view touches.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mlx/array.h"

namespace mlx_tensorops {

struct Span {
  std::size_t bytes;   // from the lowest to one past the highest
  std::size_t offset;  // of element 0 from the lowest; > 0 with negative strides
};

inline Span span_of(const mlx::core::array& array) {
  if (array.size() == 0) {
    return {0, 0};
  }
  std::int64_t below = 0;
  std::int64_t above = 0;
  for (std::size_t axis = 0; axis < array.ndim(); ++axis) {
    const std::int64_t reach = array.strides()[axis] * (array.shape()[axis] - 1);
    (reach < 0 ? below : above) += reach;
  }
  return {(above - below + 1) * array.itemsize(), -below * array.itemsize()};
}

}  // namespace mlx_tensorops
