// MLX arrays checked and described for the engine.
#pragma once

#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>

#include "gather_index.h"
#include "kernels.h"
#include "mlx/array.h"
#include "mlx/utils.h"

namespace mlx_tensorops::cpu {

template <typename... Parts>
[[noreturn]] void fail(const char* op, Parts&&... parts) {
  std::ostringstream text;
  text << "[" << op << "] ";
  (text << ... << parts);
  throw std::invalid_argument(text.str());
}

Type type_of(const char* op, const char* what, mlx::core::Dtype type);
Integer integer_of(const char* op, const char* what, mlx::core::Dtype type);

// The first `axes` axes of x broadcast to `batch`; strides in units of `unit` elements' bytes.
Axes axes_of(const mlx::core::array& x, int axes, const mlx::core::Shape& batch, int64_t unit = 1);

// An integer array, broadcast to `batch`.
Indices indices_of(const char* op, const char* what, const mlx::core::array& x,
                   const mlx::core::Shape& batch);

mlx::core::Shape leading(const mlx::core::array& x, int trailing);
int64_t count(const mlx::core::Shape& shape);

// The stream, which must be one of the CPU's.
mlx::core::Stream cpu_stream(const char* op, mlx::core::StreamOrDevice stream);

}  // namespace mlx_tensorops::cpu
