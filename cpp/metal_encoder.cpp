#ifdef _METAL_

#include "metal_encoder.h"

#include <cstring>
#include <stdexcept>

#include "trace.h"

namespace mlx_tensorops {
namespace {

MTL::Size size_of(const Grid& grid) { return MTL::Size(grid[0], grid[1], grid[2]); }

// Cooperative tensors and simdgroup code are generated for this width.
constexpr NS::UInteger kSimdWidth = 32;

}  // namespace

MetalEncoder::MetalEncoder(const VariantSet& variants, mlx::core::Stream stream)
    : variants_(variants),
      device_(mlx::core::metal::device(stream.device)),
      encoder_(mlx::core::metal::get_command_encoder(stream)) {}

void MetalEncoder::kernel(const Row& row) {
  auto* library = device_.get_library(row.library, [&row] { return row.source; });
  auto* pipeline = device_.get_kernel(row.kernel, library);
  const NS::UInteger threads = NS::UInteger(row.threads[0]) * row.threads[1] * row.threads[2];
  if (threads > pipeline->maxTotalThreadsPerThreadgroup() ||
      pipeline->threadExecutionWidth() != kSimdWidth) {
    throw std::runtime_error(
        "[" + variants_.op() + "] row '" + row.key + "' needs " + std::to_string(threads) +
        " threads in simdgroups of 32; this GPU's pipeline allows " +
        std::to_string(pipeline->maxTotalThreadsPerThreadgroup()) + " in simdgroups of " +
        std::to_string(pipeline->threadExecutionWidth()) + "; use engine=\"mlx\"");
  }
  encoder_.set_compute_pipeline_state(pipeline);
  for (std::size_t i = 0; i < row.threadgroup_args.size(); ++i) {
    encoder_.set_threadgroup_memory_length(row.threadgroup_args[i], static_cast<int>(i));
  }
  row_ = &row;
}

void MetalEncoder::input(int index, const mlx::core::array& array) {
  encoder_.set_input_array(array, index);  // adds the array's own offset
}

void MetalEncoder::output(int index, mlx::core::array& array) {
  encoder_.set_output_array(array, index);
}

void MetalEncoder::bytes(int index, std::vector<std::byte> data) {
  encoder_.set_bytes(data.data(), static_cast<int>(data.size()), index);
}

void MetalEncoder::dispatch(const Grid& grid) {
  encoder_.dispatch_threadgroups(size_of(grid), size_of(row_->threads));
  if (Trace::on()) {
    Trace::add({variants_.op(), row_->key, row_->kernel, "metal", grid, row_->threads, std::nullopt});
  }
}

void MetalEncoder::zero(mlx::core::array& output) {
  // Fresh shared memory that no command refers to yet, as when MLX fills an array from host values.
  std::memset(output.data<char>(), 0, output.nbytes());
}

}  // namespace mlx_tensorops

#endif  // _METAL_
