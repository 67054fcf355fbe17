#include "recorder_encoder.h"

#include "span.h"

namespace mlx_tensorops {

void RecorderEncoder::kernel(const Row& row) { row_ = &row; }

void RecorderEncoder::input(int index, const mlx::core::array& array) {
  const auto span = span_of(array);
  buffers_.push_back({index, Binding::Kind::kInput, span.bytes, span.offset, {}});
}

void RecorderEncoder::output(int index, mlx::core::array& array) {
  const auto span = span_of(array);
  buffers_.push_back({index, Binding::Kind::kOutput, span.bytes, span.offset, {}});
}

void RecorderEncoder::bytes(int index, std::vector<std::byte> data) {
  const auto size = data.size();
  buffers_.push_back({index, Binding::Kind::kScalars, size, 0, std::move(data)});
}

void RecorderEncoder::dispatch(const Grid& grid) { grid_ = grid; }

void RecorderEncoder::zero(mlx::core::array&) { ++zeroed_; }

}  // namespace mlx_tensorops
