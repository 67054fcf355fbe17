#include "host_encoder.h"

#include <cstring>
#include <stdexcept>

#include "mlx/backend/cpu/encoder.h"
#include "span.h"
#include "trace.h"

namespace mlx_tensorops {

// Everything the task needs, owned by it: no Python object may be released on a stream's thread.
struct HostEncoder::Launch {
  std::string op;
  std::string row;
  std::string kernel;
  hm_dispatch_fn dispatch;
  hm_options options;
  hm_launch args{};
  std::vector<hm_buffer> buffers;
  std::vector<std::vector<std::byte>> constants;
  Arrays arrays;  // weak copies: the pointers in `buffers` are theirs

  void run();
};

void HostEncoder::Launch::run() {
  constexpr std::size_t kText = 1 << 16;
  const std::unique_ptr<char[]> text(new char[kText]);
  text[0] = 0;
  hm_result result{};
  result.text = text.get();
  result.text_capacity = kText;
  args.kernel = kernel.c_str();
  args.buffers = buffers.data();
  args.buffer_count = static_cast<std::uint32_t>(buffers.size());
  const int findings = dispatch(&args, &options, &result);
  if (Trace::on()) {
    Trace::add({op, row, kernel, "hostmetal", {args.grid[0], args.grid[1], args.grid[2]},
                {args.group[0], args.group[1], args.group[2]}, result.counters});
  }
  if (findings != 0) {
    throw std::runtime_error(
        "[" + op + "] row '" + row + "': " +
        (findings < 0 ? std::string("the emulator refused the launch: ")
                      : "the emulator found " + std::to_string(findings) + " faults:\n") +
        text.get() + (result.truncated ? "\n(truncated)" : ""));
  }
}

HostEncoder::HostEncoder(const VariantSet& variants, HostLauncher& launcher, mlx::core::Stream stream)
    : launcher_(launcher), stream_(stream), launch_(std::make_shared<Launch>()) {
  launch_->op = variants.op();
  launch_->dispatch = launcher.dispatch();
  launch_->options = launcher.options();
}

HostEncoder::~HostEncoder() = default;

void HostEncoder::kernel(const Row& row) {
  launch_->row = row.key;
  launch_->kernel = row.kernel;
  launch_->args.entry = launcher_.entry(row);
  std::copy(row.threads.begin(), row.threads.end(), launch_->args.group);
  std::copy(row.threadgroup_args.begin(), row.threadgroup_args.end(), launch_->args.threadgroup_args);
}

void HostEncoder::input(int index, const mlx::core::array& array) { buffer(index, array, false); }

void HostEncoder::output(int index, mlx::core::array& array) { buffer(index, array, true); }

void HostEncoder::buffer(int index, const mlx::core::array& array, bool writable) {
  const auto span = span_of(array);
  auto* first = const_cast<char*>(array.data<char>());
  launch_->buffers.push_back({first - span.offset, span.bytes, span.offset,
                              static_cast<std::uint32_t>(index), writable ? 1u : 0u});
  launch_->arrays.push_back(mlx::core::array::unsafe_weak_copy(array));
}

void HostEncoder::bytes(int index, std::vector<std::byte> data) {
  // A vector's elements stay where they are when the vector itself is moved.
  launch_->constants.push_back(std::move(data));
  auto& kept = launch_->constants.back();
  launch_->buffers.push_back({kept.data(), kept.size(), 0, static_cast<std::uint32_t>(index), 0});
}

void HostEncoder::dispatch(const Grid& grid) {
  std::copy(grid.begin(), grid.end(), launch_->args.grid);
  mlx::core::cpu::get_command_encoder(stream_).dispatch([launch = launch_] { launch->run(); });
}

void HostEncoder::zero(mlx::core::array& output) {
  mlx::core::cpu::get_command_encoder(stream_).dispatch(
      [data = output.data<char>(), bytes = output.nbytes()] { std::memset(data, 0, bytes); });
}

}  // namespace mlx_tensorops
