// Stored weights as MLX arrays: checked at graph time, described for the engine when they have data.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "gather_arrays.h"
#include "mlx/array.h"
#include "weights.h"

namespace mlx_tensorops::cpu {

// (codes, bits, group, scale, values), as Python names a format.
using NativeFormat = std::tuple<std::string, int, int64_t, std::string, std::vector<float>>;

// The same object for the same format, for the life of the process.
std::shared_ptr<const WeightFormat> format_of(const char* op, const NativeFormat&);

struct WeightSizes {
  mlx::core::Shape batch;
  int64_t k, n;
};

// What w [..., stored rows, packed] and its scales and biases hold; throws where they contradict each other. Null format: dense.
WeightSizes weight_sizes(const char* op, const WeightFormat* format, bool transpose, const mlx::core::array& w,
                         const std::optional<mlx::core::array>& scales, const std::optional<mlx::core::array>& biases);

// The batch axes are broadcast to `batch`. Quantised arrays whose stored rows are not contiguous are copied on the stream; `kept` holds
// the copies, which must live until the work on the stream is done.
WeightBatch weight_batch(const WeightFormat* format, bool transpose, const mlx::core::array& w,
                         const std::optional<mlx::core::array>& scales, const std::optional<mlx::core::array>& biases,
                         const mlx::core::Shape& batch, mlx::core::Stream stream, std::vector<mlx::core::array>& kept);

}  // namespace mlx_tensorops::cpu
